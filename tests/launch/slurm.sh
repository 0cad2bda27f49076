#!/bin/sh
# Ranks under srun, with a SLURM of one node in a temporary folder. slurm.sh FOUND TOOL SOURCE:
# the program that compares their bytes, and the tool. Exit code 77: there is no SLURM here.
set -eu
. "${0%/*}/../support.sh"
found=$1 tool=$2 source=$3
for need in munged slurmctld slurmd srun scancel squeue; do
    PATH=$PATH:/usr/sbin command -v $need >/dev/null || lacks slurm "there is no $need"
done
PATH=$PATH:/usr/sbin
work=$(mktemp -d)
chmod 755 "$work"
mkdir "$work/munge" "$work/state" "$work/spool"

# shellcheck disable=SC2317 # by trap
remove() {
    if [ -s "$work/slurmd.pid" ]; then # jobs outlive it
        timeout 20 scancel --full --signal=KILL --user="$(id -un)" 2>/dev/null || true
        tries=0
        while [ -n "$(timeout 10 squeue --noheader 2>/dev/null)" ] && [ $tries -lt "$(patient 100)" ]; do
            tries=$((tries + 1))
            sleep 0.1
        done
    fi
    for pid in "$work"/*.pid; do
        [ ! -s "$pid" ] || kill "$(cat "$pid")" 2>/dev/null || true
    done
    sleep 0.3
    rm -rf "$work"
}
trap remove EXIT
trap 'exit 1' INT TERM HUP
port=$("${tool%/*}/../tests/free_port") host=$(hostname)
cat >"$work/slurm.conf" <<END_OF_CONF
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$("${tool%/*}/../tests/free_port")
AuthType=auth/munge
AuthInfo=socket=$work/munge/socket
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
KillWait=10
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
END_OF_CONF
export SLURM_CONF="$work/slurm.conf"
head -c 128 /dev/urandom >"$work/key"
chmod 600 "$work/key"
munged --force --socket="$work/munge/socket" --key-file="$work/key" --pid-file="$work/munged.pid" \
    --log-file="$work/munged.log" --seed-file="$work/seed" >"$work/start.log" 2>&1 ||
    fail 'munged does not start'
if ! slurmctld >>"$work/start.log" 2>&1 || ! slurmd >>"$work/start.log" 2>&1; then
    fail 'SLURM does not start'
fi
up() {
    srun -n 1 --immediate=1 true >>"$work/start.log" 2>&1
}
await 'the node never came up' up

echo '== three tasks have the bytes of one rank'
"$found" srun || fail "exit code $?"

echo '== a task that is killed is named; scancel means a checkpoint and an orderly end'
"$tool" prep char --input="$0" --out="$work/data" >"$work/prep.log" 2>&1 || fail prep
train() { # OUT: in the background, until it has a checkpoint
    srun -n 2 --overcommit "$tool" train --dataset="$work/data" --out_dir="$work/$1" --n_layer=2 \
        --n_head=2 --n_embd=32 --block_size=16 --batch_size=2 --gradient_accumulation_steps=4 \
        --max_iters=100000000 --eval_interval=50 --eval_iters=1 --threads=1 --keep=2 \
        >"$work/$1.log" 2>&1 &
    srun=$!
    await "$1 has no checkpoint" [ -e "$work/$1/latest" ]
}
signal_second() { # SIGNAL OUT: rank 1
    for pid in $(pgrep -f "train .*--out_dir=$work/$2 "); do
        ! tr '\0' '\n' <"/proc/$pid/environ" | grep -qx SLURM_PROCID=1 || victim=$pid
    done
    kill "-$1" "$victim"
}
train killed
signal_second KILL killed
wait $srun && fail 'srun says that nothing happened'
grep -q "rank 0: rank 1 (pid $victim, .*) ended" "$work/killed.log" || fail 'rank 1 was not named'

train stopped
scancel "$(squeue --noheader --format=%i | tail -n 1)"
code=0
wait $srun || code=$?
[ $code -eq 143 ] || fail "exit code $code after scancel, 143 is right"
tail -n 20 "$work/stopped.log" | grep -q 'saving checkpoint' || fail 'no checkpoint after scancel'
echo '== examples/cluster/train.sbatch runs, and goes on when it is submitted again'
mkdir "$work/bin"
ln -s "$tool" "$work/bin/lockstep"
export PATH="$work/bin:$PATH"
batch() { # OUT MAX_ITERS [SETTINGS]
    out=$1 iters=$2
    shift 2
    (cd "$work" && timeout "$(patient 120)" sbatch --wait --overcommit --time=10 "$source/examples/cluster/train.sbatch" "$work/data" \
        "$work/$out" --n_layer=1 --n_embd=16 --n_head=2 --block_size=16 --batch_size=2 --eval_interval=3 \
        --eval_iters=1 --threads=1 --max_iters="$iters" "$@") >"$work/sbatch.log" 2>&1
}
submit() { # OUT MAX_ITERS
    batch "$@" || fail "sbatch: $(cat "$work"/lockstep-*.log)"
}
submit parts 3
rm "$work"/lockstep-*.log
submit parts 6
! grep 'iter 0:' "$work"/lockstep-*.log || fail 'the second job began anew'
submit whole 6
cmp "$work/parts/latest/model.safetensors" "$work/whole/latest/model.safetensors" || fail 'jobs in parts give other bytes'

echo '== a rank that stands still ends the job'
batch still 100000000 --timeout=5 &
await 'still has no checkpoint' [ -e "$work/still/latest" ]
signal_second STOP still
! wait $! || fail 'sbatch says that nothing happened'
! kill -9 "$victim" 2>/dev/null || fail 'rank 1 is left'
grep -q "no answer for 5 s .* from rank 1 (pid $victim, stopped by a signal" "$work"/lockstep-*.log || fail 'rank 1 was not named'
echo 'all as it should be'
