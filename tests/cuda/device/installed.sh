#!/bin/sh
# The module for GPUs, installed somewhere, finds the libraries that it was built with. argv[1] is the build's folder.
set -eu
. "$(dirname "$0")/../../support.sh"
[ -e "$1/tools/lockstep_cuda.so" ] || lacks cuda-toolkit 'the module for GPUs was not built'
work_folder
cmake --install "$1" --component lockstep_cuda --prefix "$work/there" >"$work/log" || fail 'it is not installed'
env -u LD_LIBRARY_PATH ldd "$work/there/lib/lockstep/lockstep_cuda.so" >"$work/libraries"
grep -q libcublasLt "$work/libraries" || fail 'it needs no cuBLASLt'
! grep 'not found' "$work/libraries" || fail 'the installed module lacks a library'
