#!/bin/sh
# scripts/words.py on bad and good text made up here, and on the help of all commands.
#
#     words.sh SOURCE LOCKSTEP
set -eu
. "${0%/*}/../support.sh"
source=$1 lockstep=$2
work_folder
cd "$work"

# expect PATTERN FILE: words.py finds the phrase in FILE, whose text is on stdin; '': it finds none.
expect() {
    cat >"$2"
    code=0
    python3 -B "$source/scripts/words.py" "$2" >out 2>&1 || code=$?
    if [ -z "$1" ]; then
        [ $code -eq 0 ] && [ ! -s out ] || fail "words.py finds a phrase that it shouldn't: $(cat out)"
    else
        [ $code -eq 1 ] && grep -q "^$2:$1" out || fail "words.py doesn't find $1 in: $(cat "$2")"
    fi
}

# A page: a phrase may be broken over two lines; code and links aren't read.
expect '1: what-clause: ' a.md <<'X'
This is what
the run needs.
X
expect '3: heading: ' a.md <<'X'
# Title

## There
X
expect '' a.md <<'X'
# What can a run do?

See [memory](memory.md#what-a-run-needs). `what it is` is code. The message says what to do.

```
lockstep goes on beside what it is
```
X
# C: string literals, joined over lines and format macros, and no comments.
expect '2: go on: ' a.c <<'X'
/* What it is: goes on. */
lks__fail(LKS_ERR_IO, "%s: the run goes "
                      "on with %" PRId64 " steps", path, steps);
X
expect '1: a, not per: ' a.c <<'X'
lks__log_line(log, "%" PRId64 " bytes "
              "a parameter", bytes);
X
expect '' a.c <<'X'
int beside = 'a'; // what it was
lks__log_line(log, "%.1f tokens per second, several times a second", rate);
X
# Shell: text that is printed.
expect '2: is there: ' a.sh <<'X'
#!/bin/sh
[ -f "$what" ] || die "the file isn't there"
X
expect '4: behind: ' a.sh <<'X'
#!/bin/sh
# What it is.
cat <<'END'
the numbers behind the name
END
X
expect '' a.sh <<'X'
#!/bin/sh
# What is beside it.
what=alone
X
# Each rule, in plain text: a line each, found by its own rule only.
cat >rules <<'X'
what-clause it prints what is left
beside the figures beside nanoGPT's
go_on to go on, resume it
is_there if the file isn't there
as_it_is it leaves the file as it is
alone the parameters alone
at_hand the packages at hand
anew it starts anew
in_its_place a file in its place
where in a run where it is off
by_its_name the file by its name
of_its_own a file of its own
nobody nobody reads it
X
cut -d ' ' -f 2- rules | expect '1: what-clause: ' lines.txt
grep '^lines' out | cut -d : -f 3 | cut -c 2- | tr ' ' _ >found
cut -d ' ' -f 1 rules | diff - found || fail 'words.py finds other rules than these'
grep -qF 'plainer: the text that, each, how (what-clause); next to, in addition to (beside); continue (go on); ' out || fail 'plainer words'

"$lockstep" help --table | sed -n 's/^command\t\([a-z]*\)\t.*/\1/p' >commands
[ "$(wc -l <commands)" -ge 10 ] || fail "few commands: $(cat commands)"
failed=
for command in '' $(cat commands); do
    # shellcheck disable=SC2086 # none or one word
    "$lockstep" $command --help || failed="lockstep $command --help"
    case $command in '' | run) ;; *) "$lockstep" $command --help=all || failed="lockstep $command --help=all" ;; esac
done >help
[ -z "$failed" ] || fail "$failed"
expect '' help.txt <help
awk 'length > 100 { print; wide = 1 } END { exit wide }' help.txt >wide || fail "lines of help over 100 columns: $(cat wide)"
