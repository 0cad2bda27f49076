#!/bin/sh
# bench/results.py: a part is stopped, continues, and is found complete; the page is written from what it kept.
# results.sh SOURCE_DIR LOCKSTEP
set -eu
. "${0%/*}/../support.sh"
source=$1 tool=$2
work_folder
plain_build "${tool%/tools/lockstep}" 'the runs would take long with a sanitizer'
seq 1 20000 >"$work/text"
# The recipe that the runs have, made smaller.
cp -r "$source/bench" "$source/config" "$work"
sed -i 's/^eval_iters = .*/eval_iters = 1/; s/^n_layer = .*/n_layer = 1/' "$work/config/quickstart.conf"
results() {
    python3 -B "$work/bench/results.py" "$@" --lockstep="$tool" --text="$work/text" --out="$work/out" --kept="$work/kept" --docs="$work/docs" \
        >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
}

results ranks --steps=3 --minutes=0.00001
grep -q '^stopped: before `lockstep prep char.*; the same command continues$' "$work/log" || fail "--minutes: $(cat "$work/log")"
results ranks --steps=3
[ "$(grep -c '^\$ lockstep train' "$work/log")" = 4 ] || fail "not one run for each number of ranks: $(cat "$work/log")"
results ranks --steps=3
! grep -q '^\$ lockstep train' "$work/log" || fail 'a complete run was made again'
results ranks --steps=5
grep -q -- '--init_from=resume' "$work/log" || fail 'a run that is to be longer began again'
results page
page=$work/docs/reference/results.md
grep -q '^5 steps of .* All losses and weights are equal' "$page" || fail "the page: $(cat "$page")"
[ "$(grep -c '^| [1248] | .* s | .* ms | ' "$page")" = 4 ] || fail "the table: $(cat "$page")"
[ -s "$work/docs/pictures/results-ranks.svg" ] || fail 'no picture'
grep -q '^shakespeare-cpu: not measured yet$' "$work/log" || fail 'what is missing is not named'

# A part whose last run is stopped keeps the summary that it had.
cp "$work/kept/ranks.json" "$work/before"
rm -r "$work/out/ranks/8"
mkdir "$work/tools"
printf '#!/bin/sh\n[ "$1" != train ] || exec sleep 1000\nexec "%s" "$@"\n' "$tool" >"$work/tools/lockstep"
tool=$work/tools/lockstep
chmod +x "$tool"
results ranks --steps=5 --minutes=0.1
grep -q '^stopped: in `lockstep train .*--nproc_per_node=8' "$work/log" || fail "a last run that is stopped: $(cat "$work/log")"
cmp "$work/before" "$work/kept/ranks.json" || fail 'a stopped part has another summary'
