#!/bin/sh
# --bind of lockstep train: where its ranks may run, and that the run is the same. bind.sh TOOL.
set -eu
. "${0%/*}/../support.sh"
tool=$1
work_folder
[ "$(nproc)" -ge 2 ] || lacks two-cores 'a share of one core is that core'
"$tool" prep char --input="$0" --out="$work/data" >"$work/prep.log" 2>&1 || fail prep
# train OUT ITERS OPTIONS...
train() {
    out=$1 iters=$2
    shift 2
    "$@" train --dataset="$work/data" --out_dir="$work/$out" $ranks --n_layer=1 --n_head=2 --n_embd=16 \
        --block_size=16 --batch_size=2 --gradient_accumulation_steps=4 --max_iters="$iters" --eval_interval=20 \
        --eval_iters=1 $bind >"$work/$out.log" 2>&1
}
# allowed OUT COMMAND...: the processors of both ranks, a line each, once they train.
allowed() {
    out=$1
    shift
    train "$out" 100000000 "$@" &
    launcher=$!
    await "$out has no checkpoint" [ -e "$work/$out/latest" ]
    for pid in $(pgrep -f "train --dataset=$work/data --out_dir=$work/$out "); do
        ! tr '\0' '\n' <"/proc/$pid/environ" | grep -q '^RANK=' ||
            sed -n 's/^Cpus_allowed_list:[[:blank:]]*//p' "/proc/$pid/status"
    done | sort >"$work/$out.set"
    pkill -TERM -P $launcher || kill -TERM $launcher
    wait $launcher || :
    [ "$(wc -l <"$work/$out.set")" = 2 ] || fail "ranks of $out: $(cat "$work/$out.set")"
}
ranks=--nproc_per_node=2
mine=$(sed -n 's/^Cpus_allowed_list:[[:blank:]]*//p' /proc/self/status)
bind=--bind=none
allowed free "$tool"
[ "$(sort -u "$work/free.set")" = "$mine" ] || fail "--bind=none: $(cat "$work/free.set")"
bind=--bind=cores
allowed bound "$tool"
[ "$(sort -u "$work/bound.set" | wc -l)" = 2 ] || fail "--bind=cores: $(cat "$work/bound.set")"
! grep -qx "$mine" "$work/bound.set" || fail "--bind=cores: a rank has all: $(cat "$work/bound.set")"

# Ranks that somebody else has bound stay as they are: rank 1 has one processor, rank 0 all.
cat >"$work/as_bound" <<'END'
#!/bin/sh
[ "$LOCAL_RANK" = 0 ] && exec "$@"
exec taskset -c "$LAST" "$@"
END
chmod +x "$work/as_bound"
export LAST="${mine##*[-,]}"
ranks=
allowed given "$tool" run --standalone --nproc-per-node=2 "$work/as_bound" "$tool"
grep -qx "$mine" "$work/given.set" || fail "bound by another: $(cat "$work/given.set")"
ranks=--nproc_per_node=2

bind=--bind=none
train one 30 "$tool" || fail 'train'
bind=--bind=cores
train two 30 "$tool" || fail 'train --bind=cores'
cmp "$work/one/latest/model.safetensors" "$work/two/latest/model.safetensors" || fail 'binding changes the run'
"$tool" info | grep -q '^binding      hwloc [0-9.]*: [0-9]* cores, [0-9]* memory node' || fail "info: $("$tool" info)"
echo 'all as it should be'
