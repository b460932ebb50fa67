/* SPDX-License-Identifier: Apache-2.0
 *
 * old_bank.c - a bank built when struct ifx_expert_ops ended with decode_row: a frozen copy of that shorter struct.  It must go on
 * working; what it does not have counts as NULL.
 */
#include <infernix/plugin.h>

struct ifx_expert_shape {
    uint32_t struct_size;
    uint32_t hidden;
    uint32_t inter;
    uint32_t reserved;
};
struct ifx_assist_policy;

struct ifx_expert_ops {
    uint32_t struct_size;
    uint32_t flags;
    const char *format;
    const char *description;
    const struct ifx_option *options;
    const struct ifx_assist_policy *policy;
    uint64_t (*record_bytes)(const struct ifx_expert_shape *shape);
    int32_t (*open)(const struct ifx_host *host, const struct ifx_options *options,
                    const struct ifx_expert_shape *shape, void **bank);
    void (*close)(void *bank);
    int32_t (*pack)(void *bank, const float *gate, const float *up, const float *down, void *record);
    int32_t (*pack_tensors)(void *bank, const void *tensors, void *record);
    int32_t (*decode_row)(void *bank, const void *record, uint32_t matrix, uint32_t row, double *out);
};

static uint64_t record_bytes(const struct ifx_expert_shape *s)
{
    return ((uint64_t)s->hidden * s->inter * 12 + 4095) / 4096 * 4096;
}

static int32_t open_bank(const struct ifx_host *h, const struct ifx_options *o, const struct ifx_expert_shape *s,
                         void **bank)
{
    (void)o;
    (void)s;
    *bank = h->alloc(h, 64, 64);
    return *bank != 0 ? IFX_OK : IFX_ENOMEM;
}

static const struct ifx_host *the_host;

static void close_bank(void *bank)
{
    the_host->free(the_host, bank);
}

static int32_t pack(void *bank, const float *gate, const float *up, const float *down, void *record)
{
    (void)bank;
    (void)gate;
    (void)up;
    (void)down;
    (void)record;
    return IFX_OK;
}

static int32_t decode_row(void *bank, const void *record, uint32_t matrix, uint32_t row, double *out)
{
    (void)bank;
    (void)record;
    (void)matrix;
    (void)row;
    *out = 0;
    return IFX_OK;
}

static const struct ifx_expert_ops ops = {
    sizeof ops, 0, "t_old", "a bank of old", 0, 0, record_bytes, open_bank, close_bank, pack, 0, decode_row,
};

static const struct ifx_expert_ops *init(const struct ifx_host *host)
{
    the_host = host;
    return &ops;
}

IFX_EXPERT_PLUGIN("t_old", "0.9", init)
