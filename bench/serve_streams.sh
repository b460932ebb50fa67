#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# serve_streams.sh [TOKENS [OPTIONS...]]: tokens a second that `infernix serve` gives to 1, 2, 4 and 8 streams at once, each of TOKENS tokens (default 400),
# the median of three rounds.  OPTIONS go to the server, a model among them (default: the demo).  Run in the build tree; needs curl.
set -eu
infernix=${INFERNIX:-$(pwd)/cli/infernix}
port=${PORT:-18477}
tokens=${1:-400}
[ $# -eq 0 ] || shift
"$infernix" serve "$@" --port "$port" -q &
server=$!
trap 'kill $server 2>/dev/null; wait $server 2>/dev/null || :' EXIT
url=http://127.0.0.1:$port
curl -sf --retry 60 --retry-delay 1 --retry-connrefused "$url/health" >/dev/null

# round STREAMS SEED: seconds that they take together.
round() {
  start=$(date +%s.%N)
  pids=
  for i in $(seq "$1"); do
    curl -sfN "$url/v1/chat/completions" -H 'Content-Type: application/json' -o /dev/null \
      -d "{\"messages\":[{\"role\":\"user\",\"content\":\"Tell me a story, number $i.\"}],\"seed\":$2$i,\"max_tokens\":$tokens,\"ignore_eos\":true,\"stream\":true}" &
    pids="$pids $!"
  done
  for p in $pids; do wait "$p"; done
  date +%s.%N | awk -v a="$start" '{ print $1 - a }'
}

round 2 9 >/dev/null
printf '%8s %12s %8s\n' streams tok/s ratio
one=
for n in 1 2 4 8; do
  seconds=$({ round $n 1; round $n 2; round $n 3; } | sort -n | sed -n 2p)
  rate=$(awk -v n=$n -v t="$tokens" -v s="$seconds" 'BEGIN { printf "%.1f", n * t / s }')
  one=${one:-$rate}
  awk -v n=$n -v r="$rate" -v o="$one" 'BEGIN { printf "%8d %12.1f %8.2f\n", n, r, r / o }'
done
