/* SPDX-License-Identifier: Apache-2.0
 *
 * generate.c - prompt in, text out.
 */
#include "engine.h"

struct generation {
    struct ifx_sequence *s;
    const struct ifx_generate *g;
    struct ifx_generate_result *r;
    struct ifx_sampler *sampler;
    struct text_stream *stream; /* NULL: no tokenizer, or nobody reads text */
    struct text_stop *stop;     /* NULL: no stop strings */
    struct base_buf decoded, ready;
    int32_t token; /* picked, not in the text yet */
};

static int32_t create(struct generation *gen)
{
    struct ifx_model *m = gen->s->model;
    const struct ifx_generate *g = gen->g;
    int32_t st = ifx_sampler_create(&g->sampling, m->desc->vocab, &gen->sampler);
    if (!st && g->n_stops && !m->tokenizer)
        st = base_error(IFX_EINVAL, "stop strings need a tokenizer, and the model has none");
    if (!st && m->tokenizer && (g->on_text || g->n_stops))
        st = text_stream_create(m->tokenizer, !g->show_special, &gen->stream);
    if (!st && g->n_stops)
        st = text_stop_create(g->stops, g->n_stops, &gen->stop);
    return st;
}

static void destroy(struct generation *gen)
{
    ifx_sampler_destroy(gen->sampler);
    text_stream_destroy(gen->stream);
    text_stop_destroy(gen->stop);
    base_buf_free(&gen->decoded);
    base_buf_free(&gen->ready);
}

static bool is_stop_id(const struct generation *gen, int32_t token)
{
    const struct ifx_model *m = gen->s->model;
    for (uint32_t i = 0; !gen->g->ignore_stop_ids && i < m->n_stop_ids; i++)
        if (m->stop_ids[i] == token)
            return true;
    for (uint32_t i = 0; i < gen->g->n_stop_ids; i++)
        if (gen->g->stop_ids[i] == token)
            return true;
    return false;
}

/* Hands the text in `decoded` on, through the stop strings when there are any. */
static int32_t deliver(struct generation *gen, bool last, bool *stopped)
{
    struct base_buf *out = &gen->decoded;
    int32_t st = IFX_OK;
    if (gen->stop) {
        out = &gen->ready;
        out->len = 0;
        st = text_stop_feed(gen->stop, gen->decoded.data, gen->decoded.len, out, stopped);
        if (!st && last && !*stopped)
            st = text_stop_finish(gen->stop, out);
    }
    if (!st && out->len && gen->g->on_text && gen->g->on_text(gen->g->ctx, out->data, out->len))
        st = IFX_ECANCELLED;
    gen->decoded.len = 0;
    return st;
}

/* Takes one token into the text; *stopped when a stop string is complete. */
static int32_t emit(struct generation *gen, int32_t token, bool *stopped)
{
    gen->r->n_generated++;
    ifx_sampler_accept(gen->sampler, token);
    if (gen->g->on_token && gen->g->on_token(gen->g->ctx, token))
        return IFX_ECANCELLED;
    if (!gen->stream)
        return IFX_OK;
    int32_t st = text_stream_push(gen->stream, token, &gen->decoded);
    return st || !gen->decoded.len ? st : deliver(gen, false, stopped);
}

/* What the detokenizer and the stop strings still hold back. */
static int32_t flush(struct generation *gen)
{
    bool stopped = false;
    if (!gen->stream)
        return IFX_OK;
    int32_t st = text_stream_finish(gen->stream, &gen->decoded);
    if (!st)
        st = deliver(gen, true, &stopped);
    if (!st && stopped)
        gen->r->finish = IFX_FINISH_STOP;
    return st;
}

/* The loop; the result's finish is set in every case that is no error. */
static int32_t decode(struct generation *gen)
{
    const struct ifx_generate *g = gen->g;
    struct ifx_generate_result *r = gen->r;
    bool stopped = false;
    for (;;) {
        int32_t token = gen->token;
        if (is_stop_id(gen, token)) {
            r->finish = IFX_FINISH_STOP;
            r->stop_id = token;
            return flush(gen);
        }
        int32_t st = emit(gen, token, &stopped);
        if (st)
            return st;
        if (stopped) {
            r->finish = IFX_FINISH_STOP;
            return IFX_OK;
        }
        if ((g->max_tokens && r->n_generated >= g->max_tokens) || gen->s->length >= gen->s->model->n_ctx) {
            r->finish = IFX_FINISH_LENGTH;
            return flush(gen);
        }
        st = engine_feed_pick(gen->s, &token, 1, gen->sampler, &gen->token);
        if (st)
            return st;
    }
}

int32_t ifx_generate(struct ifx_sequence *s, const struct ifx_generate *g, struct ifx_generate_result *r)
{
    struct generation gen = {.s = s, .g = g, .r = r};
    *r = (struct ifx_generate_result){.stop_id = -1, .n_prompt = g->n_prompt, .finish = IFX_FINISH_LENGTH};
    if (!g->n_prompt)
        return base_error(IFX_EINVAL, "the prompt is empty: there is nothing to go on from");
    int32_t st = create(&gen);
    double start = base_now();
    if (!st) {
        ifx_sampler_prompt(gen.sampler, g->prompt, g->n_prompt);
        st = engine_feed_pick(s, g->prompt, g->n_prompt, gen.sampler, &gen.token);
    }
    double ready = base_now();
    r->prompt_seconds = ready - start;
    if (!st)
        st = decode(&gen);
    r->decode_seconds = base_now() - ready;
    if (st == IFX_ECANCELLED) {
        r->finish = IFX_FINISH_CANCELLED;
        st = IFX_OK;
    }
    destroy(&gen);
    return st;
}
