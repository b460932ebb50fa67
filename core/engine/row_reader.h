/* SPDX-License-Identifier: Apache-2.0
 *
 * row_reader.h - reads many small pieces of files in the background: by io_uring where the system has it, by threads elsewhere.
 */
#ifndef INFERNIX_ENGINE_ROW_READER_H
#define INFERNIX_ENGINE_ROW_READER_H

#include "artifact.h"

struct row_read {
    const struct artifact_table *table;
    uint64_t row;
    void *to; /* row bytes of the table */
};

struct row_reader;
/* uring: try io_uring first.  most: reads of one begin at most. */
int32_t row_reader_create(bool uring, uint64_t most, struct row_reader **out);
void row_reader_destroy(struct row_reader *r); /* nothing may be under way; NULL is allowed */
bool row_reader_is_uring(const struct row_reader *r);
/* Where the next n reads are to be listed; only between a wait and the next begin. */
struct row_read *row_reader_list(struct row_reader *r);
/* Starts the first n reads of the list and returns. */
void row_reader_begin(struct row_reader *r, uint64_t n);
/* Until all are done; *seconds grows by the time this took.  The first failure, recorded; told once. */
int32_t row_reader_wait(struct row_reader *r, double *seconds);

#endif
