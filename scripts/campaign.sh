#!/bin/sh
# Long campaigns: see --help.
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

usage() {
    cat <<'END'
Usage: scripts/campaign.sh [--stops|--histories|--rechecks|--audits|--named|--hosts] [--runs=400] [--seed=S]
                           [--build=build-check] [--only=I]

Disturbs small runs at random moments: kills a rank or the launcher (also in the middle of a save),
stops, hangs or starves them. It resumes each run on another number of ranks, and kills some of them
once more. In the end each run must have the bytes of an undisturbed run, and leave no other process
or file. Of 400 runs 320 are killed, 120 of them in a save; 40 stop for a while, 20 hang, 20 starve.
The seed is printed, and --only=I repeats run I of a seed. If a run fails, its folder is named and
kept. `./check` makes the build, and runs a campaign of five runs.

--stops: asks the runs to stop instead, by a signal to a launcher or to one rank, on one host or with
two launchers on this machine. Each run must leave its last complete state, and in the end have the
bytes of a run that never stopped.

--histories: the runs meet losses that aren't finite and go back (--on_nan=rollback). Meanwhile they
are stopped, killed, saved by SIGUSR1 and resumed, also from older checkpoints with another learning
rate. In the end each run must have the bytes of the undisturbed run of the same history.

--rechecks: runs on 2 to 8 hosts, which this machine plays, with --recheck. Half of them are honest, and
must have the bytes of a single rank, without an alarm. In the others a rank computes wrongly, once
or always. If another host computed the same gradient, that host must be named.

--audits: small runs of random settings, resumes and rollbacks are audited, and then copies of them
with planted lies, five for each run. Honest runs must be equal. A full audit must find and locate
each lie, and a sample must find them at the rate that it prints.

--named: 200 drawn faults in operations that compute numbers (tests/faults/named.py). `lockstep diff`
of the sound and the faulty program's trails must name the right operation. --only=I needs the same
--runs, too: more runs draw other faults.

--hosts: one of two nodes on this machine is frozen: all its processes, its rank or its launcher,
by SIGSTOP or the control group freezer. It is the first node or the other one, in training or after
it. Each case is repeated --runs=15 times. The other node must end in time, fail, and name that node.

--chroot=bookworm or --chroot=trixie: runs ./quickstart and ./check in a bare Debian 12 or 13
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
    --rechecks) program=faults_rechecks ;;
    --audits) program=faults_audits ;;
    --named) program=named ;;
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
if [ $program = named ]; then
    need python3
    # shellcheck disable=SC2086 # nothing or one word
    exec python3 -B tests/faults/named.py --build="$build" --runs="${runs:-200}" --seed="$seed" $only
fi
: "${runs:=400}"
campaign=$build/tests/faults/$program
[ -x "$campaign" ] || die "no program $campaign: build it with ./check -R faults"
# shellcheck disable=SC2086 # nothing or one word
exec "$campaign" --runs="$runs" --seed="$seed" $only
