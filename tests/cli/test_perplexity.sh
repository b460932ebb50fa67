#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# perplexity against the mean loss of the reference; windows, strides, limits.
. "$(dirname "$0")/functions.sh"
compare=$IFX_TOP_BUILDDIR/tests/cli/compare_trace
moe=$(tiny qwen3_5_moe-tiny)
seq -s, 1 100 >"$tmp/ids"

expect 0 "$INFERNIX" --device ref perplexity "$moe" --ids "$tmp/ids" --json --window 100
whole=$(json_number nll "$tmp/out")
same predicted 99 "$(json_number predicted "$tmp/out")"
same windows 1 "$(json_number windows "$tmp/out")"
between "$(awk -v n="$whole" -v p="$(json_number perplexity "$tmp/out")" 'BEGIN { print p / exp(n) }')" 0.9999 1.0001 ||
  fail 'perplexity is not exp(nll)'
# Chunks of the same window change nothing.
expect 0 "$INFERNIX" --device ref --prefill-chunk 9 perplexity "$moe" --ids "$tmp/ids" --json --window 100
between "$(awk -v a="$whole" -v b="$(json_number nll "$tmp/out")" 'BEGIN { print a - b }')" -1e-5 1e-5 || fail "chunks change the loss"
same chunk 9 "$(json_number chunk "$tmp/out")"
# 100 tokens in windows of 30: 29 + 29 + 29 + 9; with a stride each token is scored once.
expect 0 "$INFERNIX" --device ref perplexity "$moe" --ids "$tmp/ids" --json --window 30
same 'predicted in windows' 96 "$(json_number predicted "$tmp/out")"
same windows 4 "$(json_number windows "$tmp/out")"
expect 0 "$INFERNIX" --device ref perplexity "$moe" --ids "$tmp/ids" --json --window 30 --stride 10
same 'predicted with a stride' 99 "$(json_number predicted "$tmp/out")"
expect 0 "$INFERNIX" --device ref perplexity "$moe" --ids "$tmp/ids" --json --max-tokens 10
same 'predicted of 10' 9 "$(json_number predicted "$tmp/out")"
out_has '"kv_dtype": "f32"'
out_has '"device": "ref'
expect 0 "$INFERNIX" perplexity "$moe" --ids "$tmp/ids"
out_has 'perplexity  '
expect 2 "$INFERNIX" --ctx 64 perplexity "$moe" --ids "$tmp/ids" --window 100
err_has --window
expect 1 "$INFERNIX" perplexity "$moe" --ids "$tmp/none"
echo 5 >"$tmp/one"
expect 1 "$INFERNIX" perplexity "$moe" --ids "$tmp/one"
err_has 'at least 2'
expect 2 "$INFERNIX" perplexity
exit 0
