#!/bin/sh
# A training run on several hosts through ssh: hosts.sh HOST:RANKS,HOST:RANKS DATA OUT [SETTINGS]. Program,
# data and OUT are under the same paths on all hosts; this host is the first one. RSH replaces ssh. Three
# times it starts again from the newest checkpoint if a rank fails; called again, it goes on there.
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
