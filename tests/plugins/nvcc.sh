#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# plugins/nvcc.sh with a pretended nvcc that writes down its arguments: known flags reach it, others are refused, the C file it
# leaves holds the image byte for byte.  Needs no CUDA Toolkit.
set -u
script=$IFX_SOURCE/plugins/nvcc.sh
work=nvcc.tmp
rm -rf $work
mkdir $work
failed=0
fail() { echo "FAILED: $*"; failed=1; }

cat > $work/nvcc <<'X'
#!/bin/sh
echo "$*" > nvcc.tmp/arguments
for last; do :; done
while [ $# -gt 0 ]; do
  case $1 in
    -o) printf 'image\000of %s' "$(basename "$last")" > "$2" ;;
    -MF) echo "$last:" > "$2" ;;
  esac
  shift
done
X
chmod +x $work/nvcc
: > $work/some.cu

sh "$script" $work/nvcc "90 120" $work/some_image.c -Iinclude -DX=1 -O3 -lineinfo -ccbin some-cc $work/some.cu || fail "known flags are refused"
arguments=$(cat $work/arguments)
for want in "arch=compute_90a,code=sm_90a" "arch=compute_120,code=sm_120" "arch=compute_90,code=compute_90" "-fmad=false" "-Iinclude" "-DX=1" \
  "-O3" "-lineinfo" "-ccbin some-cc"; do
  case $arguments in
    *"$want"*) ;;
    *) fail "expected $want in nvcc's arguments, got: $arguments" ;;
  esac
done
cat > $work/main.c <<'X'
#include <stdint.h>
#include <stdio.h>
extern const unsigned char ifx_image_some[];
extern const uint64_t ifx_image_some_bytes;
int main(void)
{
    return fwrite(ifx_image_some, 1, ifx_image_some_bytes, stdout) != ifx_image_some_bytes;
}
X
# shellcheck disable=SC2086
$CC -fPIC -o $work/main $work/main.c $work/some_image.c && $work/main > $work/got
cmp $work/got $work/some_image.fatbin || fail "the image in the program differs from the file"

# Two at once, as two makes in one tree would, each while the other is in the middle of it.
cp $work/nvcc $work/quick
cat > $work/nvcc <<'X'
#!/bin/sh
sh nvcc.tmp/quick "$@"
for file; do
  case $file in
    *.fatbin*) printf ' and its end' >> "$file"; sleep 0.3; printf '.' >> "$file" ;;
  esac
done
X
sh "$script" $work/nvcc 90 $work/both_image.c $work/some.cu & first=$!
sleep 0.1
sh "$script" $work/nvcc 90 $work/both_image.c $work/some.cu || fail "the second of two at once"
wait $first || fail "the first of two at once"
case $(tr '\000' ' ' < $work/both_image.fatbin) in
  *"some.cu and its end.") ;;
  *) fail "two at once left a broken image: $(tr '\000' ' ' < $work/both_image.fatbin)" ;;
esac
[ "$(find $work -name 'both_image*' | wc -l)" -eq 3 ] || fail "two at once left $(find $work -name 'both_image*' | tr '\n' ' ')"
cp $work/quick $work/nvcc

refused() { # FLAG...
  rm -f $work/other.c
  text=$(sh "$script" $work/nvcc 90 $work/other.c "$@" 2>&1)
  status=$?
  [ $status -eq 2 ] || fail "$*: expected status 2, got $status"
  [ -n "$text" ] || fail "$*: expected a reason"
  [ ! -e $work/other.c ] || fail "$*: expected no output"
}
refused -Wall $work/some.cu
refused -fvisibility=hidden $work/some.cu
refused -use_fast_math $work/some.cu
refused -arch=sm_90 $work/some.cu
refused $work/some.cu $work/some.cu
refused some.o $work/some.cu
refused -O3
refused $work/some.cu -ccbin
case $(sh "$script" $work/nvcc 90 $work/other.c -Wall $work/some.cu 2>&1) in
  *-Wall*) ;;
  *) fail "expected the refusal to name the flag" ;;
esac
# A compiler that fails leaves nothing that make would take for a result.
printf '#!/bin/sh\nexit 1\n' > $work/nvcc
if sh "$script" $work/nvcc 90 $work/other.c $work/some.cu || [ -e $work/other.c ]; then
  fail "expected failure and no file of a compiler that fails"
fi
rm -rf $work
exit $failed
