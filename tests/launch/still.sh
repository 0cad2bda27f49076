#!/bin/sh
# Check how a node of one rank ends if the other node, on this machine too, stands still.
#
#     still.sh TOOL RUNS [KIND...]
#
# Kinds: all processes of node 1 (frozen) or of node 0 (first); node 1's rank, by SIGSTOP (leader) or
# by the freezer of control groups, version 1, so that SIGKILL waits as for a process in state D
# (dstate); node 0's rank in the same way (dfirst); a launcher, just before the end of training
# (launcher of node 1, launcher0).
set -eu
tool=$(realpath "$1") runs=$2 me=$(realpath "$0")
shift 2
[ $# -gt 0 ] || set -- frozen first leader dstate dfirst launcher launcher0
freezer=/sys/fs/cgroup/freezer/lks$$
LOCKSTEP_TOKEN=0123456789abcdef0123456789abcdef
export LOCKSTEP_TOKEN
timeout=5
work=$(mktemp -d)
stopped=

wake() {
    [ ! -d "$freezer" ] || echo THAWED >"$freezer/freezer.state"
    for pid in $stopped; do
        kill -KILL "$pid" 2>/dev/null || true
    done
    stopped=
    wait
    tries=0
    while [ -d "$freezer" ] && ! rmdir "$freezer" 2>/dev/null && [ $tries -lt 50 ]; do
        sleep 0.1 # its last process is being removed
        tries=$((tries + 1))
    done
}
# shellcheck disable=SC2317 # by trap
remove() {
    wake
    rm -rf "$work"
}
trap remove EXIT
trap 'exit 1' INT TERM HUP
fail() {
    echo "FAILED: $kind: $*" >&2
    cat "$work/0.log" "$work/1.log" >&2
    exit 1
}
tree() { # PID: it and its descendants
    echo "$1"
    for child in $(cat /proc/"$1"/task/*/children 2>/dev/null); do
        tree "$child"
    done
}
start() { # NODE ITERATIONS
    "$tool" run --nnodes=2 --node-rank="$1" --master-addr=127.0.0.1 --master-port="$port" -- \
        "$tool" train --dataset=data --out_dir=out --n_layer=2 --n_head=2 --n_embd=32 \
        --block_size=16 --batch_size=2 --gradient_accumulation_steps=4 --max_iters="$2" \
        --eval_interval=50 --eval_iters=1 --keep=2 --threads=1 --timeout=$timeout \
        --log_interval=1000 >"$work/$1.log" 2>&1 &
}

# Set the processes to stop, their node, and the last message of the other node.
describe_kind() {
    what='' node=1 iterations=1000000
    gone="node 1 (host .*, rank 1)"
    case $kind in
    frozen) names="$gone doesn't answer: its launcher is stopped" ;;
    leader) what=train names='host .* (rank 0) has had no heartbeat from host .* (rank 1) for' ;;
    dstate) what=train names="$gone didn't end its ranks within 10 s" ;;
    first) node=0 names="the coordinator's node (host .*) doesn't answer" ;;
    dfirst) what=train node=0 names="node 0 (host .*, rank 0) didn't end its ranks within" ;;
    launcher) what=run iterations=150 names="$gone doesn't answer: its launcher is stopped" ;;
    launcher0)
        what=run node=0 iterations=150
        names="the coordinator's node (host .*) doesn't answer"
        ;;
    *) fail 'this kind is unknown' ;;
    esac
}

run() {
    describe_kind
    rm -rf out
    : >"$work/0.log" >"$work/1.log"
    port=$("${tool%/*}/../tests/free_port")
    start 0 $iterations
    zero=$!
    start 1 $iterations
    one=$!
    until grep -q ckpt-00000050 "$work/0.log"; do
        kill -0 $zero 2>/dev/null || fail 'node 0 ended early'
        sleep 0.1
    done
    [ $node = 1 ] && victim=$one other=$zero || victim=$zero other=$one
    by_freezer=
    case $kind in
    d*) by_freezer=yes && mkdir "$freezer" ;;
    esac
    stopped=$(tree $victim)
    for pid in $stopped; do
        if [ -n "$what" ]; then
            [ "$(tr '\0' ' ' <"/proc/$pid/cmdline" | cut -d' ' -f2)" = $what ] || continue
        fi
        if [ -n "$by_freezer" ]; then
            echo "$pid" >"$freezer/cgroup.procs"
        else
            kill -STOP "$pid"
        fi
    done
    [ -z "$by_freezer" ] || echo FROZEN >"$freezer/freezer.state"
    begin=$(date +%s%N) code=0
    wait $other || code=$?
    seconds=$((($(date +%s%N) - begin) / 100000000))
    log=$work/$((1 - node)).log
    [ $code = 1 ] || fail "the other node's exit code is $code"
    grep -q "^lockstep run: $names" "$log" || fail "the other node doesn't name it: $names"
    # A process that can't be killed, and training after a stopped launcher, take some seconds more.
    case $kind in
    dstate | dfirst | launcher*) most=$((timeout + 15)) ;;
    *) most=$((timeout + 10)) ;;
    esac
    [ $seconds -le $((most * 10)) ] || fail "the other node took $seconds tenths"
    echo "$kind: exit code $code after $((seconds / 10)).$((seconds % 10)) s: $(tail -n 1 "$log")"
    wake
}

cd "$work"
"$tool" prep char --input="$me" --out=data >/dev/null
for kind; do
    case $kind in
    d*)
        if ! mkdir "$freezer" 2>/dev/null; then
            echo "$kind: skipped: the freezer of control groups, version 1, can't be used"
            continue
        fi
        rmdir "$freezer"
        ;;
    esac
    i=0
    while [ $i -lt "$runs" ]; do
        run
        i=$((i + 1))
    done
done
echo 'each node that stood still was named in time'
