#!/bin/sh
# Long campaigns: see --help.
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

usage() {
    cat <<'END'
Usage: scripts/campaign.sh [--stops|--histories|--hosts] [--runs=400] [--seed=S]
                           [--build=build-check] [--only=I]

Small runs are killed (any rank or the launcher; a part of them in the middle of a save), stopped,
hung or starved at random moments, and resumed on another number of ranks, some of them killed once
more on the way. In the end each must have left the bytes of an undisturbed run, and no
process or file beside them. Of 400 runs 320 are killed, 120 of them in a save; 40 stop for a while,
20 hang, 20 starve. The seed is printed; --only=I repeats run I of a seed. The folder of a run that
failed is named, and stays. `./check` makes the build, and a campaign of five runs.

With --stops they are asked to stop instead, by a signal to a launcher or to one rank, on one host or
on two launchers of this machine. Each must leave the last complete state, and in the end the bytes
of a run that never stopped.

With --histories they meet losses that aren't finite and go back (--on_nan=rollback). Meanwhile they are
stopped, killed, saved by SIGUSR1 and resumed, also from older checkpoints with another learning rate.
In the end each must have the bytes of the undisturbed run of the same history.

With --hosts a node of two stands still, on this machine: all its processes, its rank or its launcher,
by SIGSTOP or the control group freezer; it is the first node or the other one, in training or after it.
Each kind --runs=15 times: the other node ends in time, not with 0, and names that node.

With --chroot=bookworm or --chroot=trixie: ./quickstart and ./check in a bare Debian 12 or 13
(scripts/bare.sh --help).
END
}

case ${1-} in
--chroot=*) exec scripts/bare.sh "$@" ;;
esac
runs= seed=$(date +%s) build=build-check only= program=faults_campaign
for arg; do
    case $arg in
    --stops) program=faults_stops ;;
    --histories) program=faults_histories ;;
    --hosts) program=hosts ;;
    --runs=?*) runs=${arg#*=} ;;
    --seed=?*) seed=${arg#*=} ;;
    --build=?*) build=${arg#*=} ;;
    --only=?*) only=$arg ;;
    --help | -h) usage; exit 0 ;;
    *) usage >&2; die "can't read the argument $arg" ;;
    esac
done

[ $program != hosts ] || exec tests/launch/still.sh "$build/tools/lockstep" "${runs:-15}"
: "${runs:=400}"
campaign=$build/tests/faults/$program
[ -x "$campaign" ] || die "$campaign is not there: ./check -R faults builds it"
# shellcheck disable=SC2086 # nothing or one word
exec "$campaign" --runs="$runs" --seed="$seed" $only
