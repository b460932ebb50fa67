/* SPDX-License-Identifier: Apache-2.0
 *
 * scheduler.c - one thread runs the model for all jobs: a step with the next token of every answer, then one chunk of the oldest prompt, and
 * again.  So no answer waits longer than a chunk, and what a job computes does not depend on the others: its prompt is cut at the
 * same places and computed alone, and its tokens are columns of narrow steps, whose results are the same in any company.
 */
#include "config.h"
#include "job.h"
#include <errno.h>
#include <string.h>
#include <time.h>

#define WIDE_VOCABULARY 32768u /* from here on it is worth waking other threads to sample */
#define TELL_SECONDS 0.01 /* a stream's tokens that come faster are told of together: a thread woken for each would take the time of the next */
#define RATE_SLOTS 10u /* seconds over which recent rates are taken */

struct slot {
    struct ifx_sequence *sequence;
    float *logits;
    struct job *job; /* NULL: free */
    uint64_t order;  /* of admission */
};

struct scheduler {
    struct scheduler_options o;
    struct ifx_model_info info;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct job *first, *last; /* queue */
    struct slot *slots;
    uint64_t admitted;
    bool stop;
    char *broken;
    struct scheduler_stats stats;
    struct ifx_batch_item *items;
    struct slot **batch;
    /* recent rates: one slot a second */
    uint64_t rate_second[RATE_SLOTS];
    uint64_t rate_generated[RATE_SLOTS], rate_prompt[RATE_SLOTS];
    double began;
};

const double scheduler_buckets[SERVE_LATENCY_BUCKETS] = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60};

void job_spec_free(struct job_spec *s)
{
    for (uint32_t i = 0; i < s->n_stops; i++)
        base_free(s->stops[i]);
    base_free(s->stops);
    base_free(s->prompt);
    base_free(s->forced);
    text_grammar_destroy(s->grammar);
    *s = (struct job_spec){0};
}

void job_news_free(struct job_news *n)
{
    base_buf_free(&n->text);
    base_free(n->tokens);
    base_free(n->error);
    *n = (struct job_news){0};
}

static void free_job(struct job *j)
{
    decode_close(j);
    job_spec_free(&j->spec);
    job_news_free(&j->news);
    pthread_cond_destroy(&j->changed);
    base_free(j);
}

/* ---- under the lock ---- */

static void count_rate(struct scheduler *s, uint64_t *slots, uint64_t n)
{
    uint64_t second = (uint64_t)(base_now() - s->began), i = second % RATE_SLOTS;
    if (s->rate_second[i] != second) {
        s->rate_second[i] = second;
        s->rate_generated[i] = s->rate_prompt[i] = 0;
    }
    slots[i] += n;
}

static double recent_rate(const struct scheduler *s, const uint64_t *slots)
{
    uint64_t now = (uint64_t)(base_now() - s->began), sum = 0;
    for (uint32_t i = 0; i < RATE_SLOTS; i++)
        if (now - s->rate_second[i] < RATE_SLOTS)
            sum += slots[i];
    return (double)sum / (now + 1 < RATE_SLOTS ? (double)(now + 1) : (double)RATE_SLOTS);
}

static void wake(struct job *j)
{
    j->fresh = true;
    j->untold = false;
    pthread_cond_signal(&j->changed);
}

/* A token: the first at once, others when the last time is a while ago. */
static void wake_in_time(struct job *j, double now)
{
    j->untold = true;
    if (j->spec.whole || (j->told > 0 && now - j->told < TELL_SECONDS))
        return;
    j->told = now;
    wake(j);
}

/* What waits to be told must not wait for a long step. */
static void wake_all(struct scheduler *s)
{
    for (uint32_t i = 0; i < s->o.max_concurrency; i++) {
        struct job *j = s->slots[i].job;
        if (j != NULL && j->untold && !j->spec.whole)
            wake(j);
    }
}

/* The job is over; the text of an error is taken over. */
static void end_job(struct scheduler *s, struct job *j, int32_t status, char *error)
{
    double now = base_now();
    j->state = j->news.state = JOB_DONE;
    j->news.status = status;
    base_free(j->news.error);
    j->news.error = error;
    if (j->started == 0)
        j->news.queued_seconds = now - j->submitted;
    else if (j->first_token > 0)
        j->news.decode_seconds = now - j->first_token;
    else
        j->news.prompt_seconds = now - j->started;
    if (j->released || status == IFX_ECANCELLED)
        s->stats.cancelled++;
    else if (status)
        s->stats.failed++;
    else
        s->stats.finished++;
    if (j->released)
        free_job(j);
    else
        wake(j);
}

static void leave_slot(struct scheduler *s, struct slot *slot, int32_t status, char *error)
{
    struct job *j = slot->job;
    slot->job = NULL;
    s->stats.running--;
    j->sequence = NULL;
    j->logits = NULL;
    end_job(s, j, status, error);
}

/* Jobs whose client has gone, wherever they are. */
static void drop_released(struct scheduler *s)
{
    struct job **at = &s->first;
    s->last = NULL;
    while (*at != NULL) {
        struct job *j = *at;
        if (j->released) {
            *at = j->next;
            s->stats.queued--;
            end_job(s, j, IFX_ECANCELLED, NULL);
        } else {
            s->last = j;
            at = &j->next;
        }
    }
    for (uint32_t i = 0; i < s->o.max_concurrency; i++)
        if (s->slots[i].job != NULL && s->slots[i].job->released)
            leave_slot(s, &s->slots[i], IFX_ECANCELLED, NULL);
}

static void fail_all(struct scheduler *s, int32_t status, const char *text)
{
    while (s->first != NULL) {
        struct job *j = s->first;
        s->first = j->next;
        s->stats.queued--;
        end_job(s, j, status, base_strdup(text));
    }
    s->last = NULL;
    for (uint32_t i = 0; i < s->o.max_concurrency; i++)
        if (s->slots[i].job != NULL)
            leave_slot(s, &s->slots[i], status, base_strdup(text));
}

static struct slot *free_slot(struct scheduler *s)
{
    for (uint32_t i = 0; i < s->o.max_concurrency; i++)
        if (s->slots[i].job == NULL)
            return &s->slots[i];
    return NULL;
}

/* The head of the queue into a free slot; NULL when either is missing. */
static struct slot *admit(struct scheduler *s)
{
    struct slot *slot = free_slot(s);
    struct job *j = s->first;
    if (slot == NULL || j == NULL)
        return NULL;
    s->first = j->next;
    if (s->first == NULL)
        s->last = NULL;
    j->next = NULL;
    s->stats.queued--;
    s->stats.running++;
    slot->job = j;
    slot->order = s->admitted++;
    j->sequence = slot->sequence;
    j->logits = slot->logits;
    j->started = base_now();
    j->news.queued_seconds = j->started - j->submitted;
    return slot;
}

/* ---- the model's thread, without the lock unless it says so ---- */

static void note_first_token(struct scheduler *s, struct job *j)
{
    double now = base_now(), latency = now - j->submitted;
    uint32_t b = 0;
    j->first_token = now;
    j->news.prompt_seconds = now - j->started;
    while (b < SERVE_LATENCY_BUCKETS && latency > scheduler_buckets[b])
        b++;
    s->stats.first_token_counts[b]++;
    s->stats.first_token_count++;
    s->stats.first_token_sum += latency;
}

/* Hands on what decode_pick found; under the lock. */
static void hand_on(struct scheduler *s, struct slot *slot, double now)
{
    struct job *j = slot->job;
    int32_t st = j->status;
    if (j->picked.id >= 0) {
        if (j->first_token == 0)
            note_first_token(s, j);
        j->news.n_generated++;
        s->stats.generated_tokens++;
        count_rate(s, s->rate_generated, 1);
        if (!st && j->spec.logprobs) {
            struct job_token *grown = base_realloc(j->news.tokens, j->news.n_tokens + 1, sizeof *grown);
            if (grown != NULL) {
                j->news.tokens = grown;
                grown[j->news.n_tokens++] = j->picked;
            } else {
                st = IFX_ENOMEM;
            }
        }
    }
    if (!st && j->ready.len) {
        st = base_buf_add(&j->news.text, j->ready.data, j->ready.len);
        j->text_bytes += j->ready.len;
    }
    j->news.finish = j->finish;
    j->news.stop_id = j->stop_id;
    j->news.stop_text = j->stop_text;
    if (st || j->ended) {
        char *error = j->error;
        j->error = NULL;
        leave_slot(s, slot, st, error);
    } else {
        wake_in_time(j, now);
    }
}

/* Tokens for a job's sequence; `last`: an answer's next token is wanted. */
static struct ifx_batch_item item_of(const struct job *j, const int32_t *tokens, uint64_t n, bool last)
{
    struct ifx_batch_item it = {.sequence = j->sequence, .tokens = tokens, .n = (uint32_t)n};
    if (last && j->wants_row) {
        it.n_logits = 1;
        it.logits = j->logits;
    } else if (last) {
        it.sampler = j->sampler;
    }
    return it;
}

static int32_t pick_task(void *ctx, uint64_t task, uint32_t worker)
{
    struct scheduler *s = ctx;
    (void)worker;
    decode_pick(s->batch[task]->job, s->o.model);
    return IFX_OK;
}

/* After a step of `n` batch members that want tokens: pick them all, hand them on. */
static void pick_all(struct scheduler *s, uint32_t n)
{
    uint32_t rows = 0;
    for (uint32_t i = 0; i < n; i++)
        rows += s->batch[i]->job->wants_row;
    if (rows > 1 && s->o.pool != NULL && s->info.desc->vocab >= WIDE_VOCABULARY)
        base_pool_run(s->o.pool, n, pick_task, s);
    else
        for (uint32_t i = 0; i < n; i++)
            pick_task(s, i, 0);
    for (uint32_t i = 0; i < n; i++) {
        struct job *j = s->batch[i]->job;
        if (j->ended && !j->status)
            ifx_sequence_publish(j->sequence); /* a next turn goes on from here */
    }
    double now = base_now();
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < n; i++)
        hand_on(s, s->batch[i], now);
    pthread_mutex_unlock(&s->lock);
}

/* A step that failed as a whole takes its sequences with it; a lost device takes all. */
static void step_failed(struct scheduler *s, int32_t status, uint32_t n)
{
    const char *text = base_error_text();
    pthread_mutex_lock(&s->lock);
    if (status <= IFX_EDEVICE && s->broken == NULL) {
        s->broken = base_strdup(text[0] ? text : "the device is lost");
        base_log(IFX_LOG_ERROR, "the device is lost: %s", text);
        fail_all(s, status, text);
    } else {
        for (uint32_t i = 0; i < n; i++)
            leave_slot(s, s->batch[i], status, base_strdup(text));
    }
    pthread_mutex_unlock(&s->lock);
}

/* Members whose own sequence broke leave the batch; returns how many stay. */
static uint32_t settle(struct scheduler *s, uint32_t n)
{
    uint32_t kept = 0;
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < n; i++) {
        if (s->items[i].status) {
            leave_slot(s, s->batch[i], s->items[i].status, base_strdup(s->items[i].error ? s->items[i].error : base_error_text()));
        } else {
            s->batch[i]->job->chosen = s->items[i].token;
            s->batch[kept++] = s->batch[i];
        }
    }
    pthread_mutex_unlock(&s->lock);
    return kept;
}

static void decode_step(struct scheduler *s)
{
    uint32_t n = 0;
    double start = base_now();
    for (uint32_t i = 0; i < s->o.max_concurrency; i++) {
        struct job *j = s->slots[i].job;
        if (j == NULL || !j->has_next)
            continue;
        s->items[n] = item_of(j, &j->tokens[j->n_tokens - 1], 1, true);
        s->batch[n++] = &s->slots[i];
    }
    if (n == 0)
        return;
    int32_t st = ifx_batch_feed(s->items, n);
    pthread_mutex_lock(&s->lock);
    s->stats.steps++;
    s->stats.decode_steps++;
    s->stats.decode_seconds += base_now() - start;
    pthread_mutex_unlock(&s->lock);
    if (st)
        step_failed(s, st, n);
    else
        pick_all(s, settle(s, n));
}

static struct slot *oldest_prompt(struct scheduler *s)
{
    struct slot *oldest = NULL;
    for (uint32_t i = 0; i < s->o.max_concurrency; i++) {
        struct slot *slot = &s->slots[i];
        if (slot->job != NULL && slot->job->fed < slot->job->spec.n_prompt && (oldest == NULL || slot->order < oldest->order))
            oldest = slot;
    }
    return oldest;
}

/* One chunk of the oldest prompt; its last gives the first token. */
static void prompt_step(struct scheduler *s)
{
    struct slot *slot = oldest_prompt(s);
    if (slot == NULL)
        return;
    pthread_mutex_lock(&s->lock);
    wake_all(s);
    pthread_mutex_unlock(&s->lock);
    struct job *j = slot->job;
    double start = base_now();
    uint64_t rest = j->spec.n_prompt - j->fed, n = ifx_sequence_take(j->sequence, rest);
    s->items[0] = item_of(j, j->spec.prompt + j->fed, n, n == rest);
    s->batch[0] = slot;
    int32_t st = ifx_batch_feed(s->items, 1);
    pthread_mutex_lock(&s->lock);
    s->stats.steps++;
    s->stats.prefill_steps++;
    s->stats.prefill_seconds += base_now() - start;
    s->stats.prompt_tokens_computed += n;
    count_rate(s, s->rate_prompt, n);
    pthread_mutex_unlock(&s->lock);
    if (st) {
        step_failed(s, st, 1);
        return;
    }
    if (settle(s, 1) == 0)
        return;
    j->fed += n;
    if (j->fed == j->spec.n_prompt)
        pick_all(s, 1);
}

/* Prepares an admitted job: what can fail fails here. */
static void begin_job(struct scheduler *s, struct slot *slot)
{
    struct job *j = slot->job;
    uint64_t cached = 0;
    int32_t st = ifx_sequence_reset(slot->sequence);
    if (!st)
        st = ifx_sequence_attach(slot->sequence, j->spec.prompt, j->spec.n_prompt, &cached);
    if (!st)
        st = decode_open(j, s->o.model);
    j->fed = cached;
    pthread_mutex_lock(&s->lock);
    j->news.n_cached = cached;
    s->stats.prompt_tokens += j->spec.n_prompt;
    s->stats.cached_tokens += cached;
    s->stats.prefix_hits += cached > 0;
    s->stats.prefix_misses += cached == 0;
    if (st) {
        leave_slot(s, slot, st, base_strdup(base_error_text()));
    } else {
        j->state = j->news.state = JOB_RUNNING; /* from now on it is known what was cached */
        wake(j);
    }
    pthread_mutex_unlock(&s->lock);
}

static void note_engine(struct scheduler *s)
{
    struct ifx_prefix_stats prefix;
    struct ifx_offload_stats offload;
    ifx_prefix_stats(s->o.model, &prefix);
    ifx_offload_stats(s->o.model, &offload);
    pthread_mutex_lock(&s->lock);
    s->stats.prefix = prefix;
    s->stats.offload = offload;
    pthread_mutex_unlock(&s->lock);
}

static void *run(void *ctx)
{
    struct scheduler *s = ctx;
    note_engine(s);
    for (;;) {
        struct slot *slot;
        pthread_mutex_lock(&s->lock);
        drop_released(s);
        while (!s->stop && (s->broken != NULL || (s->stats.running == 0 && s->first == NULL)))
            pthread_cond_wait(&s->work, &s->lock);
        if (s->stop) {
            drop_released(s);
            fail_all(s, IFX_ECANCELLED, "the server is shutting down");
            pthread_mutex_unlock(&s->lock);
            return NULL;
        }
        slot = admit(s);
        pthread_mutex_unlock(&s->lock);
        for (; slot != NULL; pthread_mutex_lock(&s->lock), slot = admit(s), pthread_mutex_unlock(&s->lock))
            begin_job(s, slot);
        decode_step(s);
        prompt_step(s);
        note_engine(s);
    }
}

/* ---- from outside ---- */

int32_t scheduler_submit(struct scheduler *s, struct job_spec *spec, struct job **out)
{
    struct job *j = base_calloc(1, sizeof *j);
    *out = NULL;
    if (j == NULL) {
        job_spec_free(spec);
        return IFX_ENOMEM;
    }
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&j->changed, &attr);
    pthread_condattr_destroy(&attr);
    j->scheduler = s;
    j->spec = *spec;
    *spec = (struct job_spec){0};
    j->submitted = base_now();
    j->news.n_prompt = j->spec.n_prompt;
    j->stop_id = j->news.stop_id = -1;
    pthread_mutex_lock(&s->lock);
    bool full = s->stats.queued + s->stats.running >= (uint64_t)s->o.max_concurrency + s->o.max_queue, broken = s->broken != NULL || s->stop;
    s->stats.refused += full;
    if (!full && !broken) {
        if (s->last != NULL)
            s->last->next = j;
        else
            s->first = j;
        s->last = j;
        s->stats.queued++;
        pthread_cond_signal(&s->work);
    }
    pthread_mutex_unlock(&s->lock);
    if (full || broken) {
        free_job(j);
        return broken ? base_error(IFX_EDEVICE, "the server can take no more requests: %s", s->broken ? s->broken : "it is shutting down")
                      : base_error(IFX_ELIMIT, "%u requests run and %u wait; try again later", s->o.max_concurrency, s->o.max_queue);
    }
    *out = j;
    return IFX_OK;
}

bool job_wait(struct job *j, double seconds, struct job_news *news)
{
    struct scheduler *s = j->scheduler;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    uint64_t ns = (uint64_t)until.tv_nsec + (uint64_t)(seconds * 1e9);
    until.tv_sec += (time_t)(ns / 1000000000u);
    until.tv_nsec = (long)(ns % 1000000000u);
    pthread_mutex_lock(&s->lock);
    while (!j->fresh && pthread_cond_timedwait(&j->changed, &s->lock, &until) != ETIMEDOUT)
        ;
    bool fresh = j->fresh;
    *news = j->news;
    j->news.text = (struct base_buf){0};
    j->news.tokens = NULL;
    j->news.n_tokens = 0;
    j->news.error = NULL;
    j->fresh = false;
    pthread_mutex_unlock(&s->lock);
    return fresh;
}

void job_release(struct job *j)
{
    struct scheduler *s = j->scheduler;
    pthread_mutex_lock(&s->lock);
    j->released = true;
    bool done = j->state == JOB_DONE;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    if (done)
        free_job(j);
}

void scheduler_stats(struct scheduler *s, struct scheduler_stats *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    out->max_concurrency = s->o.max_concurrency;
    out->recent_generated = recent_rate(s, s->rate_generated);
    out->recent_prompt = recent_rate(s, s->rate_prompt);
    pthread_mutex_unlock(&s->lock);
}

bool scheduler_idle(struct scheduler *s)
{
    pthread_mutex_lock(&s->lock);
    bool idle = s->first == NULL && s->stats.running == 0;
    pthread_mutex_unlock(&s->lock);
    return idle;
}

const char *scheduler_broken(struct scheduler *s)
{
    pthread_mutex_lock(&s->lock);
    const char *text = s->broken;
    pthread_mutex_unlock(&s->lock);
    return text;
}

static int32_t open_slots(struct scheduler *s)
{
    uint32_t n = s->o.max_concurrency;
    s->slots = base_calloc(n, sizeof *s->slots);
    s->items = base_calloc(n, sizeof *s->items);
    s->batch = base_calloc(n, sizeof(struct slot *));
    int32_t st = s->slots && s->items && s->batch ? IFX_OK : IFX_ENOMEM;
    for (uint32_t i = 0; !st && i < n; i++) {
        s->slots[i].logits = base_alloc((uint64_t)s->info.desc->vocab * sizeof(float), 64);
        st = s->slots[i].logits ? ifx_sequence_create(s->o.model, &s->slots[i].sequence) : IFX_ENOMEM;
    }
    return st;
}

int32_t scheduler_create(const struct scheduler_options *o, struct scheduler **out)
{
    struct scheduler *s = base_calloc(1, sizeof *s);
    *out = NULL;
    if (s == NULL)
        return IFX_ENOMEM;
    s->o = *o;
    s->began = base_now();
    ifx_model_info(o->model, &s->info);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    int32_t st = open_slots(s);
    if (!st && pthread_create(&s->thread, NULL, run, s) != 0)
        st = base_error(IFX_ELIMIT, "cannot start the thread that runs the model");
    s->started = !st;
    if (st) {
        scheduler_destroy(s);
        return st;
    }
    *out = s;
    return IFX_OK;
}

void scheduler_end(struct scheduler *s)
{
    if (s == NULL || !s->started)
        return;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    s->started = false;
}

void scheduler_destroy(struct scheduler *s)
{
    if (s == NULL)
        return;
    scheduler_end(s);
    for (uint32_t i = 0; s->slots && i < s->o.max_concurrency; i++) {
        ifx_sequence_destroy(s->slots[i].sequence);
        base_free(s->slots[i].logits);
    }
    base_free(s->slots);
    base_free(s->items);
    base_free(s->batch);
    base_free(s->broken);
    pthread_cond_destroy(&s->work);
    pthread_mutex_destroy(&s->lock);
    base_free(s);
}
