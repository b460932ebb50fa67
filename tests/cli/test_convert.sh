#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A conversion that ends early leaves no file; an existing one is kept unless --force; the result runs as its source does.
. "$(dirname "$0")/functions.sh"
moe=$(tiny qwen3_5_moe-tiny)
expect 0 "$INFERNIX" convert "$moe" "$tmp/a.infernix"
expect 0 "$INFERNIX" trace "$moe" --ids 1,2,3,4 -o "$tmp/x.st"
expect 0 "$INFERNIX" trace "$tmp/a.infernix" --ids 1,2,3,4 -o "$tmp/y.st"
cmp "$tmp/x.st" "$tmp/y.st" || fail 'the container runs differently from its checkpoint'
cp "$tmp/a.infernix" "$tmp/kept"
expect 1 "$INFERNIX" convert "$moe" "$tmp/a.infernix"
err_has --force
cmp -s "$tmp/a.infernix" "$tmp/kept" || fail 'a refused conversion changed the file that was there'
expect 0 "$INFERNIX" convert "$moe" "$tmp/a.infernix" --force --experts int8
cmp -s "$tmp/a.infernix" "$tmp/kept" && fail '--force left the old file'
expect 1 "$INFERNIX" convert "$moe" "$tmp/no/such/dir/b.infernix"
err_has "$tmp/no/such/dir"
expect 2 "$INFERNIX" convert "$moe" "$tmp/b.infernix" --experts nvfp5
expect 2 "$INFERNIX" convert "$moe" "$tmp/b.infernix" --dense int7
leftovers() { find "$tmp/out-dir" -type f | wc -l | tr -d ' '; }
mkdir "$tmp/out-dir"
# A file size limit stands for a full disk; SIGXFSZ ignored, so that write reports it.
got=0
(trap '' XFSZ; ulimit -f 200; exec "$INFERNIX" convert "$moe" "$tmp/out-dir/b.infernix") >"$tmp/out" 2>"$tmp/err" || got=$?
same 'status when the file may not grow' 1 "$got"
same 'files left' 0 "$(leftovers)"
# Killed: nothing under the final name.
if [ -n "${IFX_DEMO_CHECKPOINT:-}" ]; then
  for signal in INT KILL; do
    "$INFERNIX" convert "$IFX_DEMO_CHECKPOINT" "$tmp/out-dir/c.infernix" --experts nvfp4 >/dev/null 2>&1 &
    pid=$!
    sleep 0.5
    kill -$signal $pid 2>/dev/null
    wait $pid 2>/dev/null
    [ ! -e "$tmp/out-dir/c.infernix" ] || fail "SIG$signal left a file under the final name"
  done
fi
exit 0
