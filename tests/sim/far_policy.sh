#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A policy that suits the machine is not talked about; one that is far off is, in one line that names calibrate - in ramp mode, and unless everything fits.
fail() { echo "FAIL: $*"; exit 1; }
lines() { # cpu-flops vram options: how many lines say it
  flops=$1 vram=$2
  shift 2
  "$INFERNIX" bench --synthetic 122b-a10b,shrink,layers=8 -p 16 -n 0 -r 1 --warm 1 --threads 1 "$@" \
    --device "sim,clock=virtual,vram=$vram,link=26G,dram=75G,cpu-flops=$flops,vram-bandwidth=1.5T,flops=146T,expert-flops=100T" >out.$$ 2>&1 ||
    fail "bench: $(cat out.$$)"
  grep 'far off on this machine' out.$$ | grep -c 'infernix calibrate'
  rm -f out.$$
}
is() { # expected, found, what
  [ "$1" = "$2" ] || fail "$3: $2 lines, expected $1"
}
is 0 "$(lines 385G 32M)" 'the desktop that the policy suits'
is 1 "$(lines 3T 32M)" 'a CPU eight times as fast'
is 1 "$(lines 150G 32M)" 'a CPU less than half as fast'
is 0 "$(lines 3T 32M --assist balance)" 'balance, which follows no policy'
is 0 "$(lines 3T 1G)" 'room for every expert'
exit 0
