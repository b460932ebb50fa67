/* SPDX-License-Identifier: Apache-2.0
 *
 * expert.h - the expert bank: one quantised representation of an expert's three matrices.
 *
 * An expert of a mixture-of-experts layer is  y = down( silu(gate x) * (up x) )  with gate, up: [I, H] and
 * down: [H, I] (H: hidden size, I: the expert's width).  A bank packs the three into one contiguous record whose size
 * is a multiple of 4096: the same bytes in the artifact, in host memory and in device memory.
 *
 * Numerics (numerics.h has the exact forms): inputs of each product are bf16 (round to nearest even), decoded
 * weights are exact, accumulation is float32.  The hidden value silu(g) * u is computed in float32 (g = gate x, u = up x) and
 * rounded to bf16 once.  A call of at most IFX_NARROW_COLUMNS columns must give the bits of the canonical order
 * of numerics.h at every CPU level, unless it says IFX_EXPERT_ANY_ORDER; a wider call may use any order.  In a call of any width, where the row ranges are cut
 * must not change a bit (the number of threads decides that).
 *
 * Format tier: the struct is append-only, a plugin built with an older, shorter one keeps working, and a NULL
 * member has the default said beside it.
 */
#ifndef INFERNIX_EXPERT_H
#define INFERNIX_EXPERT_H

#include <infernix/compute.h>
#include <infernix/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

#define IFX_RECORD_ALIGN   4096u
#define IFX_NARROW_COLUMNS 8u

/* Which matrix of an expert. */
#define IFX_GATE 0u /* [I, H] */
#define IFX_UP   1u /* [I, H] */
#define IFX_DOWN 2u /* [H, I] */

struct ifx_expert_shape {
    uint32_t struct_size;
    uint32_t hidden; /* H */
    uint32_t inter;  /* I */
    uint32_t reserved;
};

/* One point of the link-share ramp: at `columns` columns, share/256 of a layer's missing experts cross the link. */
struct ifx_ramp_point {
    uint32_t columns;
    uint32_t share; /* 0..256 */
};

/* The widths at which the CPU assists a prompt.  Between points the share is linear in columns (integer
 * arithmetic, rounded to nearest); left of the first point it is the first share; past max_columns a call is
 * streamed and the share is 0. */
struct ifx_assist_policy {
    uint32_t struct_size;
    uint32_t max_columns;
    uint32_t n_points;
    uint32_t reserved;
    const struct ifx_ramp_point *points; /* columns strictly ascending, the last <= max_columns */
};

/* The tensors of one matrix in a published checkpoint; dtype 0 in a view means absent. */
struct ifx_expert_source {
    struct ifx_tensor weight;         /* ModelOpt NVFP4: U8 [out, in/2], low nibble first */
    struct ifx_tensor weight_scale;   /* ModelOpt NVFP4: F8_E4M3 [out, in/16] */
    struct ifx_tensor weight_scale_2; /* ModelOpt NVFP4: F32, 0-dimensional or [1] */
};
struct ifx_expert_tensors {
    uint32_t struct_size;
    uint32_t reserved;
    struct ifx_expert_source matrix[3]; /* IFX_GATE, IFX_UP, IFX_DOWN */
};

/* In ifx_expert_call.flags: at most IFX_NARROW_COLUMNS columns too may be computed in any order, for they are part of a wider
 * call of the layer, whose other experts are.  Row ranges still change nothing, and n and the flags must decide the order alone. */
#define IFX_EXPERT_ANY_ORDER 1u

/* One expert's work on the CPU.  The caller keeps it unchanged from prepare to the last down.
 * x: bf16 activations; column i is the H values at x + x_rows[i] * ldx (x_rows NULL: row i). */
struct ifx_expert_call {
    uint32_t struct_size;
    uint32_t n; /* columns, >= 1 */
    const void *record;
    const uint16_t *x;
    uint64_t ldx;
    const uint32_t *x_rows;
    void *scratch; /* scratch_bytes(bank, n) bytes, 64-byte aligned, this call's alone */
    uint32_t flags; /* IFX_EXPERT_*; a bank may leave any of them out of account */
    uint32_t reserved;
};

/* Work of a device on several experts of one layer.  A routing of n columns to top_k experts each makes n * top_k pairs;
 * pair p is column p / top_k, rank p % top_k.  Pairs are listed by expert: those of expert e are
 * rows[offsets[e] .. offsets[e + 1]), ascending.  Everything but the struct is device memory, and the counts in it are
 * bounds that the host knows: how many columns an expert really has is read on the device, so that the call can be captured
 * in a graph.  An expert of at most IFX_NARROW_COLUMNS columns takes the narrow route (the canonical bits), a wider one any. */
struct ifx_expert_device_call {
    uint32_t struct_size;
    uint32_t n;                  /* rows of x: columns of the layer's call */
    uint32_t top_k;
    uint32_t n_entries;
    const void *const *records;  /* [n_entries] addresses in device memory; NULL: this entry is computed elsewhere */
    const uint32_t *experts;     /* [n_entries] expert of an entry, UINT32_MAX: none; NULL: entry i is expert i */
    const uint32_t *offsets;     /* [experts of the layer + 1] */
    const uint32_t *rows;        /* [n * top_k] pairs by expert */
    uint32_t widest;             /* no entry has more columns */
    uint32_t pairs;              /* the entries together have no more pairs */
    const uint16_t *x;           /* bf16 [n, H], rows ldx apart */
    uint64_t ldx;
    float *y;                    /* pair p's H values at y + p * ldy, overwritten; pairs of other experts untouched */
    uint64_t ldy;
    void *ws;                    /* device_ws_bytes(bank, side, n, top_k), 256-byte aligned, this call's alone */
};

struct ifx_expert_ops {
    uint32_t struct_size;
    uint32_t flags;           /* 0 */
    const char *format;       /* identity: "nvfp4"; [a-z0-9_]+ */
    const char *description;  /* one line for people */
    const struct ifx_option *options; /* NULL: none */
    const struct ifx_assist_policy *policy; /* NULL: 255 columns, ramp 64:77, 255:104 */

    /* Bytes of a record, a multiple of IFX_RECORD_ALIGN; 0 when the format cannot hold the shape.  Pure. */
    uint64_t (*record_bytes)(const struct ifx_expert_shape *shape);
    /* Makes an instance for one shape.  `host` outlives it.  Several may be open at once. */
    int32_t (*open)(const struct ifx_host *host, const struct ifx_options *options,
                    const struct ifx_expert_shape *shape, void **bank);
    void (*close)(void *bank);

    /* Writes a record from float32 rows: gate, up [I, H], down [H, I].  Any thread, several records at once.
     * Every byte of the record is written.  A non-finite weight is IFX_EFORMAT. */
    int32_t (*pack)(void *bank, const float *gate, const float *up, const float *down, void *record);
    /* Writes a record from checkpoint tensors bit-exactly, when they are of the format's published layout;
     * IFX_EUNSUPPORTED (nothing recorded) when they are not.  NULL: the format has no published layout. */
    int32_t (*pack_tensors)(void *bank, const struct ifx_expert_tensors *tensors, void *record);
    /* The oracle: row `row` of a matrix as exact values (H values, or I for IFX_DOWN). */
    int32_t (*decode_row)(void *bank, const void *record, uint32_t matrix, uint32_t row, double *out);
    /* Refuses a record whose contents cannot be right (a NaN scale); NULL: any bytes are valid. */
    int32_t (*check_record)(void *bank, const void *record);

    /* ---- the CPU path; all four NULL: the host computes from decode_row (right, and slow) ----
     * prepare once, then gate_up over all rows of I, then down over all rows of H.  Ranges may be cut at
     * multiples of row_granule and run on several threads at once; prepare is finished before the first
     * gate_up starts, and every gate_up before the first down.  No call allocates; each uses at most 256 KiB of stack. */
    uint32_t row_granule; /* >= 1; 0 counts as 1 */
    uint32_t reserved;
    uint64_t (*scratch_bytes)(void *bank, uint32_t n);
    int32_t (*prepare)(void *bank, const struct ifx_expert_call *call); /* NULL: nothing to prepare */
    int32_t (*gate_up)(void *bank, const struct ifx_expert_call *call, uint32_t row0, uint32_t row1);
    /* Column i's output row r goes to y[(y_rows ? y_rows[i] : i) * ldy + (r - row0)], overwriting. */
    int32_t (*down)(void *bank, const struct ifx_expert_call *call, uint32_t row0, uint32_t row1, float *y,
                    uint64_t ldy, const uint32_t *y_rows);
    /* The CPU level in use: IFX_CPU_*.  NULL: scalar. */
    uint32_t (*level)(void *bank);

    /* ---- the device side; device_open NULL: experts of this format run on the CPU only ----
     * device_open makes what an instance needs on one device (modules, kernel handles): IFX_EUNSUPPORTED when it has no code
     * for the device.  device_forward enqueues on the stream and returns: it does not allocate, wait or read device memory. */
    int32_t (*device_open)(void *bank, const struct ifx_compute *compute, void **side);
    void (*device_close)(void *bank, void *side);
    uint64_t (*device_ws_bytes)(void *bank, void *side, uint32_t n, uint32_t top_k);
    int32_t (*device_forward)(void *bank, void *side, void *stream, const struct ifx_expert_device_call *call);

    /* Further members are appended here. */
};

#ifdef __cplusplus
}
#endif
#endif
