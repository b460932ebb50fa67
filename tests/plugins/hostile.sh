#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Each of these plugins breaks one rule.  The suite must end with exit status 1 and name the check that fails; without
# the fault the same plugin must pass.
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
failed=0 count=0

# source, fault, start of the name of the check that must fail ("-": none)
try()
{
    name=expert_hostile
    [ "$1" = kv ] && name=kv_hostile
    count=$((count + 1))
    if ! $CC -O1 -fPIC -shared -ffp-contract=off -DFAULT="$2" -DPLUGIN=$name -I"$IFX_SOURCE/include" \
        -I"$IFX_SOURCE/plugins/template" -o "$dir/$name.so" "$IFX_SOURCE/tests/plugins/hostile_$1.c" -lm; then
        echo "FAILED: hostile_$1.c does not compile with $2"
        failed=1
        return
    fi
    ./check_plugin --first "$dir/$name.so" > "$dir/out" 2> "$dir/err"
    status=$?
    want=1
    [ "$3" = - ] && want=0
    if [ $status -ne $want ]; then
        echo "FAILED: hostile_$1.c with $2: expected exit status $want, got $status"
        cat "$dir/out" "$dir/err"
        failed=1
    elif [ $want -eq 1 ] && ! grep -q "^FAIL  $3.*: ." "$dir/out"; then
        echo "FAILED: hostile_$1.c with $2: expected a failure of \"$3\", got"
        grep FAIL "$dir/out"
        failed=1
    fi
}

try expert F_NONE -
try expert F_RECORD_ZERO record_bytes
try expert F_RECORD_HUGE record_bytes
try expert F_RECORD_ODD record_bytes
try expert F_RECORD_WRAP record_bytes
try expert F_RECORD_IMPURE record_bytes
try expert F_NULL_PACK accepted
try expert F_NULL_DECODE accepted
try expert F_NULL_OPEN accepted
try expert F_HALF_FORWARD accepted
try expert F_POLICY_UNSORTED accepted
try expert F_POLICY_SHARE accepted
try expert F_POLICY_NULL_POINTS accepted
try expert F_POLICY_BEYOND accepted
try expert F_PACK_PAST "pack and decode_row"
try expert F_PACK_BEFORE "pack and decode_row"
try expert F_PACK_GAP "pack and decode_row"
try expert F_PACK_NAN "pack: NaN"
try expert F_PACK_SWAPPED "pack and decode_row"
try expert F_DECODE_SHORT "pack and decode_row"
try expert F_DECODE_PAST "pack and decode_row"
try expert F_DECODE_CRASH "pack and decode_row"
try expert F_LEAK "open and close"
try expert F_NO_MEMORY "open and close"
try expert F_INIT_NULL load
try expert F_INIT_EXIT load
try expert F_INIT_CRASH load
try expert F_PRINTS load
try expert F_FORMAT_NAME accepted
try expert F_NO_DESCRIPTION descriptor
try expert F_STRUCT_SIZE load
try expert F_OPTION_DEFAULT accepted
try expert F_STATEFUL threads
try expert F_BAD_RECORD_READ "pack and decode_row"

try forward F_NONE -
try forward F_ORDER "forward, 1 to 8"
try forward F_WIDE_ONLY "forward, 9 to 576"
try forward F_SPLIT "forward, 1 to 8"
try forward F_WIDE_SPLIT "forward, 9 to 576"
try forward F_Y_PAST "any bytes"
try forward F_Y_ACCUMULATES "forward, 1 to 8"
try forward F_X_ROWS "forward, 1 to 8"
try forward F_Y_ROWS "forward, 1 to 8"
try forward F_SCRATCH "any bytes"
try forward F_SCRATCH_HUGE "any bytes"
try forward F_NAN "forward: NaN"
try forward F_NAN_SPREADS "forward: NaN"
try forward F_STACK "forward, 1 to 8"
try forward F_ALLOCATES "any bytes"
try forward F_GLOBAL threads
try forward F_LEVEL "forward, 1 to 8"
try forward F_TRUNCATES "forward, 1 to 8"
try forward F_STATUS "any bytes"
try forward F_WRITES_X "any bytes"
try forward F_WRITES_RECORD "forward, 1 to 8"

try kv F_NONE -
try kv F_PAGE_ZERO page_bytes
try kv F_PAGE_ODD page_bytes
try kv F_PAGE_HUGE page_bytes
try kv F_PAGE_SHORT "append and decode_row"
try kv F_NULL_ATTEND accepted
try kv F_NULL_DECODE accepted
try kv F_SCALE "attend against"
try kv F_CAUSAL "attend against"
try kv F_CAUSAL_SHORT "attend against"
try kv F_T0 "attend against"
try kv F_T1 "attend against"
try kv F_ROWS "attend: row selection"
try kv F_HEAD "attend against"
try kv F_GROUP "attend against"
try kv F_SWAP "append and decode_row"
try kv F_NAN_STORE "append: NaN"
try kv F_NAN_MASK "attend: tokens that"
try kv F_EMPTY "attend against"
try kv F_PAST_ACC "attend against"
try kv F_STACK "attend: threads"
try kv F_ALLOCATES "attend against"
try kv F_GLOBAL "attend: threads"
try kv F_NORMALISED "attend against"
try kv F_OVERFLOW "attend against"
try kv F_PIECES "append and decode_row"
try kv F_LEAK "open and close"
try kv F_NO_MEMORY "open and close"
try kv F_DECODE "attend against"
try kv F_Q0 "attend against"

# Files that are no plugins, and JSON.
: > "$dir/empty.so"
echo text > "$dir/text.so"
for f in empty text; do
    count=$((count + 1))
    ./check_plugin "$dir/$f.so" > "$dir/out" 2>&1 && { echo "FAILED: $f.so: expected exit status 1, got 0"; failed=1; }
    grep -q "^FAIL  load: ." "$dir/out" || { echo "FAILED: $f.so: no reason given:"; cat "$dir/out"; failed=1; }
done
count=$((count + 1))
./check_plugin --json "$dir/text.so" | grep -q '^{"file":.*"ok":false,"failed":1,"checks":\[{"name":"load","ok":false,"detail":".*"}\]}$' ||
    { echo "FAILED: --json: not the expected object"; failed=1; }

echo "$count hostile plugins tried"
exit $failed
