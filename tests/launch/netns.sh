#!/bin/sh
# Three hosts as network namespaces of this machine, a b c, on one switch; what `lockstep run` does
# with them when cables are cut. netns.sh TOOL. Exit code 77: such hosts can't be made here.
set -eu
. "${0%/*}/../support.sh"
tool=$1
make_hosts a b c

# start NAME HOST OPTIONS... -- PROGRAM...: in the background; its output in NAME.log, its end in
# NAME.code.
start() {
    name=$1 host=$2
    shift 2
    rm -f "$work/$name.code"
    (
        code=0
        ip netns exec "$net-$host" "$tool" run --master-addr=10.77.0.1 "$@" \
            >"$work/$name.log" 2>&1 </dev/null || code=$?
        echo "$code" >"$work/$name.code"
    ) &
}
# ended NAME SECONDS CODE: it ends in time and with that code.
ended() {
    tenths=0
    while [ ! -s "$work/$1.code" ]; do
        [ "$tenths" -lt $(($(patient "$2") * 10)) ] || fail "$1 didn't end within $2 s"
        sleep 0.1
        tenths=$((tenths + 1))
    done
    read -r code <"$work/$1.code"
    [ "$code" = "$3" ] || fail "$1 ended with $code, not $3"
    echo "$1 ended with $code after $((tenths / 10)).$((tenths % 10)) s"
}
until_log() { # NAME TEXT
    await "$1 never said \"$2\"" grep -q "$2" "$work/$1.log"
}
said() { # NAME TEXT
    grep -q "$2" "$work/$1.log" || fail "$1 didn't say \"$2\""
}
cable() { # HOST up|down
    "$hosts" cable "$net" "$1" "$2"
}

silence=$(patient 3)

echo '== cut for a second: the job goes on'
for host in a b c; do
    start "$host" "$host" --nnodes=3 -- sh -c 'echo ready; until [ -e "$0" ]; do sleep 0.1; done' "$work/connected"
done
until_log c ready
# A client without the token, from another host.
ip netns exec "$net-b" bash -c 'exec 3<>/dev/tcp/10.77.0.1/29500 && head -c 3000 /dev/urandom >&3' \
    >"$work/stranger" 2>&1 || fail "the stranger can't connect: $(cat "$work/stranger")"
cable c down
sleep 1
cable c up
sleep 2
touch "$work/connected"
for host in a b c; do
    ended "$host" 20 0
done

for victim in c a; do
    echo "== $victim cut for good: each side ends, and says who is gone"
    for host in a b c; do
        start "$host" "$host" --nnodes=3 --node-rank="$(echo $host | tr abc 012)" -- \
            sh -c 'echo ready; exec sleep 50'
    done
    for host in a b c; do
        until_log "$host" ready
    done
    cable $victim down
    for host in c a b; do
        ended "$host" 15 1
    done
    cut='its network interface eth0 has no link'
    if [ $victim = c ]; then
        said c "this host (.*) lost its connection to the coordinator's node: $cut"
        said a "node 2 (host .*, rank 2) is gone"
        said b "node 2 (host .*, rank 2) is gone"
    else
        said a "this host (.*) lost its connection to all other nodes: $cut"
        said b "the coordinator's node is gone"
        said c "the coordinator's node is gone"
    fi
    cable $victim up
done

[ -f "${tool%/*}/lockstep_gloo.so" ] || lacks gloo 'there is no training between hosts without its module'

echo '== training on two hosts, one of them lost half way, has the bytes of one host'
cd "$work" # paths in commands that are split at blanks are relative
"$tool" prep char --input="$0" --out="$work/data" >"$work/prep.log" 2>&1 || fail prep
train() { # OUT
    echo train --dataset=data --out_dir="$1" --n_layer=2 --n_head=2 --n_embd=16 \
        --block_size=16 --batch_size=2 --gradient_accumulation_steps=8 --max_iters=300 \
        --eval_interval=50 --eval_iters=1 --keep=0 --threads=1 --timeout=30
}
# shellcheck disable=SC2046 # words
"$tool" $(train alone) >"$work/alone.log" 2>&1 || fail 'training alone'
for host in a b; do
    # shellcheck disable=SC2046
    start "$host" "$host" --nnodes=1:2 --max-restarts=1 --virtual-ranks=8 --nproc-per-node=2 -- \
        "$tool" $(train both)
done
until_log a ckpt-00000050
cable b down
ended a 30 0
ended b 30 1
said a 'restart 1 of 1'
for file in model.safetensors optimizer.safetensors; do
    cmp "$work/alone/latest/$file" "$work/both/latest/$file" || fail "$file differs"
done
cable b up

echo '== a rank that stands still: both hosts show the table of all ranks'
for host in a b; do
    # shellcheck disable=SC2046
    start "$host" "$host" --nnodes=2 --node-rank="$(echo $host | tr ab 01)" --nproc-per-node=2 -- \
        "$tool" $(train still) --max_iters=100000000 --keep=2 --timeout="$silence"
done
until_log a ckpt-00000050
for pid in $(ip netns pids "$net-b"); do
    ! tr '\0' '\n' <"/proc/$pid/environ" | grep -qx RANK=3 || victim=$pid
done
kill -STOP "$victim"
ended a 30 1
ended b 30 1
for host in a b; do
    [ "$(grep -c "^ host $(hostname)" "$work/$host.log")" = 2 ] || fail "$host shows no two hosts"
    for rank in 0 1 2; do # 1 perhaps for its host's first rank
        grep -Eq "^ +$rank +[0-9]+  waiting .* [03]$" "$work/$host.log" ||
            fail "$host doesn't say whom rank $rank waits for"
    done
    grep -Eq "^ +0 +[0-9]+  waiting .* 3$" "$work/$host.log" || fail "rank 0 waits for 3"
    grep -Eq "^ +3 +$victim  stopped .* -$" "$work/$host.log" || fail "$host doesn't show rank 3"
    said "$host" "rank 3 (pid $victim, host .* was ended by lockstep run: no answer for $silence s"
done

echo '== the only rank of a host stands still: both hosts name that host, and show all ranks'
for host in a b; do
    # shellcheck disable=SC2046
    start "$host" "$host" --nnodes=2 --node-rank="$(echo $host | tr ab 01)" -- \
        "$tool" $(train leader) --max_iters=100000000 --keep=2 --timeout="$silence"
done
until_log a leader/ckpt-00000050
for pid in $(ip netns pids "$net-b"); do
    ! tr '\0' '\n' <"/proc/$pid/environ" | grep -qx RANK=1 || victim=$pid
done
kill -STOP "$victim"
ended a 13 1
ended b 13 1
for host in a b; do
    [ "$(grep -c "^ host $(hostname)" "$work/$host.log")" = 2 ] || fail "$host shows no two hosts"
    grep -Eq "^ +1 +$victim  stopped " "$work/$host.log" || fail "$host doesn't show rank 1"
    silent="host $(hostname) \(rank 0\) has had no heartbeat from host $(hostname) \(rank 1\)"
    tail -n 1 "$work/$host.log" | grep -Eq "$silent for more than $silence s, in .*: the processes of .* fails$" ||
        fail "$host doesn't name the silent host: $(tail -n 1 "$work/$host.log")"
done

echo '== b and c reach a, but not each other: all hosts name these two'
for host in a b c; do
    # shellcheck disable=SC2046
    start "$host" "$host" --nnodes=3 --node-rank="$(echo $host | tr abc 012)" -- \
        "$tool" $(train parted) --allow_uneven --max_iters=100000000 --keep=2 --timeout="$silence"
done
until_log a parted/ckpt-00000050
for host in b c; do
    ip -n "$net-switch" link set "$net$host" type bridge_slave isolated on
done
for host in a b c; do
    ended "$host" 13 1
    tail -n 1 "$work/$host.log" |
        grep -Eq '\(rank (1\) has had no heartbeat from .* \(rank 2|2\) has had no heartbeat from .* \(rank 1)\)' ||
        fail "$host doesn't name ranks 1 and 2: $(tail -n 1 "$work/$host.log")"
done

# apart PAIR: at the start, half a second later on b and 1.5 on c, all hosts name the two whose numbers are in PAIR.
apart() {
    for host in a b c; do
        # shellcheck disable=SC2046
        start "$host" "$host" --nnodes=3 --node-rank="$(echo $host | tr abc 012)" -- \
            sh -c 'sleep "$(echo 0 0.5 1.5 | cut -d" " -f$((GROUP_RANK + 1)))"; exec "$@"' - \
            "$tool" $(train apart) --allow_uneven --timeout="$silence"
    done
    for host in a b c; do
        ended "$host" 13 1
        tail -n 1 "$work/$host.log" | grep -Eq "rank ([$1]): no connection to host ([$1]) by Gloo" ||
            fail "$host doesn't name hosts $1: $(tail -n 1 "$work/$host.log")"
    done
}

echo '== the same at the start'
ip -n "$net-b" neigh replace 10.77.0.3 lladdr 02:00:00:00:00:99 dev eth0 nud permanent # not "No route to host"
ip -n "$net-c" neigh replace 10.77.0.2 lladdr 02:00:00:00:00:99 dev eth0 nud permanent
apart 12

echo '== c reaches b, and of a only the launcher: b waits for c, but is not to blame'
for host in b c; do
    ip -n "$net-$host" neigh flush dev eth0 nud permanent
    ip -n "$net-switch" link set "$net$host" type bridge_slave isolated off
done
ip -n "$net-a" neigh replace 10.77.0.99 lladdr 02:00:00:00:00:99 dev eth0 nud permanent
ip -n "$net-a" route add 10.77.0.3 via 10.77.0.99 table 99
ip -n "$net-a" rule add pref 98 ipproto tcp sport 29500 table main
ip -n "$net-a" rule add pref 99 to 10.77.0.3 table 99
apart 02
echo 'all as it should be'
