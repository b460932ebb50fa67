#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `infernix plugins` as a user sees it: the list goes on past what is refused and says why; exit 1 only when something asked
# for by name fails; plugins are found after the prefix was moved.
set -u
minor=$(sed -n 's/^#define IFX_ABI_MINOR \([0-9]*\)u/\1/p' "$IFX_SRCDIR/include/infernix/plugin.h")
here=$IFX_SRCDIR/tests/abi
program=$IFX_BUILDDIR/cli/infernix
work=$PWD/plugins.tmp
rm -rf "$work" && mkdir "$work" || exit 1
unset INFERNIX_PLUGIN_PATH
passed=0 failed=0

# expect STATUS "TEXT" COMMAND...: exit status, and the text in what it prints
expect() {
  want_rc=$1 want=$2
  shift 2
  got=$("$@" 2>&1)
  rc=$?
  if [ $rc -ne "$want_rc" ]; then
    echo "FAILED: $*: expected exit status $want_rc, got $rc with \"$got\""
    failed=$((failed + 1))
    return
  fi
  case $got in
    *"$want"*) passed=$((passed + 1)) ;;
    *) echo "FAILED: $*: expected \"$want\", got \"$got\""; failed=$((failed + 1)) ;;
  esac
}

build() {
  out=$1
  shift
  $CC -std=c11 -O0 -fPIC -shared -w -I"$IFX_SRCDIR/include" "$@" -o "$work/$out" "$here/plugin.c" -pthread || exit 1
}

build t_good.so -DT_OPTIONS='{"group",1,0,"64","group size",16,256},'
build t_major.so -DT_NAME='"t_major"' -DT_MAJOR=2
build t_undefined.so -DT_NAME='"t_undefined"' -DT_UNDEFINED
echo 'int nothere(void) { return 0; }' > "$work/n.c"
$CC -shared -fPIC -Wl,-soname,libnothere.so.9 -o "$work/libnothere.so" "$work/n.c" || exit 1
$CC -std=c11 -fPIC -shared -w -I"$IFX_SRCDIR/include" -DT_LIBRARY -DT_NAME='"t_library"' -o "$work/t_library.so" "$here/plugin.c" \
  -L"$work" -lnothere -pthread || exit 1
rm -f "$work/libnothere.so" "$work/n.c"
: > "$work/t_zero.so"

for name in device_cpu expert_bf16 expert_int8 expert_nvfp4 kv_bf16 kv_int8 model_qwen3_5; do
  expect 0 "$name" "$program" plugins
done
expect 0 "searched, in this order:" "$program" plugins
expect 0 "libnothere.so.9: cannot open shared object file" "$program" --plugin-path "$work" plugins
expect 0 "undefined symbol: ifx_test_symbol_that_nobody_has" "$program" --plugin-path "$work" plugins
expect 0 "plugin ABI 2.$minor, this program has 1.$minor" "$program" --plugin-path "$work" plugins
expect 0 "the file is empty" "$program" --plugin-path "$work" plugins
expect 0 "model_qwen3_5" "$program" --plugin-path "$work" plugins
expect 0 "\"refusal\": \"plugin ABI 2.$minor" "$program" --plugin-path "$work" plugins --json
expect 0 "$work" "$program" --plugin-path "$work" plugins
expect 0 "$work/none  (does not exist)" "$program" --plugin-path "$work/none" plugins
expect 0 "t_good" env INFERNIX_PLUGIN_PATH="$work" "$program" plugins

expect 0 "assist.ramp=64:77,255:104,575:149" "$program" plugins expert_nvfp4
expect 0 "assist.max_columns=255" "$program" plugins expert_int8
expect 0 "identity=int8" "$program" plugins kv_int8
expect 0 '"identity": "int8"' "$program" plugins kv_int8 --json
expect 0 "cpu.in_use=scalar" "$program" --cpu scalar plugins expert_nvfp4
expect 0 "option.group.default=64" "$program" plugins "$work/t_good.so"
expect 0 "option.group.value=128" "$program" --plugin "$work/t_good.so,group=128" plugins t_good
expect 0 "option.group.range=16..256" "$program" --plugin-path "$work" plugins t_good
expect 1 "not found" "$program" plugins nope
expect 1 "did you mean kv_int8?" "$program" plugins kv_int9
expect 1 "libnothere.so.9" "$program" --plugin-path "$work" plugins t_library
expect 1 "libnothere.so.9" "$program" --plugin "$work/t_library.so" plugins
expect 1 "plugin ABI 2.$minor" "$program" plugins "$work/t_major.so"
expect 2 'did you mean "group"?' "$program" --plugin "$work/t_good.so,gruop=64" plugins
expect 2 "" "$program" plugins a b
expect 2 "" "$program" plugins --check "$work/t_good.so" a
expect 1 "" "$program" plugins --check "$work/t_major.so"
expect 0 "" "$program" plugins --check "$IFX_BUILDDIR/lib/infernix/device_cpu.so"

# Plugins whose sizes are wrong are refused when a model is opened with them.
model=$IFX_BUILDDIR/tests/data/golden/checkpoints/qwen3_5_moe-tiny
if [ -f "$model/model.safetensors" ]; then
  sized() { # sized FLAG "TEXT" OPTION
    build t_size.so -DT_NAME='"t_size"' -DT_FORMAT='"sized"' "$1" $4
    expect 1 "$2" "$program" --plugin "$work/t_size.so" trace "$model" --ids 1,2,3 --out "$work/t.safetensors" $3
  }
  sized -DT_RECORD=0 "cannot hold experts" "--experts sized" ""
  sized -DT_RECORD=5000 "a record of 5000 bytes is not a multiple of 4096" "--experts sized" ""
  sized -DT_RECORD=0x7ffffffffffff000ull "is past all sense" "--experts sized" ""
  sized -DT_PAGE=0 "does not support" "--kv-dtype sized" "-DT_KIND=2 -DT_FORM=2"
  sized -DT_PAGE=100 "a page of 100 bytes is not a multiple of 64" "--kv-dtype sized" "-DT_KIND=2 -DT_FORM=2"
  sized -DT_PAGE=0x7fffffffffffff00ull "is past all sense" "--kv-dtype sized" "-DT_KIND=2 -DT_FORM=2"
else
  echo "no golden checkpoint in $model: sizes not tried"
fi

# A prefix that was moved, with a blank in its name: only the place relative to the program is left.
moved="$work/moved prefix"
mkdir -p "$moved/bin" "$moved/lib/infernix"
cp "$program" "$moved/bin/infernix"
cp "$IFX_BUILDDIR/lib/infernix/kv_bf16.so" "$moved/lib/infernix/"
expect 0 "$moved/lib/infernix/kv_bf16.so" "$moved/bin/infernix" plugins
expect 0 "identity=bf16" "$moved/bin/infernix" plugins kv_bf16
# Its own plugins come before those of an installation elsewhere.
first=$(INFERNIX_PLUGIN_PATH='' INFERNIX_CONFIG='' "$moved/bin/infernix" plugins | sed -n '/^searched/{n;p;}')
case $first in
  "  $moved/lib/infernix") passed=$((passed + 1)) ;;
  *) failed=$((failed + 1)); echo "FAILED: first folder searched: expected $moved/lib/infernix, got $first" ;;
esac

if [ -n "${VALGRIND:-}" ] && ! nm "$program" | grep -q __asan_init && ! nm "$program" | grep -q __tsan_init; then
  expect 0 "searched" "$VALGRIND" -q --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite "$program" --plugin-path "$work" plugins
  expect 0 "identity=int8" "$VALGRIND" -q --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite "$program" plugins kv_int8
else
  echo "valgrind not used"
fi

echo "$passed passed, $failed failed"
[ $failed -eq 0 ] && rm -rf "$work"
exit $failed
