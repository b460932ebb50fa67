dnl SPDX-License-Identifier: Apache-2.0
dnl IFX_CUDA: the CUDA Toolkit, optional.  nvcc is believed only after it compiled a kernel for every architecture asked for, the
dnl libraries only after a host program linked with them.  Sets NVCC, NVCC_CCBIN, CUDA_ARCH, CUDA_CPPFLAGS, CUDA_LIBS.
AC_DEFUN([IFX_CUDA], [
  AC_ARG_WITH([cuda], [AS_HELP_STRING([--with-cuda=DIR|no], [CUDA Toolkit (default: look in PATH and /usr/local/cuda)])], [], [with_cuda=check])
  AC_ARG_WITH([cuda-arch], [AS_HELP_STRING([--with-cuda-arch="90 120"], [GPU architectures to build for])], [], [with_cuda_arch="90 120"])
  AC_ARG_WITH([cuda-ccbin], [AS_HELP_STRING([--with-cuda-ccbin=CC], [host compiler for nvcc])], [], [with_cuda_ccbin=])
  have_cuda=no
  ifx_cuda_summary="no (--without-cuda)"
  CUDA_ARCH=`AS_ECHO(["$with_cuda_arch"]) | tr ',' ' '`
  for ifx_arch in $CUDA_ARCH; do
    AS_CASE([$ifx_arch], [*[[!0-9]]*], [AC_MSG_ERROR([--with-cuda-arch="$with_cuda_arch": expected numbers such as "90 120"])])
  done
  AS_IF([test -z "$CUDA_ARCH"], [AC_MSG_ERROR([--with-cuda-arch: expected at least one number, such as 90])])
  AS_IF([test "$with_cuda" != no], [
    AS_CASE([$with_cuda], [check|yes], [ifx_cuda_path="$PATH:/usr/local/cuda/bin"], [ifx_cuda_path="$with_cuda/bin"])
    AC_PATH_PROG([NVCC], [nvcc], [], [$ifx_cuda_path])
    AS_IF([test -z "$NVCC"], [ifx_cuda_summary="no (nvcc not found)"], [
      NVCC_CCBIN=
      AS_IF([test -n "$with_cuda_ccbin"], [NVCC_CCBIN="-ccbin $with_cuda_ccbin"])
      IFX_CUDA_KERNEL
      AS_IF([test "$ifx_cuda_kernel" = yes], [IFX_CUDA_HOST])
    ])
    AS_IF([test "$have_cuda" = no && test "$with_cuda" != check], [AC_MSG_ERROR([CUDA was asked for: $ifx_cuda_summary])])
  ])
  AC_SUBST([NVCC_CCBIN])
  AC_SUBST([CUDA_ARCH])
  AC_SUBST([CUDA_CPPFLAGS])
  AC_SUBST([CUDA_LIBS])
  AM_CONDITIONAL([HAVE_CUDA], [test "$have_cuda" = yes])
])

dnl One kernel for all architectures at once: an older nvcc does not know the newer ones.
AC_DEFUN([IFX_CUDA_KERNEL], [
  AC_MSG_CHECKING([whether $NVCC compiles a kernel for sm $CUDA_ARCH])
  mkdir -p conftest.dir
  cat > conftest.dir/k.cu <<'K'
extern "C" __global__ void k(float *x) { x[[threadIdx.x]] += 1.0f; }
K
  ifx_cuda_kernel=yes
  for ifx_arch in $CUDA_ARCH; do
    AS_IF([$NVCC $NVCC_CCBIN -fatbin -gencode arch=compute_$ifx_arch,code=sm_$ifx_arch -o conftest.dir/k.fatbin conftest.dir/k.cu >&AS_MESSAGE_LOG_FD 2>&1],
      [], [ifx_cuda_kernel=no; ifx_cuda_summary="no ($NVCC does not compile for sm_$ifx_arch: see config.log, --with-cuda-arch, --with-cuda-ccbin)"])
  done
  rm -rf conftest.dir
  AC_MSG_RESULT([$ifx_cuda_kernel])
])

dnl Headers and libraries lie beside nvcc, or where the compiler looks anyway (Debian's packages).
AC_DEFUN([IFX_CUDA_HOST], [
  ifx_cuda_root=`dirname "$NVCC"`/..
  ifx_cuda_root=`cd "$ifx_cuda_root" && pwd`
  CUDA_CPPFLAGS=
  CUDA_LIBS=
  AS_IF([test -f "$ifx_cuda_root/include/cuda_runtime_api.h" && test "$ifx_cuda_root" != /usr], [CUDA_CPPFLAGS="-isystem $ifx_cuda_root/include"])
  for ifx_dir in lib64 lib; do
    AS_IF([test -z "$CUDA_LIBS" && test "$ifx_cuda_root" != /usr && test -e "$ifx_cuda_root/$ifx_dir/libcudart.so"],
      [CUDA_LIBS="-L$ifx_cuda_root/$ifx_dir -Wl,-rpath,$ifx_cuda_root/$ifx_dir"])
  done
  CUDA_LIBS="$CUDA_LIBS -lcudart"
  ifx_save_CPPFLAGS=$CPPFLAGS
  ifx_save_LIBS=$LIBS
  CPPFLAGS="$CPPFLAGS $CUDA_CPPFLAGS"
  LIBS="$LIBS $CUDA_LIBS"
  AC_MSG_CHECKING([for the CUDA runtime, 12.8 or newer, and cuBLASLt])
  AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <cuda_runtime_api.h>
#include <cublasLt.h>
#if CUDART_VERSION < 12080
#error CUDA Toolkit 12.8 or newer is needed
#endif]], [[cudaLibrary_t l; return cudaLibraryLoadData(&l, "", 0, 0, 0, 0, 0, 0) == cudaSuccess;]])],
    [AC_MSG_RESULT([yes])
     have_cuda=yes
     ifx_cuda_summary="$($NVCC --version | $SED -n 's/.*release \([[0-9.]]*\).*/\1/p') (sm $CUDA_ARCH)"],
    [AC_MSG_RESULT([no])
     ifx_cuda_summary="no (no CUDA runtime of 12.8 or newer with cuBLASLt beside $NVCC: see config.log)"])
  CPPFLAGS=$ifx_save_CPPFLAGS
  LIBS=$ifx_save_LIBS
])
