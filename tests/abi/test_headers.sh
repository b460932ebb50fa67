#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Each public header compiles alone: C11, C++17 and CUDA C++, with warnings as errors.
set -u
work=headers.tmp
rm -rf $work && mkdir $work
failed=0 done_list=C11
try() { # try LANGUAGE HEADER COMMAND...
  what=$1 header=$2
  shift 2
  if ! "$@" > $work/log 2>&1; then
    echo "$header does not compile alone as $what: $*"
    cat $work/log
    failed=1
  fi
}
cxx=
for c in ${CXX:-} g++ clang++ c++; do
  if echo 'int main() {}' > $work/t.cc && $c -std=c++17 -fsyntax-only $work/t.cc 2> /dev/null; then cxx=$c; break; fi
done
nvcc=
for c in ${NVCC:-} nvcc /usr/local/cuda/bin/nvcc; do
  if echo '__global__ void k() {}' > $work/t.cu && $c -c -o $work/t.o $work/t.cu > /dev/null 2>&1; then nvcc=$c; break; fi
done
for h in "$IFX_SRCDIR"/include/infernix/*.h; do
  name=$(basename "$h")
  # twice: the guard holds
  printf '#include <infernix/%s>\n#include <infernix/%s>\nint ifx_test_unused;\n' "$name" "$name" > $work/t.c
  cp $work/t.c $work/t.cc
  cp $work/t.c $work/t.cu
  try C11 "$name" $CC -std=c11 -pedantic-errors -Wall -Wextra -Wstrict-prototypes -Werror -I"$IFX_SRCDIR/include" -c -o $work/t.o $work/t.c
  [ -z "$cxx" ] || try C++17 "$name" $cxx -std=c++17 -Wall -Wextra -Werror -I"$IFX_SRCDIR/include" -c -o $work/t.o $work/t.cc
  [ -z "$nvcc" ] || try "CUDA C++" "$name" "$nvcc" -std=c++17 -I"$IFX_SRCDIR/include" -c -o $work/t.o $work/t.cu
done
[ -n "$cxx" ] && done_list="$done_list, C++17 ($cxx)" || echo "no C++ compiler: C++17 not tried"
[ -n "$nvcc" ] && done_list="$done_list, CUDA ($nvcc)" || echo "no nvcc: CUDA not tried"
echo "compiled as $done_list"
rm -rf $work
exit $failed
