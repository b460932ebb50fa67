#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The ids that end a generation are those of all config files together: a list in generation_config.json too.
. "$(dirname "$0")/functions.sh"
[ -n "${IFX_DEMO_CHECKPOINT:-}" ] || skip "IFX_DEMO_CHECKPOINT is not set"
mkdir "$tmp/model"
for f in "$IFX_DEMO_CHECKPOINT"/*; do ln -s "$f" "$tmp/model/"; done
expect 0 "$INFERNIX" run "$tmp/model" --greedy -n 6 --json "Once upon a time"
third=$(awk '/"ids": \[/ { n = NR } n && NR == n + 3 { gsub(/[^0-9]/, ""); print; exit }' "$tmp/out")
rm "$tmp/model/generation_config.json"
echo "{\"eos_token_id\": [$third, 99]}" >"$tmp/model/generation_config.json"
expect 0 "$INFERNIX" run "$tmp/model" --greedy -n 6 --json "Once upon a time"
same finish stop "$(json_string finish "$tmp/out")"
same stop_id "$third" "$(json_number stop_id "$tmp/out")"
same 'tokens before it' 2 "$(json_number generated_tokens "$tmp/out")"
expect 0 "$INFERNIX" run "$tmp/model" --greedy -n 6 --json --ignore-eos "Once upon a time"
same 'finish with --ignore-eos' length "$(json_string finish "$tmp/out")"
exit 0
