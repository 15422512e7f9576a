#!/bin/sh
# The drift of every state method along one FP32 trajectory, in groups of eight methods; what is finished is kept, so an
# interrupted run goes on where it was. Takes about an hour and a half on 2 cores for 65,536 tokens.
#   drift_all.sh EBB MODEL TEXT TOKENS FOLDER
set -eu

ebb=$1 model=$2 text=$3 tokens=$4 folder=$5
mkdir -p "$folder"
group= count=0 number=0

run() {
    [ -n "$group" ] || return 0
    number=$((number + 1))
    file=$folder/$(printf '%02d' $number).json
    if [ ! -s "$file" ]; then
        echo "drift $number: $group" >&2
        "$ebb" drift -m "$model" --text "$text" -n "$tokens" --state "$group" --json --svg "${file%.json}.svg" >"$file.tmp"
        mv "$file.tmp" "$file"
    fi
    group= count=0
}

for method in $("$ebb" formats --json | tr '{' '\n' | sed -n 's/.*"method": *"\([^"]*\)".*"planes".*/\1/p'); do
    group=$group${group:+,}$method
    count=$((count + 1))
    [ $count -lt 8 ] || run
done
run
