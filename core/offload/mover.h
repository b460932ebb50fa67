/* SPDX-License-Identifier: Apache-2.0
 *
 * mover.h - records on their way to the device: host memory that the copy engine reads at full speed, a copy stream, and a ring of
 * slots in device memory.  Nothing here waits on the host: a copy into a slot waits, on the copy stream, for whoever used
 * the slot before; a stream that uses a slot waits for its copy.
 */
#ifndef INFERNIX_CORE_MOVER_H
#define INFERNIX_CORE_MOVER_H

#include "base.h"
#include <infernix/device.h>

#define MOVER_LEAST_SLOTS 2u

struct mover_slot {
    void *landed, *freed; /* events; those of the last slot of a group count for all of it */
    uint32_t freed_by;    /* the slot whose `freed` says that this one may be overwritten, or UINT32_MAX: now */
};
struct mover {
    struct ifx_device *dev;
    void *stream; /* copies to the device */
    uint8_t *ring;
    uint64_t slot_bytes;
    uint32_t n_slots;
    struct mover_slot *slots;
    uint64_t next, released; /* slots handed out and given back, since the start */
    uint64_t copied;         /* bytes */
};

int32_t mover_create(struct ifx_device *dev, uint64_t slot_bytes, uint32_t n_slots, struct mover *m);
void mover_destroy(struct mover *m);
/* Slots that can be fetched into before anything more is released. */
uint32_t mover_room(const struct mover *m);
/* Starts the copies of n records (at most mover_room) of `bytes` each; record i lands in slot *first + i (mover_slot_memory). */
int32_t mover_fetch(struct mover *m, const uint8_t *const *records, uint32_t n, uint64_t bytes, uint64_t *first);
uint8_t *mover_slot_memory(const struct mover *m, uint64_t slot);
/* The stream waits for the fetch whose last slot this is. */
int32_t mover_await(struct mover *m, uint64_t last, void *stream);
/* The n slots fetched first are free when the stream gets here.  Slots are released in the order of their fetches. */
int32_t mover_release(struct mover *m, uint32_t n, void *stream);
/* After an error, when no stream is running: every slot is free. */
void mover_reset(struct mover *m);

/* Host memory for the records of each layer: pinned, in one piece a layer, as long as the device gives it; then ordinary pages, said
 * once.  most_pinned: bytes of records that may be pinned; limit: what says so, for that line; NULL: it is as
 * asked, and no fallback. */
struct mover_records {
    struct ifx_device *dev;
    uint32_t n_layers;
    struct {
        uint8_t *memory;
        uint64_t bytes;
        bool pinned;
    } *layers;
    uint64_t pinned_bytes, pageable_bytes;
};
int32_t mover_records_create(struct ifx_device *dev, uint32_t n_layers, const uint64_t *layer_bytes, uint64_t most_pinned,
                             const char *limit, struct mover_records *r);
void mover_records_destroy(struct mover_records *r);

#endif
