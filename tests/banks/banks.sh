#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The bank tests on the banks of this tree.
set -eu
plugins=${IFX_PLUGINS:-../../lib/infernix}
exec ./test_banks "$plugins/expert_bf16.so" "$plugins/expert_int8.so" "$plugins/expert_nvfp4.so"
