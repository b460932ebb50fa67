# SPDX-License-Identifier: Apache-2.0
# Shared by every Makefile.am.

NULL =
AM_CFLAGS = $(IFX_CFLAGS)

# The build string ties engine-tier plugins (families, devices) to the program: version and a checksum of the headers that
# both sides compile.  It is worked out by the shell of each compilation, so an edited header cannot be missed.
PLUGIN_ABI_FILES = \
	$(top_srcdir)/include/infernix/tensor.h \
	$(top_srcdir)/include/infernix/plugin.h \
	$(top_srcdir)/include/infernix/compute.h \
	$(top_srcdir)/include/infernix/numerics.h \
	$(top_srcdir)/include/infernix/device.h \
	$(top_srcdir)/include/infernix/model.h
PLUGIN_BUILD = -DIFX_PLUGIN_BUILD="\"$(PACKAGE_VERSION)-`cat $(PLUGIN_ABI_FILES) | cksum | $(SED) 's/ .*//'`\""
AM_CPPFLAGS = -I$(top_srcdir)/include $(PLUGIN_BUILD)
AM_LDFLAGS = $(IFX_LDFLAGS)

INC_BASE = -I$(top_srcdir)/core/base
INC_PLUGIN = $(INC_BASE) -I$(top_srcdir)/core/plugin
INC_ARTIFACT = $(INC_PLUGIN) -I$(top_srcdir)/core/artifact $(JANSSON_CFLAGS) $(ZLIB_CFLAGS)
INC_TEXT = $(INC_ARTIFACT) -I$(top_srcdir)/core/text $(PCRE2_CFLAGS) $(UTF8PROC_CFLAGS)
INC_OFFLOAD = $(INC_TEXT) -I$(top_srcdir)/core/offload
INC_ENGINE = $(INC_OFFLOAD) -I$(top_srcdir)/core/engine -I$(top_srcdir)/core

LIB_CORE = $(top_builddir)/core/libinfernix.la
LIB_DEPS = $(LIBURING_LIBS) $(JANSSON_LIBS) $(ZLIB_LIBS) $(PCRE2_LIBS) $(UTF8PROC_LIBS) $(INIH_LIBS)

# A plugin: one module, two exported symbols, nothing undefined.
PLUGIN_LINK = $(IFX_LDFLAGS) -module -avoid-version -shared $(IFX_PLUGIN_DEFS) \
	-Wl,--version-script=$(top_srcdir)/plugins/plugin.syms
PLUGIN_LIBS = -lm

# Kernels for a GPU.  A plugin embeds those of X.cu by listing X_image.c, which is made here, without linking any CUDA library:
#   EXTRA_DIST = X.cu
#   if HAVE_CUDA
#   nodist_PLUGIN_la_SOURCES = X_image.c
#   BUILT_SOURCES = X_image.c
#   CLEANFILES = $(CUDA_CLEANFILES)
#   PLUGIN_la_CPPFLAGS = $(AM_CPPFLAGS) -DIFX_HAVE_CUDA
#   endif
# and declares: extern const unsigned char ifx_image_X[]; extern const uint64_t ifx_image_X_bytes;
# The kernels are extern "C" in X.cu, which sees include/ and its own folder.  NVCC_FLAGS is for the user: -lineinfo, say.
NVCC_FLAGS =
CUDA_CLEANFILES = $(BUILT_SOURCES) $(BUILT_SOURCES:.c=.fatbin) $(BUILT_SOURCES:.c=.d)
AM_V_NVCC = $(am__v_NVCC_@AM_V@)
am__v_NVCC_ = $(am__v_NVCC_@AM_DEFAULT_V@)
am__v_NVCC_0 = @echo "  NVCC    " $@;
am__v_NVCC_1 =
%_image.c: %.cu $(top_srcdir)/plugins/nvcc.sh
	$(AM_V_NVCC)$(SHELL) $(top_srcdir)/plugins/nvcc.sh "$(NVCC)" "$(CUDA_ARCH)" $@ $(NVCC_CCBIN) \
	  -I$(top_srcdir)/include -I$(srcdir) $(NVCC_FLAGS) $<
-include $(BUILT_SOURCES:.c=.d)

# Puts the built modules where the program in the build tree looks: $(top_builddir)/lib/infernix.
link-plugins: $(plugin_LTLIBRARIES)
	@$(MKDIR_P) $(top_builddir)/lib/infernix
	@for p in $(plugin_LTLIBRARIES); do \
	  so=$$(basename $$p .la).so; \
	  $(LN_S) -f "$$(cd .libs && pwd)/$$so" $(top_builddir)/lib/infernix/$$so || exit 1; \
	done
.PHONY: link-plugins

# Modules are opened by name; libtool's own files beside them serve nobody.
install-data-hook:
	@for p in $(plugin_LTLIBRARIES); do rm -f "$(DESTDIR)$(plugindir)/$$p" || exit 1; done
# Without those files libtool no longer knows what to remove.
uninstall-hook:
	@for p in $(plugin_LTLIBRARIES); do \
	  so=$$(basename $$p .la).so; \
	  rm -f "$(DESTDIR)$(plugindir)/$$so" || exit 1; \
	done
