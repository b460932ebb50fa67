#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every plugin of the tree exports exactly its two symbols and needs nothing of the core.
set -u
failed=0 n=0
for so in "$IFX_BUILDDIR"/lib/infernix/*.so; do
  [ -e "$so" ] || continue
  n=$((n + 1))
  # names with two leading underscores are the sanitizers'
  exported=$(nm -D --defined-only "$so" | awk '{ print $3 }' | sed 's/@.*//' | grep -v '^__' | sort | tr '\n' ' ')
  if [ "$exported" != "ifx_plugin_init ifx_plugin_magic " ]; then
    echo "$so: expected the symbols ifx_plugin_init ifx_plugin_magic, got: $exported"
    failed=1
  fi
  core=$(nm -D --undefined-only "$so" | awk '{ print $2 }' | grep -E '^(base|registry|artifact|text|engine|offload|plugin|ifx)_')
  if [ -n "$core" ]; then
    echo "$so: expected no undefined symbol of the core, got: $core"
    failed=1
  fi
  printing=$(nm -D --undefined-only "$so" | awk '{ print $2 }' | sed 's/@.*//' | grep -xE 'printf|puts|putchar|exit|_exit|abort|perror|__printf_chk|__fprintf_chk|fprintf')
  if [ -n "$printing" ]; then
    echo "$so: a plugin neither prints nor ends the process, but it calls: $printing"
    failed=1
  fi
done
[ $n -gt 0 ] || { echo "expected plugins in $IFX_BUILDDIR/lib/infernix, found none"; exit 1; }
echo "$n plugins"
exit $failed
