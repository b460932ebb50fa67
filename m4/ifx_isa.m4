dnl SPDX-License-Identifier: Apache-2.0
dnl IFX_X86_ISA: which instruction-set objects the compiler can build; flags for each.  What runs is decided at run time.
AC_DEFUN([IFX_TRY_ISA], [
  AC_CACHE_CHECK([whether $CC builds $1 objects], [ifx_cv_isa_$1], [
    ifx_save_CFLAGS=$CFLAGS
    CFLAGS="$CFLAGS $2"
    AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[#include <immintrin.h>]], [[$3]])], [ifx_cv_isa_$1=yes], [ifx_cv_isa_$1=no])
    CFLAGS=$ifx_save_CFLAGS])
  AS_IF([test "$ifx_cv_isa_$1" = yes], [ifx_isa_summary="$ifx_isa_summary $1"
    AC_DEFINE_UNQUOTED([HAVE_ISA_]m4_toupper([$1]), [1], [objects for $1 are built])])
  AM_CONDITIONAL([ISA_]m4_toupper([$1]), [test "$ifx_cv_isa_$1" = yes])
])
AC_DEFUN([IFX_X86_ISA], [
  ifx_isa_summary="scalar"
  AVX2_CFLAGS="-mavx2 -mfma -mf16c -mbmi -mbmi2"
  AVX512_CFLAGS="$AVX2_CFLAGS -mavx512f -mavx512bw -mavx512vl -mavx512dq -mprefer-vector-width=512"
  AVX512_BF16_CFLAGS="$AVX512_CFLAGS -mavx512bf16 -mavx512vbmi"
  AMX_BF16_CFLAGS="$AVX512_BF16_CFLAGS -mamx-tile -mamx-bf16"
  AC_SUBST([AVX2_CFLAGS])
  AC_SUBST([AVX512_CFLAGS])
  AC_SUBST([AVX512_BF16_CFLAGS])
  AC_SUBST([AMX_BF16_CFLAGS])
  IFX_TRY_ISA([avx2], [$AVX2_CFLAGS], [__m256 a = _mm256_setzero_ps(); a = _mm256_fmadd_ps(a, a, a); (void)a;])
  IFX_TRY_ISA([avx512], [$AVX512_CFLAGS], [__m512 a = _mm512_setzero_ps(); a = _mm512_fmadd_ps(a, a, a); (void)a;])
  IFX_TRY_ISA([avx512_bf16], [$AVX512_BF16_CFLAGS], [__m512 a = _mm512_setzero_ps(); __m512bh b = {0}; a = _mm512_dpbf16_ps(a, b, b); (void)a; __m512i c = _mm512_setzero_si512(); c = _mm512_multishift_epi64_epi8(c, c); (void)c;])
  IFX_TRY_ISA([amx_bf16], [$AMX_BF16_CFLAGS], [_tile_zero(0); _tile_dpbf16ps(0, 1, 2); _tile_release();])
])
