#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The program's convert and inspect as a user meets them: refusals, limits, interruption; nothing may be left behind.
set -u
: "${IFX_PROGRAM:?}" "${IFX_GOLDEN:?}"
moe=$IFX_GOLDEN/checkpoints/qwen3_5_moe-mid
nvfp4=$IFX_GOLDEN/checkpoints/qwen3_5_moe-tiny-nvfp4
[ -r "$moe/config.json" ] || { echo "no golden data in $IFX_GOLDEN"; exit 77; }
dir=$(mktemp -d "${TMPDIR:-/tmp}/ifx-convert-XXXXXX") || exit 99
trap 'rm -rf "$dir"' EXIT
failed=0

fail() { echo "FAIL: $*"; failed=1; }
# expect STATUS TEXT COMMAND...: exit status, and TEXT somewhere in the output
expect() {
  want=$1 text=$2
  shift 2
  "$@" >"$dir/out" 2>&1
  rc=$?
  [ $rc -eq "$want" ] || fail "$*: exit status $rc, $want expected: $(cat "$dir/out")"
  grep -q -- "$text" "$dir/out" || fail "$*: no \"$text\" in: $(cat "$dir/out")"
  rm -f "$dir/out"
}
nothing_left() { [ -z "$(ls -A "$dir")" ] || fail "$1: left behind: $(ls -A "$dir")"; }

expect 2 "are needed" "$IFX_PROGRAM" convert "$moe"
expect 2 "bf16 and int8" "$IFX_PROGRAM" convert "$moe" "$dir/m.infernix" --dense int4
expect 2 "dense-named" "$IFX_PROGRAM" convert "$moe" "$dir/m.infernix" --dense-named q_proj
expect 2 "nvfp5" "$IFX_PROGRAM" convert "$moe" "$dir/m.infernix" --experts nvfp5
expect 1 "No such file" "$IFX_PROGRAM" convert "$dir/nowhere" "$dir/m.infernix"
expect 1 "no/such" "$IFX_PROGRAM" convert "$moe" "$dir/no/such/m.infernix"
expect 1 "directory" "$IFX_PROGRAM" convert "$moe" "$dir"
nothing_left "refusals"

# A file size limit (in blocks of 512 bytes) in the middle of the work.
(ulimit -f 2000 && "$IFX_PROGRAM" convert "$moe" "$dir/m.infernix" >"$dir.log" 2>&1)
rc=$?
[ $rc -eq 1 ] || fail "ulimit -f: exit status $rc, 1 expected: $(cat "$dir.log")"
grep -q "cannot write" "$dir.log" || fail "ulimit -f: $(cat "$dir.log")"
rm -f "$dir.log"
nothing_left "ulimit -f"

# Killed or interrupted at any moment: the final name exists only when the program said so.
for signal in INT TERM KILL; do
  for wait in 0.01 0.03 0.06 0.1; do
    "$IFX_PROGRAM" convert "$moe" "$dir/m.infernix" --experts nvfp4 >/dev/null 2>&1 &
    pid=$!
    sleep $wait
    kill -$signal $pid 2>/dev/null
    wait $pid 2>/dev/null
    rc=$?
    if [ $rc -ne 0 ] && [ -e "$dir/m.infernix" ]; then
      # killed between the rename and the exit: then it must be whole
      "$IFX_PROGRAM" inspect --check "$dir/m.infernix" >/dev/null 2>&1 || fail "SIG$signal after $wait s left a broken file"
    fi
    rm -f "$dir/m.infernix"
    [ $signal = INT ] && nothing_left "SIGINT after $wait s"
  done
done

# What SIGKILL left goes with the next conversion to that name.
expect 0 "m.infernix" "$IFX_PROGRAM" convert "$moe" "$dir/m.infernix" --experts nvfp4
[ "$(ls -A "$dir")" = m.infernix ] || fail "after SIGKILL and another conversion: $(ls -A "$dir")"
expect 1 "--force" "$IFX_PROGRAM" convert "$moe" "$dir/m.infernix"
expect 0 "bf16" "$IFX_PROGRAM" convert "$moe" "$dir/m.infernix" --force --experts bf16
expect 0 "everything is in order" "$IFX_PROGRAM" inspect --check "$dir/m.infernix"
expect 0 "255 columns" "$IFX_PROGRAM" inspect "$dir/m.infernix"
expect 0 "575 columns" "$IFX_PROGRAM" inspect "$nvfp4"
expect 0 "NVFP4 (ModelOpt)" "$IFX_PROGRAM" inspect "$nvfp4"
# Kept out of --dense int8 unless named; the imported experts are exact.
expect 0 "int8" "$IFX_PROGRAM" convert "$nvfp4" "$dir/n.infernix" --dense int8 --json
"$IFX_PROGRAM" inspect --tensors "$dir/n.infernix" >"$dir/list" 2>&1
for kept in mlp.gate.weight shared_expert_gate in_proj_a in_proj_b q_proj; do
  grep -q "$kept.* W8G32" "$dir/list" && fail "$kept was quantised without being named"
done
grep -q "k_proj.* W8G32" "$dir/list" || fail "k_proj was not quantised"
# Re-packing a container goes through the bank that wrote it.
expect 0 "int8" "$IFX_PROGRAM" convert "$dir/n.infernix" "$dir/i.infernix" --experts int8
expect 0 "everything is in order" "$IFX_PROGRAM" inspect --check "$dir/i.infernix"
exit $failed
