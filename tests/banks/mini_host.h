/* SPDX-License-Identifier: Apache-2.0
 *
 * mini_host.h - the least host a bank needs, for programs that must run with libc, libm, pthread and dl alone:
 * loads a plugin file and opens instances at a chosen CPU level.
 */
#ifndef MINI_HOST_H
#define MINI_HOST_H

#include <infernix/expert.h>

#include <cpuid.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct mini_host {
    struct ifx_host host; /* first: the plugin hands back its address */
    uint32_t level;
    char error[512];
};

static inline void mini_log(const struct ifx_host *host, uint32_t level, const char *format, ...)
{
    (void)host;
    va_list args;
    va_start(args, format);
    if (level <= IFX_LOG_WARN)
        vfprintf(stderr, format, args);
    va_end(args);
}

static inline int32_t mini_error(const struct ifx_host *host, int32_t status, const char *format, ...)
{
    struct mini_host *mini = (struct mini_host *)(uintptr_t)host;
    va_list args;
    va_start(args, format);
    vsnprintf(mini->error, sizeof mini->error, format, args);
    va_end(args);
    return status;
}

static inline void *mini_alloc(const struct ifx_host *host, uint64_t bytes, uint64_t align)
{
    (void)host;
    void *p = NULL;
    if (posix_memalign(&p, align < 64 ? 64 : align, bytes ? bytes : 1))
        return NULL;
    return p;
}

static inline void mini_free(const struct ifx_host *host, void *memory)
{
    (void)host;
    free(memory);
}

static inline uint32_t mini_cpu_level(const struct ifx_host *host)
{
    return ((const struct mini_host *)host)->level;
}

static inline void mini_host_init(struct mini_host *mini, uint32_t level)
{
    memset(mini, 0, sizeof *mini);
    mini->host.struct_size = sizeof mini->host;
    mini->host.log = mini_log;
    mini->host.error = mini_error;
    mini->host.alloc = mini_alloc;
    mini->host.free = mini_free;
    mini->host.cpu_level = mini_cpu_level;
    mini->level = level;
}

static inline const char *mini_level_name(uint32_t level)
{
    static const char *const names[] = {"scalar", "avx2", "avx512", "avx512_bf16", "amx_bf16"};
    return level < 5 ? names[level] : "?";
}

/* Asks Linux for the tile data state (arch_prctl ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA). */
static inline int mini_amx_permission(void)
{
    return syscall(SYS_arch_prctl, 0x1023, 18) == 0;
}

static inline uint32_t mini_detect_level(void)
{
    uint32_t a, b, c, d;
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__get_cpuid(1, &a, &b, &c, &d) ||
        !(c & 1u << 29))
        return IFX_CPU_SCALAR;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
        return IFX_CPU_AVX2;
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a & 1u << 5) || !__builtin_cpu_supports("avx512vbmi"))
        return IFX_CPU_AVX512;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & 1u << 22) || !(d & 1u << 24) || !mini_amx_permission())
        return IFX_CPU_AVX512_BF16;
    return IFX_CPU_AMX_BF16;
}

/* NULL after a message. */
static inline const struct ifx_expert_ops *mini_load(const char *path, struct mini_host *mini)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        fprintf(stderr, "%s\n", dlerror());
        return NULL;
    }
    ifx_plugin_init_fn init;
    void *symbol = dlsym(handle, "ifx_plugin_init");
    memcpy(&init, &symbol, sizeof init);
    return init ? init(&mini->host) : NULL;
}

#endif
