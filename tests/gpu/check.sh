#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check.sh PACKED: every GPU test of a tree that pack.sh packed, on a machine with nothing but a driver and the CUDA runtime.
# A test that cannot run there says why and is skipped.  With a second argument, "sanitize", compute-sanitizer looks on.
set -u
if [ $# -lt 1 ] || [ ! -d "$1/lib/infernix" ]; then
  echo "usage: check.sh PACKED [sanitize]" >&2
  exit 2
fi
packed=$(cd "$1" && pwd)
scripts=$(cd "$(dirname "$0")" && pwd)
export LD_LIBRARY_PATH="$packed/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export IFX_PLUGINS="$packed/lib/infernix" INFERNIX_PLUGIN_PATH="$packed/lib/infernix" IFX_PROGRAM="$packed/bin/infernix"
export IFX_OPS_TESTS="$packed/tests" IFX_MODEL_TESTS="$packed/tests" IFX_GPU_TESTS="$packed/tests" IFX_GOLDEN="$packed/data/golden"
if [ "${2:-}" = sanitize ]; then
  export IFX_ROUNDS=1
  run="compute-sanitizer --error-exitcode 9 --target-processes all sh"
else
  run=sh
fi
failed=0
for test in host ops experts kv model; do
  $run "$scripts/$test.sh" > "$test.log" 2>&1
  status=$?
  case $status in
    0) echo "PASS: $test: $(tail -1 "$test.log")" ;;
    77) echo "SKIP: $test: $(head -1 "$test.log")" ;;
    *)
      echo "FAIL: $test (status $status)"
      tail -40 "$test.log"
      failed=1
      ;;
  esac
done
exit $failed
