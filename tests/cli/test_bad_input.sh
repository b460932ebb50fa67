#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Input that was once taken for something else: closed standard streams, ids outside the vocabulary, cut ids.
. "$(dirname "$0")/functions.sh"
moe=$(tiny qwen3_5_moe-tiny)
demo_model

# A closed stream's number must not go to a file: what is printed would land in it.
expect 0 "$INFERNIX" trace "$moe" --ids 1,2,3 --out "$tmp/open.st"
got=0
"$INFERNIX" --log-level debug trace "$moe" --ids 1,2,3 --out "$tmp/closed.st" <&- >&- 2>&- || got=$?
same 'exit status with closed streams' 0 "$got"
cmp -s "$tmp/open.st" "$tmp/closed.st" || fail 'the file differs when the standard streams are closed'
got=0
"$INFERNIX" tokenize "$demo" hello 2>"$tmp/err" >&- || got=$?
same 'exit status with a closed output' 1 "$got"
got=0
"$INFERNIX" tokenize "$demo" -f - >"$tmp/out" 2>"$tmp/err" <&- || got=$?
same 'exit status with a closed input' 1 "$got"
err_has 'standard input'

# Ids without a token are refused, not left out; a list is not read up to a NUL byte.
expect 1 "$INFERNIX" tokenize "$demo" --decode 1,99999
err_has '99999 is out of range'
out_empty
printf '[1,99999]\n' >"$tmp/ids.jsonl"
expect 1 "$INFERNIX" tokenize "$demo" --decode --jsonl -f "$tmp/ids.jsonl"
err_has '99999 is out of range'
printf '1,2\0,3' >"$tmp/ids"
expect 1 "$INFERNIX" tokenize "$demo" --decode -f "$tmp/ids"
err_has 'NUL'
out_empty

# A character split over tokens, as JSON (under a leak checker this once failed).
expect 0 "$INFERNIX" tokenize "$demo" --json "$(printf '\360\237\231\202\303\251')"
out_has '"count"'

# What JSON cannot hold is refused before the work.
printf 'a\377b' >"$tmp/bytes"
expect 1 "$INFERNIX" run "$demo" -f "$tmp/bytes" --json --echo -n 2
err_has 'not valid UTF-8'
grep -q 'tok/s' "$tmp/err" && fail 'the text was generated before it was refused'

# An output that exists is refused before the work.
expect 1 "$INFERNIX" trace "$moe" --ids 1 --out "$tmp/open.st"
err_has '--force'
grep -q 'prompt chunks' "$tmp/err" && fail 'the trace was computed before it was refused'

# A setting inside something that is no object, or of another type, is refused; the default would run another model.
change() { # NAME OLD NEW: a copy of the checkpoint whose config.json has NEW where OLD was
  rm -rf "$tmp/$1"
  cp -r "$moe" "$tmp/$1"
  sed -i "s/$2/$3/" "$tmp/$1/config.json"
  cmp -s "$moe/config.json" "$tmp/$1/config.json" && fail "$1: config.json has no $2"
}
refused() { # NAME TEXT
  expect 1 "$INFERNIX" trace "$tmp/$1" --ids 1,2,3 --out "$tmp/$1.st"
  err_has "$2"
  [ ! -e "$tmp/$1.st" ] || fail "$1: a trace was written"
}
for value in 5 '"text"' '[1]' true; do
  change rope '"rope_parameters": {' "\"rope_parameters\": $value, \"unused\": {"
  refused rope rope_parameters
done
for value in '"10000"' '[10000]' true; do
  change theta '"rope_theta": [0-9.]*' "\"rope_theta\": $value"
  refused theta rope_theta
done
change eps '"rms_norm_eps": [0-9.e-]*' '"rms_norm_eps": "1e-6"'
refused eps rms_norm_eps
# Ids that end a generation: none is null, and never a negative number.
for value in -1 '[3, -1]' 4294967296 1.5 '"2"' '[[2]]' true; do
  change eos '"eos_token_id": \[' "\"eos_token_id\": $value, \"unused\": ["
  refused eos eos_token_id
done
change eos '"eos_token_id": \[' '"eos_token_id": null, "unused": ['
expect 0 "$INFERNIX" trace "$tmp/eos" --ids 1,2,3 --out "$tmp/eos.st"
exit 0
