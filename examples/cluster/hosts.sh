#!/bin/sh
# A training run on several hosts through ssh: hosts.sh HOST:RANKS,HOST:RANKS DATA OUT [SETTINGS]. Program,
# data and OUT have the same paths on all hosts. This host is the first one. RSH replaces ssh. If a rank fails,
# the run restarts from the newest checkpoint, up to three times. Call it again to continue a run.
set -eu
[ $# -ge 3 ] || {
    echo "Usage: hosts.sh HOST:RANKS,HOST:RANKS DATA OUT [SETTINGS]" >&2
    exit 2
}
hosts=$1 data=$2 out=$3 from=scratch
shift 3
[ ! -e "$out/latest" ] || from=resume
exec lockstep run --hosts="$hosts" ${RSH:+--rsh="$RSH"} --max-restarts=3 \
    lockstep train quickstart --dataset="$data" --out_dir="$out" --init_from=$from "$@"
