/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin.h - what every plugin and its host agree on: status codes, the magic block, the host table, option
 * tables and the macros that make a plugin's two exported symbols.
 *
 * Life cycle: the host reads the magic block from the file (ELF section ".ifx_plugin") and judges it before
 * the file is loaded, so not even a constructor of a refused plugin runs.  Then it loads the file, calls
 * ifx_plugin_magic (must return the same block) and ifx_plugin_init once, with the host table.  init returns
 * the operations struct of the plugin's kind or NULL after host->error.  Nothing before the kind's `open` may
 * touch a device.  A plugin stays loaded until the process ends.
 *
 * No plugin calls exit or abort, or prints: it reports through the host table.  What a plugin allocates it
 * frees.
 */
#ifndef INFERNIX_PLUGIN_H
#define INFERNIX_PLUGIN_H

#include <infernix/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

#define IFX_ABI_MAJOR 1u
#define IFX_ABI_MINOR 1u
/* Revision of the numerics contract in numerics.h: a plugin of another revision would break the promise that
 * placement never changes a result, so it is refused. */
#define IFX_NUMERICS_REVISION 1u

/* Kinds. */
#define IFX_KIND_EXPERT 1u /* format tier: expert bank (expert.h) */
#define IFX_KIND_KV     2u /* format tier: KV-cache format (kv.h) */
#define IFX_KIND_MODEL  3u /* engine tier: model family (model.h); exact build string */
#define IFX_KIND_DEVICE 4u /* engine tier: device (device.h); exact build string */

/* Status: 0 is success; a negative value is an error, grouped by the largest thing that is lost. */
#define IFX_OK            0
#define IFX_EINVAL       (-1)   /* the call's arguments or the user's input are wrong        request  */
#define IFX_ENOMEM       (-2)   /* host memory                                               request  */
#define IFX_EIO          (-3)   /* file or network                                           request  */
#define IFX_EFORMAT      (-4)   /* a file's contents are wrong                               request  */
#define IFX_EUNSUPPORTED (-5)   /* valid, but not implemented by this plugin                 request  */
#define IFX_ELIMIT       (-6)   /* context length, queue, budget                             request  */
#define IFX_ECANCELLED   (-7)   /* Ctrl-C, client gone                                       request  */
#define IFX_ENOTFOUND    (-8)   /* no such tensor, plugin, file                              request  */
#define IFX_ENONFINITE   (-100) /* the sequence's numbers are NaN or infinite                sequence */
#define IFX_EDEVMEM      (-199) /* device memory refused; the device goes on                 request  */
#define IFX_EDEVICE      (-200) /* sticky device error                                       device   */
#define IFX_EINTERNAL    (-300) /* a broken promise inside the program                       process  */

/* Log levels. */
#define IFX_LOG_ERROR 0u
#define IFX_LOG_WARN  1u
#define IFX_LOG_INFO  2u
#define IFX_LOG_DEBUG 3u

/* CPU levels, each including those before it; what `cpu=LEVEL` names. */
#define IFX_CPU_SCALAR      0u /* "scalar": baseline x86-64, any other CPU */
#define IFX_CPU_AVX2        1u /* "avx2": AVX2, FMA, F16C */
#define IFX_CPU_AVX512      2u /* "avx512": F, BW, VL, DQ, VNNI not assumed */
#define IFX_CPU_AVX512_BF16 3u /* "avx512_bf16"; with VBMI */
#define IFX_CPU_AMX_BF16    4u /* "amx_bf16": AMX-TILE, AMX-BF16; permission to use tile data was obtained */

/* The block in section ".ifx_plugin".  Fixed-size text, no pointers: it can be read from the file. */
struct ifx_magic {
    char magic[8];       /* "INFERNIX" without the terminating 0 */
    uint32_t block_size; /* sizeof(struct ifx_magic) of the plugin's headers */
    uint32_t abi_major;
    uint32_t abi_minor;
    uint32_t kind;
    uint32_t ops_size; /* size of the kind's operations struct in the plugin's headers */
    uint32_t numerics_revision;
    uint32_t cuda_runtime; /* CUDART_VERSION it was built with, or 0 */
    uint32_t reserved;
    char name[32];    /* [a-z0-9_]+, the file is NAME.so */
    char version[32]; /* the plugin's own */
    char build[64];   /* engine tier: must equal the host's build string */
};

/* One option of a plugin.  The table ends with a NULL name.  The host parses, checks, prints and documents
 * options from this table; a plugin only reads values. */
#define IFX_OPT_INT    1u
#define IFX_OPT_FLOAT  2u
#define IFX_OPT_BOOL   3u
#define IFX_OPT_STRING 4u
struct ifx_option {
    const char *name; /* [a-z0-9-]+ */
    uint32_t type;
    uint32_t reserved;
    const char *default_text; /* as the user would write it; NULL: no value */
    const char *help;         /* one line */
    int64_t min_int;          /* IFX_OPT_INT: inclusive range; both 0: any */
    int64_t max_int;
};

/* Parsed options of one plugin; opaque to it. */
struct ifx_options;

/* One task of a parallel-for.  worker is in [0, n_workers).  Returns 0 or a status. */
typedef int32_t (*ifx_task_fn)(void *ctx, uint64_t task, uint32_t worker);

/* Services of the host.  The first argument of each is the table itself.  All may be called from any thread
 * except parallel_for, which must not be called from inside a task. */
struct ifx_host {
    uint32_t struct_size;
    uint32_t abi_minor;
    void *ctx;         /* the host's own */
    const char *build; /* build string of the host, for the engine tier */

    /* Writes one line at a level; a newline is added. */
    void (*log)(const struct ifx_host *host, uint32_t level, const char *format, ...)
#ifdef __GNUC__
        __attribute__((format(printf, 3, 4)))
#endif
        ;
    /* Records the text of an error where it is first seen and returns `status`.  Callers further up pass the
     * status on without recording again. */
    int32_t (*error)(const struct ifx_host *host, int32_t status, const char *format, ...)
#ifdef __GNUC__
        __attribute__((format(printf, 3, 4)))
#endif
        ;

    /* Memory aligned to `align` (a power of two >= 8); NULL when there is none (an error is recorded). */
    void *(*alloc)(const struct ifx_host *host, uint64_t bytes, uint64_t align);
    void (*free)(const struct ifx_host *host, void *memory);

    /* Runs fn(ctx, t, worker) for t in [0, n_tasks) on the host's threads, the caller among them, and waits.
     * Tasks are handed out in ascending order, one at a time.  Returns the first error. */
    int32_t (*parallel_for)(const struct ifx_host *host, uint64_t n_tasks, ifx_task_fn fn, void *ctx);
    uint32_t (*n_workers)(const struct ifx_host *host);

    /* Highest CPU level this process may use: CPUID, the OS state and the user's cpu=LEVEL together. */
    uint32_t (*cpu_level)(const struct ifx_host *host);

    /* Values of an option table; the name must be in the plugin's table. */
    int64_t (*option_int)(const struct ifx_host *host, const struct ifx_options *options, const char *name);
    double (*option_float)(const struct ifx_host *host, const struct ifx_options *options, const char *name);
    const char *(*option_string)(const struct ifx_host *host, const struct ifx_options *options,
                                 const char *name);
    /* The calling thread's last error text, "" when none; valid until its next error.  For carrying a failure from one thread to another. */
    const char *(*error_text)(const struct ifx_host *host);
};

/* The two exported functions. */
typedef const struct ifx_magic *(*ifx_plugin_magic_fn)(void);
typedef const void *(*ifx_plugin_init_fn)(const struct ifx_host *host);

#ifdef __cplusplus
#define IFX_EXTERN_C extern "C"
#else
#define IFX_EXTERN_C extern
#endif
#define IFX_EXPORT __attribute__((visibility("default")))

/* In-tree builds define it (common.mk): version and checksum of the engine-tier headers.  The format tier leaves it empty. */
#ifndef IFX_PLUGIN_BUILD
#define IFX_PLUGIN_BUILD ""
#endif
#ifndef IFX_PLUGIN_CUDA_RUNTIME
#define IFX_PLUGIN_CUDA_RUNTIME 0u
#endif

/* Makes both symbols.  INIT is `const struct ifx_<kind>_ops *INIT(const struct ifx_host *)`. */
#define IFX_PLUGIN_DEFINE(KIND, OPS_TYPE, NAME, VERSION, INIT)                                               \
    __attribute__((section(".ifx_plugin"), used)) static const struct ifx_magic ifx_magic_block = {          \
        {'I', 'N', 'F', 'E', 'R', 'N', 'I', 'X'},                                                            \
        (uint32_t)sizeof(struct ifx_magic),                                                                  \
        IFX_ABI_MAJOR,                                                                                       \
        IFX_ABI_MINOR,                                                                                       \
        (KIND),                                                                                              \
        (uint32_t)sizeof(OPS_TYPE),                                                                          \
        IFX_NUMERICS_REVISION,                                                                               \
        IFX_PLUGIN_CUDA_RUNTIME,                                                                             \
        0u,                                                                                                  \
        NAME,                                                                                                \
        VERSION,                                                                                             \
        IFX_PLUGIN_BUILD};                                                                                   \
    IFX_EXTERN_C IFX_EXPORT const struct ifx_magic *ifx_plugin_magic(void);                                  \
    IFX_EXTERN_C IFX_EXPORT const void *ifx_plugin_init(const struct ifx_host *host);                        \
    const struct ifx_magic *ifx_plugin_magic(void)                                                           \
    {                                                                                                        \
        return &ifx_magic_block;                                                                             \
    }                                                                                                        \
    const void *ifx_plugin_init(const struct ifx_host *host)                                                 \
    {                                                                                                        \
        const OPS_TYPE *ops = INIT(host);                                                                    \
        return ops;                                                                                          \
    }

#define IFX_EXPERT_PLUGIN(NAME, VERSION, INIT)                                                               \
    IFX_PLUGIN_DEFINE(IFX_KIND_EXPERT, struct ifx_expert_ops, NAME, VERSION, INIT)
#define IFX_KV_PLUGIN(NAME, VERSION, INIT)                                                                   \
    IFX_PLUGIN_DEFINE(IFX_KIND_KV, struct ifx_kv_ops, NAME, VERSION, INIT)
#define IFX_MODEL_PLUGIN(NAME, VERSION, INIT)                                                                \
    IFX_PLUGIN_DEFINE(IFX_KIND_MODEL, struct ifx_model_ops, NAME, VERSION, INIT)
#define IFX_DEVICE_PLUGIN(NAME, VERSION, INIT)                                                               \
    IFX_PLUGIN_DEFINE(IFX_KIND_DEVICE, struct ifx_device_plugin_ops, NAME, VERSION, INIT)

#ifdef __cplusplus
}
#endif
#endif
