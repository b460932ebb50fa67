#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Each of these plugins breaks one rule.  The suite must end with exit status 1 and name the check that fails; without
# the fault the same plugin must pass.  Two at a time: most of the time goes into starting compilers and checks.

# One case: source, fault, start of the name of the check that must fail ("-": none); 0 when it went as it should.
if [ "${1:-}" = one ]; then
    name=expert_hostile
    [ "$2" = kv ] && name=kv_hostile
    own=$HOSTILE_DIR/$2.$3
    mkdir "$own" || exit 1
    if ! $CC -O1 -fPIC -shared -ffp-contract=off -DFAULT="$3" -DPLUGIN=$name -I"$IFX_SOURCE/include" \
        -I"$IFX_SOURCE/plugins/template" -o "$own/$name.so" "$IFX_SOURCE/tests/plugins/hostile_$2.c" -lm; then
        echo "FAILED: hostile_$2.c does not compile with $3"
        exit 1
    fi
    ./check_plugin --first --scalar "$own/$name.so" > "$own/out" 2> "$own/err"
    status=$?
    want=1
    [ "$4" = - ] && want=0
    if [ $status -ne $want ]; then
        echo "FAILED: hostile_$2.c with $3: expected exit status $want, got $status"
        cat "$own/out" "$own/err"
        exit 1
    elif [ $want -eq 1 ] && ! grep -q "^FAIL  $4.*: ." "$own/out"; then
        echo "FAILED: hostile_$2.c with $3: expected a failure of \"$4\", got"
        grep FAIL "$own/out"
        exit 1
    fi
    exit 0
fi

dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
failed=0 count=0
HOSTILE_DIR=$dir
export HOSTILE_DIR

cat > "$dir/cases" <<'CASES'
expert F_NONE -
expert F_RECORD_ZERO record_bytes
expert F_RECORD_HUGE record_bytes
expert F_RECORD_ODD record_bytes
expert F_RECORD_WRAP record_bytes
expert F_RECORD_IMPURE record_bytes
expert F_RECORD_CUT record_bytes
expert F_NULL_PACK accepted
expert F_NULL_DECODE accepted
expert F_NULL_OPEN accepted
expert F_HALF_FORWARD accepted
expert F_POLICY_UNSORTED accepted
expert F_POLICY_SHARE accepted
expert F_POLICY_NULL_POINTS accepted
expert F_POLICY_BEYOND accepted
expert F_PACK_PAST "pack and decode_row"
expert F_PACK_FAR "pack and decode_row"
expert F_PACK_BEFORE "pack and decode_row"
expert F_PACK_GAP "pack and decode_row"
expert F_PACK_NAN "pack: NaN"
expert F_PACK_SWAPPED "pack and decode_row"
expert F_DECODE_SHORT "pack and decode_row"
expert F_DECODE_PAST "pack and decode_row"
expert F_DECODE_DOUBLE "forward, 1 to 8"
expert F_DECODE_CRASH "pack and decode_row"
expert F_LEAK "open and close"
expert F_NO_MEMORY "open and close"
expert F_INIT_NULL load
expert F_INIT_EXIT load
expert F_INIT_CRASH load
expert F_PRINTS load
expert F_FORMAT_NAME accepted
expert F_NO_DESCRIPTION descriptor
expert F_STRUCT_SIZE load
expert F_OPTION_DEFAULT accepted
expert F_STATEFUL threads
expert F_BAD_RECORD_READ "pack and decode_row"
forward F_NONE -
forward F_ORDER "forward, 1 to 8"
forward F_WIDE_ONLY "forward, 9 to 576"
forward F_SPLIT "forward, 1 to 8"
forward F_WIDE_SPLIT "forward, 9 to 576"
forward F_Y_PAST "any bytes"
forward F_Y_ACCUMULATES "forward, 1 to 8"
forward F_X_ROWS "forward, 1 to 8"
forward F_Y_ROWS "forward, 1 to 8"
forward F_SCRATCH "any bytes"
forward F_SCRATCH_HUGE "any bytes"
forward F_NAN "forward: NaN"
forward F_NAN_SPREADS "forward: NaN"
forward F_STACK "forward, 1 to 8"
forward F_ALLOCATES "any bytes"
forward F_MALLOC "any bytes"
forward F_OWN_EXP "forward: silu"
forward F_GLOBAL threads
forward F_LEVEL "forward, 1 to 8"
forward F_TRUNCATES "forward, 1 to 8"
forward F_STATUS "any bytes"
forward F_WRITES_X "any bytes"
forward F_WRITES_RECORD "forward, 1 to 8"
kv F_NONE -
kv F_PAGE_ZERO page_bytes
kv F_PAGE_ODD page_bytes
kv F_PAGE_HUGE page_bytes
kv F_PAGE_CUT page_bytes
kv F_POS32 "tokens beyond"
kv F_ATTEND32 "tokens beyond"
kv F_MALLOC "attend against"
kv F_PAGE_SHORT "append and decode_row"
kv F_NULL_ATTEND accepted
kv F_NULL_DECODE accepted
kv F_SCALE "attend against"
kv F_CAUSAL "attend against"
kv F_CAUSAL_SHORT "attend against"
kv F_T0 "attend against"
kv F_T1 "attend against"
kv F_ROWS "attend: row selection"
kv F_HEAD "attend against"
kv F_GROUP "attend against"
kv F_SWAP "append and decode_row"
kv F_NAN_STORE "append: NaN"
kv F_NAN_MASK "attend: tokens that"
kv F_EMPTY "attend against"
kv F_PAST_ACC "attend against"
kv F_STACK "attend: threads"
kv F_ALLOCATES "attend against"
kv F_GLOBAL "attend: threads"
kv F_NORMALISED "attend against"
kv F_OVERFLOW "attend against"
kv F_PIECES "append and decode_row"
kv F_LEAK "open and close"
kv F_NO_MEMORY "open and close"
kv F_DECODE "attend against"
kv F_Q0 "attend against"
CASES
count=$(wc -l < "$dir/cases")
xargs -P 2 -L 1 sh "$0" one < "$dir/cases" || failed=1

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

# Options reach the plugin under test: those that its table refuses fail, and the report names what it ran with.
own=$dir/expert.F_NONE
./check_plugin --json --scalar --first "$own/expert_hostile.so,level=7" > "$dir/out" 2>&1 || { echo "FAILED: level=7:"; cat "$dir/out"; failed=1; }
grep -q '"options":"level=7"' "$dir/out" || { echo "FAILED: level=7 is not reported:"; cat "$dir/out"; failed=1; }
for bad in level=10 nope=1 level; do
    ./check_plugin --scalar --first "$own/expert_hostile.so,$bad" > "$dir/out" 2>&1 && { echo "FAILED: option $bad: expected exit status 1"; failed=1; }
    grep -q "^FAIL .*${bad%%=*}" "$dir/out" || { echo "FAILED: option $bad is not named:"; cat "$dir/out"; failed=1; }
done

# A plugin that writes past its records is found while it converts, and what it made is thrown away.
program=$IFX_BUILD/cli/infernix model=$IFX_GOLDEN/checkpoints/qwen3_5_moe-tiny
if [ -x "$program" ] && [ -r "$model/config.json" ]; then
    mkdir "$dir/converted"
    "$program" --plugin "$dir/expert.F_NONE/expert_hostile.so" convert "$model" "$dir/converted/good.infernix" --experts hostile > "$dir/out" 2>&1 ||
        { echo "FAILED: convert with a sound plugin:"; cat "$dir/out"; failed=1; }
    "$program" --plugin "$dir/expert.F_PACK_FAR/expert_hostile.so" convert "$model" "$dir/converted/bad.infernix" --experts hostile > "$dir/out" 2>&1
    [ $? -eq 1 ] || { echo "FAILED: convert with F_PACK_FAR: expected exit status 1"; cat "$dir/out"; failed=1; }
    grep -q "hostile writes outside its records" "$dir/out" || { echo "FAILED: convert with F_PACK_FAR:"; cat "$dir/out"; failed=1; }
    [ "$(ls -A "$dir/converted")" = good.infernix ] || { echo "FAILED: convert with F_PACK_FAR left $(ls -A "$dir/converted")"; failed=1; }
fi

echo "$count hostile plugins tried"
exit $failed
