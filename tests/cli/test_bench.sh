#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# bench: prompt tokens really computed, repetitions, arms in turn.
. "$(dirname "$0")/functions.sh"
moe=$(tiny qwen3_5_moe-tiny)
expect 0 "$INFERNIX" bench "$moe" -p 5,64 -n 8 -r 3 --json
cp "$tmp/out" "$tmp/json"
same 'rows' 3 "$(grep -c '"test":' "$tmp/json")"
same 'tokens computed' '5 64 8' "$(sed -n 's/^ *"computed": \([0-9]*\),/\1/p' "$tmp/json" | tr '\n' ' ' | sed 's/ $//')"
same 'repetitions kept' 9 "$(sed -n '/"tokens_per_second": \[/,/\]/p' "$tmp/json" | grep -c '^ *[0-9.]*,*$')"
between "$(json_number experts_touched "$tmp/json")" 4 16 || fail "experts touched: $(json_number experts_touched "$tmp/json")"
between "$(json_number median "$tmp/json")" 1 1e9 || fail "median: $(json_number median "$tmp/json")"
expect 0 "$INFERNIX" bench "$moe" -p 32 -n 0 -r 4 --json --arm '--threads 1' --arm "--threads 1 --prefill-chunk '8'"
same 'rows of two arms' 2 "$(grep -c '"test":' "$tmp/out")"
out_has '"prefill_chunk": 8'
expect 0 "$INFERNIX" bench "$moe" -p 8 -n 4 -r 2
out_has MEDIAN
expect 2 "$INFERNIX" bench "$moe" --arm '--thread 1'
err_has 'did you mean --threads?'
expect 2 "$INFERNIX" bench "$moe" -p 8,x
expect 2 "$INFERNIX" bench "$moe" -p 0 -n 0
expect 2 "$INFERNIX" bench "$moe" -p 5000 --ctx 100
exit 0
