# shellcheck shell=sh
# What shell tests share; read with `.` by a shell in which `set -eu` is on.

# lacks WHAT WHY: the machine lacks what the test needs, which ends as skipped. ./check accepts only
# what scripts/skips.sh lists, and looks whether the machine really lacks it.
lacks() {
    printf 'SKIP: lacks %s: %s\n' "$1" "$2"
    exit 77
}

# patient N: a limit of N seconds or tries, for this machine. LKS_TEST_PATIENCE is a number, 1 unless
# it is set; builds with sanitizers set more.
patient() {
    awk -v n="$1" -v patience="${LKS_TEST_PATIENCE:-1}" 'BEGIN { printf "%d", n * patience + 0.5 }'
}

# await WHY COMMAND...: waits until COMMAND succeeds; fails with WHY after 30 seconds.
await() {
    why=$1 tries=0
    shift
    until "$@" 2>/dev/null; do
        tries=$((tries + 1))
        [ $tries -lt "$(patient 300)" ] || fail "$why"
        sleep 0.1
    done
}

# find_python WHAT MODULES [PYTHON]: sets `python` to the first of PYTHON, LOCKSTEP_TEST_PYTHON, python3
# and Debian's python3 that imports MODULES ("torch, numpy"). If none does, the machine lacks WHAT.
find_python() {
    for python in "${3-}" "${LOCKSTEP_TEST_PYTHON-}" python3 /usr/bin/python3; do
        [ -z "$python" ] || ! "$python" -c "import $2" 2>/dev/null || return 0
    done
    lacks "$1" "no Python imports $2 (LOCKSTEP_TEST_PYTHON names one)"
}

# work_folder: sets `work` to a new folder. When the test ends, the folder is removed, and processes that the
# test's shell started and that still run are killed.
work_folder() {
    work=$(mktemp -d)
    trap 'pkill -KILL -P $$ 2>/dev/null || :; rm -rf "$work" || { sleep 1; rm -rf "$work"; }' EXIT
    trap 'exit 1' INT TERM HUP
}

# make_hosts LETTER...: makes hosts of these names (tests/launch/hosts.sh) for a test in a folder next to launch,
# with a token of their job, and sets `work`, `hosts` and `net`. They are removed when the test ends.
make_hosts() {
    work=$(mktemp -d) hosts=${0%/*}/../launch/hosts.sh net=lks$$ letters=$*
    LOCKSTEP_TOKEN=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')
    export LOCKSTEP_TOKEN
    trap '"$hosts" remove "$net" $letters; rm -rf "$work"' EXIT
    trap 'exit 1' INT TERM HUP
    "$hosts" make "$net" "$@" >"$work/hosts" 2>&1 || lacks namespaces "$(tail -n 1 "$work/hosts")"
}

# fail WHAT: the test has failed; the ends of the logs in `work` are shown.
fail() {
    echo "FAILED: $*"
    for log in "$work"/log "$work"/*.log; do
        [ ! -f "$log" ] || { echo "--- $log" && tail -n 30 "$log"; }
    done
    exit 1
}

# plain_build BUILD WHY: a build with a sanitizer can't serve this test.
plain_build() {
    ! grep -q '^LKS_SANITIZE:STRING=.' "$1/CMakeCache.txt" || lacks plain-build "$2"
}
