/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_request.c - bodies of HTTP requests through the endpoints that read them.  The first byte names the endpoint; what would go to the network
 * or to the model ends here.
 */
#include "config.h"
#include "fuzz.h"
#include "fuzz_text.h"
#include "reply.h"

static struct serve serve;
static bool answered;

/* ---- in the place of http.c ---- */
void answer_queue(struct exchange *x, unsigned status, struct MHD_Response *r)
{
    (void)status;
    answered = x->queued = true;
    if (r != NULL)
        MHD_destroy_response(r);
}

void answer_text(struct exchange *x, unsigned status, const char *type, const char *text, uint64_t n)
{
    (void)type, (void)text, (void)n;
    answer_queue(x, status, NULL);
}

void answer_json(struct exchange *x, unsigned status, json_t *value)
{
    char *text = value != NULL ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
    if (text == NULL || !base_utf8_valid(text, strlen(text)))
        abort();
    free(text);
    json_decref(value);
    answer_queue(x, status, NULL);
}

void answer_error(struct exchange *x, unsigned status, const char *param, const char *code, const char *format, ...)
{
    (void)param, (void)code, (void)format;
    if (status < 400)
        abort();
    answer_queue(x, status, NULL);
}

void answer_failure(struct exchange *x, int32_t status)
{
    if (status == IFX_OK || base_error_text()[0] == 0)
        abort();
    answer_queue(x, 400, NULL);
}

json_t *error_object(enum serve_api api, unsigned status, const char *param, const char *code, const char *text)
{
    (void)api, (void)status, (void)param, (void)code, (void)text;
    return json_object();
}

bool client_gone(const struct exchange *x)
{
    (void)x;
    return true;
}

/* ---- in the place of scheduler.c ---- */
void job_spec_free(struct job_spec *s)
{
    for (uint32_t i = 0; i < s->n_stops; i++)
        base_free(s->stops[i]);
    base_free(s->stops);
    base_free(s->prompt);
    text_grammar_destroy(s->grammar);
    *s = (struct job_spec){0};
}

void job_news_free(struct job_news *n)
{
    (void)n;
}

int32_t scheduler_submit(struct scheduler *s, struct job_spec *spec, struct job **out)
{
    (void)s;
    *out = NULL;
    if (spec->n_prompt == 0 || spec->n_prompt > serve.info.ctx || spec->top_logprobs > SERVE_MAX_TOP_LOGPROBS || !(spec->sampling.top_p > 0))
        abort();
    for (uint64_t i = 0; i < spec->n_prompt; i++)
        if (spec->prompt[i] < 0 || (uint32_t)spec->prompt[i] >= serve.info.desc->vocab)
            abort();
    job_spec_free(spec);
    return base_error(IFX_ELIMIT, "full");
}

bool job_wait(struct job *j, double seconds, struct job_news *news)
{
    (void)j, (void)seconds, (void)news;
    abort();
}

void job_release(struct job *j)
{
    (void)j;
}

/* ---- */

static void set_up(void)
{
    static struct ifx_model_desc desc;
    static const char chatml[] =
        "{%- for message in messages %}{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
        "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";
    serve.tokenizer = (struct text_tokenizer *)fuzz_tokenizer();
    desc.vocab = text_vocab_size(serve.tokenizer);
    serve.info.desc = &desc;
    serve.info.ctx = 512;
    serve.info.architecture = "A";
    serve.o.model_name = "m";
    serve.o.show_reasoning = true;
    serve.o.sampling = (struct ifx_sampling){.top_p = 1, .repetition_penalty = 1};
    pthread_mutex_init(&serve.lock, NULL);
    pthread_mutex_init(&serve.lexicon_lock, NULL);
    if (text_chat_create(serve.tokenizer, chatml, &serve.chat))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const ends[])(struct exchange *) = {openai_chat, openai_completions, anthropic_messages, anthropic_count, tokens_tokenize, tokens_detokenize};
    struct exchange x = {.serve = &serve};
    if (serve.tokenizer == NULL)
        set_up();
    if (size == 0)
        return 0;
    if (size > 1 && base_buf_add(&x.body, data + 1, size - 1))
        abort();
    answered = false;
    base_error_clear();
    ends[data[0] % 6](&x);
    if (!answered)
        abort();
    if (x.reply != NULL)
        reply_close(x.reply);
    base_buf_free(&x.body);
    base_free(x.log_prompt);
    base_free(x.log_answer);
    return 0;
}
