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
# Random models: to a file, and in memory; a chart; the experts' traffic on a pretended device.
expect 0 "$INFERNIX" bench --make 35b-a3b,hidden=64,inter=32,n-experts=16,vocab=64 --layers 4 --experts int8 --out "$tmp/made.infernix"
out_has '4 layers of 16 experts (int8)'
expect 1 "$INFERNIX" bench --make 35b-a3b,hidden=64,inter=32,n-experts=16,vocab=64 --layers 4 --out "$tmp/made.infernix"
err_has '--force'
expect 0 "$INFERNIX" inspect "$tmp/made.infernix" --check
expect 0 "$INFERNIX" bench "$tmp/made.infernix" -p 8,16 -n 0 -r 1 --plot "$tmp/curve.svg"
grep -q '</svg>' "$tmp/curve.svg" || fail 'no chart'
expect 2 "$INFERNIX" bench --make 35b-a3b
err_has '--out'
expect 2 "$INFERNIX" bench --synthetic 36b-a3b
err_has 'did you mean 35b-a3b?'
expect 2 "$INFERNIX" bench --synthetic 35b-a3b,layer=3
err_has 'no key layer'
expect 2 "$INFERNIX" bench "$moe" --synthetic 35b-a3b
expect 2 "$INFERNIX" bench --synthetic 35b-a3b,shrink --device cpu
expect 0 "$INFERNIX" bench --synthetic 35b-a3b,shrink,layers=4,zipf=1 --warm 20 -p 64 -n 4 -r 2 --json --device sim,clock=virtual,vram=24M \
  --arm '--assist ramp' --arm '--assist off'
same 'columns over which the CPU assists' '575 575' "$(sed -n 's/^ *"max_columns": \([0-9]*\),*/\1/p' "$tmp/out" | tr '\n' ' ' | sed 's/ $//')"
between "$(json_number hit_rate "$tmp/out")" 0.01 0.99 || fail "hit rate: $(json_number hit_rate "$tmp/out")"
between "$(json_number link_bytes "$tmp/out")" 1e6 1e12 || fail "link bytes: $(json_number link_bytes "$tmp/out")"
same 'assisted calls' 3 "$(json_number assisted_calls "$tmp/out" | cut -d. -f1)"
exit 0
