#!/bin/sh
# Which lines and branches of src/ the last run of the tests reached: see --help.
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

usage() {
    cat <<'END'
Usage: scripts/coverage.sh BUILD | --left-out

Prints a table of the lines and branches that tests reached, by file of src/. BUILD was made by
./check --coverage. Files under 80 % of either are listed at the end; docs/inside/tests.md has the reasons.
Ranks that are killed by SIGKILL leave no counts, so lines that only they reached are missing.

--left-out prints a regular expression: tests that ./check --coverage leaves out, because counting
makes kernels slow and other tests reach the same code. These compare whole runs with other
programs' figures and recorded hashes (laws make such runs, kernels_* and model_* call each kernel), the
same tests at another kernel level (kernels_* have all), and most laws once more on the device of
tests/device (deferred_ddp remains).
END
}
left_out='^parity_(golf|runs|gradients)|^laws_recorded|^laws_ranks$|^(laws|model|optim|use)_.*_(plain|avx2|avx512|avx512_bf16|amx)$'
left_out="$left_out|^deferred_(ranks|optimizers|hosts|freeze|nan|recorded|parity)|^laws_hosts_gloo$"
case ${1-} in
--help | -h) usage; exit 0 ;;
--left-out) printf '%s\n' "$left_out"; exit 0 ;;
'') usage >&2; exit 2 ;;
esac
build=$1
command -v gcovr >/dev/null || die 'gcovr is not here: ./check --coverage installs it'

# Branches that only a thrown exception or an unreachable case takes aren't the tests' affair.
gcovr --root . --filter 'src/' --exclude-unreachable-branches --exclude-throw-branches \
    --json-summary-pretty --json-summary "$build/coverage.json" --object-directory "$build" "$build" \
    >"$build/coverage.log" 2>&1 || {
    tail -n 20 "$build/coverage.log" >&2
    die "gcovr failed; its log is $build/coverage.log"
}
awk '
    /"branch_percent"/ { branch = value($0); if (all_branches == "") all_branches = branch } # the first: of all
    /"filename"/ { file = $0; sub(/.*: *"/, "", file); sub(/".*/, "", file) }
    /"line_percent"/ {
        line = value($0)
        if (file != "") {
            printf "%-44s %6s %6s\n", file, line, branch
            if (line + 0 < 80 || (branch != "null" && branch + 0 < 80))
                low = low "\n  " file
            file = ""
        } else {
            all = line
        }
    }
    function value(text) { sub(/.*: */, "", text); sub(/,.*/, "", text); return text }
    BEGIN { printf "%-44s %6s %6s\n", "file", "lines", "branches" }
    END {
        printf "%-44s %6s %6s\n", "all of src/", all, all_branches
        if (low != "") print "under 80 % of lines or branches:" low
        if (all == "") exit 1
    }' "$build/coverage.json"
