#!/bin/sh
# The commands of README.md and of docs/*/*.md, block by block, in a copy of the repository as ./quickstart
# leaves it. README comes first, then the pages in the order of docs/README.md, because later commands
# use what earlier ones made. A line runs shortened if it takes long, and not at all if this test is
# part of it or if it needs other hosts: the table in run_line() names each with its reason. A line
# that isn't in the table is a failure: add it where it belongs.
#
#     readme.sh SOURCE BUILD     LKS_README_FULL=yes: nothing is shortened
set -eu
. "${0%/*}/../support.sh"
source=$1 build=$2
work_folder
plain_build "$build" 'what is installed would need the sanitizer everywhere'

# The copy; `build` is this build, so the cmake that ./quickstart calls for it has nothing to do. It lacks the sources,
# which ./quickstart would train on: 7 MB, of which `lockstep eval` reads a tenth.
copy=$work/lockstep
(cd "$source" && . scripts/common.sh && source_files | grep -Ev '^(src|tests|tools)/' >"$work/files" &&
    mkdir "$copy" && tar -cf - -T "$work/files" | tar -xf - -C "$copy")
ln -s "$build" "$copy/build"
mkdir "$work/bin"
cmake=$(command -v cmake)
cat >"$work/bin/cmake" <<END
#!/bin/sh
case "\$*" in
'-S . -B build '* | '--build build') exit 0 ;;
esac
exec '$cmake' "\$@"
END
chmod +x "$work/bin/cmake"
# No network: ./quickstart falls back to the repository's own text.
printf '#!/bin/sh\necho "there is no network in this test" >&2\nexit 100\n' >"$work/bin/apt-get"
chmod +x "$work/bin/apt-get"
cd "$copy"
# An evaluation of two batches has lines like those of twenty, and a model of one layer like those of four.
[ -n "${LKS_README_FULL-}" ] ||
    sed -i 's/^eval_iters = .*/eval_iters = 2/; s/^n_layer = .*/n_layer = 1/' config/quickstart.conf config/train_shakespeare_char_cpu.conf
export CI=true PATH="$work/bin:$PATH"
# Open MPI's mpirun, which `bench comm` calls, refuses root otherwise.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# The reader's own texts.
cat README.md docs/*/*.md | head -n 1600 >my.txt
cp my.txt input.txt
cp my.txt novels.txt

# set_option LINE NAME VALUE: with --NAME=VALUE, in place of its own or at the end.
set_option() {
    case $1 in
    *"--$2="*) printf '%s\n' "$1" | sed "s/--$2=[^ ]*/--$2=$3/" ;;
    *) printf '%s --%s=%s\n' "$1" "$2" "$3" ;;
    esac
}

# The line to run, or `-` to skip it; fails if the line is not in this table.
run_line() {
    case $1 in
    # --- not run ------------------------------------------------------------------------------
    ./check | './check '*) # this test is a part of it
        echo - ;;
    scripts/campaign.sh* | scripts/fuzz.sh*) # minutes; faults_campaign and fuzz_* are short ones
        echo - ;;
    'lockstep watch out/'* | 'lockstep watch --tty '*) # until they are stopped; watch_page, watch_browser, watch_terminal
        echo - ;;
    'tensorboard --logdir='*) # watch_tensorboard; it would wait for a browser
        echo - ;;
    scripts/package.sh*) # it builds twice; minutes
        echo - ;;
    scripts/prove.sh | ./scripts/prove.sh) # check_prove runs it
        echo - ;;
    'lockstep bench kernels') # test_tool runs it
        echo - ;;
    './quickstart --iters=1') # ./quickstart, shortened, is this
        echo - ;;
    'python3 bench/compare.py'* | 'python3 bench/launch.py'*) # half an hour, and they measure
        echo - ;;
    build-check/tests/*) # ./check makes that build, and runs these in a short form
        echo - ;;
    'lockstep run --hosts='*) # other hosts
        echo - ;;
    'lockstep fetch '* | 'scripts/novels.sh '*) # a download
        echo - ;;
    # Weights that aren't here; weights_use, weights_runs and weights_nanogpt do the same with small ones.
    'lockstep train '*--init_from=models/gpt2* | 'lockstep sample --init_from=gpt2 '* | \
        'lockstep eval --init_from=gpt2 '* | \
        'lockstep train '*' --out_dir=out-shakespeare-char --init_from=resume')
        echo - ;;
    # --- shortened ----------------------------------------------------------------------------
    ./quickstart | './quickstart '*) # a minute; it evaluates at each of these steps
        set_option "$1" iters 1 ;;
    'lockstep train '*init_from=resume* | 'lockstep resume '*) # minutes; after the 2 of the next line
        set_option "$1" max_iters 3 ;;
    'lockstep train '*) # minutes
        set_option "$(set_option "$1" max_iters 2)" eval_iters 1 ;;
    '(mkdir -p out/anywhere '*--max_iters=20')') # the same
        printf '%s\n' "$1" | sed 's/--max_iters=20/--max_iters=2 --eval_iters=2/' ;;
    *' ITERATIONS='*' lockstep train '*) # a minute
        printf '%s\n' "$1" | sed 's/ ITERATIONS=[0-9]*/ ITERATIONS=2/' ;;
    'lockstep plan '* | 'lockstep bench machine '* | 'sed -i '*machine.json)
        printf '%s\n' "$1" ;;
    'lockstep bench comm'*) # each size many times, by each backend; test_tool has the others
        set_option "$(set_option "$1" iters 1)" backend mpi ;;
    'lockstep bench step'*) # many times
        set_option "$1" iters 1 ;;
    'lockstep sample '*) # each token after a full context takes a whole pass
        set_option "$1" max_new_tokens 50 ;;
    # --- as written ---------------------------------------------------------------------------
    'export PATH='* | 'lockstep prep '* | 'lockstep eval '* | \
        'lockstep export '* | 'lockstep run '* | 'out/prefix/bin/lockstep run '* | 'lockstep report '* | 'lockstep plot '* | 'lockstep watch --html='* | 'lockstep info'* | 'lockstep doctor'* | \
        'lockstep bench peak'* | 'cmp out/'* | 'cmake --install build '* | \
        'cmake -S examples '* | 'lockstep diff '* | 'lockstep help '*)
        printf '%s\n' "$1" ;;
    *) return 1 ;;
    esac
}

# The pages: README, the index's order, then any page that the index lacks.
{
    echo README.md
    grep -oE '\]\([a-z]+/[a-z_]+\.md\)' docs/README.md | sed 's,.*(,docs/,; s,)$,,'
    ls docs/*/*.md
} | awk '!seen[$0]++' >"$work/pages"

# Page, number of its block, and the line; continued lines are joined.
while read -r page <&3; do
    [ -f "$page" ] || fail "docs/README.md names $page, which isn't there"
    awk -v page="$page" '/^## / { other = $0 == "## Its README, command by command" } # nanogpt.sh runs it
        other { next } /^```sh$/ { on = 1; n++; next } /^```/ { on = 0 }
        on && sub(/\\$/, "") { sub(/^ +/, ""); line = line $0; next }
        on { sub(/  +# .*/, "") } # a remark
        on && !/^ *(#|$)/ { if (line != "") sub(/^ +/, ""); print page, n, line $0; line = "" }' "$page" >>"$work/lines"
    # shellcheck disable=SC2016 # no command within
    other=$(grep -E '^ *(```|~~~)(bash|shell|console|text)|^ +```sh' "$page" || true)
    [ -z "$other" ] || fail "commands stand in blocks that begin with \`\`\`sh, not $other ($page)"
done 3<"$work/pages"
for page in README.md docs/start/tutorial.md docs/start/nanogpt.md docs/guides/golf.md docs/guides/library.md docs/guides/runs.md docs/guides/speed.md; do
    grep -q "^$page " "$work/lines" || fail "$page has no commands"
done

# The commands that ./quickstart prints under "What to try next" work as pasted, and fit in 96 columns.
run_printed() {
    awk 'next_ones && sub(/^    /, "") { print } /^What to try next:$/ { next_ones = 1 }' "$work/log" >"$work/printed"
    [ "$(wc -l <"$work/printed")" -ge 5 ] || fail "./quickstart prints these commands only: $(cat "$work/printed")"
    grep -q '^done: 1 step in ' "$work/log" || fail "--iters=1 trains another number of steps: $(grep '^done' "$work/log")"
    grep -A 1 '^For clearer text, train longer:$' "$work/log" | grep -q -- '--seconds=[0-9]*$' || fail './quickstart suggests no longer run'
    awk '/^== done/ { on = 1 } on && length > 96 { exit 1 }' "$work/log" || fail 'the end of ./quickstart has a line of over 96 columns'
    while read -r printed <&4; do
        now=$(run_line "$(printf '%s\n' "$printed" | sed 's,^\./build/tools/lockstep ,lockstep ,')") ||
            fail "./quickstart prints a command that tests/check/readme.sh doesn't know: $printed"
        [ "$now" != - ] || continue
        # As printed, up to the options that shorten it.
        now=$(printf '%s\n' "$now" | sed 's,^lockstep ,./build/tools/lockstep ,')
        timeout "$(patient 120)" sh -c "$now" >"$work/log2" 2>&1 </dev/null || {
            code=$?
            cat "$work/log2" >&2
            fail "a command that ./quickstart prints: exit code $code: $now"
        }
        echo "printed by ./quickstart: $now"
        ran=$((ran + 1))
    done 4<"$work/printed"
}

# A second ./quickstart moves the run aside, which keeps its data. The command that it suggests has its options.
run_again() {
    timeout "$(patient 120)" ./quickstart my.txt --iters=1 --ranks=1 --out=out/quickstart >"$work/log" 2>&1 </dev/null || fail './quickstart my.txt'
    grep -q -- ' --input=my.txt --ranks=1 --out=out/quickstart --seconds=' "$work/log" || fail './quickstart suggests other options'
    ./build/tools/lockstep eval out/quickstart/run/earlier-1 >"$work/log" 2>&1 || fail "eval of ./quickstart's earlier run"
    # Ctrl-C in the training: the terminal sends SIGINT to the shell and to lockstep.
    setsid env --default-signal=INT ./quickstart my.txt --iters=100000 --out=out/stopped >"$work/log" 2>&1 </dev/null &
    await './quickstart trains nothing' grep -q '"kind":"train"' out/stopped/run/metrics.jsonl
    kill -INT -$!
    code=0
    wait $! || code=$?
    [ $code -eq 130 ] && grep -q '^quickstart: stopped; to continue: ' "$work/log" || fail "Ctrl-C in ./quickstart: exit code $code"
}

ran=0
while read -r page block line <&3; do
    now=$(run_line "$line") ||
        fail "block $block of $page has a line that tests/check/readme.sh doesn't know: $line"
    if [ "$now" = - ]; then
        echo "$page, block $block: not run: $line"
        continue
    fi
    [ -z "${LKS_README_FULL-}" ] || now=$line
    case $now in
    export*) eval "$now" ;;
    *) timeout "$(patient 120)" sh -c "$now" >"$work/log" 2>&1 </dev/null ||
        fail "block $block of $page: exit code $?: $now" ;;
    esac
    echo "$page, block $block: $now"
    ran=$((ran + 1))
    case $line in
    ./quickstart)
        run_printed
        run_again
        ;;
    esac
done 3<"$work/lines"
[ $ran -gt 0 ] || fail 'none of the commands ran'
