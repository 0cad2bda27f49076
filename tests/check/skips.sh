#!/bin/sh
# scripts/skips.sh on results made up here: which skips it lets pass. skips.sh SOURCE
set -eu
. "${0%/*}/../support.sh"
source=$1
work_folder
mkdir -p "$work/build/Testing/Temporary"
echo 'LKS_SANITIZE:STRING=' >"$work/build/CMakeCache.txt"

# expect CODE PATTERN RESULT...: each RESULT is STATUS:OUTPUT of one test, as CTest logs it.
expect() {
    code=$1 pattern=$2
    shift 2
    : >"$work/build/Testing/Temporary/LastTest.log"
    echo '<testsuite>' >"$work/results.xml"
    n=0
    for result; do
        n=$((n + 1))
        printf '%s\n' "$n/9 Test: test_$n" 'Command: "x"' 'Output:' '------' "${result#*:}" \
            >>"$work/build/Testing/Temporary/LastTest.log"
        {
            echo "	<testcase name=\"test_$n\" classname=\"test_$n\" time=\"0\" status=\"run\">"
            [ "${result%%:*}" != skipped ] || echo '		<skipped message="SKIP_RETURN_CODE=77"/>'
            echo '	</testcase>'
        } >>"$work/results.xml"
    done
    got=0
    "$source/scripts/skips.sh" "$work/build" "$work/results.xml" >"$work/log" 2>&1 || got=$?
    [ -n "$pattern" ] || echo >>"$work/log"
    [ $got -eq "$code" ] && grep -q "$pattern" "$work/log" || fail "exit code $got, not $code, or no \"$pattern\": $*"
}
expect 0 '' 'passed:all is well'
expect 0 '^  shared  *test_2$' 'passed:fine' 'skipped:SKIP: lacks shared: no/such/file'
expect 1 '^test_1: .*without a reason' 'skipped:'
expect 1 '^test_1: .*without a reason' 'skipped:skipped: nothing here'
expect 1 '^test_1: .*no machine may lack' 'skipped:SKIP: lacks gloo: its module was not built'
expect 1 '^test_1: .*no machine may lack' 'skipped:SKIP: lacks *: anything'
expect 1 '^test_1: .*no machine may lack' 'skipped:SKIP: lacks a mood: to run'
expect 1 '^test_2: .*although it does' 'passed:fine' 'skipped:SKIP: lacks plain-build: this one is'
expect 1 '^test_1: .*counts as run' 'passed:SKIP: lacks shared: no/such/file'
expect 1 '^test_1: .*without a reason' "passed:[ RUN      ] test_a
[  SKIPPED ] test_a
[  SKIPPED ] 1 test(s), listed below:
[  SKIPPED ] test_a"
expect 1 '^test_1: .*without a reason' "skipped:SKIP: lacks shared: no/such/file
[  SKIPPED ] test_a
[  SKIPPED ] test_b"
expect 0 '^  shared  *test_1 test_3$' 'skipped:SKIP: lacks shared: no/such/a
[  SKIPPED ] test_a' 'passed:fine' 'skipped:SKIP: lacks shared: no/such/b: or c'
