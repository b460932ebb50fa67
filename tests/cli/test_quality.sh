#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What may change how well the demo model predicts a text, and by how much: int8 dense weights (and what stays out of them), int8 KV, the
# width of prompt chunks, which decides the routes that kernels take.
. "$(dirname "$0")/functions.sh"
demo_model
text=$IFX_GOLDEN/demo-eval.txt
[ -r "$text" ] || skip "no $text"

nll() { # OPTIONS...: the mean loss of the first 8192 tokens
  expect 0 "$INFERNIX" -q perplexity "$demo" -f "$text" -n 8192 --json "$@"
  json_number nll "$tmp/out"
}
# rise A B: how much larger the perplexity of loss B is than that of A, as a factor
rise() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.6f", exp(b - a) }'; }

plain=$(nll --prefill-chunk 1024)
least=$plain most=$plain
for chunk in 8 255 576; do
  loss=$(nll --prefill-chunk $chunk)
  least=$(awk -v a="$least" -v b="$loss" 'BEGIN { print (b < a ? b : a) }')
  most=$(awk -v a="$most" -v b="$loss" 'BEGIN { print (b > a ? b : a) }')
done
between "$(rise "$least" "$most")" 1 1.001 || fail "perplexity over chunk sizes spreads by a factor of $(rise "$least" "$most"), expected at most 1.001"
int8=$(nll --kv-dtype int8)
between "$(rise "$plain" "$int8")" 0.999 1.001 || fail "int8 KV changes the perplexity by a factor of $(rise "$plain" "$int8")"

# Far down a long context: 16,384 tokens that the small model itself once made, 512 of them again and again.
golden=$IFX_GOLDEN/reference/qwen3_5-tiny.safetensors
header=$(od -An -t u8 -N 8 "$golden" | tr -d ' ')
from=$(head -c $((header + 8)) "$golden" | tail -c +9 | sed 's/.*"nll.input_ids" *: *{[^}]*"data_offsets" *: *\[ *\([0-9]*\).*/\1/')
od -An -v -t d4 -j $((8 + header + from)) -N 2048 "$golden" | tr -s ' \n' ',,' | sed 's/^,//; s/,*$/,/' >"$tmp/part"
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32; do cat "$tmp/part"; done | tr -d '\n' | sed 's/,$//' >"$tmp/ids"
cp -r "$(tiny qwen3_5-tiny)" "$tmp/long"
sed 's/"max_position_embeddings": *[0-9]*/"max_position_embeddings": 16384/' "$(tiny qwen3_5-tiny)/config.json" >"$tmp/long/config.json"
far() { # KV format
  expect 0 "$INFERNIX" -q perplexity "$tmp/long" --ids "$tmp/ids" --ctx 16384 --window 16384 --kv-dtype "$1" --json
  same 'tokens predicted' 16383 "$(json_number predicted "$tmp/out")"
  json_number nll "$tmp/out"
}
far_plain=$(far bf16) far_int8=$(far int8)
[ "$far_plain" != "$far_int8" ] || fail 'int8 KV changes nothing over 16,384 tokens'
between "$(rise "$far_plain" "$far_int8")" 0.999 1.001 || fail "over 16,384 tokens int8 KV changes the perplexity by a factor of $(rise "$far_plain" "$far_int8")"

expect 0 "$INFERNIX" convert "$demo" "$tmp/int8.infernix" --dense int8
out_has 'quantised to int8:'
grep -qE 'mlp\.gate\.weight|shared_expert_gate|in_proj_[ab]\.|conv1d|norm|q_proj' "$tmp/out" && fail "convert names a sensitive matrix as quantised: $(cat "$tmp/out")"
"$INFERNIX" inspect --tensors "$tmp/int8.infernix" >"$tmp/list" 2>&1 || fail 'inspect --tensors'
for kept in mlp.gate.weight shared_expert_gate.weight in_proj_a.weight in_proj_b.weight q_proj.weight; do
  grep -q "$kept.* BF16" "$tmp/list" || fail "$kept is not kept in bf16"
  grep -q "$kept.* W8G32" "$tmp/list" && fail "$kept was quantised without being named"
done
for taken in k_proj.weight o_proj.weight in_proj_qkv.weight out_proj.weight; do
  grep -q "$taken.* W8G32" "$tmp/list" || fail "$taken was not quantised"
done
demo=$tmp/int8.infernix
dense=$(nll --prefill-chunk 1024)
between "$(rise "$plain" "$dense")" 0.98 1.02 || fail "--dense int8 changes the perplexity by a factor of $(rise "$plain" "$dense"), expected at most 1.02"
[ "$dense" != "$plain" ] || fail '--dense int8 changed nothing at all'
echo "perplexity: chunks $(rise "$least" "$most"), int8 KV $(rise "$plain" "$int8"), over 16,384 tokens $(rise "$far_plain" "$far_int8"), int8 dense $(rise "$plain" "$dense")"
exit 0
