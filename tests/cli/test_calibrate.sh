#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# calibrate: rates of a pretended device come out as they were put in, the section is written, refusals.
. "$(dirname "$0")/functions.sh"
model=35b-a3b,hidden=256,inter=128,n-experts=64
sim=sim,clock=virtual,launch=0,latency=0,kernel=0,link=10G,dram=50G,cpu-flops=200G,flops=10T,expert-flops=10T,vram-bandwidth=500G
printf '[global]\nthreads = 1\n\n[assist.nvfp4]\nmax-columns = 3\n\n[run]\nctx = 64\n' >"$tmp/my.ini"
expect 0 "$INFERNIX" calibrate --synthetic $model --device $sim -r 1 --json --write "$tmp/my.ini" --plot "$tmp/c.svg"
between "$(json_number link_bytes_per_second "$tmp/out")" 9.9e9 10.1e9 || fail "link: $(json_number link_bytes_per_second "$tmp/out")"
between "$(json_number dram_bytes_per_second "$tmp/out")" 49e9 51e9 || fail "dram: $(json_number dram_bytes_per_second "$tmp/out")"
between "$(json_number dense_flops "$tmp/out")" 9.9e12 10.1e12 || fail "dense: $(json_number dense_flops "$tmp/out")"
same 'CPU seconds of 64 columns' 1 "$(grep -c '"cpu_seconds": 6.29[0-9]*e-0*5' "$tmp/out")"
same 'lines of the chart' 3 "$(grep -c '<polyline' "$tmp/c.svg")"
same 'other sections stay' 'threads = 1 ctx = 64' "$(grep -E '^(threads|ctx)' "$tmp/my.ini" | tr '\n' ' ' | sed 's/ $//')"
same 'one section' 1 "$(grep -c '^\[assist.nvfp4\]' "$tmp/my.ini")"
same 'the old limit is gone' 0 "$(grep -c '^max-columns = 3$' "$tmp/my.ini")"
grep -q '^ramp = [0-9]*:[0-9]*,' "$tmp/my.ini" || fail "no ramp: $(cat "$tmp/my.ini")"
expect 1 "$INFERNIX" calibrate --synthetic $model --device cpu
err_has 'no link to share'
expect 1 "$INFERNIX" calibrate "$(tiny qwen3_5-tiny)" --device sim
err_has 'has no experts'
expect 2 "$INFERNIX" calibrate --synthetic 36b --device sim
exit 0
