#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The server under valgrind: whole answers, streams, one that its client leaves, nonsense, and SIGTERM; no error, nothing lost.
# Run by `make check-valgrind`: IFX_PROGRAM, VALGRIND (with its options).
set -u
: "${IFX_PROGRAM:?}" "${VALGRIND:?}"
command -v curl >/dev/null || { echo "skipped: no curl"; exit 77; }
dir=$(mktemp -d) || exit 99
pid=
trap '[ -z "$pid" ] || kill -KILL $pid 2>/dev/null; rm -rf "$dir"' EXIT
fail() { echo "FAILED: $*"; tail -n 40 "$dir/err"; exit 1; }

# shellcheck disable=SC2086
$VALGRIND --log-file="$dir/valgrind" "$IFX_PROGRAM" serve "$@" --port 0 --threads 1 --no-pin --prefix-cache-mib 16 2>"$dir/err" &
pid=$!
i=0
until port=$(sed -n 's|.*http://127.0.0.1:\([0-9]*\).*|\1|p' "$dir/err" | head -n 1) && [ -n "$port" ]; do
  i=$((i + 1))
  [ $i -lt 600 ] && kill -0 $pid 2>/dev/null || fail "the server did not start"
  sleep 0.2
done
# ask STATUS PATH [BODY [CURL OPTION...]]
ask() {
  want=$1 url=http://127.0.0.1:$port$2 body=${3:-}
  shift; shift; [ $# -eq 0 ] || shift
  if [ -n "$body" ]; then set -- "$@" -H 'Content-Type: application/json' -d "$body"; fi
  got=$(curl -s -m 300 -o "$dir/body" -w '%{http_code}' "$@" "$url")
  [ "$got" = "$want" ] || fail "$url: status $got, $want expected: $(head -c 300 "$dir/body")"
}
turn='"messages":[{"role":"system","content":"You are kind."},{"role":"user","content":"Say a word."}]'
ask 200 /health
ask 200 /v1/completions '{"prompt":"Once upon","max_tokens":3,"logprobs":1,"stop":["qq"]}'
ask 200 /v1/chat/completions "{$turn,\"max_tokens\":3}"
ask 200 /v1/chat/completions "{$turn,\"max_tokens\":3,\"stream\":true,\"stream_options\":{\"include_usage\":true}}"
grep -q 'DONE' "$dir/body" || fail "a stream without its end"
ask 200 /v1/chat/completions "{$turn,\"max_tokens\":4,\"response_format\":{\"type\":\"json_object\"}}"
ask 200 /v1/messages '{"system":"You are kind.","messages":[{"role":"user","content":"Say a word."}],"max_tokens":3}'
ask 200 /tokenize '{"content":"some text"}'
ask 400 /v1/completions '{"prompt":5.5}'
ask 400 /v1/chat/completions '{"messages":'
ask 404 /nowhere
# Two clients that leave: in a stream and in a whole answer.
curl -s -m 2 -N -o "$dir/cut" -H 'Content-Type: application/json' -d '{"prompt":"Once","max_tokens":2000,"ignore_eos":true,"stream":true}' \
  "http://127.0.0.1:$port/v1/completions"
curl -s -m 1 -o "$dir/cut" -H 'Content-Type: application/json' -d '{"prompt":"Once","max_tokens":2000,"ignore_eos":true}' \
  "http://127.0.0.1:$port/v1/completions"
ask 200 /metrics
# SIGTERM while an answer is on its way.
curl -s -N -o "$dir/last" -H 'Content-Type: application/json' -d '{"prompt":"Once","max_tokens":8,"ignore_eos":true,"stream":true}' \
  "http://127.0.0.1:$port/v1/completions" &
last=$!
sleep 1
kill -TERM $pid
wait $pid
status=$?
pid=
wait $last
[ $status -eq 0 ] && [ ! -s "$dir/valgrind" ] || { cat "$dir/valgrind"; fail "exit status $status"; }
echo "the server ended with 0, valgrind has nothing to say"
