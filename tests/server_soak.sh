#!/bin/sh
# The server under many clients for a while: every request is answered, memory does not grow, nothing is left behind.
#   server_soak.sh EBB SOURCE_DIR [SECONDS] [CLIENTS]
# RSS may grow by 1 MiB a minute from a fifth of the time on.
set -u

ebb=$1 source=$2 seconds=${3:-60} clients=${4:-200}
tmp=$(mktemp -d)
trap 'kill "$pid" 2>/dev/null; rm -rf "$tmp"' EXIT

"$ebb" serve -m "$source/models/tiny-gdn" --port 0 --seqs 16 --state leap8 2>"$tmp/err" &
pid=$!
url=
for _ in $(seq 300); do
    url=$(sed -n 's|^\(http://[^/]*\)/.*|\1|p' "$tmp/err")
    [ -z "$url" ] || break
    sleep 0.1
done
[ -n "$url" ] || { cat "$tmp/err"; exit 1; }

value() { curl -s -m 30 "$url/metrics" | sed -n "s/^ebb_$1 //p"; }
rss() { sed -n 's/^VmRSS:[[:space:]]*\([0-9]*\) kB/\1/p' "/proc/$pid/status"; }

begun=$(date +%s)
rounds=0 early= then=
while [ $(($(date +%s) - begun)) -lt "$seconds" ]; do
    "$ebb" bench serve --url "$url" --text "$source/models/eval/heldout_books.txt" --chats "$clients" --turns 2 -n 8 -c "$clients" \
        --first-bytes 200 --turn-bytes 60 --seed "$rounds" --json >"$tmp/out" 2>&1 || { cat "$tmp/out"; echo "soak: FAILED"; exit 1; }
    # some clients leave in the middle
    for _ in 1 2 3 4 5; do
        curl -s -m 0.2 -N "$url/v1/completions" -d '{"prompt": "Alice", "max_tokens": 3000, "stream": true, "ignore_eos": true}' >/dev/null
    done
    rounds=$((rounds + 1))
    if [ -z "$early" ] && [ $(($(date +%s) - begun)) -ge $((seconds / 5)) ]; then early=$(rss) then=$(date +%s); fi
done
late=$(rss) now=$(date +%s)
sleep 1
running=$(value requests_running) queued=$(value requests_queued) failed=$(value 'requests_total{end="failed"}')
grown=$((late - ${early:-$late})) minutes=$((now - ${then:-$now}))
echo "soak: $rounds rounds of $((2 * clients)) requests by $clients clients in $((now - begun)) s; RSS $late KiB, $grown KiB in the last $minutes s;" \
    "running $running, queued $queued, failed $failed, cancelled $(value 'requests_total{end="cancelled"}')"
kill -INT "$pid"
wait "$pid"
code=$?
[ "$code" = 0 ] && [ "$running" = 0 ] && [ "$queued" = 0 ] && [ "$failed" = 0 ] && [ $((grown * 60)) -le $((1024 * (minutes + 60))) ] && exit 0
echo "soak: FAILED (exit code $code)"
exit 1
