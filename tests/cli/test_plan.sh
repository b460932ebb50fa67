#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# plan: what fits, a curve that holds together, refusals that say what to do.
. "$(dirname "$0")/functions.sh"
expect 0 "$INFERNIX" plan 122b-a10b -p 64,255,256,575,576,1100 --plot "$tmp/plan.svg"
out_has 'expert frames'
out_has 'decode:'
out_has 'for this machine: --assist-max-columns'
grep -q '</svg>' "$tmp/plan.svg" || fail 'no chart'
same 'lines of the chart' 4 "$(grep -c '<polyline' "$tmp/plan.svg")"
expect 0 "$INFERNIX" plan 122b-a10b -p 32,48,64,96,128,192,255,256,320,384,448,512,575,576,640,768,896,1023,1100 --csv --machine desktop
# The ramp of this machine and balance never lose 2 % from one width to the next, and beat streaming; streaming is the same for all past the limit.
awk -F, 'NR > 1 {
  for (i = 3; i <= 4; i++) {
    if (last[i] && $i < 0.98 * last[i]) { print "column " i " falls at " $1; bad = 1 }
    if ($i < 0.999 * $5 || $i < 0.98 * $2) { print "column " i " is slower than another at " $1; bad = 1 }
    last[i] = $i
  }
  if ($1 == 576 && ($2 != $5 || $8 != 0)) { print "576 columns are not streamed"; bad = 1 }
  if ($1 == 575 && $8 == 0) { print "575 columns are not assisted"; bad = 1 }
} END { exit bad || NR != 20 }' "$tmp/out" >"$tmp/why" || fail "curve: $(cat "$tmp/why")"
for machine in desktop old server; do
  expect 0 "$INFERNIX" plan 122b-a10b --csv --machine $machine
  awk -F, 'NR > 1 && $4 < 0.9995 * $2 { print "balance is slower than the ramp at " $1; bad = 1 } END { exit bad || NR != 24 }' "$tmp/out" >"$tmp/why" ||
    fail "$machine: $(cat "$tmp/why")"
done
expect 0 "$INFERNIX" plan 122b-a10b --machine server,vram=1T,latency=0 -p 64
out_has 'for this machine: --assist off: every expert is on the device'
expect 0 "$INFERNIX" plan 35b-a3b --machine server,vram=96G --json -p 64
[ "$(json_number frames "$tmp/out")" = "$(json_number experts "$tmp/out")" ] || fail 'a large card does not hold all experts'
expect 1 "$INFERNIX" plan 122b-a10b --machine desktop,vram=8G
err_has 'lower --ctx'
expect 1 "$INFERNIX" plan 122b-a10b --machine desktop,ram=32G
err_has 'GiB of RAM'
expect 2 "$INFERNIX" plan 122b-a10c
err_has 'did you mean 122b-a10b?'
expect 2 "$INFERNIX" plan 35b-a3b --machine laptop
err_has 'desktop, old and server'
expect 2 "$INFERNIX" plan 35b-a3b --machine desktop,vram=much
expect 2 "$INFERNIX" plan 35b-a3b --machine desktop,
err_has 'has an empty item'
expect 2 "$INFERNIX" plan 35b-a3b -p 64,0
err_has 'lengths are 1 to 8192'
expect 2 "$INFERNIX" plan 35b-a3b 122b-a10b
err_has 'one geometry'
expect 2 "$INFERNIX" plan
exit 0
