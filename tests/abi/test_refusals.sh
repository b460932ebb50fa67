#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Real .so files, one for each fault: the refusal must name it, and must come before any code of the plugin runs wherever the file
# alone shows the fault.
set -u
minor=$(sed -n 's/^#define IFX_ABI_MINOR \([0-9]*\)u/\1/p' "$IFX_SRCDIR/include/infernix/plugin.h")
here=$IFX_SRCDIR/tests/abi
work=$PWD/refusals.tmp
rm -rf "$work" && mkdir "$work" || exit 1
unset INFERNIX_PLUGIN_PATH
passed=0 failed=0

bad() { echo "FAILED: $*"; failed=$((failed + 1)); }

# build FILE.so FLAGS...: plugin.c with faults
build() {
  out=$1
  shift
  $CC -std=c11 -O0 -fPIC -shared -w -I"$IFX_SRCDIR/include" -DT_CTOR "$@" -o "$work/$out" "$here/plugin.c" -pthread ||
    { bad "$out does not build"; return 1; }
}

# says SPEC "TEXT" [static]: refused with the text; static: before its constructor
says() {
  spec=$1 want=$2
  got=$(./probe load "$spec" 2>&1)
  rc=$?
  case $got in
    *"$want"*) ;;
    *) bad "$spec: expected \"$want\", got \"$got\""; return ;;
  esac
  [ $rc -eq 1 ] || { bad "$spec: expected exit status 1, got $rc"; return; }
  case $got in *refused:*) ;; *) bad "$spec: expected a refusal, got \"$got\""; return ;; esac
  if [ "${3:-}" = static ]; then
    case $got in *"constructor ran"*) bad "$spec: code of a refused plugin ran"; return ;; esac
  fi
  [ "$(printf '%s\n' "$got" | grep -v 'constructor ran' | wc -l)" -eq 1 ] || { bad "$spec: expected one line, got \"$got\""; return; }
  passed=$((passed + 1))
}

# fault NAME "TEXT" static|loaded FLAGS...
fault() {
  name=$1 want=$2 when=$3
  shift 3
  build "$name.so" -DT_NAME="\"$name\"" "$@" && says "$work/$name.so" "$want" "$when"
}

# accepted FILE.so
accepted() {
  got=$(./probe load "$work/$1" 2>&1) || { bad "$1: expected to load, got \"$got\""; return; }
  case $got in *"constructor ran"*) passed=$((passed + 1)) ;; *) bad "$1: the constructor did not run, so the test proves nothing" ;; esac
}

# ---- what is right ----
build t_good.so && accepted t_good.so
build t_newer.so -DT_NAME='"t_newer"' -DT_MINOR=IFX_ABI_MINOR+1 -DT_EXTRA_BYTES=64 -DT_OPS='(sizeof(ops_type)+64)' && accepted t_newer.so
build t_kv.so -DT_NAME='"t_kv"' -DT_KIND=2 -DT_FORM=2 && accepted t_kv.so
build_string=$(./probe build)
build t_model.so -DT_NAME='"t_model"' -DT_KIND=3 -DT_FORM=3 -DT_BUILD="\"$build_string\"" && accepted t_model.so
build t_device.so -DT_NAME='"t_device"' -DT_KIND=4 -DT_FORM=4 -DT_BUILD="\"$build_string\"" && accepted t_device.so
build t_policy.so -DT_NAME='"t_policy"' -DT_POINTS='{64,77},{255,104},{575,149}' -DT_POLICY= && accepted t_policy.so

# ---- the magic block: told from the file, no code runs ----
fault t_major "plugin ABI 2.$minor, this program has 1.$minor" static -DT_MAJOR=2
fault t_major0 "plugin ABI 0.$minor, this program has 1.$minor" static -DT_MAJOR=0
fault t_block8 "magic block of 8 bytes, this program expects" static -DT_BLOCK=8
fault t_block0 "magic block of 0 bytes, this program expects" static -DT_BLOCK=0
fault t_block1e9 "magic block of 1000000000 bytes, this program expects" static -DT_BLOCK=1000000000u
fault t_kind0 "kind 0, this program knows" static -DT_KIND=0
fault t_kind9 "kind 9, this program knows" static -DT_KIND=9
fault t_numerics "numerics revision 7, this program has 1" static -DT_REVISION=7
fault t_ops0 "operations struct of 0 bytes" static -DT_OPS=0
fault t_opshuge "operations struct of 4000000000 bytes" static -DT_OPS=4000000000u
fault t_cuda "CUDA runtime 5 is no CUDART_VERSION" static -DT_CUDA=5
fault t_text "does not begin with INFERNIX" static -DT_MAGIC="'X','N','F','E','R','N','I','X'"
fault t_section "without section .ifx_plugin" static -DT_SECTION='".ifx_other"'
build t_renamed.so -DT_NAME='"t_else"' && says "$work/t_renamed.so" 'name "t_else", but the file is t_renamed.so: rename' static
build T-Bad.so -DT_NAME='"T-Bad"' && says "$work/T-Bad.so" 'name "T-Bad" is not made of' static
build t_empty.so -DT_NAME='""' && says "$work/t_empty.so" 'name "" is not made of' static
build t_full.so -DT_NAME='"0123456789012345678901234567890a"' && says "$work/t_full.so" 'is not made of' static
fault t_build "build \"other\", this program needs \"$build_string\"" static -DT_KIND=3 -DT_FORM=3 -DT_BUILD='"other"'
fault t_nobuild "build \"\", this program needs \"$build_string\"" static -DT_KIND=4 -DT_FORM=4

# ---- not a plugin ----
: > "$work/t_zero.so"
says "$work/t_zero.so" "the file is empty" static
echo "#!/bin/sh" > "$work/t_words.so"
says "$work/t_words.so" "no ELF file" static
cp "$work/t_good.so" "$work/t_32.so" && printf '\001' | dd of="$work/t_32.so" bs=1 seek=4 conv=notrunc 2> /dev/null
says "$work/t_32.so" "a 32-bit ELF file" static
cp "$work/t_good.so" "$work/t_big.so" && printf '\002' | dd of="$work/t_big.so" bs=1 seek=5 conv=notrunc 2> /dev/null
says "$work/t_big.so" "other byte order" static
cp "$work/t_good.so" "$work/t_arm.so" && printf '\050' | dd of="$work/t_arm.so" bs=1 seek=18 conv=notrunc 2> /dev/null
says "$work/t_arm.so" "another CPU architecture" static
cp /bin/ls "$work/t_program.so"
says "$work/t_program.so" "refused" static
$CC -c -w -I"$IFX_SRCDIR/include" -o "$work/t_object.so" "$here/plugin.c"
says "$work/t_object.so" "a plugin is a shared object" static
size=$(wc -c < "$work/t_good.so")
for part in 1 3 10 40 63 64 200 1000 $((size / 4)) $((size / 2)) $((size - 3000)) $((size - 64)) $((size - 1)); do
  head -c $part "$work/t_good.so" > "$work/t_cut.so"
  says "$work/t_cut.so" "refused" static
done
mkdir "$work/t_folder.so"
says "$work/t_folder.so" "a directory" static
mkfifo "$work/t_fifo.so"
says "$work/t_fifo.so" "not a regular file" static
says "$work/t_none.so" "No such file" static
says "/dev/zero" "not a regular file" static
cp "$work/t_good.so" "$work/t_secret.so" && chmod 000 "$work/t_secret.so"
if [ "$(id -u)" -ne 0 ]; then
  says "$work/t_secret.so" "Permission denied" static
elif got=$(setpriv --reuid=65534 --regid=65534 --clear-groups ./probe load "$work/t_secret.so" 2>&1) || [ -n "$got" ]; then
  case $got in
    *"Permission denied"*) passed=$((passed + 1)) ;;
    *) echo "skipped: an unreadable file: root reads everything, and as another user: $got" ;;
  esac
fi
rm -f "$work/t_secret.so"

# ---- what only loading shows ----
fault t_nomagic "symbol ifx_plugin_magic is missing" loaded -DT_NO_MAGIC
fault t_noinit "symbol ifx_plugin_init is missing" loaded -DT_NO_INIT
fault t_other "returns another block" loaded -DT_OTHER_BLOCK
fault t_null "returns another block" loaded -DT_NULL_BLOCK
fault t_initnull "ifx_plugin_init returned NULL and recorded no error" loaded -DT_INIT_NULL
fault t_initerror "ifx_plugin_init failed: needs a flux capacitor" loaded -DT_INIT_ERROR
fault t_undefined "ifx_test_symbol_that_nobody_has" static -DT_UNDEFINED
echo 'int nothere(void) { return 0; }' > "$work/n.c"
$CC -shared -fPIC -Wl,-soname,libnothere.so.9 -o "$work/libnothere.so" "$work/n.c"
$CC -std=c11 -fPIC -shared -w -I"$IFX_SRCDIR/include" -DT_LIBRARY -DT_NAME='"t_library"' -o "$work/t_library.so" "$here/plugin.c" \
  -L"$work" -lnothere -pthread
rm -f "$work/libnothere.so"
says "$work/t_library.so" "libnothere.so.9" static
fault t_structsize "the operations say struct_size 16, the magic block" loaded -DT_STRUCT=16

# ---- callbacks ----
for member in record_bytes open close pack decode_row scratch_bytes gate_up down; do
  fault t_drop "callback $member is NULL" loaded -DT_DROP=$member
done
for member in page_bytes open close append attend decode_row; do
  fault t_drop "callback $member is NULL" loaded -DT_DROP=$member -DT_KIND=2 -DT_FORM=2
done
for member in open close describe workspace_bytes forward; do
  fault t_drop "callback $member is NULL" loaded -DT_DROP=$member -DT_KIND=3 -DT_FORM=3 -DT_BUILD="\"$build_string\""
done
fault t_drop "callback open is NULL" loaded -DT_DROP=open -DT_KIND=4 -DT_FORM=4 -DT_BUILD="\"$build_string\""

# ---- identities ----
fault t_ident "format is NULL" loaded -DT_DROP=format
fault t_ident 'format "" has letters' loaded -DT_FORMAT='""'
fault t_ident 'format "../x" has letters' loaded -DT_FORMAT='"../x"'
fault t_ident 'architectures is empty' loaded -DT_DROP=architectures -DT_KIND=3 -DT_FORM=3 -DT_BUILD="\"$build_string\""
fault t_ident 'identities is empty' loaded -DT_DROP=identities -DT_KIND=4 -DT_FORM=4 -DT_BUILD="\"$build_string\""

# ---- policies ----
fault t_pol "points must ascend, but point 1 is at 64 columns after 255" loaded -DT_POINTS='{255,77},{64,104}' -DT_POLICY=
fault t_pol "points must ascend" loaded -DT_POINTS='{64,77},{64,104}' -DT_POLICY=
fault t_pol "share 257, at most 256" loaded -DT_POINTS='{64,257}' -DT_POLICY=
fault t_pol "share 4294967295, at most 256" loaded -DT_POINTS='{64,-1}' -DT_POLICY=
fault t_pol "last point at 576 columns is past max_columns 575" loaded -DT_POINTS='{64,77},{576,104}' -DT_POLICY=
fault t_pol "max_columns 0 is not in" loaded -DT_POINTS='{64,77}' -DT_POLICY='policy.max_columns=0'
fault t_pol "max_columns 4000000000 is not in" loaded -DT_POINTS='{64,77}' -DT_POLICY='policy.max_columns=4000000000u'
fault t_pol "0 ramp points" loaded -DT_POINTS='{64,77}' -DT_POLICY='policy.n_points=0'
fault t_pol "1000000 ramp points" loaded -DT_POINTS='{64,77}' -DT_POLICY='policy.n_points=1000000'
fault t_pol "(NULL)" loaded -DT_POINTS='{64,77}' -DT_POLICY='policy.points=0'
fault t_pol "struct_size 4, at least" loaded -DT_POINTS='{64,77}' -DT_POLICY='policy.struct_size=4'

# ---- options ----
build t_opt.so -DT_NAME='"t_opt"' -DT_OPTIONS='{"group",1,0,"64","group size",16,256},{"exact",3,0,"no","",0,0},'
says "$work/t_opt.so,gruop=64" 'unknown option "gruop", did you mean "group"?'
says "$work/t_opt.so,group=8" "16 to 256"
says "$work/t_opt.so,group=12k" "not a whole number"
says "$work/t_opt.so,exact=perhaps" "neither yes nor no"
says "$work/t_opt.so," "empty option"
says "$work/t_good.so,group=64" "has no options"
fault t_table "type 9" loaded -DT_OPTIONS='{"group",9,0,"64","",0,0},'
fault t_table "bad default" loaded -DT_OPTIONS='{"group",1,0,"x","",0,0},'
./probe load "$work/t_opt.so,group=128,exact" > /dev/null 2>&1 || bad "t_opt.so: expected good options to be accepted"

# ---- names ----
says "t_god" 'searched' static
got=$(./probe -p "$work" load t_god 2>&1)
case $got in *"did you mean t_good?"*) passed=$((passed + 1)) ;; *) bad "t_god: expected the nearest name, got \"$got\"" ;; esac
case $got in *"$work"*) passed=$((passed + 1)) ;; *) bad "t_god: expected the folders searched, got \"$got\"" ;; esac
says "t_good.so" "a file's path needs a slash" static
says "" "a name or a path with a slash is needed" static
says ",group=1" "a name or a path with a slash is needed" static

# ---- two claimants of one identity ----
mkdir "$work/two"
build two/expert_q.so -DT_NAME='"expert_q"' -DT_FORMAT='"q"'
build two/mine.so -DT_NAME='"mine"' -DT_FORMAT='"q"'
got=$(./probe -p "$work/two" load mine find expert q 2>&1)
case $got in
  *"claimed by two plugins"*"$work/two/"*"$work/two/"*) passed=$((passed + 1)) ;;
  *) bad "two claimants: expected an error that names both files, got \"$got\"" ;;
esac
got=$(./probe -p "$work/two" find expert q 2>&1)
case $got in *"found expert_q $work/two/expert_q.so"*) passed=$((passed + 1)) ;; *) bad "one claimant: expected it to be found, got \"$got\"" ;; esac
mkdir "$work/three" && cp "$work/two/mine.so" "$work/three/mine.so"
got=$(./probe load "$work/two/mine.so" load "$work/three/mine.so" 2>&1)
case $got in
  *"has the same name"*) passed=$((passed + 1)) ;;
  *) bad "two files of one name: expected a refusal, got \"$got\"" ;;
esac
# the earlier folder wins, and the later file is told
got=$(./probe -p "$work/three:$work/two" list 2>&1)
case $got in *"mine: not used: $work/three/mine.so has the same name"*) passed=$((passed + 1)) ;; *) bad "shadowed file: got \"$got\"" ;; esac

# ---- two CUDA runtimes in one process ----
build t_cuda12.so -DT_NAME='"t_cuda12"' -DT_CUDA=12080
build t_cuda13.so -DT_NAME='"t_cuda13"' -DT_CUDA=13000
got=$(./probe load "$work/t_cuda12.so" load "$work/t_cuda13.so" 2>&1)
case $got in
  *"CUDA runtime 13.0, but $work/t_cuda12.so (loaded) has 12.8"*) passed=$((passed + 1)) ;;
  *) bad "two CUDA runtimes: expected a refusal with both versions, got \"$got\"" ;;
esac

# ---- a kind that lies: its operations are judged as what it says ----
build t_lie.so -DT_NAME='"t_lie"' -DT_KIND=2 && says "$work/t_lie.so" "refused" loaded
got=$(./probe -p "$work" find kv t_good 2>&1)
case $got in *"no plugin for kv"*) passed=$((passed + 1)) ;; *) bad "find of another kind: got \"$got\"" ;; esac

# ---- the list goes on past everything that is refused ----
got=$(./probe -p "$work" list 2>&1) || bad "list: expected exit status 0"
for line in "t_good: ok" "t_zero: not a plugin: the file is empty" "t_library: cannot load: libnothere.so.9" \
  "t_undefined: cannot load: $work/t_undefined.so: undefined symbol" "t_major: plugin ABI 2.$minor" "searched $work"; do
  case $got in *"$line"*) passed=$((passed + 1)) ;; *) bad "list: expected \"$line\" in \"$got\"" ;; esac
done

# ---- load, refuse, load: 100 times; then threads, TLS destructors and exit handlers at the end ----
got=$(./probe repeat 100 "$work/t_good.so" "$work/t_major.so" repeat 100 "$work/t_good.so" "$work/t_initnull.so" 2>&1)
rc=$?
case $got in *"100 rounds"*"100 rounds"*) passed=$((passed + 1)) ;; *) bad "load-refuse-load: got \"$got\"" ;; esac
[ $rc -eq 0 ] || bad "load-refuse-load: expected exit status 0, got $rc"
build t_trouble.so -DT_NAME='"t_trouble"' -DT_TROUBLE
./probe load "$work/t_trouble.so" > /dev/null 2>&1
rc=$?
[ $rc -eq 0 ] && passed=$((passed + 1)) || bad "teardown: expected exit status 0, got $rc"
fault t_trouble2 "callback pack is NULL" loaded -DT_TROUBLE -DT_DROP=pack

# ---- a bank of an older, shorter struct ----
$CC -std=c11 -fPIC -shared -Wall -Wextra -Werror -I"$IFX_SRCDIR/include" -o "$work/t_old.so" "$here/old_bank.c" || bad "old_bank.c does not build"
got=$(./probe nulls "$work/t_old.so" 2>&1) || bad "old bank: expected to load, got \"$got\""
case $got in
  *"check_record NULL, gate_up NULL, down NULL, level NULL, row_granule 0"*"policy 255 columns, 2 points, first 64:77"*) passed=$((passed + 1)) ;;
  *) bad "old bank: expected absent members to be NULL and the default policy, got \"$got\"" ;;
esac

echo "$passed passed, $failed failed"
[ $failed -eq 0 ] && rm -rf "$work"
exit $failed
