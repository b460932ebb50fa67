dnl SPDX-License-Identifier: Apache-2.0
dnl IFX_CUDA: the CUDA Toolkit, optional.  nvcc is believed only after it compiled a kernel with the host compiler.
AC_DEFUN([IFX_CUDA], [
  AC_ARG_WITH([cuda], [AS_HELP_STRING([--with-cuda=DIR|no], [CUDA Toolkit (default: look in PATH and /usr/local/cuda)])], [], [with_cuda=check])
  AC_ARG_WITH([cuda-arch], [AS_HELP_STRING([--with-cuda-arch="90 120"], [GPU architectures to build for])], [], [with_cuda_arch="90 120"])
  AC_ARG_WITH([cuda-ccbin], [AS_HELP_STRING([--with-cuda-ccbin=CC], [host compiler for nvcc])], [], [with_cuda_ccbin=])
  have_cuda=no
  ifx_cuda_summary="no (--without-cuda)"
  AS_IF([test "$with_cuda" != no], [
    AS_CASE([$with_cuda], [check|yes], [ifx_cuda_path="$PATH:/usr/local/cuda/bin"], [ifx_cuda_path="$with_cuda/bin"])
    AC_PATH_PROG([NVCC], [nvcc], [], [$ifx_cuda_path])
    AS_IF([test -z "$NVCC"], [ifx_cuda_summary="no (nvcc not found)"], [
      NVCC_CCBIN=
      AS_IF([test -n "$with_cuda_ccbin"], [NVCC_CCBIN="-ccbin $with_cuda_ccbin"])
      AC_SUBST([NVCC_CCBIN])
      AC_MSG_CHECKING([whether $NVCC compiles a kernel])
      mkdir -p conftest.dir
      cat > conftest.dir/k.cu <<'K'
__global__ void k(float *x) { x[[threadIdx.x]] += 1.0f; }
K
      AS_IF([$NVCC $NVCC_CCBIN -c -o conftest.dir/k.o conftest.dir/k.cu >&AS_MESSAGE_LOG_FD 2>&1],
        [AC_MSG_RESULT([yes])
         have_cuda=yes
         ifx_cuda_summary="$($NVCC --version | $SED -n 's/.*release \([[0-9.]]*\).*/\1/p') (sm $with_cuda_arch)"],
        [AC_MSG_RESULT([no])
         ifx_cuda_summary="no ($NVCC does not work with the host compiler: see config.log, --with-cuda-ccbin)"])
      rm -rf conftest.dir
    ])
    AS_IF([test "$have_cuda" = no && test "$with_cuda" != check], [AC_MSG_ERROR([CUDA was asked for: $ifx_cuda_summary])])
  ])
  CUDA_ARCH="$with_cuda_arch"
  AC_SUBST([CUDA_ARCH])
  AM_CONDITIONAL([HAVE_CUDA], [test "$have_cuda" = yes])
])
