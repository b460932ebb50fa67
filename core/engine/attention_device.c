/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_device.c - the attention service on a device with its own memory: by the format's device side, or by its CPU side called
 * from the stream where the device lets the host touch its memory.
 */
#include "engine.h"

#define LEAST_BOUND 256u

uint32_t attention_bound(const struct ifx_model *m, uint64_t tokens)
{
    uint64_t bound = LEAST_BOUND;
    while (bound < tokens)
        bound *= 2;
    return bound < m->n_ctx ? (uint32_t)bound : m->n_ctx;
}

static int32_t by_device(const struct engine_step *step, const struct ifx_attention *a)
{
    struct ifx_model *m = step->model;
    const struct ifx_segment *segment = a->segment;
    const struct ifx_sequence *s = segment->sequence;
    void *const *pages = m->slots[s->slot].pages + (uint64_t)a->kv_layer * s->max_blocks;
    const int32_t *positions = step->positions + segment->column0;
    struct ifx_kv_device_append append = {.struct_size = sizeof append, .n = segment->n, .positions = positions, .pages = pages,
                                          .k = a->k, .v = a->v, .ldk = a->ldk, .ldv = a->ldv};
    int32_t st = m->kv_ops->device_append(m->kv, m->kv_side, m->stream, &append);
    if (st)
        return st;
    struct ifx_kv_device_attend attend = {
        .struct_size = sizeof attend, .n = segment->n, .n_q_heads = m->desc->n_q_heads,
        .max_tokens = attention_bound(m, segment->pos0 + segment->n), .positions = positions, .pages = pages, .q = a->q, .ldq = a->ldq,
        .ldq_head = a->ldq_head, .scale = a->scale, .out = a->out, .ldo = a->ldo, .rows = a->rows, .n_rows = a->n_rows,
        .ld_rows = a->ld_rows, .ws = m->step.kv_ws};
    return m->kv_ops->device_attend(m->kv, m->kv_side, m->stream, &attend);
}

static int32_t run_job(void *ctx)
{
    struct attend_job *job = ctx;
    return attention_host(job->m, &job->a);
}

/* Bytes of stored rows that the queries read: once for each tile of queries is near enough. */
static void fill_work(struct attend_job *job)
{
    const struct ifx_model *m = job->m;
    uint64_t tokens = job->segment.pos0 + job->segment.n;
    job->work = (struct ifx_work){.kind = IFX_WORK_DEVICE_DENSE,
                                  .bytes = tokens * m->pool.page_bytes / ENGINE_PAGE_TOKENS,
                                  .flops = 4.0 * (double)tokens * job->segment.n * m->desc->n_q_heads * m->desc->head_dim};
}

static struct attend_job *job_of(const struct engine_step *step, uint32_t item, uint32_t kv_layer)
{
    const struct ifx_model *m = step->model;
    return &step->jobs[(uint64_t)item * m->desc->n_kv_layers + kv_layer];
}

static int32_t by_host_call(const struct engine_step *step, const struct ifx_attention *a)
{
    struct ifx_model *m = step->model;
    struct attend_job *job = job_of(step, (uint32_t)(a->segment - m->step.segments), a->kv_layer);
    *job = (struct attend_job){.m = m, .a = *a, .segment = *a->segment};
    job->a.segment = &job->segment;
    fill_work(job);
    return m->dev->ops->host_call(m->dev, m->stream, run_job, job, &job->work);
}

int32_t attention_device(const struct engine_step *step, const struct ifx_attention *a)
{
    return step->model->attend_where == ATTEND_ON_DEVICE ? by_device(step, a) : by_host_call(step, a);
}

void attention_refresh_jobs(const struct engine_step *step)
{
    const struct ifx_model *m = step->model;
    for (uint32_t i = 0; i < step->count && m->attend_where == ATTEND_BY_HOST_CALL; i++)
        for (uint32_t l = 0; l < m->desc->n_kv_layers; l++) {
            struct attend_job *job = job_of(step, i, l);
            job->segment = m->step.segments[i];
            fill_work(job);
        }
}
