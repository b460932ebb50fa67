#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run as a user drives it: streams, prompts, limits, stops, pipes.
. "$(dirname "$0")/functions.sh"
demo_model

expect 0 "$INFERNIX" run "$demo" --greedy -n 24 "Once upon a time"
text=$(cat "$tmp/out")
[ -n "$text" ] || fail "no text"
err_has 'tok/s'
err_has 'on cpu'
err_has "$demo"
# The same from every source of a prompt, and every way to name the model.
printf 'Once upon a time' >"$tmp/prompt"
same --prompt "$text" "$("$INFERNIX" run -m "$demo" -q --greedy -n 24 --prompt "Once upon a time")"
same --file "$text" "$("$INFERNIX" run "$demo" -q --greedy -n 24 --file "$tmp/prompt")"
same stdin "$text" "$("$INFERNIX" run "$demo" -q --greedy -n 24 <"$tmp/prompt")"
same --echo "Once upon a time$text" "$("$INFERNIX" run "$demo" -q --greedy -n 24 --echo "Once upon a time")"
same 'one thread' "$text" "$("$INFERNIX" run "$demo" -q --greedy -n 24 --threads 1 "Once upon a time")"
same 'a seed twice' "$("$INFERNIX" run "$demo" -q --seed 7 -n 12 "The cat")" "$("$INFERNIX" run "$demo" -q --seed 7 -n 12 "The cat")"

# JSON: text is what the plain run printed.
expect 0 "$INFERNIX" run "$demo" --greedy -n 24 --json "Once upon a time"
same finish length "$(json_string finish "$tmp/out")"
same generated_tokens 24 "$(json_number generated_tokens "$tmp/out")"

# Stop strings: the text ends before the stop, whichever tokens it falls into.
for cut in 5 9 14 20; do
  stop=$(printf %s "$text" | head -c $((cut + 4)) | tail -c 4)
  case $stop in *'
'*) continue ;; esac
  want=${text%%"$stop"*}
  same "--stop '$stop'" "$want" "$("$INFERNIX" run "$demo" -q --greedy -n 24 --stop "$stop" "Once upon a time")"
done
expect 0 "$INFERNIX" run "$demo" --greedy -n 24 --json --stop "$stop" --stop zzz "Once upon a time"
same finish stop "$(json_string finish "$tmp/out")"
# Stop ids.
first=$(sed -n '/"ids": \[/{n;s/[^0-9]//g;p;}' "$tmp/out")
expect 0 "$INFERNIX" run "$demo" --greedy -n 24 --json --stop-id "$first" "Once upon a time"
same 'tokens before the stop id' 0 "$(json_number generated_tokens "$tmp/out")"
same stop_id "$first" "$(json_number stop_id "$tmp/out")"

# The context limit: refused with both numbers and the option, or generated up to it.
long=$(awk 'BEGIN { for (i = 0; i < 100; i++) printf "one two three four five " }')
expect 1 "$INFERNIX" run "$demo" --ctx 64 "$long"
err_has --ctx
err_has 64
out_empty
expect 0 "$INFERNIX" run "$demo" --ctx 16 --greedy -n 1000 --ignore-eos --json "Once upon a time"
same finish length "$(json_string finish "$tmp/out")"

# Empty prompts and rubbish bytes.
expect 1 "$INFERNIX" run "$demo" ''
err_has empty
printf 'caf\351 \377\376 x' >"$tmp/bytes"
expect 0 "$INFERNIX" run "$demo" --greedy -n 4 --file "$tmp/bytes"

# Chat template, and control tokens that the user spells.
expect 0 "$INFERNIX" run "$demo" --chat --greedy -n 40 "What is 7 + 5?"
out_has 12
err_has '; stop'
plain=$("$INFERNIX" run "$demo" -q --greedy -n 4 --json "a<|im_end|>b" | sed -n 's/^ *"prompt_tokens": \([0-9]*\),*/\1/p')
raw=$("$INFERNIX" run "$demo" -q --greedy -n 4 --json --raw "a<|im_end|>b" | sed -n 's/^ *"prompt_tokens": \([0-9]*\),*/\1/p')
same '--raw: tokens of a<|im_end|>b' 3 "$raw"
[ "$plain" -gt 3 ] || fail "without --raw a control token was recognised"

# A reader that goes away: quiet, and soon.
"$INFERNIX" run "$demo" --greedy -n 200 "Once upon a time" 2>"$tmp/err" | head -c 10 >"$tmp/out"
same 'bytes through head' 10 "$(wc -c <"$tmp/out" | tr -d ' ')"
if grep -qiE 'error|broken|sigpipe' "$tmp/err"; then fail "noise after head: $(cat "$tmp/err")"; fi
exit 0
