#!/bin/sh
# `cmake --install` into a DESTDIR, the folder moved, recipes by name from a folder that has none, and
# `uninstall`. moved.sh SOURCE BUILD.
set -eu
. "${0%/*}/../support.sh"
source=$1 build=$2
work_folder
plain_build "$build" 'what is installed would need the sanitizer everywhere'

: >"$work/install_manifest.txt" # another program's

install_with() { # UMASK [PREFIX]
    (cd "$work" && umask "$1" && DESTDIR=$work/dest cmake --install "$build" --prefix "${2-/opt/some/where}") >"$work/log" 2>&1 || fail 'cmake --install'
    wrong=$(find "$work/dest" ! -type l \( -perm /022 -o ! -perm -444 -o -type d ! -perm -555 \))
    [ -z "$wrong" ] || fail "umask $1: others can't read, or can change $wrong"
}

echo '== all files lie below DESTDIR and the prefix'
install_with 000
[ -f "$work/install_manifest.txt" ] || fail "install removed another program's list"
[ "$(cd "$work/dest" && find . -path ./opt/some/where -prune -o -type f -print)" = '' ] ||
    fail "files beside the prefix: $(find "$work/dest")"
there=$work/dest/opt/some/where
for file in bin/lockstep share/lockstep/config/quickstart.conf share/doc/lockstep/README.md \
    share/doc/lockstep/docs/guides/library.md share/doc/lockstep/examples/mlp.c share/doc/lockstep/scripts/to_wandb.py include/lockstep/ddp.h; do
    [ -f "$there/$file" ] || fail "there is no $file"
done
code=0
sh "$there/share/doc/lockstep/examples/cluster/hosts.sh" 2>"$work/log" || code=$?
[ $code = 2 ] && grep -q '^Usage: hosts.sh' "$work/log" || fail "hosts.sh without arguments: $code"
! grep -q '/bin/lockstep' "$there/share/doc/lockstep/examples/cluster/lockstep@.service" || fail 'the unit knows one prefix only'
cp -a "$work/dest" "$work/copy"

echo '== uninstall leaves nothing, and a second one says so'
uninstall() {
    DESTDIR=$work/dest cmake -P "$build/uninstall.cmake" >"$work/log" 2>&1 || fail "uninstall: $(cat "$work/log")"
}
uninstall
[ ! -e "$work/dest" ] || fail "uninstall left $(find "$work/dest")"
uninstall
grep -q 'no list of files to uninstall' "$work/log" || fail "a second uninstall says: $(cat "$work/log")"

echo '== folders that the install found are left, even empty ones, and others go, also after installs elsewhere'
umask 022 # Debian 13 gives users 002
mkdir -p "$there/bin" "$there/share/man"
touch "$there/bin/other"
install_with 077
install_with 077 /opt/else
uninstall
install_with 077
uninstall
left=$(cd "$there" && find . | sort | tr '\n' ' ')
[ "$left" = '. ./bin ./bin/other ./share ./share/man ' ] || fail "uninstall left $left"
rm -r "$work/dest"

echo '== moved, it trains in any folder; a recipe has several names'
moved="$work/a folder"
mv "$work/copy/opt/some/where" "$moved"
! grep -rqF "$build" "$moved/share/lockstep" "$moved/lib/cmake" || fail 'a path of the build is in what was installed'
mkdir "$work/empty"
cd "$work/empty"
train() { # OUT WORDS...
    out=$1
    shift
    timeout "$(patient 60)" "$moved/bin/lockstep" train "$@" --dataset="$work/data" --out_dir="$work/$out" \
        --max_iters=2 --eval_iters=1 --n_layer=1 --threads=1 >"$work/log" 2>&1 || fail "train $*: exit code $?"
}
"$moved/bin/lockstep" prep char --input="$source/README.md" --out="$work/data" >"$work/log" 2>&1 || fail prep
train path "$source/config/quickstart.conf"
grep -q 'the recipe is' "$work/log" && fail 'a file that was given is named as found'
grep -v '"kind":"host"' "$work/path/metrics.jsonl" | sed 's/"ms":.*//' >"$work/expected"
n=0
for name in quickstart quickstart.conf config/quickstart.conf config/quickstart.py; do
    n=$((n + 1))
    train "run$n" "$name" --nproc_per_node=$((n / 4 + 1))
    [ "$(grep -c 'the recipe is' "$work/log")" = 1 ] || fail "$name: every rank names its recipe"
    grep -qF "the recipe is $moved/share/lockstep/config/quickstart.conf" "$work/log" || fail "$name: which recipe?"
    grep -v '"kind":"host"' "$work/run$n/metrics.jsonl" | sed 's/"ms":.*//' | cmp - "$work/expected" || fail "$name trains another run"
done

echo '== a recipe of this folder is read before the installed one; a file without .conf or .py is none'
mkdir config
echo 'no recipe' >quickstart
small='n_head = 2\nn_embd = 16\nblock_size = 8\ngradient_accumulation_steps = 2\n'
# shellcheck disable=SC2059 # a format on purpose
printf "batch_size = 3\n$small" >config/quickstart.conf
train own quickstart
grep -q '"batch_size":3' "$work/own/metrics.jsonl" || fail 'config/quickstart.conf of the folder was not read'
# shellcheck disable=SC2059
printf "batch_size = 5\n$small" >config/mine.py
train python mine
grep -q '"batch_size":5' "$work/python/metrics.jsonl" || fail 'config/mine.py of the folder was not read'
for name in nothing config/nothing.conf ../config/quickstart 'quickstart.conf/' ''; do
    code=0
    "$moved/bin/lockstep" train "$name" --dry_run --dataset="$work/data" >"$work/log" 2>&1 || code=$?
    [ $code -ne 0 ] || fail "the recipe '$name' was found"
done

echo '== modules are found beside the program, which has moved'
"$moved/bin/lockstep" info >"$work/log" 2>&1 || fail info
"$build/tools/lockstep" info >"$work/expected" 2>&1 || fail info
diff "$work/expected" "$work/log" || fail 'what is installed has other modules'
echo 'all as it should be'
