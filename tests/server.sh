#!/bin/sh
# `ebb serve` from outside, with curl: routes, a stream, errors, the key, Ctrl-C. Skipped (77) without curl.
#   server.sh EBB SOURCE_DIR
set -u

ebb=$1 source=$2
command -v curl >/dev/null 2>&1 || { echo "server: no curl here, skipped"; exit 77; }
tmp=$(mktemp -d)
pid=
failures=0
trap '[ -z "$pid" ] || kill "$pid" 2>/dev/null; rm -rf "$tmp"' EXIT

fail() {
    echo "FAILED: $1"
    sed 's/^/    /' "$tmp/out" | head -5
    failures=$((failures + 1))
}

# start [OPTION ...]: a server on a free port; $url is where.
start() {
    "$ebb" serve -m "$source/models/tiny-gdn" --port 0 --threads 2 "$@" 2>"$tmp/err" &
    pid=$!
    for _ in $(seq 300); do
        url=$(sed -n 's|^\(http://[^/]*\)/.*|\1|p' "$tmp/err")
        [ -z "$url" ] || return 0
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.1
    done
    echo "FAILED: the server did not start"
    cat "$tmp/err"
    exit 1
}

# stop SIGNAL: it leaves by itself, with 0.
stop() {
    kill "-$1" "$pid"
    wait "$pid"
    code=$?
    [ "$code" = 0 ] || fail "$1: exit code $code"
    pid=
}

# gets WHAT STATUS PATTERN [CURL ARGUMENT ...]
gets() {
    what=$1 status=$2 pattern=$3
    shift 3
    got=$(curl -s -m 60 -o "$tmp/out" -w '%{http_code}' "$@")
    [ "$got" = "$status" ] || fail "$what: status $got, expected $status"
    grep -qE -- "$pattern" "$tmp/out" || fail "$what: nothing like '$pattern'"
}

start --state leap8 --seqs 2
grep -q '^2 answers at a time' "$tmp/err" || fail "the banner does not tell how many answers go at a time"
grep -q 'state leap8' "$tmp/err" || fail "the banner does not name the method"
gets health 200 '"status":"ok"' "$url/health"
gets models 200 '"id":"tiny-gdn"' "$url/v1/models"
gets page 200 '<title>ebb</title>' "$url/"
gets metrics 200 '^ebb_info\{.*state="leap8"' "$url/metrics"
gets tokenize 200 '"count":[1-9]' "$url/tokenize" -d '{"content": "Alice was beginning"}'
gets chat 200 '"finish_reason":"(stop|length)"' "$url/v1/chat/completions" \
    -d '{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}'
gets completion 200 '"completion_tokens":4' "$url/v1/completions" -d '{"prompt": "Alice", "max_tokens": 4, "ignore_eos": true}'
gets stream 200 '^data: \[DONE\]' -N "$url/v1/chat/completions" \
    -d '{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "stream": true}'
gets form 200 '\{[^}]*\\"a\\"' "$url/v1/chat/completions" -d '{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 100,
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "properties": {"a": {"type": "boolean"}},
    "required": ["a"]}}}}'
gets "bad body" 400 '"message"' "$url/v1/chat/completions" -d '{'
gets "bad path" 404 '"message"' "$url/v2"
gets "other origin" 403 'origin' -H 'Origin: http://example.org' "$url/v1/models"
gets "other host" 403 'origin' -H 'Host: example.org' "$url/v1/models"
"$ebb" bench serve --url "$url" --text "$source/models/eval/heldout_books.txt" --chats 2 --turns 2 -n 4 -c 2 --first-bytes 300 \
    --turn-bytes 60 --json >"$tmp/out" 2>&1 || fail "bench serve"
grep -q '"requests":4' "$tmp/out" || fail "bench serve: not four requests"
stop INT

start --api-key secret
gets "no key" 401 'invalid_api_key' "$url/v1/models"
gets key 200 'tiny-gdn' -H 'Authorization: Bearer secret' "$url/v1/models"
gets "health without key" 200 'ok' "$url/health"
curl -s -N -m 60 -H 'Authorization: Bearer secret' "$url/v1/completions" -d '{"prompt": "Alice", "max_tokens": 12, "stream": true,
    "ignore_eos": true}' >"$tmp/out" &
reader=$!
sleep 0.3
stop TERM
wait "$reader"
grep -q 'DONE' "$tmp/out" || fail "an answer under way was cut off by SIGTERM"

[ "$failures" = 0 ] && echo "server: all good"
[ "$failures" = 0 ]
