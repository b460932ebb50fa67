/* SPDX-License-Identifier: Apache-2.0
 *
 * moe_call.h - what the files of the MoE call on a device share.
 */
#ifndef INFERNIX_CORE_MOE_CALL_H
#define INFERNIX_CORE_MOE_CALL_H

#include "mover.h"
#include "offload.h"
#include "residency.h"

#include <pthread.h>
#include <stdatomic.h>

#define OFFLOAD_PROMOTIONS 16u /* in flight at once */
#define OFFLOAD_AWAKE_SECONDS 2e-3 /* a layer's dense part: then the next share of the CPU is due */
#define OFFLOAD_SEGMENTS   16u /* pieces of the frames' memory: what shrinking can give back */

/* A bank on the device. */
struct offload_side {
    const struct ifx_expert_ops *ops;
    void *bank, *side;
    bool opened;  /* by its own code; else through host calls, or not at all */
};

/* Device experts computed by the bank's CPU path on the stream (a pretended device). */
struct offload_job {
    struct offload *o;
    uint32_t layer;
    struct ifx_expert_device_call call;
    struct ifx_work work;
    _Atomic uint32_t busy;
};

/* A narrow call's misses, on the stream beside, and its hits where the CPU path computes them; one for each layer and width, since a
 * captured step keeps it. */
struct narrow_job {
    struct offload *o;
    uint32_t layer, n;
    uint32_t rows; /* of the parts that were computed last */
    struct ifx_work work;
    struct offload_job hits;
};

/* How a routing's groups lie in memory, on the device and in the host's copy alike: records first, for alignment. */
struct group_block {
    const void **records;
    uint32_t *entries, *offsets, *rows;
    uint64_t bytes;
};

struct offload {
    struct ifx_device *dev;
    const struct ifx_device_ops *ops;
    struct base_pool *pool;
    struct offload_config config;
    const struct ifx_assist_policy **policies;
    uint32_t n_layers, n_keys, max_columns, max_pairs, max_experts, max_hidden, max_entries;
    uint32_t *key0; /* first key of each layer */
    struct offload_side *sides;
    uint32_t n_sides, *side_of; /* [n_layers] */
    bool computes;      /* the device can run experts */
    bool virtual_clock;
    double link_rate;   /* bytes a second; 0: unknown */
    uint64_t frame_bytes, ws_bytes, cpu_ws_bytes;

    /* frames */
    struct residency *residency;
    uint8_t *segments[OFFLOAD_SEGMENTS];
    uint32_t segment_frames;
    const void **table;        /* device [n_keys]: address of a resident record, or NULL */
    const void **table_mirror; /* pinned */
    uint8_t *dirty;            /* [n_layers] the mirror is ahead */
    uint32_t *resident_count;  /* [n_layers] */
    uint32_t n_resident;       /* their sum */
    struct {
        void *landed;
        uint32_t frame;
        bool busy;
    } promotions[OFFLOAD_PROMOTIONS];
    void *table_done; /* event: the tables no longer name what is about to be overwritten */

    /* staging */
    struct mover mover;
    bool allocated;
    struct {
        uint32_t layer, n;
        uint64_t first;    /* slot of the first */
        uint32_t *experts; /* [max_experts] in slot order */
    } ahead; /* fetched for a layer that has not been called yet */
    uint8_t *narrows; /* [n_layers] the last wide step came here with fewer columns: after the last mixer only some count */
    uint32_t step_columns; /* of this step's first layer */

    /* device buffers */
    uint8_t *group_memory;
    void *group_ws, *ws;
    uint32_t *link_experts;    /* [max_experts] */
    const void **link_records; /* [max_experts] */
    float *parts; /* rows of max_hidden: max_pairs of the device, index_rows that hold the index, max_pairs of the CPU */
    uint32_t index_rows;
    /* their counterparts on the host, pinned */
    uint8_t *host_group;
    uint16_t *host_x;
    uint8_t *host_link; /* records, then experts */
    float *host_parts;  /* index_rows, then the CPU's rows */
    /* host work */
    void *cpu_ws, *job_ws;
    struct offload_part *cpu_parts, *job_parts;
    uint32_t *cpu_rows; /* [max_pairs] */
    uint32_t *columns, *plan_ids; /* [max_experts], [3 * max_experts] */
    uint8_t *resident;            /* [max_experts] */
    const uint8_t **sources;      /* [max_experts] */
    struct narrow_job *narrow;    /* [n_layers][IFX_NARROW_COLUMNS] */
    struct offload_job *jobs;
    uint32_t n_jobs, next_job;
    /* hand-over of narrow calls' misses */
    bool posts;            /* the device can; else host calls on the stream beside */
    uint32_t *post_counter; /* device */
    uint64_t *posted, *answer; /* pinned */
    uint32_t last_post;    /* count of the one seen last */
    uint64_t n_posts;      /* enqueued or captured so far */
    void *enqueued;        /* event behind the posts that are to be served */
    void *watch;  /* stream on which the host is told that the link is through; NULL: it looks */
    _Atomic uint64_t landed_bits; /* when, as a double's bits; 0: not yet */
    void *beside; /* stream of the misses */
    void *forked, *joined, *grouped, *landed; /* events */

    struct cost cost;
    pthread_mutex_t lock; /* statistics and uses: a narrow call's misses are counted on another thread */
    struct offload_stats stats;
    uint32_t last_columns; /* of the last call */
};

double offload_now(const struct offload *o);
struct group_block offload_group_block(const struct offload_layer *l, uint32_t n, uint8_t *memory);
uint8_t *offload_frame(const struct offload *o, uint32_t frame);
/* The index lies right before the CPU's rows, so that both cross in one copy. */
uint32_t *offload_index(const struct offload *o, float *base, uint32_t pairs);

/* device_experts.c: experts on the device, by its own code or by host calls */
int32_t offload_sides_open(struct offload *o);
void offload_sides_close(struct offload *o);
uint64_t offload_side_ws_bytes(const struct offload *o, uint32_t layer, uint32_t n);
/* own: where a host call lies that may run again later with the same call; NULL: it runs once. */
int32_t offload_device_experts(struct offload *o, uint32_t layer, void *stream, const struct ifx_expert_device_call *call,
                               struct offload_job *own);
/* After an error, when nothing is running. */
void offload_jobs_reset(struct offload *o);

/* frames.c: tables, promotions */
void offload_place(struct offload *o, uint32_t key, uint32_t frame); /* in the mirror */
void offload_unplace(struct offload *o, uint32_t key);
int32_t offload_upload_tables(struct offload *o, void *stream);
void offload_drop_promotions(struct offload *o);

/* resident.c, narrow.c, wide.c */
int32_t offload_moe_resident(struct offload *o, const struct offload_moe_call *call);
int32_t offload_moe_narrow(struct offload *o, const struct offload_moe_call *call);
int32_t offload_moe_wide(struct offload *o, const struct offload_moe_call *call);
struct ifx_work offload_work(const struct offload_layer *l, uint32_t kind, uint32_t experts, uint64_t pairs);
/* What the measured costs predict for the CPU's share while the link brings n_link records. */
double offload_cpu_seconds(const struct offload *o, const struct offload_part *parts, uint32_t n_parts, uint32_t n_link);

#endif
