#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# No cliff with the nvfp4 policy on a machine that it suits; one at 256 columns with a limit of 255; a streamed pass does not know of policies.
# Time is computed (device sim, virtual clock), so a figure is the same on every machine and under any load.
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
fail() { echo "FAIL: $*"; exit 1; }
bench() { # options of arms; rates as "tokens arm-number rate" lines in $tmp/rates
  "$INFERNIX" bench --synthetic 122b-a10b,shrink,layers=8 -n 0 -r 2 --warm 100 --threads 1 --quiet --csv \
    --device sim,clock=virtual,vram=32M,link=26G,dram=75G,cpu-flops=385G "$@" >"$tmp/csv" 2>"$tmp/err" || fail "bench: $(cat "$tmp/err")"
  # The arms' texts hold commas, so fields are counted from behind the closing quote.
  sed '1d; s/^"\([^"]*\)",/\1|/' "$tmp/csv" | awk -F'|' '{ if (!($1 in arm)) arm[$1] = ++n; split($2, f, ","); print f[2], arm[$1], f[4] }' >"$tmp/rates"
}
bench -p 32,48,64,96,128,255,256,320,448,575,576,768 --arm '--assist-max-columns 255 --assist-ramp 64:77' --arm '--assist ramp' --arm '--assist off' --arm '--assist balance'
cat "$tmp/rates"
awk '{
  rate[$1, $2] = $3
  if ($2 == 2 && last && $3 < 0.98 * last) { print "the nvfp4 policy loses more than 2 % at " $1; bad = 1 }
  if ($2 == 2) last = $3
  if ($2 == 4 && balanced && $3 < 0.98 * balanced) { print "balance loses more than 2 % at " $1; bad = 1 }
  if ($2 == 4 && $3 < 0.9995 * rate[$1, 2]) { print "balance is slower than the ramp at " $1; bad = 1 }
  if ($2 == 4) balanced = $3
} END {
  if (rate[256, 1] > 0.9 * rate[255, 1]) { print "a limit of 255 shows no cliff at 256: the test sees nothing"; bad = 1 }
  if (rate[256, 2] < 1.2 * rate[256, 1]) { print "the limit of 575 gains nothing at 256"; bad = 1 }
  for (n = 576; n <= 768; n += 192) {
    d = rate[n, 2] / rate[n, 1] - 1
    if (d > 0.002 || d < -0.002) { print "streaming " n " columns depends on the policy: " d; bad = 1 }
    d = rate[n, 2] / rate[n, 3] - 1
    if (d > 0.01 || d < -0.01) { print "streaming " n " columns differs from --assist off: " d; bad = 1 }
  }
  exit bad
}' "$tmp/rates" >"$tmp/why" || fail "$(cat "$tmp/why")"
# A machine on which a record on the link takes a fifteenth of a layer's time: one too many shows.
"$INFERNIX" bench --synthetic 122b-a10b,shrink,layers=6 -n 0 -r 1 --warm 30 --threads 1 --quiet --csv -p 96,97,98,99,100,101,102,103,104,105,106,107,108,109,110 \
  --device sim,clock=virtual,vram=24M,link=25G,dram=400G,cpu-flops=13T,vram-bandwidth=730G,flops=180T,expert-flops=120T --assist balance >"$tmp/server" 2>"$tmp/err" ||
  fail "bench: $(cat "$tmp/err")"
awk -F, 'NR > 1 { if (last && $5 < 0.995 * last) { print "balance loses " 1 - $5 / last " at " $3; bad = 1 } last = $5 } END { exit bad || NR != 16 }' "$tmp/server" >"$tmp/why" ||
  fail "server: $(cat "$tmp/why" "$tmp/server")"
cp "$tmp/csv" "$tmp/first"
bench -p 255,576 --arm '--assist ramp'
cp "$tmp/csv" "$tmp/once"
bench -p 255,576 --arm '--assist ramp'
cmp "$tmp/csv" "$tmp/once" || fail 'the computed clock told two times for the same work'
exit 0
