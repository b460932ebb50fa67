/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_calibrate.c - measures link, host memory and the experts' rates here, and derives the limit and the ramp that suit this machine,
 * this model and its bank.
 */
#include "config.h"
#include "chart.h"
#include "cli_internal.h"
#include "machine.h"
#include "offload.h"
#include "synthetic.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPERTS    32u /* that are measured: more than caches hold */
#define EXPERTS_COMPUTED 4u /* where the clock is computed and only the arithmetic takes time */
#define WIDEST     64u /* columns of one of them */
#define READ_BYTES (256u << 20)
#define DENSE_ROWS 4096u
#define DENSE_COLUMNS 512u
#define CURVE      20u

static const struct cli_option options[] = {
    {"-m, --model", "MODEL", "the model, when it should not be the first argument", false},
    {"--synthetic", "GEOMETRY[,K=V...]", "a random model instead, as in bench: 122b-a10b,experts=nvfp4", false},
    {"-r", "REPEATS", "runs of each measurement, of which the fastest counts (default 5)", false},
    {"--resident", "PERCENT", "of the experts that are on the device when the curve is computed (default 30)", false},
    {"--zipf", "S", "routing that the curve assumes: expert of rank r in proportion to r^-S (default 0.7)", false},
    {"--write", "FILE", "put the section [assist.BANK] into this options file", false},
    {"--plot", "FILE.svg", "draw the predicted curves", false},
    {NULL, NULL, NULL, false},
};

struct calibration {
    struct cli *cli;
    struct ifx_context *context;
    struct model_on_disk disk;
    struct model_bank bank;
    char *made;
    int made_fd;
    struct ifx_device *dev;
    char device_name[64];
    bool computed_clock;
    void *stream;
    struct offload_layer layer;
    void *records; /* pinned */
    uint32_t experts;
    struct offload *offload;
    int64_t repeats;
    struct predict_machine machine;
    struct predict_model model;
    struct predict_routing routing;
    uint32_t resident, widths[CURVE], n_widths;
    double curve[3][CURVE]; /* registered, own, balance */
    struct ifx_ramp_point points[PREDICT_POINTS];
    struct ifx_assist_policy own;
    const struct ifx_assist_policy *registered;
};

/* ---- set-up ---- */

static int open_model(struct calibration *c)
{
    const char *path = cli_text(c->cli, "--model", NULL), *text = cli_text(c->cli, "--synthetic", NULL);
    struct synthetic s;
    if (cli_argc(c->cli) > (path == NULL && text == NULL))
        return cli_usage(c->cli, "too many arguments: %s", cli_arg(c->cli, cli_argc(c->cli) - 1));
    path = path != NULL ? path : text == NULL ? cli_arg(c->cli, 0) : NULL;
    if (text != NULL && path != NULL)
        return cli_usage(c->cli, "--synthetic and a model: give one of them");
    if (text != NULL) {
        if (synthetic_parse("--synthetic", text, &s))
            return cli_usage(c->cli, "%s", base_error_text());
        s.g.layers = 1; /* what is measured is one layer's */
        s.g.experts = s.g.experts < EXPERTS ? s.g.experts : EXPERTS;
        s.g.vocab = 256;
        if (synthetic_make(c->cli, c->context, &s, NULL, false, &c->made, &c->made_fd))
            return cli_fail(c->cli);
        path = c->made;
    }
    if (model_on_disk_open(c->context, path, &c->disk))
        return cli_fail(c->cli);
    if (c->disk.desc->n_moe == 0) {
        base_error(IFX_EUNSUPPORTED, "%s has no experts: there is nothing to calibrate", artifact_path(c->disk.artifact));
        return cli_fail(c->cli);
    }
    const char *format = cli_text(c->cli, "--experts", artifact_expert_format(c->disk.artifact));
    if (model_bank_open(c->context, c->disk.desc, format, &c->bank))
        return cli_fail(c->cli);
    c->registered = registry_policy(c->bank.ops);
    return 0;
}

static int open_device(struct calibration *c)
{
    struct ifx_device_props props = {.struct_size = sizeof props};
    const char *name = cli_text(c->cli, "--device", "auto");
    if (ifx_device_open(c->context, name, &c->dev) || c->dev->ops->props(c->dev, &props) ||
        c->dev->ops->stream_create(c->dev, &c->stream))
        return cli_fail(c->cli);
    if (props.flags & IFX_DEVICE_HOST_MEM) {
        base_error(IFX_EUNSUPPORTED, "device %s computes where the experts lie: there is no link to share, and nothing to calibrate; "
                   "name another with --device", props.name);
        return cli_fail(c->cli);
    }
    c->computed_clock = props.flags & IFX_DEVICE_VIRTUAL_CLOCK;
    memcpy(c->device_name, props.name, sizeof c->device_name);
    c->machine.vram = (double)props.free_bytes;
    return 0;
}

/* Some experts of the first layer, as records in memory that the copy engine reads at full speed. */
static int32_t load_experts(struct calibration *c)
{
    const struct ifx_moe_layer *m = &c->disk.desc->moe[0];
    struct ifx_expert_shape shape = {.struct_size = sizeof shape, .hidden = m->hidden, .inter = m->inter};
    float *tmp = base_alloc(3ull * m->hidden * m->inter * sizeof *tmp, 64);
    uint64_t bytes;
    bool exact;
    int32_t st = registry_record_bytes(c->bank.ops, &shape, &bytes);
    c->experts = c->computed_clock ? EXPERTS_COMPUTED : EXPERTS;
    c->experts = m->experts < c->experts ? m->experts : c->experts;
    if (st == IFX_OK)
        st = tmp ? c->dev->ops->host_alloc(c->dev, c->experts * bytes, &c->records) : IFX_ENOMEM;
    for (uint32_t e = 0; e < c->experts && st == IFX_OK; e++)
        st = artifact_expert_pack(c->disk.artifact, m, 0, e, c->bank.ops, c->bank.bank, tmp, (uint8_t *)c->records + e * bytes, &exact);
    base_free(tmp);
    c->layer = (struct offload_layer){.ops = c->bank.ops, .bank = c->bank.bank, .records = c->records, .record_bytes = bytes,
                                      .experts = c->experts, .top_k = m->top_k < c->experts ? m->top_k : c->experts,
                                      .hidden = m->hidden, .inter = m->inter};
    return st;
}

static int32_t open_offload(struct calibration *c)
{
    int32_t st = load_experts(c);
    if (st != IFX_OK)
        return st;
    struct offload_config config = {.dev = c->dev, .pool = ifx_context_pool(c->context), .layers = &c->layer, .n_layers = 1,
                                    .max_columns = (c->experts * WIDEST + c->layer.top_k - 1) / c->layer.top_k,
                                    .mode = OFFLOAD_ASSIST_BALANCE, .policies = &c->registered};
    st = offload_create(&config, &c->offload);
    return st == IFX_OK ? offload_allocate(c->offload, 0, c->experts) : st;
}

/* ---- measuring ---- */

static double now(const struct calibration *c)
{
    return c->dev->ops->now ? c->dev->ops->now(c->dev) : base_now();
}

static int32_t fastest(struct calibration *c, uint32_t what, uint32_t columns, double *best)
{
    int32_t st = IFX_OK;
    for (int64_t r = 0; r <= c->repeats && st == IFX_OK; r++) {
        double seconds;
        st = offload_time(c->offload, what, c->experts, columns, &seconds);
        if (r == 1 || (r > 1 && seconds < *best)) /* the first one warms up */
            *best = seconds;
    }
    return st;
}

static int32_t read_task(void *ctx, uint64_t task, uint32_t worker)
{
    const uint64_t *p = (const uint64_t *)ctx + task * (1u << 17);
    uint64_t sum = 0;
    (void)worker;
    for (uint32_t i = 0; i < 1u << 17; i++)
        sum += p[i];
    __asm__ volatile("" : : "r"(sum));
    return IFX_OK;
}

/* Reading is what experts do, so reading is what is measured; a computed clock is told what was read. */
static int32_t measure_dram(struct calibration *c)
{
    struct ifx_work work = {.kind = IFX_WORK_HOST_EXPERTS, .experts = 1, .bytes = READ_BYTES};
    void *memory = base_map_anon(READ_BYTES);
    int32_t st = memory ? IFX_OK : IFX_ENOMEM;
    if (memory)
        memset(memory, 1, READ_BYTES);
    for (int64_t r = 0; r <= c->repeats && st == IFX_OK; r++) {
        double t0 = now(c);
        st = base_pool_run(ifx_context_pool(c->context), READ_BYTES >> 20, read_task, memory);
        if (st == IFX_OK && c->dev->ops->host_work)
            c->dev->ops->host_work(c->dev, &work);
        double rate = READ_BYTES / (now(c) - t0);
        c->machine.dram = r > 0 && rate > c->machine.dram ? rate : c->machine.dram;
    }
    if (memory)
        base_unmap(memory, READ_BYTES);
    return st;
}

static int32_t measure_experts(struct calibration *c)
{
    double seconds = 0;
    int32_t st = fastest(c, OFFLOAD_TIME_LINK, 0, &seconds);
    c->machine.link = seconds > 0 ? (double)c->layer.record_bytes / seconds : 0;
    c->machine.latency = 10e-6; /* in the time of each record already */
    for (uint32_t n = 1; n <= WIDEST && st == IFX_OK; n *= 2) {
        struct predict_rates *cpu = &c->machine.cpu, *device = &c->machine.device;
        cpu->columns[cpu->n] = device->columns[device->n] = n;
        st = fastest(c, OFFLOAD_TIME_CPU, n, &cpu->seconds[cpu->n++]);
        if (st == IFX_OK)
            st = fastest(c, OFFLOAD_TIME_DEVICE, n, &device->seconds[device->n++]);
    }
    return st;
}

/* One dense product: what a layer does beside its experts, and what streaming hides behind. */
static int32_t measure_dense(struct calibration *c)
{
    const struct ifx_device_ops *o = c->dev->ops;
    uint32_t h = c->layer.hidden;
    struct ifx_linear op = {.n = DENSE_COLUMNS, .cols = h, .count = 1, .ldx = h};
    uint64_t sizes[4] = {(uint64_t)DENSE_COLUMNS * h * 4, (uint64_t)DENSE_ROWS * h * 2, (uint64_t)DENSE_COLUMNS * DENSE_ROWS * 4,
                         o->linear_ws_bytes(c->dev, DENSE_COLUMNS, h)};
    void *memory[4] = {0};
    int32_t st = IFX_OK;
    for (int i = 0; i < 4 && st == IFX_OK; i++) {
        st = o->mem_alloc(c->dev, sizes[i], &memory[i]);
        if (st == IFX_OK)
            st = o->fill(c->dev, c->stream, memory[i], 0, sizes[i]);
    }
    op.x = memory[0];
    op.out[0].w = (struct ifx_weight){.dtype = IFX_BF16, .rows = DENSE_ROWS, .cols = h, .data = memory[1]};
    op.out[0].y = memory[2];
    op.out[0].ldy = DENSE_ROWS;
    op.ws = memory[3];
    if (st == IFX_OK)
        st = o->stream_sync(c->dev, c->stream);
    for (int64_t r = 0; r <= c->repeats && st == IFX_OK; r++) {
        double t0 = now(c);
        st = o->linear(c->dev, c->stream, &op);
        if (st == IFX_OK)
            st = o->stream_sync(c->dev, c->stream);
        double rate = 2.0 * DENSE_COLUMNS * DENSE_ROWS * h / (now(c) - t0);
        c->machine.flops = rate > c->machine.flops ? rate : c->machine.flops;
    }
    for (int i = 0; i < 4; i++)
        o->mem_free(c->dev, memory[i]);
    return st;
}

/* ---- deriving ---- */

static void fill_model(struct calibration *c, double zipf, double resident)
{
    const struct ifx_model_desc *d = c->disk.desc;
    const char *text = cli_text(c->cli, "--synthetic", NULL);
    struct synthetic s;
    struct ifx_moe_layer m = d->moe[0];
    double values = 0;
    for (uint32_t i = 0; i < d->n_params; i++)
        if (d->params[i].kind == IFX_PARAM_MATRIX && !(d->params[i].flags & (IFX_PARAM_EMBED | IFX_PARAM_HEAD)))
            values += (double)d->params[i].rows * d->params[i].cols;
    uint32_t layers = d->n_moe;
    if (text != NULL && synthetic_parse("--synthetic", text, &s) == IFX_OK) {
        m.experts = s.g.experts;
        values *= s.g.layers;
        layers = s.g.layers;
    }
    struct predict_rates *r = &c->machine.device;
    c->machine.memory = (double)c->layer.record_bytes / r->seconds[0]; /* an expert of one column is read once */
    c->machine.kernel = 5e-6;
    c->model = (struct predict_model){.layers = layers, .experts = m.experts, .top_k = m.top_k, .hidden = m.hidden,
                                      .record_bytes = (double)c->layer.record_bytes,
                                      .expert_flops = 6.0 * m.hidden * m.inter, .dense_bytes = 2 * values,
                                      .dense_flops = 2 * values, .zipf = zipf};
    c->machine.cpu_flops = c->model.expert_flops * WIDEST / c->machine.cpu.seconds[c->machine.cpu.n - 1];
    c->machine.expert_flops = c->model.expert_flops * WIDEST / r->seconds[r->n - 1];
    c->resident = (uint32_t)(resident / 100 * m.experts);
}

static int32_t derive(struct calibration *c)
{
    static const uint32_t widths[] = {32, 64, 128, 192, 255, 256, 320, 384, 448, 512, 575, 576, 640, 768, 896, 1023, 1100};
    struct predict_call call = {.model = &c->model, .machine = &c->machine, .routing = &c->routing, .policy = c->registered,
                                .mode = OFFLOAD_ASSIST_RAMP, .resident = c->resident, .n = 1};
    int32_t st = predict_routing_create(&c->model, 2048, &c->routing);
    if (st == IFX_OK)
        st = predict_policy(&call, c->points, &c->own);
    c->n_widths = sizeof widths / sizeof *widths;
    memcpy(c->widths, widths, sizeof widths);
    for (uint32_t i = 0; i < 3; i++) {
        call.policy = i == 1 ? &c->own : c->registered;
        call.mode = i == 2 ? OFFLOAD_ASSIST_BALANCE : OFFLOAD_ASSIST_RAMP;
        for (uint32_t w = 0; w < c->n_widths && st == IFX_OK; w++) {
            struct predict_result r;
            call.n = c->widths[w];
            st = predict_step(&call, &r);
            c->curve[i][w] = call.n / r.seconds;
        }
    }
    return st;
}

/* ---- telling ---- */

static char *ramp_text(const struct ifx_assist_policy *p)
{
    struct base_buf b = {0};
    for (uint32_t i = 0; i < p->n_points; i++)
        if (base_buf_addf(&b, "%s%u:%u", i ? "," : "", p->points[i].columns, p->points[i].share))
            break;
    return b.data;
}

static void print_report(const struct calibration *c, const char *ramp)
{
    const struct predict_machine *m = &c->machine;
    char *old = ramp_text(c->registered);
    printf("device %s, experts %s of hidden %u and width %u, records of %.2f MB\n\n", c->device_name, c->bank.ops->format,
           c->layer.hidden, c->layer.inter, (double)c->layer.record_bytes * 1e-6);
    printf("link            %8.2f GB/s (records)\nhost memory     %8.2f GB/s (read by %u threads)\ndense products  %8.2f TFLOP/s on the device\n\n",
           m->link * 1e-9, m->dram * 1e-9, base_pool_threads(ifx_context_pool(c->context)), m->flops * 1e-12);
    printf("one expert of   %9s %9s %11s %9s %11s\n", "columns", "CPU us", "GFLOP/s", "device us", "GFLOP/s");
    for (uint32_t i = 0; i < m->cpu.n; i++)
        printf("                %9u %9.1f %11.1f %9.1f %11.1f\n", m->cpu.columns[i], m->cpu.seconds[i] * 1e6,
               c->model.expert_flops * m->cpu.columns[i] / m->cpu.seconds[i] * 1e-9, m->device.seconds[i] * 1e6,
               c->model.expert_flops * m->cpu.columns[i] / m->device.seconds[i] * 1e-9);
    printf("\npredicted prompt speed, %u of %u experts of each layer on the device, in tok/s\n", c->resident, c->model.experts);
    printf("%7s %12s %12s %12s\n", "COLUMNS", "registered", "calibrated", "balance");
    for (uint32_t w = 0; w < c->n_widths; w++)
        printf("%7u %12.1f %12.1f %12.1f\n", c->widths[w], c->curve[0][w], c->curve[1][w], c->curve[2][w]);
    printf("\nregistered: assisted up to %u columns, ramp %s\n", c->registered->max_columns, old ? old : "");
    printf("calibrated: assisted up to %u columns, ramp %s\n", c->own.max_columns, ramp);
    base_free(old);
}

static int print_json(const struct calibration *c, const char *ramp)
{
    const struct predict_machine *m = &c->machine;
    json_t *rates = json_array(), *curve = json_array();
    for (uint32_t i = 0; i < m->cpu.n; i++)
        json_array_append_new(rates, json_pack("{s:I, s:f, s:f}", "columns", (json_int_t)m->cpu.columns[i], "cpu_seconds",
                                               m->cpu.seconds[i], "device_seconds", m->device.seconds[i]));
    for (uint32_t w = 0; w < c->n_widths; w++)
        json_array_append_new(curve, json_pack("{s:I, s:f, s:f, s:f}", "columns", (json_int_t)c->widths[w], "registered",
                                               c->curve[0][w], "calibrated", c->curve[1][w], "balance", c->curve[2][w]));
    return cli_print_json(c->cli, json_pack("{s:s, s:s, s:f, s:f, s:f, s:o, s:I, s:s, s:o}", "device", c->device_name, "experts",
                                            c->bank.ops->format, "link_bytes_per_second", m->link, "dram_bytes_per_second", m->dram,
                                            "dense_flops", m->flops, "rates", rates, "max_columns", (json_int_t)c->own.max_columns,
                                            "ramp", ramp, "curve", curve));
}

/* The file with its section [assist.BANK] replaced, or added at the end. */
static int32_t write_section(const struct calibration *c, const char *path, const char *ramp)
{
    char *text = NULL, *section = base_format("[assist.%s]\n", c->bank.ops->format);
    uint64_t bytes = 0;
    struct base_buf b = {0};
    struct base_out *out = NULL;
    int32_t st = section ? IFX_OK : IFX_ENOMEM;
    if (st == IFX_OK && access(path, F_OK) == 0)
        st = base_read_file(path, 1u << 20, &text, &bytes);
    bool ours = false;
    for (const char *p = text; p != NULL && *p && st == IFX_OK;) {
        size_t n = strcspn(p, "\n");
        n += p[n] == '\n';
        if (*p == '[')
            ours = strncmp(p, section, strlen(section) - 1) == 0;
        if (!ours)
            st = base_buf_add(&b, p, n);
        p += n;
    }
    if (st == IFX_OK && b.len && b.data[b.len - 1] != '\n')
        st = base_buf_add(&b, "\n", 1);
    if (st == IFX_OK)
        st = base_buf_addf(&b, "%s; measured by infernix calibrate on %s\nmax-columns = %u\nramp = %s\n", section, c->device_name,
                           c->own.max_columns, ramp);
    if (st == IFX_OK)
        st = base_out_open(path, true, &out);
    if (st == IFX_OK)
        st = base_out_write(out, b.data, b.len);
    if (st == IFX_OK)
        st = base_out_commit(&out);
    base_out_abort(&out);
    base_buf_free(&b);
    base_free(text);
    base_free(section);
    return st;
}

static int32_t plot(const struct calibration *c, const char *path)
{
    static const char *const names[3] = {"registered policy", "calibrated policy", "balance"};
    struct chart_point points[3][CURVE];
    char limits[2][64];
    struct chart chart = {.title = "Predicted prompt speed", .subtitle = c->device_name, .x_label = "columns of one call",
                          .y_label = "tokens a second", .n_series = 3, .n_marks = 2};
    for (uint32_t i = 0; i < 3; i++) {
        for (uint32_t w = 0; w < c->n_widths; w++)
            points[i][w] = (struct chart_point){c->widths[w], c->curve[i][w], c->curve[i][w], c->curve[i][w]};
        chart.series[i] = (struct chart_series){.name = names[i], .points = points[i], .n = c->n_widths, .dashed = i == 2};
    }
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t limit = i ? c->own.max_columns : c->registered->max_columns;
        snprintf(limits[i], sizeof limits[i], "%s: up to %u", i ? "calibrated" : "registered", limit);
        chart.marks[i] = (struct chart_mark){limit, limits[i]};
    }
    return chart_write(&chart, path);
}

/* ---- the command ---- */

static void tear_down(struct calibration *c)
{
    offload_destroy(c->offload);
    if (c->dev) {
        if (c->records)
            c->dev->ops->host_free(c->dev, c->records);
        if (c->stream)
            c->dev->ops->stream_destroy(c->dev, c->stream);
        c->dev->ops->close(c->dev);
    }
    model_bank_close(&c->bank);
    model_on_disk_close(&c->disk);
    if (c->made)
        close(c->made_fd);
    base_free(c->made);
    predict_routing_destroy(&c->routing);
    base_free(c);
}

static int measure_and_tell(struct calibration *c, double zipf, double resident)
{
    const char *out = cli_text(c->cli, "--write", NULL), *chart = cli_text(c->cli, "--plot", NULL);
    int32_t st = open_offload(c);
    if (st == IFX_OK)
        st = measure_dram(c);
    if (st == IFX_OK)
        st = measure_experts(c);
    if (st == IFX_OK)
        st = measure_dense(c);
    if (st != IFX_OK)
        return cli_fail(c->cli);
    fill_model(c, zipf, resident);
    st = derive(c);
    char *ramp = st == IFX_OK ? ramp_text(&c->own) : NULL;
    if (st == IFX_OK && ramp == NULL)
        st = base_error(IFX_ELIMIT, "at no width is the CPU of any help here: --assist off is right");
    if (st == IFX_OK && out != NULL)
        st = write_section(c, out, ramp);
    if (st == IFX_OK && chart != NULL)
        st = plot(c, chart);
    int status = st != IFX_OK ? cli_fail(c->cli) : cli_json(c->cli) ? print_json(c, ramp) : 0;
    if (st == IFX_OK && !cli_json(c->cli))
        print_report(c, ramp);
    base_free(ramp);
    return status;
}

static int run(struct cli *cli)
{
    struct calibration *c = base_calloc(1, sizeof *c);
    double zipf, resident;
    if (c == NULL)
        return cli_fail(cli);
    c->cli = cli;
    int status = cli_int(cli, "-r", 1, 100, 5, &c->repeats);
    if (!status)
        status = cli_float(cli, "--zipf", 0, 4, 0.7, &zipf);
    if (!status)
        status = cli_float(cli, "--resident", 0, 99, 30, &resident);
    if (!status)
        status = cli_context(cli, &c->context);
    if (!status)
        status = open_device(c);
    if (!status)
        status = open_model(c);
    if (!status)
        status = measure_and_tell(c, zipf, resident);
    tear_down(c);
    return status;
}

const struct cli_command cmd_calibrate = {
    "calibrate",
    "[MODEL] --device NAME [options]",
    "measure link, memory and expert rates here; derive the assist policy of this machine",
    options,
    "  infernix calibrate big.infernix --device cuda\n"
    "  infernix calibrate big.infernix --device cuda --write ~/.config/infernix/infernix.ini\n"
    "  infernix calibrate --synthetic 122b-a10b --device sim,clock=virtual\n",
    run,
};
