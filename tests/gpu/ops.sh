#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Operations on a GPU against the oracle: 1,000 random shapes each, goldens, every fourth from a captured graph.
exec "${IFX_OPS_TESTS:-../ops}/test_ops" "$IFX_PLUGINS"/device_cpu.so "$IFX_GOLDEN" "$IFX_PLUGINS"/device_cuda.so cuda "${IFX_ROUNDS:-10}"
