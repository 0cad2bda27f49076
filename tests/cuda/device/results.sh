#!/bin/sh
# Has a GPU run each source of src/compute/cuda as it is? If not, the first that it hasn't is named. argv[1]: SOURCE.
set -eu
. "$(dirname "$0")/../../support.sh"
unshown=$("$1/scripts/gpu-check" --kept) && exit 0 || code=$?
echo "$unshown"
[ $code = 3 ] || { echo "FAILED: gpu-check --kept ends with $code"; exit 1; }
lacks gpu-results "$(echo "$unshown" | head -n 1)"
