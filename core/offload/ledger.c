/* SPDX-License-Identifier: Apache-2.0 */
#include "ledger.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static const char *const side_names[] = {"device memory", "host memory", "pinned host memory"};

void ledger_add(struct ledger *l, enum ledger_side side, const char *what, uint64_t bytes, const char *lower)
{
    if (!bytes || l->n == LEDGER_TERMS)
        return;
    l->terms[l->n].what = what;
    l->terms[l->n].lower = lower;
    l->terms[l->n].side = side;
    l->terms[l->n++].bytes = bytes;
}

void ledger_limit(struct ledger_limit *limit, uint64_t bytes, const char *source)
{
    if (limit->source[0] && bytes >= limit->bytes)
        return;
    size_t n = strlen(source), room = sizeof limit->source - 1;
    limit->bytes = bytes;
    /* A long path keeps its end, which says more. */
    memcpy(limit->source, source + (n > room ? n - room : 0), n > room ? room + 1 : n + 1);
}

uint64_t ledger_sum(const struct ledger *l, enum ledger_side side)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < l->n; i++)
        if (l->terms[i].side == side && !base_add_u64(sum, l->terms[i].bytes, &sum))
            return UINT64_MAX;
    return sum;
}

static void size_text(char out[32], uint64_t bytes)
{
    if (bytes >= UINT64_C(100) << 20)
        snprintf(out, 32, "%.2f GB", (double)bytes / 1e9);
    else
        snprintf(out, 32, "%.1f MB", (double)bytes / 1e6);
}

static int32_t list_terms(const struct ledger *l, enum ledger_side side, struct base_buf *b)
{
    int32_t st = IFX_OK;
    bool first = true;
    for (uint32_t i = 0; i < l->n && !st; i++) {
        char size[32];
        if (l->terms[i].side != side)
            continue;
        size_text(size, l->terms[i].bytes);
        st = base_buf_addf(b, "%s%s %s", first ? "" : ", ", l->terms[i].what, size);
        first = false;
    }
    return st;
}

/* The terms that something lowers, the largest first, each way once. */
static int32_t list_lower(const struct ledger *l, enum ledger_side side, struct base_buf *b)
{
    bool said[LEDGER_TERMS] = {false};
    int32_t st = IFX_OK;
    for (uint32_t k = 0; !st; k++) {
        uint32_t best = LEDGER_TERMS;
        for (uint32_t i = 0; i < l->n; i++)
            if (l->terms[i].side == side && l->terms[i].lower && !said[i] &&
                (best == LEDGER_TERMS || l->terms[i].bytes > l->terms[best].bytes))
                best = i;
        if (best == LEDGER_TERMS)
            return IFX_OK;
        for (uint32_t i = 0; i < l->n; i++)
            said[i] |= l->terms[i].lower && strcmp(l->terms[i].lower, l->terms[best].lower) == 0;
        st = base_buf_addf(b, "%s%s", k ? ", or " : "; ", l->terms[best].lower);
    }
    return st;
}

int32_t ledger_check(const struct ledger *l)
{
    for (uint32_t side = 0; side < LEDGER_SIDES; side++) {
        uint64_t need = ledger_sum(l, side);
        struct base_buf b = {0};
        char needed[32], there[32];
        if (!l->limit[side].source[0] || need <= l->limit[side].bytes)
            continue;
        size_text(needed, need);
        size_text(there, l->limit[side].bytes);
        int32_t st = list_terms(l, side, &b);
        if (!st)
            st = list_lower(l, side, &b);
        st = st ? st : base_error(IFX_ELIMIT, "%s of %s are needed and %s are there (%s): %s", needed, side_names[side], there,
                                  l->limit[side].source, b.data ? b.data : "");
        base_buf_free(&b);
        return st;
    }
    return IFX_OK;
}

void ledger_log(const struct ledger *l, uint32_t level)
{
    for (uint32_t side = 0; side < LEDGER_SIDES; side++) {
        struct base_buf b = {0};
        char sum[32], there[32], quota[32];
        size_text(sum, ledger_sum(l, side));
        size_text(there, l->limit[side].bytes);
        size_text(quota, ledger_memlock());
        bool over = side == LEDGER_PINNED && ledger_sum(l, side) > ledger_memlock();
        if (ledger_sum(l, side) && !list_terms(l, side, &b))
            base_log(level, "%s: %s%s%s: %s%s%s%s", side_names[side], sum, l->limit[side].source[0] ? " of " : "",
                     l->limit[side].source[0] ? there : "", b.data ? b.data : "", over ? " (ulimit -l: " : "", over ? quota : "",
                     over ? ", where the driver counts by it)" : "");
        base_buf_free(&b);
    }
}

/* ---- what there is ---- */

uint64_t ledger_memlock(void)
{
    struct rlimit l;
    return getrlimit(RLIMIT_MEMLOCK, &l) == 0 && l.rlim_cur != RLIM_INFINITY ? (uint64_t)l.rlim_cur : UINT64_MAX;
}

/* A file that holds one number; false for "max" and for no file. */
static bool read_number(const char *dir, const char *name, uint64_t *out)
{
    char path[1200], line[64];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    bool ok = fgets(line, sizeof line, f) && sscanf(line, "%" SCNu64, out) == 1;
    fclose(f);
    return ok;
}

/* "key value" of a file of such lines. */
static uint64_t read_key(const char *path, const char *key)
{
    char line[256], name[128];
    uint64_t value, found = 0;
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "%127s %" SCNu64, name, &value) == 2 && strcmp(name, key) == 0)
            found = value;
    fclose(f);
    return found;
}

/* What a group leaves: its limit less what it holds, of which pages of files can be dropped. */
static void group_limit(const char *dir, bool v2, struct ledger_limit *limit)
{
    static const char *const names[2][2] = {{"memory.limit_in_bytes", "memory.soft_limit_in_bytes"}, {"memory.max", "memory.high"}};
    char path[1400];
    uint64_t used = 0, most;
    if (!read_number(dir, v2 ? "memory.current" : "memory.usage_in_bytes", &used))
        used = 0;
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    uint64_t files = read_key(path, v2 ? "inactive_file" : "total_inactive_file");
    files += read_key(path, v2 ? "active_file" : "total_active_file");
    used = used > files ? used - files : 0;
    for (uint32_t i = 0; i < (v2 ? 2u : 1u); i++) {
        if (!read_number(dir, names[v2][i], &most) || most >= UINT64_C(1) << 60)
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, names[v2][i]);
        ledger_limit(limit, most > used ? most - used : 0, path);
    }
}

static void limit_upwards(const char *root, const char *group, bool v2, struct ledger_limit *limit)
{
    char dir[1024];
    size_t base = strlen(root);
    if ((size_t)snprintf(dir, sizeof dir, "%s%s", root, group) >= sizeof dir)
        return;
    for (;;) {
        group_limit(dir, v2, limit);
        char *slash = strrchr(dir, '/');
        if (!slash || (size_t)(slash - dir) < base)
            return;
        *slash = 0;
    }
}

void ledger_cgroup_limit(const char *proc_cgroup, const char *mount, struct ledger_limit *limit)
{
    char line[1024], root[512];
    FILE *f = fopen(proc_cgroup, "re");
    if (!f)
        return;
    while (fgets(line, sizeof line, f)) { /* "4:memory:/path", "0::/path" */
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        if (controllers[1] == 0) {
            limit_upwards(mount, group, true, limit);
            snprintf(root, sizeof root, "%s/unified", mount);
            limit_upwards(root, group, true, limit);
        } else if (strstr(controllers + 1, "memory")) {
            snprintf(root, sizeof root, "%s/memory", mount);
            limit_upwards(root, group, false, limit);
        }
    }
    fclose(f);
}

void ledger_host_limit(struct ledger_limit *limit)
{
    struct rlimit as;
    uint64_t available = read_key("/proc/meminfo", "MemAvailable:");
    if (available)
        ledger_limit(limit, available * 1024, "MemAvailable in /proc/meminfo");
    if (getrlimit(RLIMIT_AS, &as) == 0 && as.rlim_cur != RLIM_INFINITY) {
        uint64_t pages = 0;
        (void)read_number("/proc/self", "statm", &pages); /* the first of its numbers: address space in pages */
        uint64_t used = pages * 4096;
        ledger_limit(limit, as.rlim_cur > used ? as.rlim_cur - used : 0, "ulimit -v");
    }
    ledger_cgroup_limit("/proc/self/cgroup", "/sys/fs/cgroup", limit);
}
