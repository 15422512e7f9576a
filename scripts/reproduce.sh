#!/bin/sh
# The papers' tables on the bundled models: runs `ebb eval`, `ebb calibrate` and `ebb formats`, and writes docs/reproduce.md.
# What is finished is kept in FOLDER (a cell a task or text and method), so an interrupted run goes on where it was.
#   reproduce.sh EBB FOLDER [MODEL...]     MODEL: names in models/, all if none is given
# QUICK=1: fewer problems and shorter texts; the tables say how many. THREADS=N, 0 for all. STEPS="parts damp ...": only these.
set -eu

ebb=$1 folder=$2
shift 2
[ $# -gt 0 ] || set -- tiny-gdn-pure tiny-gdn tiny-kda
root=$(cd "$(dirname "$0")/.." && pwd)
threads=${THREADS:-0}
if [ -n "${QUICK:-}" ]; then
    problems=32 long=8 kept=16 tokens=2048 drift=8192 documents=8 seeds=1 registers=registers-32
else
    problems=96 long=48 kept=384 tokens=16384 drift=65536 documents=32 seeds=3 registers=registers-128
fi
data=$root/models/eval
mkdir -p "$folder/tasks"
[ -s "$folder/commit" ] || git -C "$root" rev-parse --short HEAD >"$folder/commit" 2>/dev/null || echo unknown >"$folder/commit"
keep=$folder/tasks/keep-16-8x300.jsonl
[ -s "$keep" ] || python3 "$root/scripts/reproduce_tasks.py" keep 16 8 300 384 12345 >"$keep"

# The lists of LeapQuant's Table 1 (its bit widths apart) and DAMP's.
eight=fp32,bf16,fp8,int8,kvquant8,quarot8,turboquant8,leap8
six=int6,nvfp6,mxfp6,kvquant6,quarot6,turboquant6,leap6
four=int4,nvfp4,mxfp4,kvquant4,quarot4,turboquant4,leap4
damp=fp32,fp16,bf16,fp8,int8-affine,int8-h32,nvfp4,int4-affine,int4-h32,damp

wanted() {
    [ -n "${STEPS:-}" ] || return 0
    case " $STEPS " in *" $1 "*) ;; *) return 1 ;; esac
}

# step NAME OPTIONS...: one `ebb eval` of the model, its JSON in FOLDER/MODEL/NAME.json, its command beside it.
step() {
    name=$1
    shift
    wanted "$name" || return 0
    echo "reproduce: $model: $name" >&2
    echo "ebb eval -m models/$model $* --json" | sed "s|$root/||g; s|$folder/||g" >"$folder/$model/$name.command"
    "$ebb" eval -m "$root/models/$model" "$@" -t "$threads" -o "$folder/$model/cells" --json >"$folder/$model/$name.tmp"
    mv "$folder/$model/$name.tmp" "$folder/$model/$name.json"
}

# calibrate NAME METHOD OPTIONS...: (step NAME) a layout in FOLDER/MODEL/NAME/METHOD.safetensors, unless it is there.
calibrate() {
    name=$1 method=$2
    shift 2
    wanted "$name" && [ ! -s "$folder/$model/$name-$method.json" ] || return 0
    echo "reproduce: $model: calibrate $name $method" >&2
    mkdir -p "$folder/$model/$name"
    echo "ebb calibrate -m models/$model --method $method --documents $documents --text (models/eval/domains) $*" \
        >"$folder/$model/$name-$method.command"
    texts=$data/domains/prose.txt,$data/domains/code.txt,$data/domains/mathematics.txt,$data/domains/manual.txt
    "$ebb" calibrate -m "$root/models/$model" --text "$texts" --method "$method" --documents "$documents" "$@" -t "$threads" \
        -o "$folder/$model/$name/$method.safetensors" --json >"$folder/$model/$name-$method.tmp"
    mv "$folder/$model/$name-$method.tmp" "$folder/$model/$name-$method.json"
}

all_steps() {
    case $model in
    tiny-gdn-pure) task=copy-80 ;;
    *) task=$registers ;;
    esac
    books="--text $data/heldout_books.txt -n $tokens"
    task="--task $data/$task.jsonl --limit $problems"
    layouts="--layouts $folder/$model/layouts"
    # shellcheck disable=SC2086 # words, on purpose
    {
        step parts $task $books --state fp32,bf16,bf16-w,int8,int8-w,int8-col-w,$(scaled leap8),leap8,int4,int4-w,int4-col-w,$(scaled leap4),leap4
        step windows $task $books --state fp32,leap8:p=1,leap8:p=4,leap8:p=8,leap8,leap8:p=32,leap4:p=1,leap4:p=4,leap4:p=8,leap4,leap4:p=32
        step ranks $task $books --state fp32,leap8:r=0,leap8:r=1,leap8:r=2,leap8,leap8:r=8,leap4:r=0,leap4:r=1,leap4:r=2,leap4:r=4,leap4
        step drift --text "$data/heldout_long.txt" -n "$drift" --parts drift --state fp32,bf16,bf16-w,bf16-stoch,int8,int8-w,int8-stoch,leap8
        calibrate layouts damp --seeds "$seeds"
        calibrate layouts leap-mix
        step damp $task $books $layouts --state $damp
        step budget $task $books $layouts --state fp32,int8-h32,damp:rows=4,damp:rows=8,damp,damp:rows=32,damp:rows=64,fp16
        step equal $task $books $layouts --state fp32,int8-w,damp-w,leap8,leap-mix,leap6,int6-w,leap5,leap4,int5-w,leap4:r=2,int4-w,nvfp4-w
        step heads $task $books $layouts --state fp32,leap8,leap-mix
        for selector in random energy error persistence product; do
            calibrate "$selector" damp --selector "$selector"
            step "selector-$selector" $task $books --layouts "$folder/$model/$selector" --state fp32,damp
        done
        step methods $task $books --parts nll --state "$eight,$six,$four"
        case $model in
        tiny-gdn-pure) step keep --task "$keep" --decoded --limit "$kept" --state fp32,bf16,int8,int8-w,leap8,int6-w,leap6,int4-w,leap4 ;;
        *) step needles --task "$data/needle-5000.jsonl" --limit "$long" --answer 64 $layouts --state fp32,fp16,int8-h32,damp,leap8,leap4 ;;
        esac
    }
}

# LeapQuant in its parts, with the published scale: compensators alone, then with smoothing.
scaled() {
    echo "$1:theta=0,scale=max,$1:scale=max"
}

for model in "$@"; do
    mkdir -p "$folder/$model"
    all_steps
done
"$ebb" formats --json >"$folder/formats.json"
python3 "$root/scripts/reproduce_tables.py" "$folder" "$root" >"$folder/reproduce.md"
cp "$folder/reproduce.md" "$root/docs/reproduce.md"
echo "reproduce: wrote docs/reproduce.md" >&2
