#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Sizes and offsets of every public struct against the committed table.  A changed line is an ABI break; lines that are only added
# at the end of a format-tier struct (and its size) need a new minor number, anything else a new major one.
set -eu
here=$IFX_SRCDIR/tests/abi
[ "$(uname -m)" = x86_64 ] || { echo "the table is that of x86-64"; exit 77; }
work=table.tmp
rm -rf $work && mkdir $work
awk -f "$here/table.awk" "$IFX_SRCDIR"/include/infernix/*.h > $work/table.c
$CC -std=c11 -I"$IFX_SRCDIR/include" -o $work/table $work/table.c -lm
$work/table > $work/table.txt
n=$(wc -l < $work/table.txt)
[ "$n" -gt 150 ] || { echo "expected more than 150 lines in the table, got $n: the headers were not understood"; exit 1; }
# every struct definition of the headers must be in it
for s in $(sed -n 's/^struct \([a-z_0-9]*\) {.*/\1/p' "$IFX_SRCDIR"/include/infernix/*.h); do
  grep -q "^struct $s [0-9]" $work/table.txt || { echo "struct $s is missing in the table"; exit 1; }
done
if ! diff -u "$here/abi.txt" $work/table.txt; then
  echo "expected the layout of tests/abi/abi.txt, got the one above."
  echo "If the change is meant: raise the ABI number in plugin.h, then copy $PWD/$work/table.txt to tests/abi/abi.txt."
  exit 1
fi
rm -rf $work
