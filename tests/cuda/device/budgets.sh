#!/bin/sh
# Registers and spills of each kernel, as ptxas reported them for each GPU when the module was built, are within
# budgets.txt: "KERNEL REGISTERS SPILLED-BYTES". argv[1] is the build's folder.
set -eu
. "$(dirname "$0")/../../support.sh"
build=$1
[ -e "$build/tools/lockstep_cuda.so" ] || lacks cuda-toolkit 'the module for GPUs was not built'
work_folder
cat "$build"/cuda/*.ptxas | c++filt -p >"$work/reports"
awk '
NR == FNR { if ($0 !~ /^#/ && NF == 3) { registers[$1] = $2; spills[$1] = $3 } next }
/Compiling entry function/ { split($0, part, "\047"); kernel = part[2]; gsub(/ /, "", kernel); gpu = part[4] }
/bytes spill stores/ { spilled = $5 }
/Used [0-9]+ registers/ {
    sub(/.*Used /, ""); used = $1 + 0; n++; seen[kernel]
    if (!(kernel in registers)) { print kernel " for " gpu ": not in budgets.txt"; bad = 1 }
    else if (used > registers[kernel] || spilled > spills[kernel]) {
        print kernel " for " gpu ": " used " registers and " spilled " bytes spilled, and its budget is " \
            registers[kernel] " and " spills[kernel]; bad = 1
    }
}
END {
    for (kernel in registers) if (!(kernel in seen)) { print kernel ": in budgets.txt, but no kernel"; bad = 1 }
    if (n < 20) { print "only " n " reports"; bad = 1 }
    exit bad
}' "$(dirname "$0")/budgets.txt" "$work/reports" || fail 'a kernel is over its budget'
