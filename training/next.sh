#!/bin/sh
# The next training run, one stretch of a GPU from start to end: tiny-kda and tiny-gdn go on from checkpoints/, both at
# once, then tiny-gdn-pure has the time that is left. Start it detached where a command may not last that long:
#   setsid nohup ./next.sh CORPUS OUT 1700 > next.log 2>&1 &
#
# usage: next.sh CORPUS OUT SECONDS      (SECONDS: all of the time that is left, compilation and evaluation included)
set -eu
corpus=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
end=$(($(date +%s) + $3))
cd "$(dirname "$0")"
tokenizer=../models/tiny-gdn/tokenizer.json
eval=../models/eval
sets=$eval/registers-128.jsonl,$eval/overwrite-12x80.jsonl,$eval/copy-80.jsonl,$eval/recall-48.jsonl,$eval/add-16.jsonl
failed=0

train() { # PRESET, then train.py's options
    preset=$1
    shift
    python3 train.py "$preset" "$out/data" "$tokenizer" "$out/$preset" --heldout "$corpus" "$@" \
        > "$out/$preset.log" 2>&1
}

score() { # PRESET SETS FORMATS
    python3 evaluate.py "$1" "$out/$1" --sets "$2" --formats "$3" --until "$end" --out "$out/$1.json" \
        > "$out/$1-scores.log" 2>&1
}

finish() { # PROCESS NAME: wait for it and remember that it failed
    wait "$1" || { echo "next.sh: $2 failed, see $out"; failed=1; }
}

# Shards 30 to 89: problems that the checkpoints have not seen.
python3 data.py "$corpus" "$out/data" "$tokenizer" --first 30 --rounds 60 > "$out/data.log" 2>&1 &
data=$!
train tiny-kda --init checkpoints/tiny-kda.safetensors --seconds 600 --peak 2e-3 --hold 0.7 --long-from 0.9 &
kda=$!
train tiny-gdn --init checkpoints/tiny-gdn.safetensors --seconds 180 --peak 8e-4 --long-from 1 &
gdn=$!
finish $gdn "training of tiny-gdn"
finish $kda "training of tiny-kda"
score tiny-gdn "$sets" fp32,leap4,int4 &
gdn=$!
score tiny-kda "$sets" fp32,leap4,int4 &
kda=$!
train tiny-gdn-pure --until $((end - 180)) --peak 2e-3 --hold 0.6 --half || failed=1
finish $data "making of problems"
finish $gdn "scoring of tiny-gdn"
finish $kda "scoring of tiny-kda"
score tiny-gdn-pure copy-80,overwrite-12x80,late-32-8x32 fp32,int8,int8-w,leap8,int4,int4-w,leap4 || failed=1
exit $failed
