/* SPDX-License-Identifier: Apache-2.0
 *
 * status.c - /health, /metrics, and the chat page.
 */
#include "config.h"
#include "internal.h"
#include <string.h>

extern const char page_html[];

void page_root(struct exchange *x)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(strlen(page_html), (void *)page_html, MHD_RESPMEM_PERSISTENT);
    if (r == NULL)
        return;
    MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, "text/html; charset=utf-8");
    /* Nothing from elsewhere, and no frame of somebody else's page around it. */
    MHD_add_response_header(r, "Content-Security-Policy",
                            "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
                            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
    MHD_add_response_header(r, "Referrer-Policy", "no-referrer");
    answer_queue(x, 200, r);
}

void status_health(struct exchange *x)
{
    struct serve *s = x->serve;
    const char *broken = scheduler_broken(s->scheduler);
    pthread_mutex_lock(&s->lock);
    bool draining = s->draining;
    pthread_mutex_unlock(&s->lock);
    if (broken != NULL)
        answer_json(x, 503, json_pack("{s:s, s:s}", "status", "error", "message", broken));
    else if (draining)
        answer_json(x, 503, json_pack("{s:s}", "status", "draining"));
    else
        answer_json(x, 200, json_pack("{s:s, s:s}", "status", "ok", "model", s->o.model_name));
}

/* ---- metrics: Prometheus' text format ---- */

static void head(struct base_buf *b, const char *name, const char *type, const char *help)
{
    base_buf_addf(b, "# HELP infernix_%s %s\n# TYPE infernix_%s %s\n", name, help, name, type);
}

static void number(struct base_buf *b, const char *name, const char *type, const char *help, double v)
{
    char text[32];
    head(b, name, type, help);
    base_format_f64(text, v);
    base_buf_addf(b, "infernix_%s %s\n", name, text);
}

static void requests(struct serve *s, struct base_buf *b)
{
    static const char *const codes[SERVE_CODES] = {"200", "204", "400", "401", "403", "404", "405", "413", "415",
                                                   "429", "499", "500", "503", "504", "other", "other"};
    head(b, "requests_total", "counter", "Requests by endpoint and status; 499: the client left before the end.");
    for (uint32_t e = 0; e <= n_endpoints; e++)
        for (uint32_t k = 0; k < SERVE_CODES; k++)
            if (s->counts[e][k] > 0)
                base_buf_addf(b, "infernix_requests_total{endpoint=\"%s\",code=\"%s\"} %llu\n", e < n_endpoints ? endpoints[e].label : "none",
                              codes[k], (unsigned long long)s->counts[e][k]);
}

static void first_token(const struct scheduler_stats *t, struct base_buf *b)
{
    char text[32];
    uint64_t sum = 0;
    head(b, "time_to_first_token_seconds", "histogram", "From a request's arrival in the queue to its first token.");
    for (uint32_t i = 0; i < SERVE_LATENCY_BUCKETS; i++) {
        sum += t->first_token_counts[i];
        base_format_f64(text, scheduler_buckets[i]);
        base_buf_addf(b, "infernix_time_to_first_token_seconds_bucket{le=\"%s\"} %llu\n", text, (unsigned long long)sum);
    }
    base_format_f64(text, t->first_token_sum);
    base_buf_addf(b, "infernix_time_to_first_token_seconds_bucket{le=\"+Inf\"} %llu\ninfernix_time_to_first_token_seconds_sum %s\n"
                     "infernix_time_to_first_token_seconds_count %llu\n",
                  (unsigned long long)t->first_token_count, text, (unsigned long long)t->first_token_count);
}

struct row {
    const char *name, *type, *help;
    double value;
};

static void put_rows(const struct row *rows, size_t n, struct base_buf *b)
{
    for (size_t i = 0; i < n; i++)
        number(b, rows[i].name, rows[i].type, rows[i].help, rows[i].value);
}

/* What the engine counts: kept beginnings, experts and what they cost. */
static void engine_numbers(const struct scheduler_stats *t, struct base_buf *b)
{
    const struct ifx_prefix_stats p = t->prefix;
    const struct ifx_offload_stats o = t->offload;
    const struct row rows[] = {
        {"prefix_cache_snapshots", "gauge", "Beginnings that are kept.", (double)p.snapshots},
        {"prefix_cache_bytes", "gauge", "Memory of the kept beginnings.", (double)p.bytes},
        {"prefix_cache_limit_bytes", "gauge", "Most that they may take.", (double)p.bytes_limit},
        {"prefix_cache_evicted_total", "counter", "Beginnings dropped for others.", (double)p.evicted},
        {"moe_calls_total", "counter", "Mixture-of-experts layers computed.", (double)o.calls},
        {"moe_assisted_calls_total", "counter", "Of them, those in which the CPU took a share.", (double)o.assisted_calls},
        {"moe_streamed_calls_total", "counter", "Of them, those whose missing experts all crossed the link.", (double)o.streamed_calls},
        {"expert_cache_hits_total", "counter", "Experts found on the device.", (double)o.hits},
        {"expert_cache_misses_total", "counter", "Experts not found there.", (double)o.misses},
        {"expert_assist_total", "counter", "Missing experts that the CPU computed.", (double)o.cpu_experts},
        {"expert_link_total", "counter", "Missing experts that crossed the link.", (double)o.link_experts},
        {"expert_link_bytes_total", "counter", "Bytes of experts over the link in calls.", (double)o.link_bytes},
        {"expert_promoted_bytes_total", "counter", "Bytes of experts over the link in the background.", (double)o.promoted_bytes},
        {"expert_promotions_total", "counter", "Experts that were given a frame.", (double)o.promotions},
        {"expert_evictions_total", "counter", "Of them, those in place of another.", (double)o.evictions},
        {"expert_frames", "gauge", "Experts that fit on the device.", (double)o.frames},
        {"expert_frames_used", "gauge", "Experts that are there.", (double)o.frames_used},
        {"moe_seconds_total", "counter", "Time in mixture-of-experts layers of prompts.", o.moe_seconds},
        {"expert_link_seconds_total", "counter", "Time in which experts crossed the link, by its rate.", o.link_busy_seconds},
        {"expert_assist_seconds_total", "counter", "Time in which the CPU computed experts.", o.cpu_busy_seconds},
        {"fallbacks", "gauge", "Slower ways taken since the start; each is a line in the log.", (double)base_fallback_count()},
    };
    put_rows(rows, sizeof rows / sizeof rows[0], b);
}

static void scheduler_numbers(struct serve *s, struct base_buf *b)
{
    struct scheduler_stats t;
    scheduler_stats(s->scheduler, &t);
    const struct row rows[] = {
        {"requests_running", "gauge", "Generations that run.", (double)t.running},
        {"requests_queued", "gauge", "Generations that wait.", (double)t.queued},
        {"concurrency_limit", "gauge", "Generations that may run together.", (double)t.max_concurrency},
        {"generations_finished_total", "counter", "Generations that came to their end.", (double)t.finished},
        {"generations_failed_total", "counter", "Generations that ended with an error.", (double)t.failed},
        {"generations_cancelled_total", "counter", "Generations whose client left, or that were ended.", (double)t.cancelled},
        {"generations_refused_total", "counter", "Requests refused because the queue was full.", (double)t.refused},
        {"prompt_tokens_total", "counter", "Tokens of prompts.", (double)t.prompt_tokens},
        {"prompt_tokens_computed_total", "counter", "Tokens of prompts that had to be computed.", (double)t.prompt_tokens_computed},
        {"prompt_tokens_cached_total", "counter", "Tokens of prompts taken from earlier work.", (double)t.cached_tokens},
        {"prefix_cache_hits_total", "counter", "Prompts that found a part of themselves.", (double)t.prefix_hits},
        {"prefix_cache_misses_total", "counter", "Prompts that found nothing.", (double)t.prefix_misses},
        {"generated_tokens_total", "counter", "Tokens generated.", (double)t.generated_tokens},
        {"generated_tokens_per_second", "gauge", "Tokens generated a second, over the last ten.", t.recent_generated},
        {"prompt_tokens_per_second", "gauge", "Prompt tokens computed a second, over the last ten.", t.recent_prompt},
        {"decode_steps_total", "counter", "Steps with the next token of every running answer.", (double)t.decode_steps},
        {"prefill_steps_total", "counter", "Steps with a chunk of a prompt.", (double)t.prefill_steps},
        {"decode_seconds_total", "counter", "Time in decode steps.", t.decode_seconds},
        {"prefill_seconds_total", "counter", "Time in prompt steps.", t.prefill_seconds},
    };
    put_rows(rows, sizeof rows / sizeof rows[0], b);
    first_token(&t, b);
    engine_numbers(&t, b);
}

void status_metrics(struct exchange *x)
{
    struct serve *s = x->serve;
    struct base_buf b = {0};
    pthread_mutex_lock(&s->lock);
    requests(s, &b);
    double connections = (double)s->n_conns;
    pthread_mutex_unlock(&s->lock);
    number(&b, "connections", "gauge", "Open connections.", connections);
    number(&b, "up_seconds", "gauge", "Seconds since the server was ready.", base_now() - s->started);
    scheduler_numbers(s, &b);
    if (b.data != NULL)
        answer_text(x, 200, "text/plain; version=0.0.4; charset=utf-8", b.data, b.len);
    else
        answer_error(x, 500, NULL, NULL, "no memory");
    base_buf_free(&b);
}
