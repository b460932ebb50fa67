#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What trace writes, against the reference outputs; refusals; an existing file is kept unless --force.
. "$(dirname "$0")/functions.sh"
compare=$IFX_TOP_BUILDDIR/tests/cli/compare_trace
[ -x "$compare" ] || fail "$compare was not built"

for name in qwen3_5-tiny qwen3_5-tied qwen3_5_moe-tiny qwen3_5_moe-tiny-nvfp4; do
  for length in 1 7 33; do
    ref=$IFX_GOLDEN/reference/$name.safetensors
    ids=$("$compare" ids "$ref" $length) || fail "no prompt of length $length in $ref"
    expect 0 "$INFERNIX" --device ref trace "$(tiny $name)" --ids "$ids" --out "$tmp/t.safetensors" --force
    "$compare" "$tmp/t.safetensors" "$ref" $length 2e-3 || fail "$name, length $length"
  done
done
# Chunks do not change it, and the comparison can fail.
ref=$IFX_GOLDEN/reference/qwen3_5_moe-tiny.safetensors
ids=$("$compare" ids "$ref" 33)
expect 0 "$INFERNIX" --device ref --prefill-chunk 7 trace "$(tiny qwen3_5_moe-tiny)" --ids "$ids" --out "$tmp/t.safetensors" --force
"$compare" "$tmp/t.safetensors" "$ref" 33 2e-3 || fail "in chunks of 7"
"$compare" "$tmp/t.safetensors" "$ref" 33 1e-9 2>/dev/null && fail "the comparison passes everything"

echo keep >"$tmp/old"
expect 1 "$INFERNIX" trace "$(tiny qwen3_5-tiny)" --ids 1 --out "$tmp/old"
err_has --force
same 'the file that was there' keep "$(cat "$tmp/old")"
expect 1 "$INFERNIX" trace "$(tiny qwen3_5-tiny)" --ids 1 --out "$tmp/no/such/dir/x"
err_has "$tmp/no/such/dir"
expect 1 "$INFERNIX" --ctx 4 trace "$(tiny qwen3_5-tiny)" --ids 1,2,3,4,5 --out "$tmp/x"
err_has --ctx
[ ! -e "$tmp/x" ] || fail "a failed trace left its file"
exit 0
