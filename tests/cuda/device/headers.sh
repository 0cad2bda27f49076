#!/bin/sh
# What the tests take for NVIDIA's interface (api/) is NVIDIA's: the same sources compile with NVIDIA's own headers,
# and constants have the same values. LOCKSTEP_TEST_CUDA is the toolkit's folder.
set -eu
. "$(dirname "$0")/../../support.sh"
include=${LOCKSTEP_TEST_CUDA-none}/include
[ -e "$include/cublasLt.h" ] || lacks nvidia-headers 'LOCKSTEP_TEST_CUDA names no folder with include/cublasLt.h'
work_folder
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../../..
flags="-O1 -Wall -Wextra -Werror -Wno-unused-parameter -D_GNU_SOURCE -I$root/src -I$root/include -I$here/.."
for file in device exchange/exchange gpu memory module plans products; do
    # shellcheck disable=SC2086
    cc -std=gnu11 $flags -isystem "$include" -fsyntax-only "$root/src/compute/cuda/$file.c" || fail "$file.c with NVIDIA's headers"
done
# shellcheck disable=SC2086
c++ -std=c++17 $flags -isystem "$include" -fsyntax-only "$here/standins.cc" || fail "standins.cc with NVIDIA's headers"

# NCCL's, if it lies beside the toolkit
nccl=$include/../../nccl/include
names='cuda|CUBLAS|CUDA_R'
values=cublasLt.h
if [ -e "$nccl/nccl.h" ]; then
    # shellcheck disable=SC2086
    cc -std=gnu11 $flags -isystem "$include" -isystem "$nccl" -fsyntax-only "$root/src/compute/cuda/exchange/nccl.c" ||
        fail "nccl.c with NVIDIA's headers"
    # shellcheck disable=SC2086
    c++ -std=c++17 $flags -isystem "$include" -isystem "$nccl" -fsyntax-only "$here/standins_nccl.cc" ||
        fail "standins_nccl.cc with NVIDIA's headers"
    names="$names|nccl"
    values='cublasLt.h nccl.h'
fi

grep -ohE "\\b($names)[A-Za-z_0-9]+ = " "$here"/api/*.h | tr -d ' =' | sort -u >"$work/names"
[ "$(wc -l <"$work/names")" -gt 25 ] || fail 'constants of api/ were not found'
{
    # shellcheck disable=SC2086
    printf '#include <%s>\n' $values cuda_runtime_api.h stdio.h
    printf 'int main(void)\n{\n'
    sed 's/.*/    printf("& %ld\\n", (long)&);/' "$work/names"
    printf '}\n'
} >"$work/values.c"
cc -I"$here/api" "$work/values.c" -o "$work/ours"
cc -isystem "$include" -isystem "$nccl" "$work/values.c" -o "$work/nvidias"
"$work/ours" >"$work/ours.txt"
"$work/nvidias" | diff "$work/ours.txt" - || fail 'constants of api/ have other values'
