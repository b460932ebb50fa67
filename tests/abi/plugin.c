/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin.c - the plugin of many faults: test_refusals.sh builds it again and again with other -D flags.  It is spelt out by hand
 * what the IFX_*_PLUGIN macros would write, so that each field can be wrong by itself.
 */
#include <infernix/device.h>
#include <infernix/expert.h>
#include <infernix/kv.h>
#include <infernix/model.h>
#include <stdio.h>
#include <stdlib.h>

#ifndef T_KIND
#define T_KIND IFX_KIND_EXPERT
#endif
#ifndef T_FORM /* which operations struct */
#define T_FORM 1
#endif
#ifndef T_NAME
#define T_NAME "t_good"
#endif
#ifndef T_SECTION
#define T_SECTION ".ifx_plugin"
#endif
#ifndef T_MAGIC
#define T_MAGIC 'I', 'N', 'F', 'E', 'R', 'N', 'I', 'X'
#endif
#ifndef T_BLOCK
#define T_BLOCK sizeof(struct ifx_magic)
#endif
#ifndef T_MAJOR
#define T_MAJOR IFX_ABI_MAJOR
#endif
#ifndef T_MINOR
#define T_MINOR IFX_ABI_MINOR
#endif
#ifndef T_REVISION
#define T_REVISION IFX_NUMERICS_REVISION
#endif
#ifndef T_CUDA
#define T_CUDA 0
#endif
#ifndef T_BUILD
#define T_BUILD ""
#endif
#ifndef T_FORMAT
#define T_FORMAT "t_good"
#endif

#if T_FORM == 1
typedef struct ifx_expert_ops ops_type;
#elif T_FORM == 2
typedef struct ifx_kv_ops ops_type;
#elif T_FORM == 3
typedef struct ifx_model_ops ops_type;
#else
typedef struct ifx_device_plugin_ops ops_type;
#endif
#ifndef T_OPS
#define T_OPS sizeof(ops_type)
#endif
#ifndef T_STRUCT
#define T_STRUCT T_OPS
#endif

__attribute__((section(T_SECTION), used)) static const struct ifx_magic block = {
    {T_MAGIC}, (uint32_t)(T_BLOCK), T_MAJOR, T_MINOR, T_KIND, (uint32_t)(T_OPS), T_REVISION, T_CUDA, 0, T_NAME, "1.0", T_BUILD};

#ifdef T_EXTRA_BYTES /* what a newer header would have appended */
struct longer {
    ops_type ops;
    void *extra[T_EXTRA_BYTES / 8];
};
static struct longer all;
#define ops all.ops
#else
static ops_type ops;
#endif

#if T_FORM == 1
#ifndef T_RECORD
#define T_RECORD 4096
#endif
static uint64_t record_bytes(const struct ifx_expert_shape *s) { (void)s; return T_RECORD; }
static int32_t open_bank(const struct ifx_host *h, const struct ifx_options *o, const struct ifx_expert_shape *s, void **b)
{
    (void)h; (void)o; (void)s;
    *b = &ops;
    return 0;
}
static void close_it(void *b) { (void)b; }
static int32_t pack(void *b, const float *g, const float *u, const float *d, void *r) { (void)b; (void)g; (void)u; (void)d; (void)r; return 0; }
static int32_t decode_row(void *b, const void *r, uint32_t m, uint32_t row, double *out) { (void)b; (void)r; (void)m; (void)row; *out = 0; return 0; }
static uint64_t scratch_bytes(void *b, uint32_t n) { (void)b; (void)n; return 64; }
static int32_t gate_up(void *b, const struct ifx_expert_call *c, uint32_t r0, uint32_t r1) { (void)b; (void)c; (void)r0; (void)r1; return 0; }
static int32_t down(void *b, const struct ifx_expert_call *c, uint32_t r0, uint32_t r1, float *y, uint64_t ldy, const uint32_t *rows)
{
    (void)b; (void)c; (void)r0; (void)r1; (void)y; (void)ldy; (void)rows;
    return 0;
}
#ifdef T_POINTS
static const struct ifx_ramp_point points[] = {T_POINTS};
#endif
static void fill(void)
{
    ops.format = T_FORMAT;
    ops.description = "test";
    ops.record_bytes = record_bytes;
    ops.open = open_bank;
    ops.close = close_it;
    ops.pack = pack;
    ops.decode_row = decode_row;
    ops.scratch_bytes = scratch_bytes;
    ops.gate_up = gate_up;
    ops.down = down;
#ifdef T_POINTS
    static struct ifx_assist_policy policy = {sizeof policy, 575, sizeof points / sizeof *points, 0, points};
    T_POLICY;
    ops.policy = &policy;
#endif
}
#elif T_FORM == 2
#ifndef T_PAGE
#define T_PAGE 64
#endif
static uint64_t page_bytes(const struct ifx_kv_shape *s) { (void)s; return T_PAGE; }
static int32_t open_kv(const struct ifx_host *h, const struct ifx_options *o, const struct ifx_kv_shape *s, void **b)
{
    (void)h; (void)o; (void)s;
    *b = &ops;
    return 0;
}
static void close_it(void *b) { (void)b; }
static int32_t append(void *b, const struct ifx_kv_append *c) { (void)b; (void)c; return 0; }
static int32_t attend(void *b, const struct ifx_kv_attend *c) { (void)b; (void)c; return 0; }
static int32_t decode_row(void *b, const void *p, uint32_t w, uint32_t h, uint32_t s, double *out) { (void)b; (void)p; (void)w; (void)h; (void)s; *out = 0; return 0; }
static void fill(void)
{
    ops.format = T_FORMAT;
    ops.page_bytes = page_bytes;
    ops.open = open_kv;
    ops.close = close_it;
    ops.append = append;
    ops.attend = attend;
    ops.decode_row = decode_row;
}
#elif T_FORM == 3
static int32_t open_model(const struct ifx_host *h, const struct ifx_options *o, const struct ifx_config *c, void **m)
{
    (void)h; (void)o; (void)c;
    *m = &ops;
    return 0;
}
static void close_it(void *m) { (void)m; }
static const struct ifx_model_desc *describe(void *m) { (void)m; return 0; }
static uint64_t workspace_bytes(void *m, struct ifx_device *d, uint32_t n, uint32_t l) { (void)m; (void)d; (void)n; (void)l; return 0; }
static int32_t forward(void *m, const struct ifx_step *s) { (void)m; (void)s; return 0; }
static const char *const names[] = {T_FORMAT, 0};
static void fill(void)
{
    ops.architectures = names;
    ops.open = open_model;
    ops.close = close_it;
    ops.describe = describe;
    ops.workspace_bytes = workspace_bytes;
    ops.forward = forward;
}
#else
static int32_t open_device(const struct ifx_host *h, const struct ifx_options *o, const char *i, uint32_t n, struct ifx_device **d)
{
    (void)o; (void)n; (void)d;
    return h->error(h, IFX_ENOTFOUND, "no %s here", i);
}
static const char *const names[] = {T_FORMAT, 0};
static void fill(void)
{
    ops.identities = names;
    ops.open = open_device;
}
#endif

#ifdef T_OPTIONS
static const struct ifx_option options[] = {T_OPTIONS {0, 0, 0, 0, 0, 0, 0}};
#endif

#ifdef T_CTOR /* a refused plugin must not get this far */
__attribute__((constructor)) static void constructor(void) { puts("the constructor ran"); fflush(stdout); }
#endif

#ifdef T_UNDEFINED
extern int ifx_test_symbol_that_nobody_has(void);
#endif
#ifdef T_LIBRARY
extern int nothere(void);
#endif

#ifdef T_TROUBLE /* all that makes a dlclose dangerous */
#include <pthread.h>
#include <unistd.h>
static pthread_key_t key;
static void at_thread_end(void *p) { *(volatile char *)p = 1; }
static char spot;
static void *forever(void *arg)
{
    pthread_setspecific(key, &spot);
    for (;;)
        usleep(1000);
    return arg;
}
static void at_end(void) { *(volatile char *)&spot = 2; }
static void trouble(void)
{
    pthread_t t;
    pthread_key_create(&key, at_thread_end);
    pthread_setspecific(key, &spot);
    atexit(at_end);
    if (pthread_create(&t, 0, forever, 0) == 0)
        pthread_detach(t);
}
#else
static void trouble(void) {}
#endif

__attribute__((visibility("default"))) const struct ifx_magic *ifx_plugin_magic(void);
__attribute__((visibility("default"))) const void *ifx_plugin_init(const struct ifx_host *host);

#ifndef T_NO_MAGIC
const struct ifx_magic *ifx_plugin_magic(void)
{
#ifdef T_OTHER_BLOCK
    static struct ifx_magic other;
    other = block;
    other.version[0] = '2';
    return &other;
#elif defined(T_NULL_BLOCK)
    return 0;
#else
    return &block;
#endif
}
#endif

#ifndef T_NO_INIT
const void *ifx_plugin_init(const struct ifx_host *host)
{
    (void)host;
#ifdef T_INIT_NULL
    return 0;
#endif
#ifdef T_INIT_ERROR
    host->error(host, IFX_EUNSUPPORTED, "needs a %s", "flux capacitor");
    return 0;
#endif
    fill();
    trouble();
    ops.struct_size = (uint32_t)(T_STRUCT);
#ifdef T_OPTIONS
    ops.options = options;
#endif
#ifdef T_DROP
    ops.T_DROP = 0;
#endif
#ifdef T_UNDEFINED
    ops.struct_size += (uint32_t)ifx_test_symbol_that_nobody_has();
#endif
#ifdef T_LIBRARY
    ops.struct_size += (uint32_t)nothere();
#endif
    return &ops;
}
#endif
