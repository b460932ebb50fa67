/* SPDX-License-Identifier: Apache-2.0
 *
 * cpu.c - what this process may use of the machine: instruction sets (CPUID and the OS state together), CPUs (affinity
 * and cgroup quota), the clock.
 */
#include "config.h"
#include "base.h"
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include "base_internal.h"

static const char *const level_names[] = {"scalar", "avx2", "avx512", "avx512_bf16", "amx_bf16", NULL};
#define N_LEVELS 5u

#if defined(__x86_64__)
#define BIT(word, n) (((word) >> (n)) & 1u)

static uint64_t read_xcr0(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return ((uint64_t)hi << 32) | lo;
}

/* Linux gives the 8 KiB of tile state a process only when it asks. */
static bool amx_permission(void)
{
#ifdef SYS_arch_prctl
    const int req_xcomp_perm = 0x1023, xfeature_tiledata = 18;
    return syscall(SYS_arch_prctl, req_xcomp_perm, xfeature_tiledata) == 0;
#else
    return false;
#endif
}

uint32_t base_cpu_detect(void)
{
    uint32_t a, b, c, d, c1;
    if (!__get_cpuid(1, &a, &b, &c1, &d) || !BIT(c1, 27))
        return IFX_CPU_SCALAR;
    uint64_t xcr0 = read_xcr0();
    uint32_t a7, b7, c7, d7;
    if (!__get_cpuid_count(7, 0, &a7, &b7, &c7, &d7))
        return IFX_CPU_SCALAR;
    /* AVX, FMA, F16C; AVX2, BMI1, BMI2; ymm state */
    bool avx2 = BIT(c1, 28) && BIT(c1, 12) && BIT(c1, 29) && BIT(b7, 5) && BIT(b7, 3) && BIT(b7, 8) &&
                (xcr0 & 0x6) == 0x6;
    if (!avx2)
        return IFX_CPU_SCALAR;
    bool avx512 = BIT(b7, 16) && BIT(b7, 17) && BIT(b7, 30) && BIT(b7, 31) && (xcr0 & 0xe6) == 0xe6;
    if (!avx512)
        return IFX_CPU_AVX2;
    uint32_t a71 = 0;
    if (a7 >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d))
        a71 = a;
    if (!BIT(a71, 5) || !BIT(c7, 1)) /* BF16, VBMI */
        return IFX_CPU_AVX512;
    bool amx = BIT(d7, 22) && BIT(d7, 24) && (xcr0 & 0x60000) == 0x60000;
    return amx && amx_permission() ? IFX_CPU_AMX_BF16 : IFX_CPU_AVX512_BF16;
}
#else
uint32_t base_cpu_detect(void)
{
    return IFX_CPU_SCALAR;
}
#endif

const char *base_cpu_name(uint32_t level)
{
    return level < N_LEVELS ? level_names[level] : "unknown";
}

int32_t base_cpu_parse(const char *text, uint32_t *level)
{
    for (uint32_t i = 0; i < N_LEVELS; i++)
        if (strcmp(text, level_names[i]) == 0) {
            *level = i;
            return IFX_OK;
        }
    return base_error(IFX_EINVAL, "\"%s\" is no CPU level: one of scalar, avx2, avx512, avx512_bf16, amx_bf16", text);
}

/* First line of a small file, or false. */
static bool read_line(const char *path, char *line, size_t size)
{
    FILE *f = fopen(path, "re");
    if (f == NULL)
        return false;
    bool ok = fgets(line, (int)size, f) != NULL;
    fclose(f);
    return ok;
}

/* CPUs a group's quota is worth, rounded up; UINT32_MAX: no quota. */
static uint32_t group_quota(const char *dir, bool v2)
{
    char path[1200], line[128];
    long long quota, period;
    if (v2) {
        snprintf(path, sizeof path, "%s/cpu.max", dir);
        if (!read_line(path, line, sizeof line) || sscanf(line, "%lld %lld", &quota, &period) != 2)
            return UINT32_MAX; /* "max 100000" */
    } else {
        snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", dir);
        if (!read_line(path, line, sizeof line) || sscanf(line, "%lld", &quota) != 1)
            return UINT32_MAX;
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", dir);
        if (!read_line(path, line, sizeof line) || sscanf(line, "%lld", &period) != 1)
            return UINT32_MAX;
    }
    if (quota <= 0 || period <= 0)
        return UINT32_MAX;
    long long cpus = (quota + period - 1) / period;
    return cpus < 1 ? 1 : cpus > 1 << 20 ? UINT32_MAX : (uint32_t)cpus;
}

/* The smallest quota of a group and all its parents. */
static uint32_t quota_upwards(const char *root, const char *group, bool v2)
{
    char dir[1024];
    uint32_t least = UINT32_MAX;
    size_t base = strlen(root);
    if ((size_t)snprintf(dir, sizeof dir, "%s%s", root, group) >= sizeof dir)
        return UINT32_MAX;
    for (;;) {
        uint32_t q = group_quota(dir, v2);
        if (q < least)
            least = q;
        char *slash = strrchr(dir, '/');
        if (slash == NULL || (size_t)(slash - dir) < base)
            return least;
        *slash = 0;
    }
}

static bool names_cpu(const char *controllers, size_t n)
{
    while (n > 0) {
        const char *comma = memchr(controllers, ',', n);
        size_t len = comma ? (size_t)(comma - controllers) : n;
        if (len == 3 && memcmp(controllers, "cpu", 3) == 0)
            return true;
        n -= comma ? len + 1 : len;
        controllers += comma ? len + 1 : len;
    }
    return false;
}

uint32_t base_cgroup_cpus(const char *proc_cgroup, const char *mount)
{
    char line[1024], root[512];
    uint32_t least = UINT32_MAX;
    FILE *f = fopen(proc_cgroup, "re");
    if (f == NULL)
        return UINT32_MAX;
    while (fgets(line, sizeof line, f) != NULL) { /* "4:cpu,cpuacct:/path", "0::/path" */
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (group == NULL)
            continue;
        controllers++;
        size_t n = (size_t)(group - controllers);
        group++;
        uint32_t q = UINT32_MAX;
        if (n == 0) {
            q = quota_upwards(mount, group, true);
            snprintf(root, sizeof root, "%s/unified", mount);
            uint32_t hybrid = quota_upwards(root, group, true);
            q = hybrid < q ? hybrid : q;
        } else if (names_cpu(controllers, n)) {
            snprintf(root, sizeof root, "%s/%.*s", mount, (int)n, controllers);
            q = quota_upwards(root, group, false);
            snprintf(root, sizeof root, "%s/cpu", mount);
            uint32_t alone = quota_upwards(root, group, false);
            q = alone < q ? alone : q;
        }
        if (q < least)
            least = q;
    }
    fclose(f);
    return least;
}

/* A thread that pools have pinned, and what it was allowed before the first of them. */
static _Thread_local struct {
    uint32_t pools;
    cpu_set_t before, now;
} pinned;

int base_pin_caller(int cpu)
{
    cpu_set_t set;
    if (cpu >= CPU_SETSIZE)
        return EINVAL;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (!pinned.pools && pthread_getaffinity_np(pthread_self(), sizeof pinned.before, &pinned.before))
        return EINVAL;
    int error = pthread_setaffinity_np(pthread_self(), sizeof set, &set);
    if (error)
        return error;
    pinned.now = set;
    pinned.pools++;
    return 0;
}

void base_unpin_caller(void)
{
    if (pinned.pools && --pinned.pools == 0)
        (void)pthread_setaffinity_np(pthread_self(), sizeof pinned.before, &pinned.before);
}

void base_loosen_caller(bool loose)
{
    if (pinned.pools)
        (void)pthread_setaffinity_np(pthread_self(), sizeof pinned.now, loose ? &pinned.before : &pinned.now);
}

#define SPINS_BEFORE_YIELD 2000

void base_spin(uint32_t *spins)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
    if (++*spins % SPINS_BEFORE_YIELD == 0)
        sched_yield();
}

uint32_t base_affinity(int *cpus, uint32_t max)
{
    uint32_t found = 0;
    /* A pool that is made beside another one has the same CPUs to choose from. */
    for (int i = 0; pinned.pools && i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &pinned.before)) {
            if (found < max)
                cpus[found] = i;
            found++;
        }
    if (pinned.pools)
        return found;
    for (int n = 1024; n <= 1 << 16; n *= 4) { /* the kernel's mask may be wider than cpu_set_t */
        cpu_set_t *set = CPU_ALLOC(n);
        if (set == NULL)
            break;
        size_t size = CPU_ALLOC_SIZE(n);
        if (sched_getaffinity(0, size, set) == 0) {
            for (int i = 0; i < n; i++)
                if (CPU_ISSET_S(i, size, set)) {
                    if (found < max)
                        cpus[found] = i;
                    found++;
                }
            CPU_FREE(set);
            return found;
        }
        CPU_FREE(set);
        if (errno != EINVAL)
            break;
    }
    return found;
}

uint32_t base_allowed_cpus(void)
{
    return base_affinity(NULL, 0);
}

uint32_t base_usable_cpus(void)
{
    uint32_t n = base_affinity(NULL, 0);
    if (n == 0) {
        long online = sysconf(_SC_NPROCESSORS_ONLN);
        n = online < 1 ? 1 : (uint32_t)online;
    }
    uint32_t quota = base_cgroup_cpus("/proc/self/cgroup", "/sys/fs/cgroup");
    return quota < n ? quota : n;
}

double base_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
