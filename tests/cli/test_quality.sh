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
echo "perplexity: chunks $(rise "$least" "$most"), int8 KV $(rise "$plain" "$int8"), int8 dense $(rise "$plain" "$dense")"
exit 0
