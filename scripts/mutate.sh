#!/bin/sh
# Plants small faults and counts those that tests notice: see --help.
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

logs=${LKS_MUTANTS_BUILD:-build-mutants}/logs
mkdir -p "$logs"
need python3
exec python3 -B tests/mutants/mutate.py "$@"
