#!/bin/sh
# The library as another project meets it: installed, found by CMake and by pkg-config, used from C
# and C++, with nothing visible but lks_ names; and every example, on several ranks.
set -eu
. "${0%/*}/../support.sh"
build=$1 source=$2 cc=$3 cxx=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
if grep -Eq '^LKS_(SANITIZE:STRING=.|COVERAGE:BOOL=ON)' "$build/CMakeCache.txt"; then
    lacks plain-build "the runtime of a sanitizer or of gcov would have to come with other projects"
fi

cmake --install "$build" --prefix "$work/prefix" >"$work/log" 2>&1 || fail "$(cat "$work/log")"
prefix=$work/moved
mv "$work/prefix" "$prefix" # what is installed can be moved

# The functions of the headers are visible, each with the library's version, and nothing else.
grep -ohE 'lks_[a-z][a-z0-9_]*\(' "$source"/include/lockstep/*.h | tr -d '(' | sed 's/$/@@LOCKSTEP_0/' |
    LC_ALL=C sort -u >"$work/declared"
nm -D --defined-only "$prefix"/lib*/liblockstep.so | awk '$2 != "A" { print $3 }' | LC_ALL=C sort >"$work/visible"
diff "$work/declared" "$work/visible" || fail 'what the headers declare isn'"'"'t what the library exports'

{
    cmake -S "$source/examples" -B "$work/examples" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" \
        -DCMAKE_C_COMPILER="$cc" -DCMAKE_C_FLAGS="-Wall -Wextra -Werror -O2" \
        -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_CXX_FLAGS="-Wall -Wextra -Werror -O2" &&
        cmake --build "$work/examples"
} >"$work/log" 2>&1 || fail "$(cat "$work/log")"

# The page's own project.
mkdir "$work/net"
awk '/^```cmake$/ { on = 1; next } /^```/ { on = 0 } on' "$source/docs/guides/library.md" >"$work/net/CMakeLists.txt"
cp "$source/examples/mlp.c" "$work/net/net.c"
{
    cmake -S "$work/net" -B "$work/net/build" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" &&
        cmake --build "$work/net/build" && "$work/net/build/net"
} >"$work/log" 2>&1 || fail "the project in docs/guides/library.md: $(cat "$work/log")"

run() { # RANKS PROGRAM [ARGS]; the launcher's [host:rank] before each line is taken off
    ranks=$1
    shift
    timeout "$(patient 60)" "$prefix/bin/lockstep" run --standalone --nproc-per-node="$ranks" "$@" >"$work/out" ||
        return $?
    sed 's/^\[[^]]*\] //' "$work/out"
}

# Any number of ranks prints the same.
"$work/examples/mlp" >"$work/1" || fail "mlp alone: exit code $?"
grep -q '^epoch 4: loss 0\.002' "$work/1" || fail "mlp hasn't learned: $(cat "$work/1")"
for ranks in 2 3 8; do
    run $ranks "$work/examples/mlp" >"$work/n" || fail "mlp on $ranks ranks: exit code $?"
    cmp "$work/1" "$work/n" || fail "mlp on $ranks ranks prints something else"
done

# Two hosts, played by one: an engine is found beside the library, since the program lies elsewhere. The second
# host's library lies one folder deeper, as Debian's do.
LOCKSTEP_TOKEN=
if ls "$prefix"/lib/lockstep/lockstep_[gm]*.so >/dev/null 2>&1; then
    LOCKSTEP_TOKEN=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n') port=$("$build/tests/free_port")
    export LOCKSTEP_TOKEN
    node() { # NUMBER [RANKS PROGRAM]
        timeout "$(patient 60)" "$prefix/bin/lockstep" run --nnodes=2 --node-rank="$1" --master-addr=127.0.0.1 \
            --master-port="$port" --nproc-per-node="${2:-1}" "${3:-$work/examples/mlp}"
    }
    mkdir "$prefix/lib/x86_64-linux-gnu"
    cp -a "$prefix"/lib/liblockstep.so* "$prefix/lib/x86_64-linux-gnu"
    LD_LIBRARY_PATH=$prefix/lib/x86_64-linux-gnu node 1 >"$work/log" 2>&1 &
    node 0 >"$work/n" 2>&1 || fail "mlp on two hosts: $(cat "$work/n")"
    wait $! || fail "mlp on the second host: $(cat "$work/log")"
    sed 's/^\[[^]]*\] //' "$work/n" | cmp "$work/1" - || fail 'mlp on two hosts prints something else'

    # A rank is killed: the other host's ranks are told which one.
    cat >"$work/told.c" <<'END'
#include <lockstep/lockstep.h>
#include <signal.h>
#include <stdio.h>
int main(void)
{
    lks_comm *comm;
    int calls = 0;
    signal(SIGTERM, SIG_IGN);
    for (lks_status st = lks_comm_init(&comm); st == LKS_OK; st = lks_comm_barrier(comm))
        if (++calls > 9 && lks_comm_rank(comm) == 3)
            raise(SIGKILL);
    fprintf(stderr, "told: %s\n", lks_last_error());
    lks_comm_abort(comm, lks_last_error());
    return 1;
}
END
    "$cc" -o "$work/told" "$work/told.c" -I"$prefix/include" -L"$prefix/lib" -llockstep -Wl,-rpath,"$prefix/lib"
    port=$("$build/tests/free_port")
    node 1 2 "$work/told" >"$work/log" 2>&1 &
    node 0 2 "$work/told" >"$work/n" 2>&1 && fail 'a rank is killed on another host: exit code 0'
    wait $! && fail 'a rank is killed: exit code 0'
    grep -q '] told: rank 3 (pid ' "$work/n" || fail "a rank is killed on another host: $(cat "$work/n")"
fi

run 2 "$work/examples/from_scratch" >"$work/n" || fail "from_scratch: exit code $?"
grep -q '^step 100: loss 0\.0001' "$work/n" || fail "from_scratch hasn't learned: $(cat "$work/n")"

# ZeRO-1 by hand prints the same, too.
"$work/examples/zero1" >"$work/1" || fail "zero1 alone: exit code $?"
[ "$(wc -l <"$work/1")" = 5 ] || fail "zero1: $(cat "$work/1")"
for ranks in 2 4 8; do
    run $ranks "$work/examples/zero1" >"$work/n" || fail "zero1 on $ranks ranks: exit code $?"
    cmp "$work/1" "$work/n" || fail "zero1 on $ranks ranks prints something else"
done

# Two groups by split, overlap by mark_ready, and C++: the same on any number of ranks, and in library.md,
# there to five digits: the C library's functions differ in the last ones.
same_on_all() { # EXAMPLE
    "$work/examples/$1" >"$work/1" || fail "$1 alone: exit code $?"
    python3 - "$source/docs/guides/library.md" "$work/1" <<'END' || fail "library.md doesn't have what $1 prints: $(cat "$work/1")"
import re, sys
page, printed = (re.sub(r"\d+\.\d+", lambda m: f"{float(m[0]):.5g}", open(path).read()) for path in sys.argv[1:])
sys.exit(printed not in page)
END
    for ranks in 2 3 4 8; do
        LOCKSTEP_CHECK=1 run $ranks "$work/examples/$1" >"$work/n" || fail "$1 on $ranks ranks: exit code $?"
        cmp "$work/1" "$work/n" || fail "$1 on $ranks ranks prints something else"
    done
}
same_on_all two_groups
same_on_all overlap
[ -z "$cxx" ] || same_on_all regression

# On one rank; and stopped on two ranks, resumed on four, resumed on one: the same lines and bytes.
"$work/examples/multinode" "$work/a" >"$work/1" 2>"$work/log" || fail "$(cat "$work/log")"
[ "$(wc -l <"$work/1")" = 10 ] || fail "multinode: $(cat "$work/1")"
run 2 "$work/examples/multinode" "$work/b" 4 >"$work/n" 2>"$work/log" || fail "$(cat "$work/log")"
run 4 "$work/examples/multinode" "$work/b" 7 >>"$work/n" 2>"$work/log" || fail "$(cat "$work/log")"
grep -q 'continues from epoch 4' "$work/log" || fail "multinode doesn't resume: $(cat "$work/log")"
"$work/examples/multinode" "$work/b" >>"$work/n" 2>"$work/log" || fail "$(cat "$work/log")"
cmp "$work/1" "$work/n" || fail "multinode's losses depend on ranks or on resuming"
for file in model.safetensors state.json; do
    cmp "$work/a/ckpt-00000010/$file" "$work/b/ckpt-00000010/$file" ||
        fail "multinode's checkpoint depends on ranks or on resuming"
done
LOCKSTEP_FAULT=fsync:1:ENOSPC LOCKSTEP_FAULT_RANK=0 run 2 --max-restarts=1 "$work/examples/multinode" "$work/c" \
    2>"$work/log" && fail 'multinode, full disk: exit code 0'
grep -q 'not restarted, as it would fail again' "$work/log" || fail "multinode, full disk: $(cat "$work/log")"

# pkg-config, and C++.
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name lockstep.pc)")
export PKG_CONFIG_PATH
eval "set -- $(pkg-config --variable=libdir lockstep)" # blanks are escaped
libdir=$*
[ "$(pkg-config --define-variable=prefix=/else --variable=includedir lockstep)" = /else/include ] ||
    fail 'paths of lockstep.pc do not follow prefix'
eval "set -- $(pkg-config --cflags --libs lockstep)"
"$cc" -o "$work/by_pkg" "$source/examples/from_scratch.c" "$@"
LD_LIBRARY_PATH=$libdir "$work/by_pkg" >/dev/null ||
    fail "from_scratch, built by pkg-config's flags: exit code $?"

# A plug-in uses the library, and is unloaded. Its program uses Jansson, too.
cat >"$work/plugin.c" <<'END'
#include <lockstep/lockstep.h>
int plugin(const char *dir)
{
    lks_comm *comm = NULL;
    float x = 0;
    const lks_tensor tensor = {"x", LKS_FLOAT32, 0, {0}, &x};
    const lks_checkpoint_more more = {.json = "{}"};
    lks_status st = lks_comm_init(&comm);
    if (st == LKS_OK)
        st = lks_checkpoint_save_more(comm, dir, 1, &tensor, 1, &more, 1);
    lks_comm_close(comm);
    return st;
}
END
cat >"$work/host.c" <<'END'
#include <dlfcn.h>
#include <jansson.h>
int main(int argc, char **argv)
{
    json_t *before = json_array();
    void *module = argc == 3 ? dlopen(argv[1], RTLD_NOW) : NULL;
    int (*plugin)(const char *) = NULL;
    if (module != NULL)
        *(void **)&plugin = dlsym(module, "plugin");
    if (before == NULL || plugin == NULL || plugin(argv[2]) != 0 || dlclose(module) != 0)
        return 1;
    json_decref(before);
    json_decref(json_array());
    return 0;
}
END
"$cc" -shared -fPIC -o "$work/plugin.so" "$work/plugin.c" "$@"
"$cc" -o "$work/host" "$work/host.c" -ljansson -ldl
LD_LIBRARY_PATH=$libdir "$work/host" "$work/plugin.so" "$work/d" || fail "a plug-in with the library: exit code $?"

# The static library: no other names are visible, and the program needs no liblockstep.so.
nm -g --defined-only "$libdir/liblockstep.a" | awk 'NF == 3 { print $3 "@@LOCKSTEP_0" }' | LC_ALL=C sort >"$work/visible"
diff "$work/declared" "$work/visible" || fail 'the static library has other names than the headers declare'
eval "static=\$(pkg-config --cflags --static --libs lockstep | sed 's/-llockstep/-l:liblockstep.a/')"
eval "\"\$cc\" -o \"\$work/by_static\" \"\$source/examples/two_groups.c\" $static"
! readelf -d "$work/by_static" | grep -q 'liblockstep' || fail 'a program with the static library needs the other one'
run 3 "$work/by_static" >"$work/n" || fail "two_groups, linked statically: exit code $?"
"$work/examples/two_groups" | cmp - "$work/n" || fail 'two_groups, linked statically, prints something else'
if [ -n "$LOCKSTEP_TOKEN" ]; then # there is an engine, which such a program doesn't find by itself
    env -u LOCKSTEP_MODULES RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 MASTER_PORT=1 "$work/by_static" 2>"$work/log" &&
        fail 'two hosts, one rank: exit code 0'
    grep -q 'LOCKSTEP_MODULES names: set that if it is elsewhere' "$work/log" || fail 'linked statically, no engine'
    LOCKSTEP_MODULES=$prefix/lib/lockstep
    export LOCKSTEP_MODULES
    port=$("$build/tests/free_port")
    node 1 1 "$work/by_static" >"$work/log" 2>&1 &
    node 0 1 "$work/by_static" >"$work/n" 2>&1 || fail "two_groups, linked statically, on two hosts: $(cat "$work/n")"
    wait $! || fail 'two_groups, linked statically, on the second host'
fi
[ -n "$cxx" ] || lacks g++ 'no C++ compiler was found when this was built'
cat >"$work/user.cc" <<'END'
#include <lockstep/lockstep.h>
static_assert(LKS_VERSION >= 200 && LKS_VERSION < 1000000, "a number");
int main()
{
    lks_comm *comm = nullptr;
    if (lks_version() != LKS_VERSION)
        return 2;
    if (lks_comm_init(&comm) != LKS_OK)
        return 1;
    lks_comm_close(comm);
    return lks_comm_open(nullptr, nullptr, &comm) == LKS_ERR_ARG ? 0 : 1;
}
END
"$cxx" -Wall -Wextra -Werror -o "$work/user" "$work/user.cc" "$@"
LD_LIBRARY_PATH=$libdir "$work/user" || fail "C++: exit code $?"
