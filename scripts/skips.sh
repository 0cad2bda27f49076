#!/bin/sh
# Were tests right to be skipped? See --help.
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

usage() {
    cat <<'END'
Usage: scripts/skips.sh BUILD [RESULTS.xml]

Reads the log of the last run of CTest in BUILD. A test that is skipped prints a line `SKIP: lacks WHAT:
WHY`. This script prints each WHAT with the tests that need it, and fails if

  - a test was skipped without such a line, or printed one and counts as passed;
  - WHAT isn't in the list below, of things that a machine may lack;
  - the machine has it after all.

RESULTS.xml is the file that `ctest --output-junit` wrote.

END
    sed -n 's/^    \([a-z0-9_-]*\)) # \(.*\)/  \1\t\2/p' "$0" | expand -t 19
}

# A flag of the processor, as Linux names it.
has_flags() {
    for flag; do
        grep -qw "$flag" /proc/cpuinfo || return 1
    done
}

python_has() {
    for python in "${LOCKSTEP_TEST_PYTHON-}" python3; do
        [ -z "$python" ] || ! "$python" -c "import $1" || return 0
    done
    return 1
}

# Version 2, or 1 with memory of its own.
makes_group() {
    for group in "/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)" \
        "/sys/fs/cgroup/memory$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup)"; do
        mkdir "$group/lksprobe$$" || continue
        code=1
        for limit in memory.max memory.limit_in_bytes; do
            [ ! -e "$group/lksprobe$$/$limit" ] || ! (echo 268435456 >"$group/lksprobe$$/$limit") || code=0
        done
        rmdir "$group/lksprobe$$"
        [ $code -ne 0 ] || return 0
    done
    return 1
}

arm64_lacks() {
    for library in jansson libxxhash zlib libmd; do
        [ -e "/usr/lib/aarch64-linux-gnu/pkgconfig/$library.pc" ] || echo "$library"
    done
}

# Can a process write another one's memory? Not if ptrace is forbidden.
writes_memory() {
    sleep 10 &
    : 2>/dev/null <>"/proc/$!/mem" && code=0 || code=1
    kill $! 2>/dev/null || :
    return $code
}

# has WHAT WHY: does the machine have it? If no machine may lack it, `listed` becomes no.
has() {
    listed=yes
    case $1 in
    avx2) # a kernel level: the processor's instructions
        has_flags avx2 fma ;;
    avx512) # the same
        has_flags avx512f avx512bw avx512dq avx512vl ;;
    avx512_bf16) # the same
        has_flags avx512_bf16 ;;
    amx) # the same
        has_flags amx_tile amx_bf16 ;;
    better-kernels) # a kernel level above a test's; without it the test without a level in its name is the same
        case $2 in
        plain*) has_flags avx2 fma ;;
        avx2*) has_flags avx512f avx512bw avx512dq avx512vl ;;
        avx512_bf16*) has_flags amx_tile amx_bf16 ;;
        avx512*) has_flags avx512_bf16 ;;
        *) false ;;
        esac ;;
    qemu-aarch64) # an emulator of ARM64: qemu-user-static
        command -v qemu-aarch64-static || command -v qemu-aarch64 ;;
    aarch64-gcc) # a compiler for ARM64: gcc-aarch64-linux-gnu
        command -v aarch64-linux-gnu-gcc ;;
    arm64-libraries) # Debian's packages for arm64 (cmake/aarch64.cmake lists them): dpkg has to know that architecture
        [ -z "$(arm64_lacks)" ] ;;
    pytorch) # with torchrun, NumPy and SentencePiece; downloads of gigabytes that tests do without
        python_has "torch.distributed, numpy, sentencepiece" && command -v torchrun ;;
    chromium) # a browser, 300 MB: the page of lockstep watch in it
        command -v chromium ;;
    tensorboard) # the same, to read the events of runs
        python_has tensorboard ;;
    numpy) # a Python that has it; LOCKSTEP_TEST_PYTHON names one
        python_has numpy ;;
    transformers) # as pytorch
        python_has "torch, transformers" ;;
    golf-data) # parameter-golf's data script, in data/ next to the path in LOCKSTEP_TEST_GOLF
        [ -e "$(dirname "${LOCKSTEP_TEST_GOLF-none}")/data/download_hf_docs_and_tokenize.py" ] ;;
    golf-script) # parameter-golf's train_gpt.py, at the path in LOCKSTEP_TEST_GOLF
        [ -e "${LOCKSTEP_TEST_GOLF-}" ] ;;
    nanogpt) # nanoGPT's train.py and model.py, in the folder LOCKSTEP_TEST_NANOGPT
        [ -e "${LOCKSTEP_TEST_NANOGPT-}/model.py" ] ;;
    two-cores) # shares of cores
        [ "$(nproc)" -ge 2 ] ;;
    gpu) # an NVIDIA GPU and its driver
        [ -e /dev/nvidiactl ] ;;
    no-driver) # a machine without NVIDIA's driver, to test the message
        [ ! -e /dev/nvidiactl ] ;;
    nvidia-headers) # CUDA's headers, in the folder LOCKSTEP_TEST_CUDA
        [ -e "${LOCKSTEP_TEST_CUDA-none}/include/cublasLt.h" ] ;;
    cuda-toolkit) # the module for NVIDIA's GPUs, in a build with LKS_CUDA=FOLDER: CUDA's toolkit, gigabytes
        [ -e "$build/tools/lockstep_cuda.so" ] ;;
    gpu-results) # a GPU's results for the current src/compute/cuda, in tests/cuda/results, by scripts/gpu-check
        scripts/gpu-check --kept ;;
    namespaces) # hosts, mounts and names of a test's own: needs root, or the system's leave
        unshare --net --uts --mount true && command -v ip && ip netns add "lksprobe$$" && ip netns del "lksprobe$$" ;;
    cgroups) # control groups for memory that a process may make inside its own, and use
        makes_group ;;
    overcommit) # may a process ask for more memory than there is? /proc/sys/vm/overcommit_memory
        ! grep -qx 2 /proc/sys/vm/overcommit_memory ;;
    large-files) # files of 5 GiB that are holes
        truncate -s 5G "$work/hole" && rm "$work/hole" ;;
    recorded-kernels) # hashes of runs, recorded for kernels and libraries of few machines
        grep -q "^$2 " tests/figures/recorded_runs.txt ;;
    process-memory) # a process that may write another one's memory; not if ptrace is forbidden
        writes_memory ;;
    children) # the kernel's lists of children in /proc
        [ -e "/proc/$$/task/$$/children" ] ;;
    terminals) # pseudo terminals
        script -qec true /dev/null ;;
    steady-addresses) # addresses among which a sanitizer finds room: fewer random bits, or leave to choose none
        setarch -R true || [ "$(cat /proc/sys/vm/mmap_rnd_bits)" -le 28 ] ;;
    sshd) # its package starts a server that listens: yours to decide; openssh-server
        PATH=$PATH:/usr/sbin command -v sshd && command -v ssh ;;
    slurm) # the same; slurmctld, slurmd, slurm-client and munge
        PATH=$PATH:/usr/sbin command -v slurmctld && PATH=$PATH:/usr/sbin command -v slurmd &&
            PATH=$PATH:/usr/sbin command -v munged && command -v srun ;;
    systemd) # looks at a unit; containers do without
        command -v systemd-analyze ;;
    mpich) # a second MPI next to Open MPI, 70 MB: mpich and libmpich-dev
        command -v mpirun.mpich && [ -e "$build/tools/lockstep_mpich.so" ] ;;
    onednn) # matrix products of a library; lockstep works without it
        have onednn ;;
    clang-format-14) # formats as the sources are; other versions differ, and Debian 13 doesn't have it
        have clang-format ;;
    gcc-12) # counts of instructions are those of Debian 12's compiler
        cc --version | grep -q '^cc (Debian 12\.' ;;
    plain-build) # not in builds with sanitizers, or for coverage
        ! grep -Eq '^LKS_(SANITIZE:STRING=.|COVERAGE:BOOL=ON)' "$build/CMakeCache.txt" ;;
    shared) # data in ../shared, next to the repository
        [ -e "../shared/${2%%:*}" ] ;;
    *) listed=no && return 1 ;;
    esac >/dev/null 2>&1
}

case ${1-} in
--help | -h) usage; exit 0 ;;
'') usage >&2; exit 2 ;;
esac
build=$1
log=$build/Testing/Temporary/LastTest.log results=${2-}
[ -f "$log" ] || die "there is no $log"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# TEST <tab> WHAT <tab> WHY; and tests in which cmocka skipped more than gave a reason.
awk -F '\t' -v loose="$work/loose" '
    function finish() {
        if (n_skipped > n_said) print test >>loose
        n_skipped = n_said = 0
        split("", seen)
    }
    /^[0-9]+\/[0-9]+ Test: / { finish(); test = $0; sub(/^.* Test: /, "", test) }
    sub(/^.*SKIP: lacks /, "") {
        n_said++
        what = $0; sub(/:.*/, "", what)
        why = $0; sub(/^[^:]*: */, "", why)
        print test "\t" what "\t" why
    }
    /^\[  SKIPPED \] [a-z_0-9A-Z]+$/ && !($0 in seen) { seen[$0]; n_skipped++ }
    END { finish() }' "$log" >"$work/said"
touch "$work/loose"
cut -f 1 "$work/said" | LC_ALL=C sort -u >"$work/saying"

# What CTest counts as skipped.
if [ -n "$results" ]; then
    awk '/<testcase / { name = $0; sub(/^.*<testcase name="/, "", name); sub(/".*/, "", name) }
        /<skipped / { print name }' "$results" | LC_ALL=C sort -u >"$work/skipped"
    LC_ALL=C comm -13 "$work/saying" "$work/skipped" >>"$work/loose"
    LC_ALL=C comm -23 "$work/saying" "$work/skipped" >"$work/passed"
fi

bad=
while read -r test; do
    echo "$test: skipped something without a reason (a line SKIP: lacks WHAT: WHY)"
    bad=yes
done <"$work/loose"
[ ! -s "$work/passed" ] || while read -r test; do
    echo "$test: says that it was skipped, and counts as run"
    bad=yes
done <"$work/passed"

LC_ALL=C sort -t "$(printf '\t')" -k 2,2 -k 1,1 "$work/said" >"$work/sorted"
: >"$work/lacks"
while IFS="$(printf '\t')" read -r test lacked why; do
    if has "$lacked" "$why"; then
        echo "$test: skipped because this machine lacks $lacked ($why), although it doesn't"
        bad=yes
    elif [ $listed = no ]; then
        echo "$test: skipped because of $lacked ($why), which no machine may lack"
        bad=yes
    else
        printf '%s\t%s\n' "$lacked" "$test" >>"$work/lacks"
    fi
done <"$work/sorted"

if [ -s "$work/lacks" ]; then
    echo 'This machine lacks, and so these tests were skipped (scripts/skips.sh --help):'
    awk -F '\t' '$1 != last { printf "%s  %-14s", last == "" ? "" : "\n", $1; last = $1 }
        !(($1, $2) in seen) { seen[$1, $2]; printf " %s", $2 } END { print "" }' "$work/lacks"
fi
[ -z "$bad" ]
