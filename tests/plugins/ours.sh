#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every plugin of the tree passes the conformance suite.
failed=0
for so in "$IFX_PLUGINS"/*.so; do
    [ -e "$so" ] || { echo "no plugins in $IFX_PLUGINS"; exit 1; }
    ./check_plugin "$so" || { echo "FAILED: expected $so to conform"; failed=1; }
done
exit $failed
