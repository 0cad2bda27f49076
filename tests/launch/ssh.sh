#!/bin/sh
# `lockstep run --hosts` through a real sshd on this machine. ssh.sh TOOL SOURCE. Exit code 77: there is none.
# shellcheck disable=SC2016 # for the shells there
set -eu
. "${0%/*}/../support.sh"
tool=$1 source=$2
PATH=$PATH:/usr/sbin
for need in sshd ssh ssh-keygen; do
    command -v $need >/dev/null || lacks sshd "there is no $need"
done
work=$(mktemp -d) made=
# shellcheck disable=SC2317 # by trap
remove() {
    [ ! -s "$work/pid" ] || kill "$(cat "$work/pid")" 2>/dev/null || true
    [ -z "$made" ] || rmdir /run/sshd 2>/dev/null || true
    rm -rf "$work"
}
trap remove EXIT
trap 'exit 1' INT TERM HUP
cd "$work" # ssh's command is split at blanks, so its paths are relative
for key in host user; do
    ssh-keygen -q -t ed25519 -N '' -f "$work/$key"
done
port=$("${tool%/*}/../tests/free_port")
cat >"$work/config" <<END_OF_CONFIG
Port $port
ListenAddress 127.0.0.1
HostKey "$work/host"
AuthorizedKeysFile "$work/user.pub"
PidFile "$work/pid"
UsePAM no
StrictModes no
PasswordAuthentication no
PermitRootLogin yes
SetEnv "PATH=$work/bin:/usr/local/bin:/usr/bin:/bin"
END_OF_CONFIG
[ "$(id -u)" -ne 0 ] || [ -d /run/sshd ] || ! mkdir /run/sshd || made=yes # where Debian's has its place
"$(command -v sshd)" -f "$work/config" -E "$work/sshd.log" 2>"$work/start.log" ||
    fail "sshd doesn't start: $(cat "$work/start.log")"
# sshd goes to the background before it listens, and writes this file after that.
await "sshd doesn't listen" [ -s pid ]
ssh="ssh -F none -q -p $port -i user -o BatchMode=yes -o StrictHostKeyChecking=no"
ssh="$ssh -o UserKnownHostsFile=known -o ConnectTimeout=10"
$ssh 127.0.0.1 true || fail 'no login here'

run() { # LOG COMMAND...
    log=$work/$1.log
    shift
    code=0
    "$tool" run --hosts=localhost:1,127.0.0.1:2 --rsh="$ssh" "$@" >"$log" 2>&1 || code=$?
}
echo '== all ranks, and a command with letters that a shell reads'
run all sh -c 'echo "rank $RANK of $WORLD_SIZE, node $GROUP_RANK: it'\''s \"$1\""' sh 'a  $b'
[ $code -eq 0 ] || fail "exit code $code"
for line in 'rank 0 of 3, node 0' 'rank 1 of 3, node 1' 'rank 2 of 3, node 1'; do
    grep -qF "$line: it's \"a  \$b\"" "$work/all.log" || fail "no line of $line"
done

echo '== the exit code of a rank there'
run code sh -c '[ $RANK != 2 ] || exit 5; sleep 30'
[ $code -eq 5 ] || fail "exit code $code"
grep -q 'rank 2 (pid [0-9]*, host .*) exited with code 5$' "$work/code.log" || fail 'rank 2 was not named'

echo '== with a user, stopped in order, and killed: nothing stays there'
mark=54$$
are_ready() {
    [ "$(grep -c ready "$work/$signal.log")" = 2 ]
}
for signal in TERM KILL; do
    "$tool" run --hosts="$(id -un)@127.0.0.1:1,127.0.0.1:1" --rsh="$ssh" sh -c "echo ready; exec sleep $mark" \
        >"$work/$signal.log" 2>&1 &
    await 'no ranks' are_ready
    kill -$signal $!
    wait $! || true
    tries=0
    while pgrep -f "sleep $mark" >/dev/null; do
        tries=$((tries + 1))
        [ $tries -lt "$(patient 50)" ] || fail "ranks are left after SIG$signal"
        sleep 0.1
    done
done
echo '== examples/cluster/hosts.sh trains on both, and goes on'
mkdir bin
ln -s "$tool" bin/lockstep
"$tool" prep char --input="$source/README.md" --out=data >prep.log 2>&1 || fail prep
train() { # HOSTS OUT MAX_ITERS
    PATH="$work/bin:$PATH" RSH="$ssh" timeout "$(patient 120)" "$source/examples/cluster/hosts.sh" "$1" "$work/data" "$work/$2" \
        --n_layer=1 --n_embd=16 --n_head=2 --block_size=16 --batch_size=2 --eval_interval=3 --eval_iters=1 \
        --threads=1 --max_iters="$3" >"$work/$2.log" 2>&1 || fail "hosts.sh $1"
}
if "$tool" info | grep -qE 'backend +(mpi|gloo): ready'; then
    train localhost:1,127.0.0.1:1 parts 3
    train localhost:1,127.0.0.1:1 parts 6
    train localhost:1 whole 6
    cmp parts/latest/model.safetensors whole/latest/model.safetensors || fail 'two hosts give other bytes'
fi
echo 'all as it should be'
