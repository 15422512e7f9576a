#!/bin/sh
# Run sets of tests of a build folder one after the other, and end with one line: N passed, N failed.
#   test.sh BUILD JOBS SET...    SET: fast, slow, or registers (the registers task with 12 problems)
set -eu

build=$1 jobs=$2
shift 2
log=$(mktemp)
trap 'rm -f "$log"' EXIT

passed=0 failed=0
for set in "$@"; do
    case $set in
    registers) export EBB_REGISTERS_LIMIT=12 && pick="-R ^slow_registers$" ;;
    *) pick="-L ^$set$" ;;
    esac
    # shellcheck disable=SC2086 # words, on purpose
    ctest --test-dir "$build" --output-on-failure --no-tests=error -j "$jobs" $pick 2>&1 | tee "$log"
    # "87% tests passed, 2 tests failed out of 15"
    sums=$(sed -n 's/^[0-9]*% tests passed, \([0-9]*\) tests\{0,1\} failed out of \([0-9]*\).*/\1 \2/p' "$log")
    if [ -z "$sums" ]; then # ctest itself did not come to an end
        failed=$((failed + 1))
        continue
    fi
    bad=${sums% *} all=${sums#* }
    failed=$((failed + bad))
    passed=$((passed + all - bad))
done

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
