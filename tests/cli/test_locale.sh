#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Numbers are read and written with "." in every locale.
. "$(dirname "$0")/functions.sh"
comma=$(locale -a 2>/dev/null | grep -iE '^(de_DE|fr_FR|it_IT|es_ES|pt_BR|ru_RU)\.utf-?8$' | head -1)
if [ -z "$comma" ]; then
  # No such locale installed: one is made where the tools are there.
  command -v localedef >/dev/null 2>&1 || skip "no locale with a decimal comma"
  localedef -i de_DE -f UTF-8 "$tmp/de_DE.UTF-8" >/dev/null 2>&1 || skip "no locale with a decimal comma, and none could be made"
  LOCPATH=$tmp
  export LOCPATH
  comma=de_DE.UTF-8
fi
moe=$(tiny qwen3_5_moe-tiny)
seq -s, 1 40 >"$tmp/ids"
LC_ALL=$comma
export LC_ALL
expect 0 "$INFERNIX" perplexity "$moe" --ids "$tmp/ids" --json
cp "$tmp/out" "$tmp/comma"
between "$(json_number nll "$tmp/comma")" 0.001 100 || fail "nll is not a number with a point: $(grep nll "$tmp/comma")"
LC_ALL=C
expect 0 "$INFERNIX" perplexity "$moe" --ids "$tmp/ids" --json
same 'nll in both locales' "$(json_number nll "$tmp/out")" "$(json_number nll "$tmp/comma")"
LC_ALL=$comma
expect 2 "$INFERNIX" run "$moe" hello --temperature 0,7
err_has 'not a number'
expect 1 "$INFERNIX" run "$moe" hello --temperature 0.7
err_has tokenizer
printf '[run]\ntemperature = 0,7\n' >"$tmp/c.ini"
expect 2 "$INFERNIX" --config "$tmp/c.ini" run "$moe" hello
expect 0 "$INFERNIX" bench "$moe" -p 8 -n 2 -r 1 --csv
grep -q '^"",prompt,8,8,[0-9.]*,' "$tmp/out" || fail "CSV numbers: $(tail -2 "$tmp/out")"
# Every number of a JSON report has a point.
expect 0 "$INFERNIX" bench "$moe" -p 8 -n 2 -r 1 --json
out_has '"median"'
grep -nE '[0-9],[0-9]' "$tmp/out" && fail 'a number with a comma in bench --json'
# What calibrate writes.
sim=sim,clock=virtual,launch=0,latency=0,kernel=0,link=10G,dram=50G,cpu-flops=200G,flops=10T,expert-flops=10T,vram-bandwidth=500G
expect 0 "$INFERNIX" calibrate --synthetic 35b-a3b,hidden=256,inter=128,n-experts=64 --device $sim -r 1 --write "$tmp/my.ini"
grep -nE '= *[0-9]+,[0-9]+ *$' "$tmp/my.ini" && fail 'a number with a comma in what calibrate wrote'
exit 0
