#!/bin/sh
# bench/compare.py leaves out what can't run, and names it; parts can be chosen; it notices other programs.
# compare.sh SOURCE_DIR
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "compare.sh: $1" >&2; cat "$work/out" >&2; exit 1; }

# A program in the place of lockstep, which can't train.
cat >"$work/lockstep" <<'END'
#!/bin/sh
case "$*" in
info) echo 'kernels      plain (x)' ;;
'bench peak'*) echo 'peak of one thread, 10.0 on two' ;;
*) echo "lockstep: what is $*" >&2; exit 2 ;;
esac
END
chmod +x "$work/lockstep"
run() { python3 -B "$1/bench/compare.py" --lockstep="$work/lockstep" --threads=2 "$2" "$3" >"$work/out" 2>&1; }

run "$1" --quick --only='TWO RANKS' || fail 'it ended at a part that failed'
grep -q '^Left out: lockstep train failed; its message is above\.$' "$work/out" || fail 'the part that failed is not named'
! grep -q 'nanoGPT' "$work/out" || fail 'parts that were not chosen ran'
run "$1" --quick --list || fail '--list failed'
grep -q '^Two ranks' "$work/out" && grep -q '^shakespeare_char' "$work/out" || fail '--list lacks parts'
! run "$1" --quick --only=startup && grep -q "no part's name contains the words of --only" "$work/out" || fail 'no part is chosen'

# README's rows come before the other part, and the end lists the parts that were left out.
run "$1" --quick --minutes=0.00001 || fail 'it failed as the time was over'
grep -q "^nanoGPT's CPU recipe" "$work/out" || fail 'a row of README is missing'
[ "$(grep -n "^parameter-golf's default in bfloat16" "$work/out" | cut -d: -f1)" -lt "$(grep -n '^Two ranks' "$work/out" | cut -d: -f1)" ] ||
    fail 'the other part comes before the rows of README'
grep -q '^Not measured, because --minutes=1e-05 were over: .*Two ranks' "$work/out" || fail 'the end does not name what is missing'
grep -q "python3 bench/compare.py --quick --only='nanoGPT's CPU" "$work/out" && fail 'a quote ends the word of a shell'
grep -q '^To measure one of them: python3 bench/compare.py --quick --only=' "$work/out" || fail 'the end does not say what to do'

python3 -B - "$1/bench" <<'END'
import sys
sys.path.insert(0, sys.argv[1])
import compare
before = "cpu  100 0 100 1000 0 0 0 0 0 0"
assert compare.busy_share(before, "cpu  100 0 100 1200 0 0 0 0 0 0") == 0
assert compare.busy_share(before, "cpu  150 0 150 1100 0 0 0 0 0 0") == 0.5
assert compare.busy_share(before, "cpu  100 0 100 1050 50 0 0 0 0 0") == 0
compare.time.sleep = lambda seconds: None
times = iter([before, "cpu  150 0 150 1100 0 0 0 0 0 0", before, "cpu  104 0 104 1100 0 0 0 0 0 0"])
compare.cpu_times = lambda: next(times)
assert "use 50% of the cores" in compare.others()
assert compare.others() is None
# --write keeps the page's last part.
assert compare.kept_part().startswith(compare.KEPT) and len(compare.kept_part().splitlines()) > 10
END
