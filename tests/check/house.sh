#!/bin/sh
# scripts/rooms.py and scripts/house.py on a small tree made up here, whose figures are known, and on this one.
#
#     house.sh SOURCE BUILD
set -eu
. "${0%/*}/../support.sh"
source=$1 build=$2
work_folder
cd "$work"

mkdir -p docs/inside src/low src/high src/ddp tools include/lockstep tests/figures tests/mutants build
cat >docs/inside/architecture.md <<'X'
| folder | what | may use |
| `src/low` | | |
| `src/high` | | |
| `src/ddp` | | |
| `tools` | | |

| another table | its columns | no rooms |
| `abort_state` | | |
X
cat >src/low/low.h <<'X'
#pragma once
/* What a text says is no declaration: int lks_high(int x); */
int lks_low(int x);
int lks_high(int x);
static inline int lks_inside(int x)
{
    return lks_other(x);
}
X
cat >src/low/low.c <<'X'
#include "low/low.h"
#include "high/high.h"
int lks_low(int x)
{
    return lks_high(x);
}
X
cat >src/high/high.h <<'X'
#include "low/low.h"
int lks_other(int x);
X
cat >src/high/high.c <<'X'
#include "high/high.h"
int lks_high(int x)
{
    return x == 0 ? 0 : lks_low(x - 1);
}
X
cat >src/ddp/modes.c <<'X'
/* nobody asks joined */
struct lks__trainer {
    int host_memory, joined, V[3]; /* three fields */
    char *exchange;
};
static int f(const struct lks__trainer *t, int n)
{
    n = g(t->host_memory, n); /* handed on */
    if (t->exchange == NULL || n > 0 && t->host_memory)
        n++;
    if (t->joined && t->exchange != NULL)
        n++;
    return t->host_memory ? f(t, n) : n;
}
X
seq 1 51 | sed 's,.*,    x++; /* & */,' | { echo 'void lks_long(int x)'; echo '{'; cat; echo '}'; } >src/ddp/long.c
: >tools/main.c
: >include/lockstep/status.h

compile() {
    separator=
    printf '[' >build/compile_commands.json
    for one in src/low/low src/high/high; do
        mkdir -p "build/$one"
        cc -Isrc -w -Wno-error=implicit-function-declaration -c "$one.c" -o "build/$one/o.o"
        printf '%s{"directory": "%s/build", "command": "cc -o %s/o.o -c x", "file": "%s/%s.c"}' \
            "$separator" "$work" "$one" "$work" "$one" >>build/compile_commands.json
        separator=,
    done
    printf ']' >>build/compile_commands.json
}
# rooms CODE LINES [EXCEPTION...]: what rooms.py prints with these exceptions.
rooms() {
    want=$1 lines=$2 code=0
    shift 2
    python3 -B "$source/scripts/rooms.py" build "$work" "$@" >out 2>&1 || code=$?
    [ $code = "$want" ] && [ "$(wc -l <out)" -eq "$lines" ] || fail "rooms.py ends with $code: $(cat out)"
}
# shows LINE: house.py printed it.
shows() {
    grep -qxF -e "$1" out || fail "house.py doesn't print '$1': $(cat out)"
}

rooms 1 1
grep -q 'compile_commands' out || fail "rooms.py doesn't say what it lacks: $(cat out)"
compile
rooms 1 3
grep -qx 'src/low/low.c uses lks_high of high, a room below low in docs/inside/architecture.md' out || fail 'a use'
grep -qx 'src/low/low.h declares lks_high of high, a room below low in docs/inside/architecture.md' out || fail 'a declaration'
grep -qx "src/low/low.c includes high/high.h of high, which docs/inside/architecture.md doesn't allow low" out || fail 'an include'
include='src/low/low.c includes high/high.h'
rooms 1 1 "$include" 'low uses lks_high'
rooms 0 0 "$include" 'low uses lks_high' 'low declares lks_high'
rooms 1 1 "$include" 'low uses lks_high' 'low declares lks_high' 'high uses lks_low'
grep -q 'nothing needs it any more: high uses lks_low$' out || fail "an exception that isn't needed"

python3 -B "$source/scripts/house.py" --root="$work" build >out 2>&1 || fail "house.py: $(cat out)"
shows 'tests of the memory mode outside the files of modes and devices: 4 in 1 files'
shows 'lks__trainer (ddp/modes.c): 4 fields; 1 functions take it, 1 of them as const; 1 files'
shows '  low 2 14, high 2 7, ddp 2 68, tools 1 0'
shows 'circles of rooms, from includes: 1, 2 rooms in them'
shows 'circles of files, from symbols: 1, 2 files in them'
shows '    2  high/high low/low'
shows 'functions: 5, 12.0 lines on average; over 50 lines: 1'
shows '  lks_long (ddp/long.c:1) 51'
shows 'comments in src, tools and include: 4; begins with What 1, begins with Of 0, what-clause 1, question 0, behind 0, go on 0, nobody 1, beside 0, anew 0'
rm build/src/low/low/o.o
rooms 1 1
grep -q 'has 1 of 2 objects: build it first' out || fail "a build that isn't complete: $(cat out)"

python3 -B "$source/scripts/house.py" "$build" >out 2>&1 || fail "house.py here: $(cat out)"
[ "$(grep -c '^circles of' out)" = 4 ] && grep -q '^lks__[a-z]* (.* fields; ' out || fail "house.py lacks figures here: $(cat out)"
