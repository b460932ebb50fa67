#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# nvcc.sh NVCC "ARCHITECTURES" OUT.c [FLAG...] IN.cu: compiles the kernels of IN.cu and writes C source that holds them.
#
# OUT.fatbin gets machine code for every architecture (90, as 90a, and 120) and PTX of the first, for those that come after.  OUT.c defines
#   const unsigned char ifx_image_NAME[]; const uint64_t ifx_image_NAME_bytes;     (NAME: IN without .cu)
# which a plugin gives to ifx_compute.module_load.  OUT.d lists what OUT.c depends on, for make.
#
# nvcc passes on or drops what it does not know, so a flag that this script does not know is refused.
set -eu
if [ $# -lt 4 ]; then
  echo "usage: nvcc.sh NVCC 'ARCHITECTURES' OUT.c [FLAG...] IN.cu" >&2
  exit 2
fi
nvcc=$1 archs=$2 out=$3
shift 3
in=
n=$#
while [ "$n" -gt 0 ]; do
  flag=$1
  shift
  n=$((n - 1))
  case $flag in
    -I?* | -D?* | -U?* | -O[0-3] | -g | -G | -lineinfo | -Xptxas=?* | -Werror=?*) set -- "$@" "$flag" ;;
    -ccbin)
      if [ "$n" -eq 0 ]; then
        echo "nvcc.sh: -ccbin needs a compiler" >&2
        exit 2
      fi
      set -- "$@" "$flag" "$1"
      shift
      n=$((n - 1))
      ;;
    -*)
      echo "nvcc.sh: flag $flag is unknown here; known are -I -D -U -O -g -G -lineinfo -Xptxas= -Werror= -ccbin" >&2
      exit 2
      ;;
    *.cu)
      if [ -n "$in" ]; then
        echo "nvcc.sh: one source at a time: $in, $flag" >&2
        exit 2
      fi
      in=$flag
      ;;
    *)
      echo "nvcc.sh: $flag is neither a flag nor a .cu file" >&2
      exit 2
      ;;
  esac
done
case $out in
  *.c) base=${out%.c} ;;
  *)
    echo "nvcc.sh: $out does not end in .c" >&2
    exit 2
    ;;
esac
if [ -z "$in" ]; then
  echo "nvcc.sh: no .cu file" >&2
  exit 2
fi
code=
first=
for a in $archs; do
  # 90a: with the instructions that only Hopper has
  case $a in 90) code="$code -gencode arch=compute_90a,code=sm_90a" ;; *) code="$code -gencode arch=compute_$a,code=sm_$a" ;; esac
  first=${first:-$a}
done
code="$code -gencode arch=compute_$first,code=compute_$first"
# Names of its own until a file is whole: two makes may run in one tree.
tmp=$base.$$
trap 'rm -f "$tmp.d" "$tmp.fatbin" "$tmp.c"' EXIT
# Contraction off and IEEE division and roots: the numerics contract (numerics.h) is about bits.
# shellcheck disable=SC2086
"$nvcc" -std=c++17 -fatbin $code -fmad=false -ftz=false -prec-div=true -prec-sqrt=true "$@" \
  -MMD -MP -MF "$tmp.d" -MT "$out" -o "$tmp.fatbin" "$in"
mv "$tmp.d" "$base.d"
mv "$tmp.fatbin" "$base.fatbin"
name=$(basename "$in" .cu)
path=$(cd "$(dirname "$base")" && pwd)/$(basename "$base").fatbin
cat > "$tmp.c" <<C
/* Made by plugins/nvcc.sh from $name.cu. */
#include <stdint.h>
extern const unsigned char ifx_image_${name}[];
extern const uint64_t ifx_image_${name}_bytes;
__asm__(".section .rodata, \"a\", @progbits\n"
        ".balign 64\n"
        ".globl ifx_image_${name}\n.hidden ifx_image_${name}\n.type ifx_image_${name}, @object\n"
        "ifx_image_${name}:\n.incbin \"$path\"\n"
        "1:\n.size ifx_image_${name}, 1b - ifx_image_${name}\n"
        ".balign 8\n"
        ".globl ifx_image_${name}_bytes\n.hidden ifx_image_${name}_bytes\n.type ifx_image_${name}_bytes, @object\n"
        "ifx_image_${name}_bytes:\n.quad 1b - ifx_image_${name}\n"
        ".size ifx_image_${name}_bytes, 8\n"
        ".previous\n");
C
mv "$tmp.c" "$out"
