#!/bin/sh
# Run libFuzzer on every target of ebb-fuzz, JOBS at a time, and end with one line: N targets, N failed.
#   fuzz.sh PROGRAM TESTS WORK SECONDS JOBS [TARGET...]    TESTS: where corpus/TARGET and dict/TARGET.dict are;
#                                                          WORK: what is found on the way, and inputs that failed
set -eu

program=$1 tests=$2 work=$3 seconds=$4 jobs=$5
shift 5
[ $# -gt 0 ] || set -- $(EBB_FUZZ=list "$program")
mkdir -p "$work"
rm -f "$work"/*.failed

one() {
    mkdir -p "$work/$1"
    dict=
    [ ! -f "$tests/dict/$1.dict" ] || dict=-dict=$tests/dict/$1.dict
    # shellcheck disable=SC2086 # no word where there is no dictionary
    if EBB_FUZZ=$1 "$program" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=3072 -max_len=65536 -verbosity=1 \
        -print_final_stats=1 -artifact_prefix="$work/$1-" $dict "$work/$1" "$tests/corpus/$1" >"$work/$1.log" 2>&1; then
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$work/$1.log")
        cover=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$work/$1.log" | tail -n 1)
        echo "$1: $runs runs, $cover edges"
    else
        touch "$work/$1.failed"
        tail -n 40 "$work/$1.log"
        echo "$1: FAILED; its log is $work/$1.log"
    fi
}

running=0 all=0
for target in "$@"; do
    one "$target" &
    all=$((all + 1)) running=$((running + 1))
    if [ "$running" -ge "$jobs" ]; then
        wait
        running=0
    fi
done
wait
failed=0
for mark in "$work"/*.failed; do [ ! -e "$mark" ] || failed=$((failed + 1)); done
echo "$all targets, $failed failed"
[ "$failed" = 0 ]
