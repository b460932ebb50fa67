#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installed under a staging folder and moved: the program finds its plugins and the demo beside itself.
. "$(dirname "$0")/functions.sh"
[ -f "$IFX_TOP_BUILDDIR/config.status" ] || skip "not a build tree"
"${IFX_MAKE:-make}" -C "$IFX_TOP_BUILDDIR" -s install DESTDIR="$tmp/stage" >"$tmp/log" 2>&1 || {
  tail -5 "$tmp/log"
  fail 'make install DESTDIR=...'
}
bin=$(find "$tmp/stage" -name infernix -type f | head -1)
[ -x "$bin" ] || fail 'no program was installed'
prefix=$(dirname "$(dirname "$bin")")
mv "$prefix" "$tmp/moved here" # a space in the path, too
cd / || exit 1
infernix="$tmp/moved here/bin/infernix"
real=$(cd "$tmp" && pwd -P)
expect 0 "$infernix" plugins
for p in device_cpu expert_bf16 expert_nvfp4 kv_bf16 model_qwen3_5; do
  out_has "$real/moved here/lib/infernix/$p.so"
done
expect 0 "$infernix" trace "$(tiny qwen3_5_moe-tiny)" --ids 1,2,3 -o "$tmp/x.st"
[ -r "$tmp/moved here/include/infernix/plugin.h" ] || fail 'headers were not installed'
find "$tmp/moved here" -name '*.la' | grep -q . && fail 'libtool files among the plugins'
if [ -e "$IFX_TOP_BUILDDIR/demo/demo.infernix" ]; then
  expect 0 "$infernix" run --greedy -n 5 "Once upon a time"
  err_has "$tmp/moved here/bin/../share/infernix/demo.infernix"
else
  expect 1 "$infernix" run "Once upon a time"
  err_has 'demo.infernix'
fi
exit 0
