/* SPDX-License-Identifier: Apache-2.0
 *
 * graph.c - decode steps as captured graphs.
 *
 * A step of one token for each of some sequences enqueues the same work each time: tokens, positions and page tables are read from
 * device memory, states lie in the sequences' slots.  What changes the work is which sequences there are, and the bound of their lengths.
 * The second step of a kind is captured, and from then on launched.
 */
#include "engine.h"

static bool capturable(const struct engine_step *es)
{
    const struct ifx_model *m = es->model;
    const struct ifx_device_ops *op = m->dev->ops;
    if (m->no_graph || m->host_memory || es->watch || !op->graph_begin || es->n_rows != es->count || es->columns != es->count)
        return false;
    return !m->desc->n_tables && !m->desc->index_dim && (!m->desc->n_moe || engine_moe_capturable(m));
}

static void drop(struct ifx_model *m, struct engine_graph *g)
{
    if (g->graph)
        m->dev->ops->graph_destroy(m->dev, g->graph);
    base_free(g->jobs);
    *g = (struct engine_graph){0};
}

void engine_graphs_destroy(struct ifx_model *m)
{
    for (uint32_t i = 0; i < ENGINE_GRAPHS; i++)
        drop(m, &m->graphs[i]);
}

static struct engine_graph key_of(const struct engine_step *es)
{
    const struct offload *o = es->model->offload;
    struct engine_graph key = {.count = es->count, .resident = o && offload_all_resident(o)};
    for (uint32_t i = 0; i < es->count; i++) {
        const struct ifx_sequence *s = es->items[i]->sequence;
        key.slots[i] = s->slot;
        key.bounds[i] = attention_bound(es->model, s->length + 1);
    }
    return key;
}

static bool same(const struct engine_graph *a, const struct engine_graph *b)
{
    bool equal = a->count == b->count && a->resident == b->resident;
    for (uint32_t i = 0; equal && i < a->count; i++)
        equal = a->slots[i] == b->slots[i] && a->bounds[i] == b->bounds[i];
    return equal;
}

/* The entry of this kind of step; a new one takes the place of the one that was not used for longest. */
static struct engine_graph *find(struct ifx_model *m, const struct engine_graph *key, bool *fresh)
{
    struct engine_graph *oldest = &m->graphs[0];
    *fresh = false;
    for (uint32_t i = 0; i < ENGINE_GRAPHS; i++) {
        struct engine_graph *g = &m->graphs[i];
        if (same(g, key))
            return g;
        if (g->used < oldest->used)
            oldest = g;
    }
    drop(m, oldest);
    *oldest = *key;
    *fresh = true;
    return oldest;
}

static int32_t capture(struct engine_step *es, const struct ifx_step *step, struct engine_graph *g)
{
    struct ifx_model *m = es->model;
    const struct ifx_device_ops *op = m->dev->ops;
    void *graph = NULL;
    if (m->attend_where == ATTEND_BY_HOST_CALL && !g->jobs)
        g->jobs = base_calloc((uint64_t)es->count * m->desc->n_kv_layers, sizeof *g->jobs);
    if (m->attend_where == ATTEND_BY_HOST_CALL && !g->jobs)
        return IFX_ENOMEM;
    int32_t st = op->graph_begin(m->dev, m->stream);
    if (st)
        return st;
    uint64_t posts = m->offload ? offload_posts(m->offload) : 0;
    es->capturing = true;
    es->jobs = g->jobs;
    st = m->family->forward(m->family_model, step);
    es->capturing = false;
    es->jobs = m->step.jobs;
    /* Ends the capture in any case. */
    int32_t end = op->graph_end(m->dev, m->stream, &graph);
    st = st ? st : end;
    if (st && graph)
        op->graph_destroy(m->dev, graph);
    else if (!st)
        g->graph = graph;
    g->posts = m->offload ? offload_posts(m->offload) - posts : 0;
    return st;
}

int32_t engine_forward(struct engine_step *es, const struct ifx_step *step)
{
    struct ifx_model *m = es->model;
    bool fresh;
    if (!capturable(es))
        return m->family->forward(m->family_model, step);
    struct engine_graph key = key_of(es), *g = find(m, &key, &fresh);
    g->used = ++m->graph_clock;
    if (fresh)
        return m->family->forward(m->family_model, step);
    if (!g->graph) {
        int32_t st = capture(es, step, g);
        if (st <= IFX_EDEVICE)
            return st;
        if (st) {
            base_fallback("graph", "steps are not captured as graphs: %s", base_error_text());
            m->no_graph = true;
            return m->family->forward(m->family_model, step);
        }
    }
    es->jobs = g->jobs;
    attention_refresh_jobs(es);
    for (uint32_t l = 0; g->resident && l < m->desc->n_moe; l++)
        offload_count_resident(m->offload, l, es->count);
    int32_t st = m->dev->ops->graph_launch(m->dev, m->stream, g->graph);
    return st || !g->posts ? st : offload_serve(m->offload, m->stream, g->posts);
}
