/* SPDX-License-Identifier: Apache-2.0
 *
 * residency.h - which experts lie in device frames: one pool of equal frames over all layers.  Bookkeeping only: no device, no
 * clock.  An expert is named by its key, a number over all layers.
 *
 * Time is counted in rounds (decode steps).  An expert's score is f / (age + 1): f its uses, halved every half_life rounds, age
 * the rounds since the last one.  A missed expert is promoted into a free frame, or in place of the resident with the lowest score
 * when its own is higher.
 */
#ifndef INFERNIX_CORE_RESIDENCY_H
#define INFERNIX_CORE_RESIDENCY_H

#include "base.h"

#define RESIDENCY_NONE       UINT32_MAX
#define RESIDENCY_HALF_LIFE  512u
#define RESIDENCY_CANDIDATES 256u /* misses of a round that are looked at */

enum residency_state { FRAME_FREE, FRAME_USED, FRAME_FILLING };
struct residency_frame {
    uint32_t key; /* RESIDENCY_NONE when free */
    enum residency_state state;
};

struct residency {
    uint32_t n_keys, n_frames; /* frames that may be used now, of those there is room for */
    uint32_t room, n_used;     /* n_used: not free */
    uint32_t round;
    uint32_t *frame_of; /* [n_keys] frame or RESIDENCY_NONE; one that is being filled does not count */
    uint8_t *coming;                /* [n_keys] 1: in a frame that is being filled */
    struct residency_frame *frames; /* [room] */
    struct residency_use {
        float count;
        uint32_t last; /* round of the last use, where count holds */
    } *uses; /* [n_keys] */
    uint32_t candidates[RESIDENCY_CANDIDATES];
    uint32_t n_candidates;
    float decay[RESIDENCY_HALF_LIFE]; /* 2^(-i / half_life) */
};

int32_t residency_create(uint32_t n_keys, uint32_t n_frames, struct residency **out);
void residency_destroy(struct residency *r);
/* A new round begins: ages grow, the candidates of the last one are forgotten. */
void residency_round(struct residency *r);
/* An expert was used; weight 1 for a decode step.  missed: it is a candidate for promotion. */
void residency_use(struct residency *r, uint32_t key, float weight, bool missed);
float residency_score(const struct residency *r, uint32_t key);

/* The next promotion of this round: takes the best candidate, and the frame for it, which is then FILLING.  *victim: the expert
 * that lost the frame, or RESIDENCY_NONE.  False: nothing more is worth it.  protect: keys with nonzero bytes keep their frames (NULL: none). */
bool residency_promote(struct residency *r, const uint8_t *protect, uint32_t *key, uint32_t *frame, uint32_t *victim);
/* The bytes are there / will not come. */
void residency_filled(struct residency *r, uint32_t frame);
void residency_cancel(struct residency *r, uint32_t frame);
/* Puts an expert into a free frame (warm start); RESIDENCY_NONE when there is none. */
uint32_t residency_place(struct residency *r, uint32_t key);
/* Takes an expert out; its frame. */
uint32_t residency_evict(struct residency *r, uint32_t key);
/* Another number of frames, at most `room`.  Those at the end are given up: what they held is evicted (told through gone, which
 * may be NULL).  None may be FILLING. */
void residency_resize(struct residency *r, uint32_t n_frames, void (*gone)(void *ctx, uint32_t key), void *ctx);

/* ---- the ranking in a file ---- */
/* What a file must agree with. */
struct residency_identity {
    uint64_t record_bytes, check; /* check: a number made from what the experts are */
    uint32_t n_layers, n_keys;
};
/* Written under another name and renamed. */
int32_t residency_save(const struct residency *r, const struct residency_identity *id, const char *path);
/* Keys by falling score, those with a score only: *n of them in keys [n_keys]; their uses are taken over.  IFX_ENOTFOUND (nothing
 * recorded) without a file; IFX_EFORMAT with the reason when it is damaged or another model's: nothing is taken then. */
int32_t residency_load(struct residency *r, const struct residency_identity *id, const char *path, uint32_t *keys, uint32_t *n);

#endif
