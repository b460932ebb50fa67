#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# One CUDA runtime in a process: no plugin brings its own, only the device links the shared one, and in whatever order plugins are opened at
# most one is in memory.  Needs neither the CUDA Toolkit nor a GPU.
set -u
command -v nm >/dev/null && command -v readelf >/dev/null || { echo "skipped: no binutils"; exit 77; }
dir=$(mktemp -d) || exit 99
trap 'rm -rf "$dir"' EXIT
failed=0
fail() { echo "FAILED: $*"; failed=1; }
# Functions of the runtime, or the registration of kernels, defined in the file itself.
own_runtime() { nm "$1" 2>/dev/null | grep -E ' [TtWwDdBb] (__cudart|__cudaRegister|cuda(Malloc|LaunchKernel|GetDevice|StreamCreate))' | head -3; }
needed() { readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'; }

count=0
for so in "$IFX_PLUGINS"/*.so; do
  count=$((count + 1))
  own=$(own_runtime "$so")
  [ -z "$own" ] || fail "$so holds a CUDA runtime of its own: $own"
  for lib in $(needed "$so"); do
    case $lib in
      libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | ld-linux* | libgcc_s.so.* | libasan.so.* | libubsan.so.* | libtsan.so.*) ;;
      libcudart.so.*) [ "$(basename "$so")" = device_cuda.so ] || fail "$so links $lib: only the device may" ;;
      *) fail "$so links $lib" ;;
    esac
  done
done
[ $count -ge 9 ] || fail "expected all plugins in $IFX_PLUGINS, found $count"

# The check above finds what it looks for.
printf '%s\n' 'int cudaMalloc(void **p, unsigned long n) { (void)n; return p == 0; }' 'int f(void **p) { return cudaMalloc(p, 1); }' >"$dir/own.c"
$CC -shared -fPIC -o "$dir/own.so" "$dir/own.c" && [ -z "$(own_runtime "$dir/own.so")" ] && fail "a runtime inside a plugin is not found"

# In one process, the banks and formats with kernels before the device and after it.
program=$IFX_BUILD/cli/infernix
[ -x "$program" ] || exit $failed
forward= backward=
for so in "$IFX_PLUGINS"/*.so; do
  forward="$forward --plugin $(basename "$so" .so)"
  backward="--plugin $(basename "$so" .so) $backward"
done
INFERNIX_PLUGIN_PATH=$IFX_PLUGINS INFERNIX_CONFIG=
export INFERNIX_PLUGIN_PATH INFERNIX_CONFIG
for order in "$forward" "$backward"; do
  # shellcheck disable=SC2086
  LD_DEBUG=files "$program" $order plugins >"$dir/out" 2>"$dir/files" || fail "plugins $order: $(tail -n 3 "$dir/files")"
  runtimes=$(sed -n 's/.*calling init: \(.*libcudart.*\)/\1/p' "$dir/files" | sort -u | wc -l)
  [ "$runtimes" -le 1 ] || fail "$runtimes CUDA runtimes in one process"
  grep -q 'calling init: .*expert_nvfp4.so' "$dir/files" || fail "the plugins were not opened: $(head -n 3 "$dir/out")"
done
# With no GPU to be seen they serve the CPU.
ckpt=$IFX_GOLDEN/checkpoints/qwen3_5_moe-tiny
[ -e "$ckpt/config.json" ] || exit $failed
# shellcheck disable=SC2086
for order in "$forward" "$backward"; do
  CUDA_VISIBLE_DEVICES='' "$program" $order trace "$ckpt" --device cpu --ids 1,2,3 --out "$dir/t.st" --force >"$dir/out" 2>&1 || fail "on the CPU: $(tail -n 3 "$dir/out")"
done
exit $failed
