#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# pack.sh BUILD OUT [FILE...]: packs a built tree so that it runs on a machine with nothing but libc, and where there is a
# GPU the driver and the CUDA runtime.  OUT/bin has the program, OUT/lib/infernix the plugins, OUT/lib the
# libraries that such a machine lacks, OUT/tests and OUT/bench the programs of make check and bench (their
# data is named on the command line or by IFX_GOLDEN).  Extra FILEs go to OUT/data.  Run with
#   LD_LIBRARY_PATH=OUT/lib OUT/bin/infernix ...
# and with the golden data among the FILEs the GPU tests: sh OUT/tests/check.sh OUT
set -eu
if [ $# -lt 2 ] || [ ! -d "$1" ]; then
  echo "usage: pack.sh BUILD OUT [FILE...]" >&2
  exit 2
fi
build=$1
out=$2
shift 2
rm -rf "$out"
mkdir -p "$out/bin" "$out/lib/infernix" "$out/tests" "$out/bench" "$out/data"
cp "$build/cli/infernix" "$out/bin/"
for so in "$build"/lib/infernix/*.so; do
  cp -L "$so" "$out/lib/infernix/"
done
for kind in "tests/*/test_*" "bench/bench_*" "bench/make_*"; do
  for f in $build/$kind; do
    if [ -f "$f" ] && [ -x "$f" ] && head -c4 "$f" | grep -q ELF; then
      case $kind in
        tests/*) cp "$f" "$out/tests/" ;;
        *) cp "$f" "$out/bench/" ;;
      esac
    fi
  done
done
for f in "$out"/bin/* "$out"/tests/* "$out"/bench/* "$out"/lib/infernix/*; do
  [ -f "$f" ] || continue
  strip --strip-unneeded "$f"
  # The C library and the dynamic loader are the machine's own, and so is the driver.
  ldd "$f" 2>/dev/null | awk '$3 ~ /^\// {print $3}' |
    grep -Ev '/(libc|libm|libdl|libpthread|librt|ld-linux[^/]*|libcuda|libcudart|libcublas[^/]*)\.so' |
    while read -r so; do cp -Ln "$so" "$out/lib/"; done
done
if [ -f "$build/demo/demo.infernix" ]; then # where the program looks, beside its own folder
  mkdir -p "$out/demo"
  cp -L "$build/demo/demo.infernix" "$out/demo/"
fi
cp "$(dirname "$0")"/*.sh "$out/tests/"
for f in "$@"; do
  cp -rL "$f" "$out/data/"
done
du -sh "$out" | cut -f1
