#!/bin/sh
# The program from outside: what it prints, and the exit code and sentence of every kind of mistake.
#   cli.sh EBB EXAMPLE SOURCE_DIR
set -u

ebb=$1 example=$2 source=$3
model=$source/models/tiny-gdn
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failures=0

fail() {
    echo "FAILED: $1"
    sed 's/^/    stdout: /' "$tmp/out" | head -5
    sed 's/^/    stderr: /' "$tmp/err" | head -5
    failures=$((failures + 1))
}

# expect WHAT CODE [ARGUMENT ...]: run ebb, check the exit code, leave its output in $tmp/out and $tmp/err.
expect() {
    what=$1 code=$2
    shift 2
    "$ebb" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
    got=$?
    [ "$got" = "$code" ] || fail "$what: exit code $got, expected $code"
}

# One sentence on stderr that holds TEXT, and nothing on stdout.
sentence() {
    [ "$(wc -l <"$tmp/err")" = 1 ] || fail "$what: more or less than one line on stderr"
    grep -qF -- "$1" "$tmp/err" || fail "$what: the sentence does not name '$1'"
    [ ! -s "$tmp/out" ] || fail "$what: something on stdout"
}

prints() { grep -qE -- "$1" "$tmp/out" || fail "$what: no line like '$1'"; }

# ---- help and version ----
expect version 0 --version
prints '^ebb [0-9]+\.[0-9]+\.[0-9]+$'
expect help 0 --help
prints '^  run '
prints '^  formats '
for command in run formats info synth; do
    expect "$command --help" 0 "$command" --help
    prints "^usage: ebb $command "
    cp "$tmp/out" "$tmp/help"
    expect "help $command" 0 help "$command"
    cmp -s "$tmp/out" "$tmp/help" || fail "help $command differs from $command --help"
done
expect "help run" 0 help run
for option in --model --prompt --file --chat --tokens --threads --state --kv --ctx --temp --top-p --top-k --min-p --repeat-penalty \
    --seed --rows --json --load --save --save-fp32 --layout --chat-template --chat-vars --no-think; do
    prints "^ .* $option "
done

# ---- a wrong command line: exit code 2 ----
expect "no command" 2
expect "unknown command" 2 walk
sentence "'walk'"
sentence "run, serve"
expect "help of an unknown command" 2 help walk
sentence "'walk'"
expect "unknown option" 2 run --wings
sentence "--wings"
expect "no model" 2 run -p hi
sentence "-m DIR"
expect "missing value" 2 run -m
sentence "--model needs a value (DIR)"
expect "forgotten value" 2 run -m -p hi
sentence "--model needs a value (DIR)"
expect "bad number" 2 run -m "$model" -p hi -n 12x
sentence "--tokens 12x: expected a whole number from 0"
expect "negative number" 2 run -m "$model" -p hi -t -1
sentence "--threads -1"
expect "bad real number" 2 run -m "$model" -p hi --temp nan
sentence "--temp nan: expected a number from 0"
expect "flag with value" 2 run -m "$model" -p hi --json=yes
sentence "--json takes no value"
expect "stray word" 2 run -m "$model" hello
sentence "'hello'"
expect "two prompts" 2 run -m "$model" -p hi --chat hi
sentence "more than one"
expect "unknown state method" 2 run -m "$model" -p hi --state int3
sentence "int3"
expect "unknown parameter" 2 run -m "$model" -p hi --state leap8:q=1
sentence "q"
expect "bad window" 2 run -m "$model" -p hi --state leap8:p=12
sentence "power of two"
expect "a layout for a method without" 2 run -m "$model" -p hi --state leap8 --layout "$tmp/none"
sentence "leap8 is not calibrated"
expect "unknown KV method" 2 run -m "$model" -p hi --kv int3
sentence "int3"
expect "bad dimension" 2 formats --key-dim 0
sentence "--key-dim 0"
expect "bad kind" 2 formats --kind mamba
sentence "mamba"
expect "bad head counts" 2 formats --key-heads 3 --heads 4
sentence "3 key heads and 4 value heads"
expect "unknown method in formats" 2 formats leap9
sentence "leap9"

# ---- a file that does not do: exit code 1 ----
expect "no such model" 1 run -m "$tmp/none" -p hi
sentence "$tmp/none"
mkdir "$tmp/broken" && cp "$model"/*.json "$tmp/broken" && head -c 1000 "$model/config.json" | head -3 >"$tmp/broken/config.json"
expect "broken config.json" 1 run -m "$tmp/broken" -p hi
sentence "config.json"
expect "no such layout" 1 run -m "$model" -p hi --state damp-w --layout "$tmp/none.safetensors"
sentence "$tmp/none.safetensors"
expect "no such prompt file" 1 run -m "$model" -f "$tmp/none.txt"
sentence "$tmp/none.txt"
expect "empty prompt" 1 run -m "$model" -p ""
sentence "0 tokens"
expect "empty standard input" 1 run -m "$model"
sentence "0 tokens"
printf 'caf\351' >"$tmp/latin1.txt"
expect "a prompt that is not UTF-8" 1 run -m "$model" -f "$tmp/latin1.txt"
sentence "UTF-8"
expect "prompt beyond the context" 1 run -m "$model" -p "one two three four" --ctx 2
sentence "2"

# ---- formats: the sizes that are promised ----
expect formats 0 formats
prints '^fp32 +32\.0000 +65536 '
prints '^int8-w +9\.0000 +18432 .* 16 '
prints '^leap8 +9\.5000 +19456 '
prints '^leap4 +6\.5000 +13312 '
prints '^damp +9\.8750 +20224 '
prints '^bf16 +16\.0000 +512 '
expect "formats, other dimensions" 0 formats --key-dim 7 --value-dim 5 int4 leap8:r=2
prints '^int4 +[0-9.]+ +52 ' # 7 rows of 3 bytes, padded to 24, and 7 scales
prints '^leap8:r=2 .* 16 +fp16 '
expect "formats --verbose" 0 formats --verbose leap8
prints 'plane u +at +17408, +1024 bytes'
expect "key records are shared by value heads" 0 formats --key-heads 2 --heads 4 leap8 # 8 + 16 * (128 / 2 + 128) * 2 + 16 * 4
prints '^leap8 +9\.5000 +19456 +6216 '
expect "formats --json" 0 formats --json
prints '"method":"leap4","bits":6\.5,"packed_bytes":13312,'

# ---- run ----
field() { sed -n '$p' "$tmp/out" | sed -n "s/.*\"$1\":\(\"[^\"]*\"\|[-0-9.e+]*\)[,}].*/\1/p"; }
is() { [ "$(field "$1")" = "$2" ] || fail "$what: $1 is '$(field "$1")', expected '$2'"; }

expect "run --json" 0 run -m "$model" -p "Alice was beginning" -n 8 --temp 0 --json
[ "$(wc -l <"$tmp/out")" = 1 ] || fail "$what: more than the JSON line"
[ ! -s "$tmp/err" ] || fail "$what: something on stderr"
sed -n '$p' "$tmp/out" | grep -qE '^\{"text":".+\}$' || fail "$what: the last line is no object"
is tokens 8
is stop '"length"'
is state '"fp32"'
is state_packed_bytes 1572864 # 6 layers of 4 heads of 64 KiB
for name in prompt_tokens prompt_tok_s decode_tok_s state_bytes state_live_bytes kv_bytes; do
    [ -n "$(field $name)" ] || fail "$what: no $name"
done
text=$(field text)

expect "streamed text" 0 run -m "$model" -p "Alice was beginning" -n 8 --temp 0
[ "\"$(cat "$tmp/out")\"" = "$text" ] || fail "$what: differs from the text of --json"
[ ! -s "$tmp/err" ] || fail "$what: something on stderr"

printf 'Alice was beginning' >"$tmp/prompt.txt"
expect "prompt from a file" 0 run -m "$model" -f "$tmp/prompt.txt" -n 8 --temp 0 --json
is text "$text"
"$ebb" run -m "$model" -n 8 --temp 0 --json <"$tmp/prompt.txt" >"$tmp/out" 2>"$tmp/err" || fail "prompt from standard input"
what="prompt from standard input"
is text "$text"

expect "leap8" 0 run -m "$model" -p "Alice was beginning" -n 8 --temp 0 --json --state leap8 --kv fp16 -t 1
is state_packed_bytes 466944 # 6 x 4 x 19456
is kv '"fp16"'
is threads 1
expect "the reference rows" 0 run -m "$model" -p "Alice was" -n 2 --temp 0 --json --rows ref
sed -n '$p' "$tmp/out" | grep -q '"rows":"[^"]*ref' || fail "$what: other rows were used"

expect "-n 0" 0 run -m "$model" -p "Alice was beginning" -n 0 --json
is tokens 0
is text '""'
expect "a chat that ends by itself" 0 run -m "$model" --chat "Run: a=1 b=2 c=3 d=4
a+b" --temp 0 --json
is stop '"stop"'
printf "a\n{%% include 'b' %%}" >"$tmp/bad.jinja"
printf '{{ messages[0].content }}{{ enable_thinking }}' >"$tmp/good.jinja"
expect "a template that is refused" 1 run -m "$model" --chat hi --chat-template "$tmp/bad.jinja"
sentence "chat template, line 2: {% include %} is beyond what is served"
expect "a template of the caller's" 0 run -m "$model" --chat ab --chat-template "$tmp/good.jinja" --no-think -n 0 --json
thoughtless=$(field prompt_tokens)
expect "the same as a raw prompt" 0 run -m "$model" -p abFalse -n 0 --json
is prompt_tokens "$thoughtless"
expect "the built-in template" 0 run -m "$model" --chat ab --chat-template chatml -n 0 --json
expect "variables that are none" 1 run -m "$model" --chat hi --chat-vars '[]'
sentence "variables: a JSON object was expected"
expect "variables for a raw prompt" 2 run -m "$model" -p hi --no-think
expect "variables twice" 2 run -m "$model" --chat hi --no-think --chat-vars '{}'
expect "a seed" 0 run -m "$model" -p "Once" -n 12 --temp 1 --seed 7 --json
first=$(field ids)$(field text)
expect "the same seed" 0 run -m "$model" -p "Once" -n 12 --temp 1 --seed 7 --json -t 1
[ "$first" = "$(field ids)$(field text)" ] || fail "$what: another text"
expect "statistics" 0 run -m "$model" -p "Once" -n 2 --temp 0 --stats --verbose
grep -q '^prompt .* tokens' "$tmp/err" || fail "$what: no statistics"
grep -q '^tiny-gdn: qwen3_5_text' "$tmp/err" || fail "$what: no line about the model"

# ---- sequences in files: two runs give what one would ----
ids() { sed -n '$p' "$tmp/out" | sed -n 's/.*"ids":\[\([0-9,]*\)\].*/\1/p'; }
turn1="Who is Alice?" turn2="And what did she see?"
expect "run --save" 0 run -m "$model" --chat "$turn1" -n 10 --state leap8 --save "$tmp/a.ebb" --json --seed 3 --temp 1
is saved "\"$tmp/a.ebb\""
cp "$tmp/a.ebb" "$tmp/kept.ebb"
expect "run --load" 0 run -m "$model" --load "$tmp/a.ebb" --chat "$turn2" -n 10 --state leap8 --save "$tmp/b.ebb" --json
is loaded "\"$tmp/a.ebb\""
second=$(ids)
[ -n "$second" ] || fail "$what: no ids"
expect "run --load again, with other threads and context" 0 run -m "$model" --load "$tmp/a.ebb" --chat "$turn2" -n 10 \
    --state leap8 --json -t 1 --ctx 999
[ "$second" = "$(ids)" ] || fail "$what: other ids"
cmp -s "$tmp/a.ebb" "$tmp/kept.ebb" || fail "$what: the file was changed"
expect "another temperature over the file's" 0 run -m "$model" --load "$tmp/a.ebb" --chat "$turn2" -n 10 --state leap8 \
    --json --temp 9
[ "$second" != "$(ids)" ] || fail "$what: the same ids"
# The same conversation in one process, on a terminal: the same file in the end, byte for byte, and the same answers.
if script -qec true /dev/null >/dev/null 2>&1 </dev/null; then
    what="a conversation in one process"
    printf '%s\n/save %s\n%s\n/quit\n' "$turn1" "$tmp/c1.ebb" "$turn2" |
        script -qec "'$ebb' run -m '$model' -n 10 --state leap8 --seed 3 --temp 1 --save '$tmp/c.ebb' >'$tmp/out' 2>'$tmp/err'" \
            /dev/null >/dev/null
    cmp "$tmp/c1.ebb" "$tmp/a.ebb" >>"$tmp/err" 2>&1 || fail "$what: another file after the first turn"
    cmp "$tmp/c.ebb" "$tmp/b.ebb" >>"$tmp/err" 2>&1 || fail "$what: another file than after two"
    what="/load"
    printf '%s\n/load %s\n%s\n/load %s\n%s\n' "$turn2" "$tmp/a.ebb" "$turn2" "$tmp/none.ebb" "$turn1" |
        script -qec "'$ebb' run -m '$model' -n 10 --state leap8 --seed 3 --temp 1 --save '$tmp/d.ebb' >'$tmp/out' 2>'$tmp/err'" \
            /dev/null >/dev/null
    grep -q "none.ebb" "$tmp/err" || fail "$what: a missing file is not named"
    expect "three turns" 0 run -m "$model" --load "$tmp/b.ebb" --chat "$turn1" -n 10 --state leap8 --save "$tmp/e.ebb"
    cmp "$tmp/d.ebb" "$tmp/e.ebb" >>"$tmp/err" 2>&1 || fail "$what: another file than after three turns"
fi
expect "a prompt that is kept" 0 run -m "$model" -p "Alice was" -n 0 --save "$tmp/p.ebb"
expect "a prompt in two parts" 0 run -m "$model" --load "$tmp/p.ebb" -p " beginning" -n 4 --temp 0 --json
split=$(ids)
expect "a prompt in one part" 0 run -m "$model" -p "Alice was beginning" -n 4 --temp 0 --json
[ "$split" = "$(ids)" ] || fail "$what: other ids than in two parts"
expect "other methods" 1 run -m "$model" --load "$tmp/a.ebb" -p hi --state int8
sentence "int8:p=1,format=int8"
expect "run --save-fp32" 0 run -m "$model" -p "Alice was beginning" -n 4 --state leap8 --save-fp32 "$tmp/f.ebb" --json
is saved_fp32 "\"$tmp/f.ebb\""
expect "FP32 into other methods" 0 run -m "$model" --load "$tmp/f.ebb" -p " to" -n 4 --state int8 --kv fp16
grep -q "FP32 imported into state int8, kv fp16" "$tmp/err" || fail "$what: no notice"
expect "--load without a prompt" 2 run -m "$model" --load "$tmp/a.ebb"
sentence "--load needs a prompt"
expect "a file that is not there" 1 run -m "$model" --load "$tmp/none.ebb" -p hi
sentence "$tmp/none.ebb"
expect "a file that is no image" 1 run -m "$model" --load "$model/config.json" -p hi
sentence "not an image"
head -c 5000 "$tmp/a.ebb" >"$tmp/cut.ebb"
expect "a file that is cut" 1 run -m "$model" --load "$tmp/cut.ebb" -p hi --state leap8
sentence "cut.ebb"
expect "a file that is longer than the context" 1 run -m "$model" --load "$tmp/a.ebb" -p hi --state leap8 --ctx 5
sentence "holds 5"
expect "a place that cannot be written" 1 run -m "$model" -p "Alice was" -n 2 --save "$tmp/none/a.ebb"
grep -q "none/a.ebb" "$tmp/err" || fail "$what: it is not named"
[ -s "$tmp/out" ] || fail "$what: the answer is lost"

# Hot sampling gives bytes that are no characters: what is printed is UTF-8 all the same.
expect "text is UTF-8" 0 run -m "$model" -p "é漢🙂" -n 200 --temp 3 --seed 3
iconv -f UTF-8 -t UTF-8 "$tmp/out" >/dev/null 2>&1 || fail "$what: it is not"
if [ -w /dev/full ]; then
    "$ebb" --version >/dev/full 2>"$tmp/err" && fail "a write that fails goes unnoticed"
    grep -q "standard output" "$tmp/err" || fail "a write that fails has no sentence"
fi

# Ctrl-C: what there is stays, exit code 130.
"$ebb" run -m "$model" -p "Once upon a time" -n 60000 --temp 1 --ctx 65536 >"$tmp/out" 2>"$tmp/err" </dev/null &
pid=$!
tries=0
while [ ! -s "$tmp/out" ] && [ $tries -lt 100 ]; do
    sleep 0.1
    tries=$((tries + 1))
done
kill -INT $pid
wait $pid
got=$?
what="Ctrl-C"
[ $got = 130 ] || fail "$what: exit code $got, expected 130"
[ -s "$tmp/out" ] || fail "$what: nothing was printed"

# ---- drift ----
prose=$source/models/eval/heldout_books.txt
expect "drift --help" 0 drift --help
prints '^usage: ebb drift '
expect "drift" 0 drift -m "$model" --text "$prose" -n 40 --state fp32,leap8:r=2,scale=max,int8 --svg "$tmp/drift.svg"
[ ! -s "$tmp/err" ] || fail "$what: something on stderr"
prints '^\| method +\| +1 \| +2 \| +4 \| +8 \| +16 \| +32 \| +40 \|$'
prints '^\| leap8:r=2,scale=max \|.* [1-9]\.[0-9]{2}e-[0-9]+ \|$'
prints '^\| fp32 +\|( 0\.00e\+00 \|){7}$'
grep -q '>leap8:r=2,scale=max</text>' "$tmp/drift.svg" || fail "$what: the figure does not name the method"
if command -v xmllint >/dev/null 2>&1; then xmllint --noout "$tmp/drift.svg" || fail "$what: the figure is no XML"; fi
expect "drift --by head" 0 drift -m "$model" --text "$prose" -n 3 --seqs 2 --state int8 --by head --every 3 -t 1
[ "$(grep -c '^| int8 ' "$tmp/out")" = 49 ] || fail "$what: expected 2 tables of 24 heads and 1 line" # 6 layers of 4
prints '^\| int8 +\| +6 \| +3 \| '
expect "drift --json" 0 drift -m "$model" --text "$prose" -n 3 --state int8,bf16-w --json --rows ref
[ "$(wc -l <"$tmp/out")" = 1 ] || fail "$what: more than one line"
grep -qF '"complete":true,"positions":[1,2,3],"heads":[{"layer":0,"head":0,"decay":0.' "$tmp/out" || fail "$what: other fields"
grep -qF '"method":"bf16-w","packed_bytes":786432,"state_mean":[' "$tmp/out" || fail "$what: no second method"

expect "drift without a text" 2 drift -m "$model"
sentence "--text FILE"
expect "drift without a model" 2 drift --text "$prose"
sentence "-m DIR"
expect "drift of no token" 2 drift -m "$model" --text "$prose" -n 0
sentence "--tokens 0"
expect "drift of an unknown method" 2 drift -m "$model" --text "$prose" --state leap8,int3
sentence "int3"
expect "drift of an empty method" 2 drift -m "$model" --text "$prose" --state leap8,,int8
sentence "empty"
expect "drift by what" 2 drift -m "$model" --text "$prose" --by token
sentence "--by token"
expect "drift of a missing text" 1 drift -m "$model" --text "$tmp/none.txt"
sentence "$tmp/none.txt"
: >"$tmp/empty.txt"
expect "drift of an empty text" 1 drift -m "$model" --text "$tmp/empty.txt"
sentence "empty.txt has 0 tokens"
expect "drift of a text that is not UTF-8" 1 drift -m "$model" --text "$tmp/latin1.txt"
sentence "UTF-8"
expect "drift of a short text" 1 drift -m "$model" --text "$prose" -n 20000 --seqs 2
sentence "has 32016 tokens; --tokens 20000 and --seqs 2 need 40000"
expect "a figure that cannot be written" 1 drift -m "$model" --text "$prose" --svg "$tmp/none/drift.svg"
sentence "$tmp/none/drift.svg"

# ---- kvcheck ----
expect "kvcheck --help" 0 kvcheck --help
prints '^usage: ebb kvcheck '
expect "kvcheck" 0 kvcheck -m "$model" --text "$prose" -n 96 --steps 16 --kv k8v8,hyquant:window=64,sage_w0 -o "$tmp/parts" --svg "$tmp/layers.svg"
prints '^\| fp32 '
prints '^\| hyquant:window=64 .*\|'
prints '^\|  mean \|'
cp "$tmp/out" "$tmp/first"
expect "kvcheck again, from what was kept" 0 kvcheck -m "$model" --text "$prose" -n 96 --steps 16 --kv k8v8,hyquant:window=64,sage_w0 -o "$tmp/parts"
cmp -s "$tmp/out" "$tmp/first" || fail "$what: other numbers"
expect "kvcheck --needles" 0 kvcheck -m "$model" --text "$prose" --parts none --needles 200 --problems 4 --depths 2 --kv k4v4 --prefill sage_w0 --svg "$tmp/needles.svg"
prints '^\| k4v4 \+ sage_w0 .*/ +4 '
if command -v xmllint >/dev/null 2>&1; then xmllint --noout "$tmp/needles.svg" || fail "$what: the figure is no XML"; fi
expect "kvcheck --longbench" 0 kvcheck -m "$model" --parts none --kv k8v8 --longbench "$source/tests/data/longbench" --limit 1
prints '^LongBench lcc, 1 problems'
expect "kvcheck --json" 0 kvcheck -m "$model" --text "$prose" -n 40 --steps 4 --parts nll --kv k8v8 --json
prints '"nll": '
expect "kvcheck without a text" 2 kvcheck -m "$model"
sentence "no text given"
expect "kvcheck of an unknown method" 2 kvcheck -m "$model" --text "$prose" --kv k3v3
sentence "k3v3"
expect "kvcheck of an unknown part" 2 kvcheck -m "$model" --text "$prose" --parts mess
sentence "attention,mass,nll"
expect "kvcheck of more steps than tokens" 2 kvcheck -m "$model" --text "$prose" -n 10 --steps 10
sentence "expected fewer"
printf '{"input": "i", "answers": ["a"], "dataset": "qasper"}\n' >"$tmp/bad.jsonl"
expect "kvcheck of a damaged LongBench file" 1 kvcheck -m "$model" --parts none --longbench "$tmp/bad.jsonl" --prompts "$tmp/bad.jsonl"
sentence 'line 1 has no text "context"'

# Ctrl-C: what was measured is printed and drawn, exit code 130. It may come before the first token: later, then.
what="Ctrl-C of drift"
for seconds in 1 2 4 8 16; do
    rm -f "$tmp/drift.svg"
    "$ebb" drift -m "$model" --text "$prose" -n 32000 --state int8,int4,bf16 --svg "$tmp/drift.svg" >"$tmp/out" 2>"$tmp/err" </dev/null &
    pid=$!
    sleep $seconds
    kill -INT $pid
    wait $pid
    got=$?
    [ $got = 130 ] || fail "$what: exit code $got, expected 130"
    grep -q '^| int4 ' "$tmp/out" && break
done
prints '^\| int4 '
grep -q 'interrupted after [0-9]* of 32000 tokens' "$tmp/err" || fail "$what: no sentence"
grep -q '</svg>' "$tmp/drift.svg" || fail "$what: no figure"

# ---- calibrate ----
mathematics=$source/models/eval/domains/mathematics.txt
expect "calibrate --help" 0 calibrate --help
prints '^usage: ebb calibrate '
expect "calibrate" 0 calibrate -m "$model" --text "$prose,$mathematics" --documents 2 -n 16 -o "$tmp/damp.safetensors" --report "$tmp/report"
[ ! -s "$tmp/err" ] || fail "$what: something on stderr"
prints '^\| effective decay \|'
for name in decay error agreement; do
    grep -q '</svg>' "$tmp/report/$name.svg" || fail "$what: no figure $name"
    if command -v xmllint >/dev/null 2>&1; then xmllint --noout "$tmp/report/$name.svg" || fail "$what: the figure is no XML"; fi
done
[ "$(grep -c '^| [0-5] | [0-3] |' "$tmp/report/calibration.md")" = 24 ] || fail "$what: expected a row for each of 24 heads"
expect "calibrate --json" 0 calibrate -m "$model" --text "$prose,$mathematics" --documents 2 -n 16 -o "$tmp/again.safetensors" --json --batch 3 -t 1
cmp -s "$tmp/damp.safetensors" "$tmp/again.safetensors" || fail "$what: another layout"
grep -qF '"method":"damp","selector":"product","layout":"' "$tmp/out" || fail "$what: other fields"
expect "a run with the layout" 0 run -m "$model" -p "Alice was" -n 4 --state damp --layout "$tmp/damp.safetensors"
expect "calibrate without a text" 2 calibrate -m "$model"
sentence "--text FILE"
expect "calibrate of no method that needs it" 2 calibrate -m "$model" --text "$prose" --method int8
sentence "method int8 needs no calibration"
expect "calibrate by what" 1 calibrate -m "$model" --text "$prose" --selector best -o "$tmp/none.safetensors"
sentence "no selector 'best'"
expect "calibrate of a short text" 1 calibrate -m "$model" --text "$prose" --documents 500 -o "$tmp/none.safetensors"
sentence "has 32016 tokens; 500 documents of 256 tokens need 128000"
[ ! -e "$tmp/none.safetensors" ] || fail "$what: a layout was left behind"
expect "a layout that cannot be written" 1 calibrate -m "$model" --text "$prose" -o "$tmp/none/damp.safetensors"
sentence "$tmp/none/damp.safetensors"

# ---- a model without recurrent layers ----
softmax=$source/tests/data/softmax_llama
expect "a run without recurrent layers" 0 run -m "$softmax" -p "Hello" -n 6 --temp 0 --json --save "$tmp/softmax"
grep -qF '"state":"none","kv":"bf16","state_bytes":0' "$tmp/out" || fail "$what: other fields"
expect "the same, loaded" 0 run -m "$softmax" -p "Hello" -n 6 --temp 0 --json --load "$tmp/softmax"
[ ! -s "$tmp/err" ] || fail "$what: something on stderr"
expect "a state method for none" 1 run -m "$softmax" -p "Hello" -n 6 --state leap8
sentence "state method leap8 is given, but this model has no recurrent layers"
expect "info without recurrent layers" 0 info -m "$softmax"
prints '^ +2 with a KV cache: 4 query heads, 2 KV heads, key 16, value 16$'
grep -q 'recurrent state' "$tmp/out" && fail "$what: a recurrent state"
expect "info on a state method for none" 1 info -m "$softmax" --state leap8
sentence "this model has no recurrent layers"
expect "drift without recurrent layers" 1 drift -m "$softmax" --text "$source/README.md"
sentence "no recurrent layers"
expect "a conversation without its tokens" 1 run -m "$softmax" --chat "Hello"
sentence "no special token <|im_start|>"

# ---- synth: random weights ----
expect "synth --help" 0 synth --help
prints '^usage: ebb synth --config FILE -o DIR\|FILE.gguf'
expect "synth" 0 synth --config "$model" -o "$tmp/synth" --seed 3
prints ': qwen3_5_text, [0-9]+ parameters, '
[ ! -s "$tmp/err" ] || fail "$what: something on stderr"
expect "synth runs" 0 run -m "$tmp/synth" -p "It was" -n 4 --temp 0 --json --state leap8
expect "synth to GGUF" 0 synth --config "$model" -o "$tmp/synth.gguf" --quant q8_0 -q
[ ! -s "$tmp/out" ] || fail "$what: something on stdout"
expect "synth runs from GGUF" 0 run -m "$tmp/synth.gguf" -p "It was" -n 4 --temp 0 --json --state leap8
expect "synth twice" 1 synth --config "$model" -o "$tmp/synth"
sentence "is there already"
expect "synth of blocks to a folder" 1 synth --config "$model" -o "$tmp/synth2" --quant q8_0
sentence "are written to a .gguf file only"
[ ! -e "$tmp/synth2" ] || fail "$what: something is left behind"
expect "synth without a config" 2 synth -o "$tmp/synth2"
sentence "--config FILE names it"
expect "synth to nowhere" 2 synth --config "$model"
sentence "-o DIR or -o FILE.gguf says where"
expect "synth of another type" 2 synth --config "$model" -o "$tmp/x.gguf" --quant q5_0
sentence "expected bf16, q8_0 or q4_0"
rm -rf "$tmp/synth"
what="Ctrl-C in synth"
"$ebb" synth --config "$source/models/configs/qwen3.5-9b.json" -o "$tmp/synth" >"$tmp/out" 2>"$tmp/err" </dev/null &
pid=$!
tries=0
while [ ! -s "$tmp/synth/model.safetensors.part" ] && [ $tries -lt 100 ] && kill -0 $pid; do
    sleep 0.1
    tries=$((tries + 1))
done
kill -INT $pid
wait $pid
got=$?
if grep -q 'its disk has' "$tmp/err"; then echo "skipped: $what: no room for it here"
else
    [ $got = 130 ] || fail "$what: exit code $got, expected 130"
    grep -q 'interrupted after [0-9]* of [0-9]* bytes, nothing is kept' "$tmp/err" || fail "$what: no sentence"
fi
[ ! -e "$tmp/synth" ] || fail "$what: something is left behind"

# ---- the README shows the program that is compiled here ----
what="README"
sed -n '/^```c$/,/^```$/p' "$source/README.md" | sed '1d;$d' >"$tmp/out"
diff "$tmp/out" "$source/examples/minimal.c" >"$tmp/err" || fail "the C program of README.md is not examples/minimal.c"
[ "$(wc -l <"$source/examples/minimal.c")" -le 30 ] || fail "examples/minimal.c is longer than 30 lines"
shown=$(sed -n 's/^\$ build\/ebb formats //p' "$source/README.md")
[ -n "$shown" ] || fail "README.md shows no table of methods"
# shellcheck disable=SC2086 # words, on purpose
"$ebb" formats $shown >"$tmp/table"
while IFS= read -r line; do
    grep -qxF -- "$line" "$source/README.md" || fail "the table of README.md is not what ebb formats prints: $line"
done <"$tmp/table"
"$example" "$model" "Alice was beginning" >"$tmp/out" 2>"$tmp/err" || fail "examples/minimal.c does not run"
"$example" "$tmp/none" >"$tmp/out" 2>"$tmp/err" && fail "examples/minimal.c does not notice a missing model"

[ $failures = 0 ] || { echo "$failures failures" && exit 1; }
