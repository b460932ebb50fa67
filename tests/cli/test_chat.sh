#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A conversation through a pipe: answers, commands, several lines, saving.
. "$(dirname "$0")/functions.sh"
demo_model
printf '%s\n' 'What is 7 + 5?' '/stats' "/save $tmp/saved.json" '/rest' '"""' 'What does' 'brave mean?' '"""' 'What is \' '2 + 2?' \
  '/reset' '/save' '/help' '/quit' 'What is 9 + 9?' >"$tmp/in"
got=0
"$INFERNIX" chat "$demo" --greedy -n 40 <"$tmp/in" >"$tmp/out" 2>"$tmp/err" || got=$?
same status 0 "$got"
out_has 12
err_has '1 answers'
err_has 'did you mean /reset?'
err_has '/save needs a file name'
grep -q '18' "$tmp/out" && fail 'went on after /quit'
grep -q '"role": "assistant"' "$tmp/saved.json" || fail "saved conversation: $(cat "$tmp/saved.json")"
grep -qF 'What is 7 + 5?' "$tmp/saved.json" || fail 'the question was not saved'
same 'answers' 3 "$(grep -c . "$tmp/out")"
expect 2 "$INFERNIX" chat "$demo" --think maybe
expect 2 "$INFERNIX" chat "$demo" --json
expect 1 "$INFERNIX" chat "$(tiny qwen3_5_moe-tiny)"
exit 0
