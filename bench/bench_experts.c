/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_experts.c - speed of expert banks on the CPU, beside two ceilings measured in the same run:
 *
 *   bench_experts [--cpu LEVEL] [--threads N] [--hidden H] [--inter I] [--experts E] [--top-k K] [--layers L]
 *                 [--reps R] [--seconds S] [--only one|layer] [--any-order 0|1] PLUGIN.so ...
 *
 * "one expert": a call of n columns on one expert after another of all layers, so that every record comes from
 * memory; with --any-order 1 as part of a wider call of the layer (IFX_EXPERT_ANY_ORDER).  With all threads each thread has its own expert.  "layer": every expert that random routing touches,
 * work cut over (expert, row chunk) by one atomic counter.  Weights are random records of the format, mean zero.
 */
#include "mini_host.h"

#include <infernix/numerics.h>

#include <immintrin.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>

enum { MAX_THREADS = 512, CHUNK_ROWS = 64 };

struct settings {
    uint32_t level, threads, hidden, inter, experts, top_k, layers, reps, any_order;
    double seconds;
    const char *only;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* With one thread, what the thread itself used: other programs then disturb only the caches. */
static double work_clock(uint32_t threads)
{
    struct timespec t;
    clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *pages(uint64_t bytes)
{
    bytes = (bytes + (2u << 20)) & ~(uint64_t)((2u << 20) - 1);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        fprintf(stderr, "cannot allocate %llu bytes\n", (unsigned long long)bytes);
        exit(1);
    }
    madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

/* ---- threads: all start together, the caller is worker 0 ---- */

struct team {
    uint32_t n;
    void (*work)(void *ctx, uint32_t worker);
    void *ctx;
    atomic_uint phase, done;
    pthread_t threads[MAX_THREADS];
    int stop;
};

struct member {
    struct team *team;
    uint32_t worker;
};

static void *team_main(void *arg)
{
    struct member m = *(struct member *)arg;
    free(arg);
    for (unsigned seen = 0;;) {
        for (int spins = 0; atomic_load_explicit(&m.team->phase, memory_order_acquire) == seen; spins++)
            if (spins > 20000)
                sched_yield();
            else
                _mm_pause();
        seen++;
        if (m.team->stop)
            return NULL;
        m.team->work(m.team->ctx, m.worker);
        atomic_fetch_add(&m.team->done, 1);
    }
}

static void team_run(struct team *team, void (*work)(void *, uint32_t), void *ctx)
{
    team->work = work;
    team->ctx = ctx;
    atomic_store(&team->done, 0);
    atomic_fetch_add(&team->phase, 1);
    work(ctx, 0);
    for (int spins = 0; atomic_load(&team->done) != team->n - 1; spins++)
        if (spins > 20000)
            sched_yield();
        else
            _mm_pause();
}

static void team_start(struct team *team, uint32_t n)
{
    memset(team, 0, sizeof *team);
    team->n = n;
    for (uint32_t i = 1; i < n; i++) {
        struct member *m = malloc(sizeof *m);
        *m = (struct member){team, i};
        if (pthread_create(&team->threads[i], NULL, team_main, m))
            exit(1);
    }
}

static void team_stop(struct team *team)
{
    team->stop = 1;
    atomic_fetch_add(&team->phase, 1);
    for (uint32_t i = 1; i < team->n; i++)
        pthread_join(team->threads[i], NULL);
}

/* ---- ceilings ---- */

struct read_job {
    const uint8_t *memory;
    uint64_t bytes; /* of each thread */
    uint64_t sink[MAX_THREADS * 8];
};

__attribute__((target("avx2"))) static void read_work(void *ctx, uint32_t worker)
{
    struct read_job *job = ctx;
    const __m256i *p = (const __m256i *)(job->memory + job->bytes * worker);
    __m256i s[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(),
                    _mm256_setzero_si256()};
    for (uint64_t i = 0; i < job->bytes / 32; i += 8) {
        _mm_prefetch((const char *)(p + i) + 4096, _MM_HINT_T0);
        _mm_prefetch((const char *)(p + i) + 4096 + 64, _MM_HINT_T0);
        _mm_prefetch((const char *)(p + i) + 4096 + 128, _MM_HINT_T0);
        _mm_prefetch((const char *)(p + i) + 4096 + 192, _MM_HINT_T0);
        for (int k = 0; k < 8; k++)
            s[k & 3] = _mm256_xor_si256(s[k & 3], _mm256_load_si256(p + i + k));
    }
    s[0] = _mm256_xor_si256(_mm256_xor_si256(s[0], s[1]), _mm256_xor_si256(s[2], s[3]));
    job->sink[worker * 8] += (uint64_t)_mm256_extract_epi64(s[0], 0);
}

static double read_bandwidth(struct team *team, const uint8_t *memory, uint64_t bytes)
{
    static struct read_job job;
    double best = 0;
    job.memory = memory;
    job.bytes = bytes / team->n / 4096 * 4096;
    for (int r = 0; r < 5; r++) {
        double t = work_clock(team->n);
        team_run(team, read_work, &job);
        double rate = (double)job.bytes * team->n / (work_clock(team->n) - t);
        best = rate > best ? rate : best;
    }
    return best;
}

struct peak_job {
    uint32_t level;
    double flops; /* of one thread's run */
    float sink[MAX_THREADS * 16];
};

__attribute__((target("avx2,fma"))) static float peak_avx2(uint64_t rounds)
{
    __m256 a[12], x = _mm256_set1_ps(0.999f);
    for (int i = 0; i < 12; i++)
        a[i] = _mm256_set1_ps((float)i);
    for (uint64_t r = 0; r < rounds; r++) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++)
            a[i] = _mm256_fmadd_ps(a[i], x, x);
    }
    float s = 0;
    for (int i = 0; i < 12; i++)
        s += _mm256_cvtss_f32(a[i]);
    return s;
}

__attribute__((target("avx512f"))) static float peak_avx512(uint64_t rounds)
{
    __m512 a[12], x = _mm512_set1_ps(0.999f);
    for (int i = 0; i < 12; i++)
        a[i] = _mm512_set1_ps((float)i);
    for (uint64_t r = 0; r < rounds; r++) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++)
            a[i] = _mm512_fmadd_ps(a[i], x, x);
    }
    float s = 0;
    for (int i = 0; i < 12; i++)
        s += _mm512_cvtss_f32(a[i]);
    return s;
}

__attribute__((target("avx512f,avx512bf16"))) static float peak_avx512_bf16(uint64_t rounds)
{
    __m512 a[12];
    __m512bh x = (__m512bh)_mm512_set1_epi32(0x3f003f00);
    for (int i = 0; i < 12; i++)
        a[i] = _mm512_set1_ps((float)i);
    for (uint64_t r = 0; r < rounds; r++) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++)
            a[i] = _mm512_dpbf16_ps(a[i], x, x);
    }
    float s = 0;
    for (int i = 0; i < 12; i++)
        s += _mm512_cvtss_f32(a[i]);
    return s;
}

__attribute__((target("amx-tile,amx-bf16"))) static float peak_amx(uint64_t rounds)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t column_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.column_bytes[i] = 64;
        config.rows[i] = 16;
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(config) : "memory");
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (uint64_t r = 0; r < rounds; r++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
    return 0;
}

static void peak_work(void *ctx, uint32_t worker)
{
    struct peak_job *job = ctx;
    const uint64_t rounds = job->level == IFX_CPU_AMX_BF16 ? 2000000 : 12000000;
    float s = 0;
    double flops = 0;
    switch (job->level) {
    case IFX_CPU_SCALAR:
    case IFX_CPU_AVX2:
        s = peak_avx2(rounds);
        flops = 12.0 * 16;
        break;
    case IFX_CPU_AVX512:
        s = peak_avx512(rounds);
        flops = 12.0 * 32;
        break;
    case IFX_CPU_AVX512_BF16:
        s = peak_avx512_bf16(rounds);
        flops = 12.0 * 64;
        break;
    default:
        s = peak_amx(rounds);
        flops = 4.0 * 16384;
        break;
    }
    job->sink[worker * 16] = s;
    if (worker == 0)
        job->flops = flops * (double)rounds;
}

static double matrix_peak(struct team *team, uint32_t level)
{
    static struct peak_job job;
    double best = 0;
    job.level = level;
    for (int r = 0; r < 3; r++) {
        double t = work_clock(team->n);
        team_run(team, peak_work, &job);
        double rate = job.flops * team->n / (work_clock(team->n) - t);
        best = rate > best ? rate : best;
    }
    return best;
}

/* ---- a bank and its records ---- */

struct bank {
    struct mini_host host;
    const struct ifx_expert_ops *ops;
    void *instance;
    uint8_t *records; /* [layers][experts] */
    uint64_t record_bytes;
    struct settings s;
    uint16_t *x; /* [columns][H] */
};

static uint64_t random_state = 1;

static uint32_t random_u32(void)
{
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 32);
}

static float random_float(void)
{
    return ((float)(random_u32() >> 8) * 0x1p-24f - 0.5f) * 0.1f;
}

/* One packed expert, copied to every place: the speed does not depend on the values. */
static int fill_records(struct bank *b)
{
    uint64_t count = (uint64_t)b->s.hidden * b->s.inter, total = (uint64_t)b->s.layers * b->s.experts;
    float *w = pages(3 * count * sizeof *w);
    for (uint64_t i = 0; i < 3 * count; i++)
        w[i] = random_float();
    b->records = pages(total * b->record_bytes);
    if (b->ops->pack(b->instance, w, w + count, w + 2 * count, b->records)) {
        fprintf(stderr, "%s\n", b->host.error);
        return 0;
    }
    for (uint64_t i = 1; i < total; i++)
        memcpy(b->records + i * b->record_bytes, b->records, b->record_bytes);
    munmap(w, 3 * count * sizeof *w);
    return 1;
}

static int open_bank(struct bank *b, const char *path, const struct settings *s)
{
    memset(b, 0, sizeof *b);
    b->s = *s;
    mini_host_init(&b->host, s->level);
    b->ops = mini_load(path, &b->host);
    struct ifx_expert_shape shape = {sizeof shape, s->hidden, s->inter, 0};
    if (!b->ops || b->ops->open(&b->host.host, NULL, &shape, &b->instance)) {
        fprintf(stderr, "%s: %s\n", path, b->host.error);
        return 0;
    }
    b->record_bytes = b->ops->record_bytes(&shape);
    uint64_t values = (uint64_t)1024 * s->hidden;
    b->x = pages(values * sizeof *b->x);
    for (uint64_t i = 0; i < values; i++)
        b->x[i] = ifx_f32_to_bf16(random_float() * 20.0f);
    return fill_records(b);
}

static double bank_flops(const struct bank *b, uint32_t columns)
{
    return 6.0 * b->s.hidden * b->s.inter * columns;
}

/* ---- one expert a thread ---- */

struct one_job {
    struct bank *b;
    uint32_t n, calls, first;
    void *scratch[MAX_THREADS];
    float *y[MAX_THREADS];
};

static void one_work(void *ctx, uint32_t worker)
{
    struct one_job *job = ctx;
    struct bank *b = job->b;
    uint64_t total = (uint64_t)b->s.layers * b->s.experts;
    struct ifx_expert_call call = {.struct_size = sizeof call, .n = job->n, .x = b->x, .ldx = b->s.hidden, .scratch = job->scratch[worker],
                                   .flags = b->s.any_order ? IFX_EXPERT_ANY_ORDER : 0};
    for (uint32_t i = 0; i < job->calls; i++) {
        uint64_t expert = (job->first + (uint64_t)worker * job->calls + i) % total;
        call.record = b->records + expert * b->record_bytes;
        b->ops->prepare(b->instance, &call);
        b->ops->gate_up(b->instance, &call, 0, b->s.inter);
        b->ops->down(b->instance, &call, 0, b->s.hidden, job->y[worker], b->s.hidden, NULL);
    }
}

static void bench_one(struct bank *b, struct team *team, double bandwidth, double peak)
{
    static const uint32_t widths[] = {1, 2, 4, 8, 16, 32, 64, 128};
    static struct one_job job;
    printf("  one expert a thread, %u thread%s (read %.1f GB/s, peak %.1f GFLOP/s)\n", team->n,
           team->n > 1 ? "s" : "", bandwidth / 1e9, peak / 1e9);
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        job.b = b;
        job.n = widths[w];
        job.calls = 2;
        for (uint32_t t = 0; t < team->n; t++) {
            job.scratch[t] = pages(b->ops->scratch_bytes(b->instance, job.n));
            job.y[t] = pages((uint64_t)job.n * b->s.hidden * sizeof(float));
        }
        double best = 1e30, begin = now();
        for (uint32_t r = 0; r < 3 || (now() - begin < b->s.seconds && r < 200); r++) {
            double t = work_clock(team->n);
            team_run(team, one_work, &job);
            t = work_clock(team->n) - t;
            best = r && t < best ? t : best;
            job.first += team->n * job.calls;
        }
        double calls = (double)job.calls * team->n, bytes = calls * (double)b->record_bytes;
        double flops = calls * bank_flops(b, job.n);
        printf("    n %4u: %8.3f ms a call  %7.2f GB/s (%3.0f %%)  %9.1f GFLOP/s (%3.0f %%)\n", job.n,
               best * 1e3 / job.calls, bytes / best / 1e9, 100 * bytes / best / bandwidth, flops / best / 1e9,
               100 * flops / best / peak);
        fflush(stdout);
        for (uint32_t t = 0; t < team->n; t++) {
            munmap(job.scratch[t], b->ops->scratch_bytes(b->instance, job.n));
            munmap(job.y[t], (uint64_t)job.n * b->s.hidden * sizeof(float));
        }
    }
}

/* ---- a whole layer ---- */

enum { ITEM_EXPERT, ITEM_PREPARE, ITEM_GATE_UP, ITEM_DOWN };

struct item {
    uint8_t kind;
    uint32_t expert; /* index into the job's list */
    uint32_t row0, row1;
};

struct touched {
    uint32_t id, n;
    uint32_t *columns; /* token of each column */
    uint32_t *slots;   /* output row of each column */
    struct ifx_expert_call call;
    atomic_uint prepared, chunks_done;
    uint32_t chunks;
};

struct layer_job {
    struct bank *b;
    uint32_t n_touched, n_items, columns;
    struct touched *touched;
    struct item *items;
    atomic_uint next;
    float *y; /* [columns * top_k][H] */
    void *scratch[MAX_THREADS];
    uint64_t scratch_bytes;
    uint8_t *shared_scratch;
};

static void wait_for(atomic_uint *value, uint32_t target)
{
    while (atomic_load_explicit(value, memory_order_acquire) < target)
        _mm_pause();
}

static void run_item(struct layer_job *job, const struct item *item, uint32_t worker)
{
    struct bank *b = job->b;
    struct touched *t = &job->touched[item->expert];
    const uint32_t h = b->s.hidden;
    if (item->kind == ITEM_EXPERT) {
        t->call.scratch = job->scratch[worker];
        b->ops->prepare(b->instance, &t->call);
        b->ops->gate_up(b->instance, &t->call, 0, b->s.inter);
        b->ops->down(b->instance, &t->call, 0, h, job->y, h, t->slots);
    } else if (item->kind == ITEM_PREPARE) {
        b->ops->prepare(b->instance, &t->call);
        atomic_store_explicit(&t->prepared, 1, memory_order_release);
    } else if (item->kind == ITEM_GATE_UP) {
        wait_for(&t->prepared, 1);
        b->ops->gate_up(b->instance, &t->call, item->row0, item->row1);
        atomic_fetch_add_explicit(&t->chunks_done, 1, memory_order_acq_rel);
    } else {
        wait_for(&t->chunks_done, t->chunks);
        b->ops->down(b->instance, &t->call, item->row0, item->row1, job->y + item->row0, h, t->slots);
    }
}

static void layer_work(void *ctx, uint32_t worker)
{
    struct layer_job *job = ctx;
    for (;;) {
        uint32_t i = atomic_fetch_add(&job->next, 1);
        if (i >= job->n_items)
            return;
        run_item(job, &job->items[i], worker);
    }
}

static int by_columns(const void *a, const void *b)
{
    const struct touched *x = a, *y = b;
    return x->n != y->n ? (x->n < y->n) - (x->n > y->n) : (x->id > y->id) - (x->id < y->id);
}

/* Uniform routing: each token takes top_k different experts. */
static void route(struct layer_job *job, uint32_t columns)
{
    struct bank *b = job->b;
    uint32_t experts = b->s.experts;
    struct touched *all = calloc(experts, sizeof *all);
    for (uint32_t e = 0; e < experts; e++) {
        all[e].id = e;
        all[e].columns = malloc(columns * sizeof(uint32_t));
        all[e].slots = malloc(columns * sizeof(uint32_t));
    }
    for (uint32_t c = 0; c < columns; c++)
        for (uint32_t k = 0; k < b->s.top_k;) {
            struct touched *t = &all[random_u32() % experts];
            if (t->n && t->columns[t->n - 1] == c)
                continue;
            t->slots[t->n] = c * b->s.top_k + k;
            t->columns[t->n++] = c;
            k++;
        }
    qsort(all, experts, sizeof *all, by_columns);
    job->touched = all;
    job->columns = columns;
    for (job->n_touched = 0; job->n_touched < experts && all[job->n_touched].n; job->n_touched++)
        ;
}

static void add_chunks(struct layer_job *job, uint8_t kind, uint32_t first, uint32_t rows, uint32_t chunk)
{
    for (uint32_t e = first; e < job->n_touched; e++) {
        uint32_t count = 0;
        for (uint32_t r = 0; r < rows; r += chunk, count++)
            job->items[job->n_items++] = (struct item){kind, e, r, r + chunk < rows ? r + chunk : rows};
        if (kind == ITEM_GATE_UP)
            job->touched[e].chunks = count;
    }
}

/* Whole experts first, the thinnest (or all, when there are few) cut by rows so that the threads end together. */
static void plan(struct layer_job *job, uint32_t threads)
{
    struct bank *b = job->b;
    const uint32_t last = 2 * threads,
                   whole = threads > 1 && job->n_touched > 2 * last ? job->n_touched - last : 0;
    const uint32_t first = threads == 1 ? job->n_touched : whole;
    uint32_t granule = b->ops->row_granule, chunk = CHUNK_ROWS;
    chunk = (chunk + granule - 1) / granule * granule;
    uint64_t most = (uint64_t)job->n_touched * (3 + (b->s.inter + b->s.hidden) / chunk + 2);
    job->items = malloc(most * sizeof *job->items);
    job->n_items = 0;
    for (uint32_t e = 0; e < first; e++)
        job->items[job->n_items++] = (struct item){ITEM_EXPERT, e, 0, 0};
    uint64_t bytes = 0;
    for (uint32_t e = 0; e < job->n_touched; e++)
        bytes += (b->ops->scratch_bytes(b->instance, job->touched[e].n) + 127) / 64 * 64;
    job->scratch_bytes = bytes;
    job->shared_scratch = pages(bytes);
    bytes = 0;
    for (uint32_t e = 0; e < job->n_touched; e++) {
        struct touched *t = &job->touched[e];
        /* as the program does: a call of the layer of more columns than the narrow route takes is free in the order */
        t->call = (struct ifx_expert_call){.struct_size = sizeof t->call, .n = t->n, .x = b->x, .ldx = b->s.hidden, .x_rows = t->columns,
                                           .scratch = job->shared_scratch + bytes,
                                           .flags = job->columns > IFX_NARROW_COLUMNS ? IFX_EXPERT_ANY_ORDER : 0};
        bytes += (b->ops->scratch_bytes(b->instance, t->n) + 127) / 64 * 64;
        if (e >= first)
            job->items[job->n_items++] = (struct item){ITEM_PREPARE, e, 0, 0};
    }
    add_chunks(job, ITEM_GATE_UP, first, b->s.inter, chunk);
    add_chunks(job, ITEM_DOWN, first, b->s.hidden, 2 * chunk);
}

static double layer_once(struct layer_job *job, struct team *team, uint32_t layer)
{
    struct bank *b = job->b;
    for (uint32_t e = 0; e < job->n_touched; e++) {
        struct touched *t = &job->touched[e];
        t->call.record = b->records + ((uint64_t)layer * b->s.experts + t->id) * b->record_bytes;
        atomic_store(&t->prepared, 0);
        atomic_store(&t->chunks_done, 0);
    }
    atomic_store(&job->next, 0);
    double t = now();
    team_run(team, layer_work, job);
    return now() - t;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void bench_layer(struct bank *b, struct team *team, double bandwidth, double peak)
{
    static const uint32_t widths[] = {1, 8, 32, 64, 128, 255, 575, 1023};
    printf("  whole layer, %u experts, top-%u, %u thread%s, %u layers in turn\n", b->s.experts, b->s.top_k,
           team->n, team->n > 1 ? "s" : "", b->s.layers);
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        static struct layer_job job;
        double times[64];
        uint32_t reps = b->s.reps < 64 ? b->s.reps : 64;
        memset(&job, 0, sizeof job);
        job.b = b;
        random_state = widths[w];
        route(&job, widths[w]);
        job.y = pages((uint64_t)widths[w] * b->s.top_k * b->s.hidden * sizeof *job.y);
        uint64_t bytes = b->ops->scratch_bytes(b->instance, job.touched[0].n > 9 ? job.touched[0].n : 9);
        uint64_t narrow = b->ops->scratch_bytes(b->instance, 8);
        bytes = bytes > narrow ? bytes : narrow;
        for (uint32_t t = 0; t < team->n; t++)
            job.scratch[t] = pages(bytes);
        plan(&job, team->n);
        layer_once(&job, team, 0);
        for (uint32_t r = 0; r < reps; r++)
            times[r] = layer_once(&job, team, (r + 1) % b->s.layers);
        qsort(times, reps, sizeof *times, by_value);
        double t = times[reps / 2], read = (double)job.n_touched * (double)b->record_bytes;
        double flops = bank_flops(b, widths[w]) * b->s.top_k;
        printf("    columns %5u: %8.3f ms (best %8.3f)  experts %3u, widest %3u  %7.2f GB/s (%3.0f %%)  %9.1f "
               "GFLOP/s "
               "(%3.0f %%)\n",
               widths[w], t * 1e3, times[0] * 1e3, job.n_touched, job.touched[0].n, read / t / 1e9,
               100 * read / t / bandwidth, flops / t / 1e9, 100 * flops / t / peak);
        fflush(stdout);
        for (uint32_t i = 0; i < team->n; i++)
            munmap(job.scratch[i], bytes);
        munmap(job.y, (uint64_t)widths[w] * b->s.top_k * b->s.hidden * sizeof *job.y);
        munmap(job.shared_scratch, job.scratch_bytes);
        for (uint32_t e = 0; e < b->s.experts; e++) {
            free(job.touched[e].columns);
            free(job.touched[e].slots);
        }
        free(job.touched);
        free(job.items);
    }
}

/* ---- program ---- */

static int usage(void)
{
    fprintf(stderr,
            "usage: bench_experts [--cpu LEVEL] [--threads N] [--hidden H] [--inter I] [--experts E]\n"
            "       [--top-k K] [--layers L] [--reps R] [--seconds S] [--only one|layer]\n"
            "       [--any-order 0|1] PLUGIN.so ...\n");
    return 2;
}

static int parse(int argc, char **argv, struct settings *s, int *first)
{
    int i = 1;
    for (; i < argc && strncmp(argv[i], "--", 2) == 0; i += 2) {
        if (i + 1 >= argc)
            return 0;
        const char *name = argv[i] + 2, *value = argv[i + 1];
        uint32_t number = (uint32_t)strtoul(value, NULL, 10);
        if (strcmp(name, "cpu") == 0) {
            for (number = 0; number < 5 && strcmp(value, mini_level_name(number)); number++)
                ;
            if (number == 5)
                return 0;
            s->level = number < s->level ? number : s->level;
        } else if (strcmp(name, "threads") == 0) {
            s->threads = number < MAX_THREADS ? number : MAX_THREADS;
        } else if (strcmp(name, "hidden") == 0) {
            s->hidden = number;
        } else if (strcmp(name, "inter") == 0) {
            s->inter = number;
        } else if (strcmp(name, "experts") == 0) {
            s->experts = number;
        } else if (strcmp(name, "top-k") == 0) {
            s->top_k = number;
        } else if (strcmp(name, "layers") == 0) {
            s->layers = number;
        } else if (strcmp(name, "reps") == 0) {
            s->reps = number;
        } else if (strcmp(name, "seconds") == 0) {
            s->seconds = strtod(value, NULL);
        } else if (strcmp(name, "any-order") == 0) {
            s->any_order = number;
        } else if (strcmp(name, "only") == 0) {
            s->only = value;
        } else {
            return 0;
        }
    }
    *first = i;
    return i < argc && s->threads && s->hidden && s->inter && s->layers && s->reps && s->top_k &&
           s->experts >= s->top_k;
}

static void bench_team(struct bank *b, uint32_t threads)
{
    static struct team team;
    team_start(&team, threads);
    uint64_t bytes = (uint64_t)b->s.layers * b->s.experts * b->record_bytes;
    double bandwidth = read_bandwidth(&team, b->records, bytes);
    double peak = matrix_peak(&team, b->ops->level ? b->ops->level(b->instance) : 0);
    if (!b->s.only || strcmp(b->s.only, "one") == 0)
        bench_one(b, &team, bandwidth, peak);
    if (threads == b->s.threads && (!b->s.only || strcmp(b->s.only, "layer") == 0))
        bench_layer(b, &team, bandwidth, peak);
    team_stop(&team);
}

int main(int argc, char **argv)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    struct settings s = {
        mini_detect_level(), cores > 0 ? (uint32_t)cores : 1, 3072, 1024, 256, 8, 3, 7, 0, 0.5, NULL};
    int first;
    if (!parse(argc, argv, &s, &first))
        return usage();
    for (int i = first; i < argc; i++) {
        static struct bank b;
        if (!open_bank(&b, argv[i], &s))
            return 1;
        printf("%s: H %u, I %u, %llu bytes a record, level %s\n", b.ops->format, s.hidden, s.inter,
               (unsigned long long)b.record_bytes, mini_level_name(b.ops->level(b.instance)));
        if (s.threads > 1 && !(s.only && strcmp(s.only, "layer") == 0))
            bench_team(&b, 1);
        bench_team(&b, s.threads);
        munmap(b.records, (uint64_t)s.layers * s.experts * b.record_bytes);
        munmap(b.x, (uint64_t)1024 * s.hidden * sizeof *b.x);
        b.ops->close(b.instance);
    }
    return 0;
}
