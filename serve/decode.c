/* SPDX-License-Identifier: Apache-2.0
 *
 * decode.c - from a row of logits to final text, for one job.
 */
#include "config.h"
#include "job.h"
#include <string.h>

static uint32_t vocabulary(const struct ifx_model *m)
{
    struct ifx_model_info info;
    ifx_model_info(m, &info);
    return info.desc->vocab;
}

int32_t decode_open(struct job *j, const struct ifx_model *m)
{
    struct text_tokenizer *t = ifx_model_tokenizer((struct ifx_model *)m);
    int32_t st = ifx_sampler_create(&j->spec.sampling, vocabulary(m), &j->sampler);
    if (!st)
        st = text_stream_create(t, !j->spec.show_special, &j->stream);
    if (!st && j->spec.n_stops)
        st = text_stop_create((const char *const *)j->spec.stops, j->spec.n_stops, &j->stop);
    j->wants_row = j->spec.logprobs || j->spec.grammar || j->spec.n_forced;
    j->token_room = j->spec.n_prompt + 256;
    if (!st && (j->tokens = base_realloc(NULL, j->token_room, sizeof *j->tokens)) == NULL)
        st = IFX_ENOMEM;
    if (!st && j->spec.grammar) {
        st = text_grammar_begin(j->spec.grammar, &j->grammar_state);
        if (!st && (j->allowed = base_calloc((vocabulary(m) + 63) / 64, sizeof *j->allowed)) == NULL)
            st = IFX_ENOMEM;
    }
    if (st)
        return st;
    memcpy(j->tokens, j->spec.prompt, j->spec.n_prompt * sizeof *j->tokens);
    j->n_tokens = j->spec.n_prompt;
    ifx_sampler_prompt(j->sampler, j->spec.prompt, j->spec.n_prompt);
    return IFX_OK;
}

void decode_close(struct job *j)
{
    ifx_sampler_destroy(j->sampler);
    text_stream_destroy(j->stream);
    text_stop_destroy(j->stop);
    base_buf_free(&j->decoded);
    base_buf_free(&j->ready);
    base_free(j->tokens);
    base_free(j->allowed);
    text_grammar_end(j->grammar_state);
    base_free(j->error);
}

static bool is_stop_id(const struct job *j, const struct ifx_model *m, int32_t token)
{
    uint32_t n;
    const int32_t *ids = ifx_model_stop_ids(m, &n);
    for (uint32_t i = 0; !j->spec.ignore_stop_ids && i < n; i++)
        if (ids[i] == token)
            return true;
    return false;
}

/* The tokens that the grammar lets through; end tokens where the answer is whole. */
static void set_mask(struct job *j, const struct ifx_model *m)
{
    uint32_t n;
    const int32_t *ids = ifx_model_stop_ids(m, &n);
    bool whole = text_grammar_mask(j->grammar_state, j->allowed);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t bit = 1ull << (ids[i] % 64);
        if (whole)
            j->allowed[ids[i] / 64] |= bit;
        else
            j->allowed[ids[i] / 64] &= ~bit;
    }
}

/* The model's choice, or what a test put in its place. */
static int32_t choose(struct job *j, const struct ifx_model *m, int32_t *token)
{
    uint32_t n;
    if (!j->wants_row) {
        *token = j->chosen;
        return IFX_OK;
    }
    if (j->grammar_state)
        set_mask(j, m);
    if (j->spec.n_forced == 0)
        return ifx_sampler_pick_among(j->sampler, j->logits, j->allowed, token);
    uint64_t at = j->news.n_generated;
    *token = at < j->spec.n_forced ? j->spec.forced[at] : ifx_model_stop_ids(m, &n)[0];
    return IFX_OK;
}

static int32_t record(struct job *j, int32_t token, uint32_t vocab)
{
    struct ifx_logprob p[SERVE_MAX_TOP_LOGPROBS + 1];
    j->picked = (struct job_token){.id = token, .text_offset = j->text_bytes, .n_top = j->spec.top_logprobs};
    if (j->spec.logprobs) {
        ifx_logprobs(j->logits, vocab, token, j->spec.top_logprobs, p);
        j->picked.logprob = p[0].logprob;
        memcpy(j->picked.top, p + 1, j->spec.top_logprobs * sizeof *p);
    }
    if (j->n_tokens == j->token_room) {
        int32_t *grown = base_realloc(j->tokens, j->token_room * 2, sizeof *grown);
        if (grown == NULL)
            return IFX_ENOMEM;
        j->tokens = grown;
        j->token_room *= 2;
    }
    j->tokens[j->n_tokens++] = token;
    ifx_sampler_accept(j->sampler, token);
    return j->grammar_state ? text_grammar_accept(j->grammar_state, token) : IFX_OK;
}

/* Text that can no longer become part of a stop string. */
static int32_t pass_on(struct job *j, bool last)
{
    bool stopped = false;
    int32_t st = last ? text_stream_finish(j->stream, &j->decoded) : IFX_OK;
    if (!j->stop) {
        if (!st && j->decoded.len)
            st = base_buf_add(&j->ready, j->decoded.data, j->decoded.len);
    } else {
        if (!st && j->decoded.len)
            st = text_stop_feed(j->stop, j->decoded.data, j->decoded.len, &j->ready, &stopped);
        if (!st && last && !stopped)
            st = text_stop_finish(j->stop, &j->ready);
    }
    if (!st && stopped) {
        j->ended = true;
        j->finish = IFX_FINISH_STOP;
        j->stop_text = text_stop_found(j->stop);
    }
    j->decoded.len = 0;
    return st;
}

static int32_t take(struct job *j, struct ifx_model *m)
{
    struct ifx_model_info info;
    int32_t token;
    ifx_model_info(m, &info);
    int32_t st = choose(j, m, &token);
    if (st)
        return st;
    if (is_stop_id(j, m, token)) {
        j->ended = true;
        j->finish = IFX_FINISH_STOP;
        j->stop_id = token;
        return pass_on(j, true);
    }
    st = record(j, token, info.desc->vocab);
    if (!st)
        st = text_stream_push(j->stream, token, &j->decoded);
    if (!st)
        st = pass_on(j, false);
    if (st || j->ended)
        return st;
    uint64_t n = j->news.n_generated + 1;
    if ((j->spec.max_tokens && n >= j->spec.max_tokens) || j->n_tokens > info.ctx) {
        j->ended = true;
        j->finish = IFX_FINISH_LENGTH;
        return pass_on(j, true);
    }
    j->has_next = true;
    return IFX_OK;
}

void decode_pick(struct job *j, struct ifx_model *m)
{
    j->has_next = false;
    j->stop_id = -1;
    j->picked.id = -1;
    j->ready.len = 0;
    j->status = take(j, m);
    if (j->status && !j->error)
        j->error = base_strdup(base_error_text());
}
