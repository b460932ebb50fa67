#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A plugin author's day: an installed tree in a temporary place, the template copied out of it, built with its own Makefile
# and with one cc command, checked, and used to convert and run a small checkpoint.  Nothing of the source tree is on the
# way; the code in the tutorial is taken from the installed tutorial.
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
fail() { echo "FAILED: $1"; [ -e "$dir/log" ] && cat "$dir/log"; exit 1; }

command -v pkg-config > /dev/null || { echo "skipped: pkg-config is not installed"; exit 77; }
root=$dir/root
(cd "$IFX_BUILD" && ${MAKE:-make} install DESTDIR="$root") > "$dir/log" 2>&1 || fail "make install DESTDIR=..."
unset MAKEFLAGS MFLAGS MAKELEVEL DESTDIR
for f in "$IFX_INCLUDEDIR/infernix/plugin.h" "$IFX_INCLUDEDIR/infernix/kv_skeleton.h" "$IFX_LIBDIR/pkgconfig/infernix.pc" \
    "$IFX_PLUGINDIR/kv_bf16.so" "$IFX_DOCDIR/writing-a-bank.md" "$IFX_DOCDIR/template/expert_row8.c" \
    "$IFX_DOCDIR/template/kv_f16.c" "$IFX_DOCDIR/template/Makefile"; do
    [ -e "$root$f" ] || fail "expected $f to be installed"
done

PKG_CONFIG_PATH=$root$IFX_LIBDIR/pkgconfig
export PKG_CONFIG_PATH
# What it says by itself, before any of it is overridden below.
for v in "docdir=$IFX_DOCDIR" "plugindir=$IFX_PLUGINDIR" "includedir=$IFX_INCLUDEDIR"; do
    got=$(pkg-config --variable="${v%%=*}" infernix)
    [ "$got" = "${v#*=}" ] || fail "infernix.pc: expected $v, got \"$got\""
done

# The .pc file names the configured prefix: say where it is now.
PKG_CONFIG="pkg-config --define-variable=prefix=$root$IFX_PREFIX --define-variable=includedir=$root$IFX_INCLUDEDIR"
PKG_CONFIG="$PKG_CONFIG --define-variable=docdir=$root$IFX_DOCDIR --define-variable=plugindir=$root$IFX_PLUGINDIR"
suite=$IFX_BUILD/tests/plugins/check_plugin
cp -r "$($PKG_CONFIG --variable=docdir infernix)/template" "$dir/work" && cd "$dir/work" || fail "copy of the template"
chmod -R u+w . # distcheck installs from a read-only tree
make PKG_CONFIG="$PKG_CONFIG" CC="$CC" CFLAGS="-O2 -Wall -Wextra -Werror" > "$dir/log" 2>&1 || fail "make in the template"
for p in expert_row8 kv_f16; do
    "$suite" ./$p.so > "$dir/log" 2>&1 || fail "the suite on the template's $p"
done

# With one command, as the tutorial says.
rm -f expert_row8.so
$CC -O2 -fPIC -shared $($PKG_CONFIG --cflags infernix) -o expert_row8.so expert_row8.c -lm > "$dir/log" 2>&1 ||
    fail "one cc command"

# The tutorial's kernels, put where it says.
tutorial=$root$IFX_DOCDIR/writing-a-bank.md
part() { awk -v want="<!-- part: $1 -->" '$0 == want { on = 1; next } on && /^```c/ { code = 1; next } /^```/ { if (code) exit } code' "$tutorial"; }
mkdir kernels && part kernels > kernels/kernels.c && part members > kernels/members.c
[ -s kernels/kernels.c ] && [ -s kernels/members.c ] || fail "expected the tutorial to have its two parts"
awk -v k=kernels/kernels.c -v m=kernels/members.c '
    /---- 5\. / { while ((getline line < k) > 0) print line }
    { print }
    /\.decode_row = / { while ((getline line < m) > 0) print line }' expert_row8.c > kernels/expert_row8.c
(cd kernels && $CC -O2 -Wall -Wextra -Werror -fPIC -shared $($PKG_CONFIG --cflags infernix) -o expert_row8.so expert_row8.c -lm) \
    > "$dir/log" 2>&1 || fail "the tutorial's kernels do not compile"
"$suite" kernels/expert_row8.so > "$dir/log" 2>&1 || fail "the suite on the tutorial's kernels"
grep -q "own CPU path" "$dir/log" || fail "expected the tutorial's bank to have a CPU path"

make PKG_CONFIG="$PKG_CONFIG" install > "$dir/log" 2>&1 || fail "make install in the template"
[ -e "$root$IFX_PLUGINDIR/expert_row8.so" ] || fail "expected the template's make install to put it beside the others"
rm -f "$root$IFX_PLUGINDIR/expert_row8.so" "$root$IFX_PLUGINDIR/kv_f16.so"

INFERNIX=$root$IFX_BINDIR/infernix
[ -x "$INFERNIX" ] || { echo "no installed program: the rest is left out"; exit 0; }
INFERNIX_PLUGIN_PATH=$root$IFX_PLUGINDIR
export INFERNIX_PLUGIN_PATH
make INFERNIX="$INFERNIX" check > "$dir/log" 2>&1 || fail "make check in the template"
"$INFERNIX" plugins --check ./expert_row8.so --json > "$dir/log" 2>&1 || fail "plugins --check --json"
grep -q '"ok":true' "$dir/log" || fail "plugins --check --json: no \"ok\":true"

# A tiny checkpoint with this bank's experts, then numbers from it, with the KV format that was built here.
ckpt=$IFX_GOLDEN/checkpoints/qwen3_5_moe-tiny
[ -e "$ckpt/config.json" ] || { echo "no unpacked checkpoint in $IFX_GOLDEN: conversion is left out"; exit 0; }
"$INFERNIX" --plugin ./expert_row8.so convert "$ckpt" tiny.infernix --experts row8 > "$dir/log" 2>&1
status=$?
grep -q "not have the command" "$dir/log" && { echo "no convert in this build: the rest is left out"; exit 0; }
[ $status -eq 0 ] || fail "convert --experts row8"
"$INFERNIX" --plugin ./expert_row8.so --plugin ./kv_f16.so --kv-dtype f16 trace tiny.infernix --ids 1,2,3,4,5 --out t.safetensors \
    > "$dir/log" 2>&1
status=$?
grep -q "not have the command" "$dir/log" && { echo "no trace in this build: running is left out"; exit 0; }
[ $status -eq 0 ] && [ -s t.safetensors ] || fail "trace of the converted checkpoint"
# Without the plugin the file must be refused with a message that names the format.
"$INFERNIX" trace tiny.infernix --ids 1,2,3 --out u.safetensors > "$dir/log" 2>&1 && fail "expected an error without the plugin"
grep -q row8 "$dir/log" || fail "expected the error to name row8"
echo "converted and run with a bank and a KV format built outside the tree"
exit 0
