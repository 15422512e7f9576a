#!/bin/sh
# The run that made the models, from earlier weights of each, as one stretch of a GPU: tiny-kda, tiny-gdn-pure and, for
# its first 200 s, tiny-gdn train at once, then everything is scored. Start it detached where a command may not last:
#   setsid nohup ./run.sh CORPUS OUT GDN KDA PURE > run.log 2>&1 &
#
# usage: run.sh CORPUS OUT GDN KDA PURE      (the last three: weights to start from, see read_state() of export.py)
set -eu
corpus=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
from_gdn=$(realpath "$3") from_kda=$(realpath "$4") from_pure=$(realpath "$5")
cd "$(dirname "$0")"
tokenizer=../models/tiny-gdn/tokenizer.json
sets=$(ls ../models/eval/*.jsonl | paste -sd,)
failed=0

train() { # PRESET, then train.py's options
    preset=$1
    shift
    python3 train.py "$preset" "$out/data" "$tokenizer" "$out/$preset" --heldout "$corpus" "$@" \
        > "$out/$preset.log" 2>&1
}

choose() { # PRESET FOLDER ...: keep the best as OUT/best-PRESET and score it
    python3 choose.py "$1" "$out/best-$1" "$out/$1" "$out/$1-last" > "$out/choose-$1.log" 2>&1 &&
        python3 evaluate.py "$1" "$out/best-$1" --sets "$sets" --formats fp32,int4,leap4 --rows 48 \
            > "$out/sets-$1.log" 2>&1
}

finish() { # PROCESS NAME: wait for it and remember that it failed
    wait "$1" || { echo "run.sh: $2 failed, see $out"; failed=1; }
}

# Shards from 30 on: problems that the weights have not seen.
python3 data.py "$corpus" "$out/data" "$tokenizer" --first 30 \
    --mixes gdn-short:20,follow-short:50,hybrid-long:6,pure-short:40,pure-long:40 > "$out/data.log" 2>&1 &
data=$!
train tiny-gdn --mix gdn --init "$from_gdn" --seconds 200 --cool 170 --peak 8e-4 &
gdn=$!
train tiny-kda --mix follow --text 4 --init "$from_kda" --seconds 780 --cool 600 --peak 2e-3 &
kda=$!
train tiny-gdn-pure --init "$from_pure" --seconds 590 --cool 300 --long 330 --peak 2e-3 &
pure=$!
finish $gdn "training of tiny-gdn"
choose tiny-gdn || failed=1
finish $pure "training of tiny-gdn-pure"
python3 evaluate.py tiny-gdn-pure "$out/tiny-gdn-pure" --decoded --problems 384 --decays "$corpus/heldout_books.txt" \
    --formats fp32,int8,leap8,int4,leap4,bf16,int8-bf16scale,int8-w,int4-w --out "$out/decoded.json" \
    --sets keep-16-8x300,keep-32-8x300,copy-80,keep-16-8x1600,keep-32-8x1600 > "$out/decoded.log" 2>&1 || failed=1
finish $kda "training of tiny-kda"
choose tiny-kda || failed=1
finish $data "making of problems"
exit $failed
