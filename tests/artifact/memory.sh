#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What convert and a load may take does not grow with the model: a conversion of 85 MiB in a third of that, by the limit on a process's own
# memory and, where groups can be made, by one that counts the pages of files too; a load in what the refusal says is needed.
set -u
: "${IFX_PROGRAM:?}" "${IFX_GOLDEN:?}" "${IFX_MAKE_LARGE:?}"
tiny=$IFX_GOLDEN/checkpoints/qwen3_5_moe-tiny
[ -r "$tiny/config.json" ] || { echo "no golden data in $IFX_GOLDEN"; exit 77; }
ldd "$IFX_PROGRAM" 2>/dev/null | grep -qE 'lib(asan|tsan)' && { echo "a sanitizer takes memory of its own"; exit 77; }
# shellcheck disable=SC3045
(ulimit -d 1000000) 2>/dev/null || { echo "this shell cannot limit memory"; exit 77; }
dir=$(mktemp -d "${TMPDIR:-/tmp}/ifx-memory-XXXXXX") || exit 99
group=
trap 'rm -rf "$dir"; [ -z "$group" ] || rmdir "$group"' EXIT
failed=0
fail() { echo "FAIL: $*: $(tail -n 3 "$dir/out")"; failed=1; }

mkdir "$dir/model"
"$IFX_MAKE_LARGE" "$tiny" "$dir/model" 256 250000 >"$dir/mib" || exit 99
[ "$(cat "$dir/mib")" -ge 80 ] || { echo "the model is too small to show anything: $(cat "$dir/mib") MiB"; exit 99; }

# within KIB COMMAND...: with at most so much memory of its own.
within() { (ulimit -d "$1"; shift; exec "$@") >"$dir/out" 2>&1; }
convert() { set -- "$dir/m.infernix" "$@"; "$limit" "$kib" "$IFX_PROGRAM" --threads 2 convert "$dir/model" "$@" --force; }

# A matrix that is quantised goes through a block of 32 MiB and its scales.
limit=within
for how in "28000 --experts nvfp4" "40000 --experts int8 --dense int8"; do
  kib=${how%% *}
  # shellcheck disable=SC2086
  convert ${how#* } || fail "convert ${how#* } in $kib KiB"
  "$IFX_PROGRAM" inspect --check "$dir/m.infernix" >"$dir/out" 2>&1 || fail "the file made in little memory (${how#* })"
done
# A limit that does not allow anything ends with a message and without a file.
rm "$dir/m.infernix"
kib=1500
convert --experts bf16 && fail "convert in $kib KiB: the limit limits nothing"
[ "$(ls -A "$dir" | tr '\n' ' ')" = 'mib model out ' ] || fail "left behind: $(ls -A "$dir")"

# A load takes what the program says that it needs, and 48 MiB for all the rest.
load() { "$@" "$IFX_PROGRAM" --threads 2 --no-pin trace "$dir/model" --ids 1,2,3 --out "$dir/t.st" --force; }
load within 30000 && fail 'a load in 30,000 KiB: the limit limits nothing'
need=$((($(cat "$dir/mib") + 48) * 1024))
load within $need || fail "a load in $need KiB"

# The same with the pages of files counted.
for root in /sys/fs/cgroup/memory /sys/fs/cgroup; do
  group=$root/ifx-test-$$ file=memory.limit_in_bytes
  [ $root = /sys/fs/cgroup ] && file=memory.max
  mkdir "$group" 2>/dev/null && [ -w "$group/$file" ] && break
  rmdir "$group" 2>/dev/null
  group=
done
[ -n "$group" ] || { echo 'groups with a memory limit cannot be made here: that part is left out'; exit $failed; }
grouped() {
  echo $(($1 * 1024)) >"$group/$file" || return 0
  shift
  sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group" "$@" >"$dir/out" 2>&1
}
limit=grouped kib=40000
convert --experts nvfp4 || fail "convert in a group of $kib KiB"
load grouped 40000 && fail 'a load in a group of 40,000 KiB'
grep -q "$group/$file" "$dir/out" || fail 'the refusal does not name the group'
load grouped $need || fail "a load in a group of $need KiB"
exit $failed
