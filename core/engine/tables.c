/* SPDX-License-Identifier: Apache-2.0
 *
 * tables.c - row tables: rows are asked for when a step begins, read in the background, and handed to the family as float32 when it
 * wants them, which is some layers later.
 *
 * A step's rows are sorted and each is looked at once.  Those in the cache are taken from there; the others are read into the step's landing
 * place, ascending, and enter the cache afterwards.
 */
#include "engine.h"
#include "row_reader.h"

#include <stdlib.h>
#include <string.h>

#define CACHE_WAYS   8u
#define NO_ROW       UINT64_MAX

/* A cache of rows, set-associative: a set keeps its rows by falling time of use. */
struct row_cache {
    uint64_t sets; /* a power of two; 0: no cache */
    uint64_t *ids; /* [sets * CACHE_WAYS] */
    uint8_t *rows; /* [sets * CACHE_WAYS, row bytes] */
};

/* One table and the rows that the step asked for. */
struct table {
    struct artifact_table *file;
    const struct ifx_row_table *desc;
    uint32_t row_bytes;
    struct row_cache cache;
    int64_t *ids;      /* [columns * per_token] as the family gave them */
    uint64_t *sorted;  /* unique ones, ascending */
    uint8_t *landing;  /* [unique, row bytes] */
    uint32_t *missing; /* unique indices that have to be read */
    uint64_t n_ids, n_sorted, n_missing;
    float *staging; /* host memory that the device reads: [columns, per_token * cols] */
};

struct engine_tables {
    struct ifx_model *m;
    struct table *all;
    uint32_t n;
    struct ifx_table_stats stats;
    struct row_reader *reader;
    int32_t failed; /* of the step's reads */
};

/* ---- cache ---- */

static uint64_t set_of(const struct row_cache *c, uint64_t id)
{
    return ((id * 0x9e3779b97f4a7c15u) >> 20) & (c->sets - 1);
}

static int32_t cache_create(struct row_cache *c, uint64_t bytes, uint32_t row_bytes, uint64_t rows)
{
    uint64_t each = (row_bytes + sizeof(uint64_t)) * (uint64_t)CACHE_WAYS, sets = 1;
    if (bytes < each)
        return IFX_OK;
    while (sets * 2 * each <= bytes && sets * CACHE_WAYS < rows)
        sets *= 2;
    c->ids = base_calloc(sets * CACHE_WAYS, sizeof *c->ids);
    c->rows = base_map_anon(sets * CACHE_WAYS * row_bytes);
    if (!c->ids || !c->rows) {
        if (c->rows)
            base_unmap(c->rows, sets * CACHE_WAYS * row_bytes);
        c->rows = NULL;
        return base_error_prefix(IFX_ENOMEM, "row cache (lower --ngram-cache-mib)");
    }
    for (uint64_t i = 0; i < sets * CACHE_WAYS; i++)
        c->ids[i] = NO_ROW;
    c->sets = sets;
    return IFX_OK;
}

/* Ways of a set are swapped by one towards the front at a hit; the last goes when a new row comes. */
static bool cache_take(struct row_cache *c, uint64_t id, uint32_t row_bytes, uint8_t *out)
{
    uint64_t at = c->sets ? set_of(c, id) * CACHE_WAYS : 0;
    for (uint32_t w = 0; c->sets && w < CACHE_WAYS; w++) {
        uint8_t *row = c->rows + (at + w) * row_bytes;
        if (c->ids[at + w] != id)
            continue;
        memcpy(out, row, row_bytes);
        if (w) {
            memcpy(row, row - row_bytes, row_bytes);
            memcpy(row - row_bytes, out, row_bytes);
            c->ids[at + w] = c->ids[at + w - 1];
            c->ids[at + w - 1] = id;
        }
        return true;
    }
    return false;
}

/* A new row enters in the middle: rows asked for once do not push out those asked for often. */
static void cache_put(struct row_cache *c, uint64_t id, uint32_t row_bytes, const uint8_t *row)
{
    if (!c->sets)
        return;
    uint64_t at = set_of(c, id) * CACHE_WAYS, way = CACHE_WAYS / 2;
    while (way > 0 && c->ids[at + way - 1] == NO_ROW)
        way--;
    uint64_t after = CACHE_WAYS - 1 - way;
    memmove(c->rows + (at + way + 1) * row_bytes, c->rows + (at + way) * row_bytes, after * row_bytes);
    memmove(c->ids + at + way + 1, c->ids + at + way, after * sizeof *c->ids);
    memcpy(c->rows + (at + way) * row_bytes, row, row_bytes);
    c->ids[at + way] = id;
}

/* ---- life ---- */

uint64_t engine_table_cache(const struct ifx_model_options *o)
{
    return o->table_cache_bytes == IFX_NO_TABLE_CACHE ? 0 : o->table_cache_bytes ? o->table_cache_bytes : ENGINE_DEFAULT_ROWS;
}

/* Before any table is open: rows of two bytes a value, and no more cache than there are rows. */
uint64_t engine_tables_bytes(const struct ifx_model *m, uint32_t n, uint64_t cache_bytes)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < m->desc->n_tables; i++) {
        const struct ifx_row_table *t = &m->desc->tables[i];
        uint64_t rows = (uint64_t)n * t->per_token, share = cache_bytes / m->desc->n_tables;
        uint64_t whole = 2 * t->rows * (t->cols * 2 + sizeof(uint64_t));
        bytes += rows * (t->cols * (2 + sizeof(float)) + 2 * sizeof(int64_t) + sizeof(uint32_t)) + (share < whole ? share : whole);
    }
    return bytes;
}


static int32_t table_create(struct engine_tables *e, uint32_t i, uint64_t cache_bytes)
{
    struct ifx_model *m = e->m;
    struct table *t = &e->all[i];
    t->desc = &m->desc->tables[i];
    uint64_t rows = (uint64_t)m->step.max_columns * t->desc->per_token;
    int32_t st = artifact_table_open(m->artifact, t->desc, &t->file);
    if (st)
        return st;
    t->row_bytes = artifact_table_row_bytes(t->file);
    t->ids = base_calloc(rows, sizeof *t->ids);
    t->sorted = base_calloc(rows, sizeof *t->sorted);
    t->missing = base_calloc(rows, sizeof *t->missing);
    t->landing = base_calloc(rows, t->row_bytes);
    if (!t->ids || !t->sorted || !t->missing || !t->landing)
        return IFX_ENOMEM;
    void *staging;
    st = m->dev->ops->host_alloc(m->dev, rows * t->desc->cols * sizeof(float), &staging);
    if (st)
        return st;
    t->staging = staging;
    return cache_create(&t->cache, cache_bytes / m->desc->n_tables, t->row_bytes, t->desc->rows);
}

int32_t engine_tables_create(struct ifx_model *m, uint64_t cache_bytes)
{
    if (!m->desc->n_tables)
        return IFX_OK;
    struct engine_tables *e = m->tables = base_calloc(1, sizeof *e);
    if (!e)
        return IFX_ENOMEM;
    e->m = m;
    e->all = base_calloc(m->desc->n_tables, sizeof *e->all);
    uint64_t most = 0;
    int32_t st = e->all ? IFX_OK : IFX_ENOMEM;
    for (; !st && e->n < m->desc->n_tables; e->n++) {
        most += (uint64_t)m->step.max_columns * m->desc->tables[e->n].per_token;
        st = table_create(e, e->n, cache_bytes);
    }
    return st ? st : row_reader_create(true, most, &e->reader);
}

void engine_tables_destroy(struct ifx_model *m)
{
    struct engine_tables *e = m->tables;
    if (!e)
        return;
    row_reader_destroy(e->reader);
    for (uint32_t i = 0; e->all && i < m->desc->n_tables; i++) {
        struct table *t = &e->all[i];
        artifact_table_close(t->file);
        if (t->staging)
            m->dev->ops->host_free(m->dev, t->staging);
        if (t->cache.rows)
            base_unmap(t->cache.rows, t->cache.sets * CACHE_WAYS * t->row_bytes);
        void *own[] = {t->ids, t->sorted, t->missing, t->landing, t->cache.ids};
        for (size_t j = 0; j < sizeof own / sizeof own[0]; j++)
            base_free(own[j]);
    }
    base_free(e->all);
    base_free(e);
    m->tables = NULL;
}

/* ---- a step ---- */

static int by_id(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void sort_unique(struct table *t)
{
    uint64_t n = 0;
    memcpy(t->sorted, t->ids, t->n_ids * sizeof *t->sorted);
    qsort(t->sorted, t->n_ids, sizeof *t->sorted, by_id);
    for (uint64_t i = 0; i < t->n_ids; i++)
        if (!n || t->sorted[n - 1] != t->sorted[i])
            t->sorted[n++] = t->sorted[i];
    t->n_sorted = n;
}

/* The ids of the pass's tokens; each sequence's tokens lie one after the other, so what came before is at hand. */
static int32_t ask_ids(struct engine_step *es, uint32_t index, struct table *t)
{
    const struct ifx_model *m = es->model;
    t->n_ids = 0;
    for (uint32_t i = 0; i < es->count; i++) {
        const struct ifx_batch_item *it = es->items[i];
        struct ifx_sequence *s = it->sequence;
        uint64_t history = s->length < m->desc->history ? s->length : m->desc->history;
        memcpy(s->tokens + s->length, it->tokens, it->n * sizeof *it->tokens);
        m->family->row_ids(m->family_model, index, s->tokens + s->length, (uint32_t)history, it->n, t->ids + t->n_ids);
        t->n_ids += (uint64_t)it->n * t->desc->per_token;
    }
    for (uint64_t i = 0; i < t->n_ids; i++)
        if (t->ids[i] < 0 || (uint64_t)t->ids[i] >= t->desc->rows)
            return base_error(IFX_EINTERNAL, "row %lld of table %s, which has %llu", (long long)t->ids[i], t->desc->name,
                              (unsigned long long)t->desc->rows);
    return IFX_OK;
}

/* Sorts a table's ids and lists those that are not in the cache. */
static uint64_t look_up(struct engine_tables *e, struct table *t, struct row_read *list)
{
    sort_unique(t);
    for (uint64_t r = 0; r < t->n_sorted; r++) {
        uint8_t *to = t->landing + r * t->row_bytes;
        if (cache_take(&t->cache, t->sorted[r], t->row_bytes, to))
            continue;
        list[t->n_missing] = (struct row_read){t->file, t->sorted[r], to};
        t->missing[t->n_missing++] = (uint32_t)r;
    }
    e->stats.rows += t->n_ids;
    e->stats.unique_rows += t->n_sorted;
    e->stats.read_rows += t->n_missing;
    e->stats.read_bytes += t->n_missing * t->row_bytes;
    return t->n_missing;
}

int32_t engine_tables_begin(struct engine_step *es)
{
    struct engine_tables *e = es->model->tables;
    uint64_t n = 0;
    int32_t st = IFX_OK;
    for (uint32_t i = 0; e && !st && i < e->n; i++)
        st = ask_ids(es, i, &e->all[i]);
    if (st || !e)
        return st;
    for (uint32_t i = 0; i < e->n; i++)
        n += look_up(e, &e->all[i], row_reader_list(e->reader) + n);
    e->failed = IFX_OK;
    row_reader_begin(e->reader, n);
    return IFX_OK;
}

/* Until all rows of the step are there; the time counts. */
static int32_t wait_for_rows(struct engine_tables *e)
{
    int32_t st = row_reader_wait(e->reader, &e->stats.wait_seconds);
    e->failed = e->failed ? e->failed : st;
    return e->failed;
}

int32_t engine_table_rows(const struct ifx_services *sv, uint32_t table, float *y)
{
    const struct engine_step *es = sv->ctx;
    struct ifx_model *m = es->model;
    struct engine_tables *e = m->tables;
    struct table *t = &e->all[table];
    uint32_t cols = t->desc->cols;
    int32_t st = wait_for_rows(e);
    if (st)
        return st;
    for (uint64_t i = 0; i < t->n_ids; i++) {
        uint64_t id = (uint64_t)t->ids[i];
        const uint64_t *at = bsearch(&id, t->sorted, t->n_sorted, sizeof *t->sorted, by_id);
        artifact_table_decode(t->file, t->landing + (uint64_t)(at - t->sorted) * t->row_bytes, t->staging + i * cols);
    }
    return m->dev->ops->copy(m->dev, m->stream, y, t->staging, t->n_ids * cols * sizeof(float), IFX_COPY_TO_DEVICE);
}

void engine_tables_end(struct ifx_model *m)
{
    struct engine_tables *e = m->tables;
    if (!e)
        return;
    int32_t st = wait_for_rows(e);
    for (uint32_t i = 0; i < e->n; i++) {
        struct table *t = &e->all[i];
        for (uint64_t r = 0; !st && r < t->n_missing; r++)
            cache_put(&t->cache, t->sorted[t->missing[r]], t->row_bytes, t->landing + (uint64_t)t->missing[r] * t->row_bytes);
        t->n_missing = 0;
    }
}

void ifx_table_stats(struct ifx_model *m, struct ifx_table_stats *out)
{
    *out = (struct ifx_table_stats){0};
    if (!m->tables)
        return;
    pthread_mutex_lock(&m->lock);
    *out = m->tables->stats;
    pthread_mutex_unlock(&m->lock);
}
