#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Models on a GPU: the golden checkpoints within cpu's tolerances, the demo's greedy tokens, and the same text with and without
# graphs.
if [ ! -e /dev/nvidiactl ]; then
  echo "skipped: there is no NVIDIA driver (no /dev/nvidiactl)"
  exit 77
fi
failed=0
fail() { echo "FAILED: $*"; failed=1; }
IFX_TEST_DEVICE=cuda "${IFX_MODEL_TESTS:-../model}/test_golden" > golden.out 2>&1 || { cat golden.out; fail "golden checkpoints on cuda"; }
tail -3 golden.out
for prompt in "Once upon a time" "The dragon looked at the little girl and said" "In the morning"; do
  for options in "" "--no-cuda-graph" "--device cpu"; do
    # shellcheck disable=SC2086
    "$IFX_PROGRAM" run -q --device cuda --greedy -n 100 $options "$prompt" > "text$options.out" 2> error.out || { cat error.out; fail "run $options"; }
  done
  cmp "text.out" "text--no-cuda-graph.out" || fail "'$prompt': with and without graphs the texts differ"
  cmp "text.out" "text--device cpu.out" || fail "'$prompt': cuda and cpu differ (a near tie would show in test_demo)"
done
rm -f golden.out text*.out error.out
exit $failed
