/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs each check in a child process and gathers what became of it.
 */
#include "check.h"
#include "check_util.h"
#include "registry.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK_SECONDS 120

/* What a child sends: fixed size, in one write (below PIPE_BUF, hence whole or not at all). */
struct outcome {
    uint32_t failed;
    uint32_t kind;
    char plugin[40];
    char text[CHECK_TEXT];
};

static void check_loads(struct check_ctx *c)
{
    check_note(c, "%s %s, ABI %u.%u", c->magic.name, c->magic.version, c->magic.abi_major, c->magic.abi_minor);
}

/* What the program itself says: the file is judged before it is loaded, then its operations. */
static void check_program(struct check_ctx *c)
{
    struct registry *r = NULL;
    const char *comma = c->spec != NULL ? "," : "";
    char *path = strchr(c->path, '/') != NULL ? base_strdup(c->path) : base_format("./%s", c->path);
    char *load = path != NULL ? base_format("%s%s%s", path, comma, c->spec != NULL ? c->spec : "") : NULL;
    if (load == NULL || registry_judge_file(path, &c->magic) != IFX_OK ||
        registry_create(NULL, NULL, NULL, IFX_CPU_SCALAR, &r) != IFX_OK || registry_load(r, load, NULL) != IFX_OK)
        check_fail(c, "%s", base_error_text());
    base_free(path);
    base_free(load);
}

static const struct check_entry *table_of(uint32_t kind)
{
    return kind == IFX_KIND_EXPERT ? check_expert_table : kind == IFX_KIND_KV ? check_kv_table : check_engine_table;
}

/* The child: never returns. */
static void child_run(const struct plugin_check_report *r, const struct check_entry *entry, int result, int printed)
{
    static struct check_ctx c; /* zeroed; the child's own */
    struct outcome o;
    const struct rlimit no_core = {0, 0};
    int null = open("/dev/null", O_RDONLY);

    setrlimit(RLIMIT_CORE, &no_core);
    if (null >= 0)
        dup2(null, 0);
    dup2(printed, 1);
    dup2(printed, 2);
    c.path = r->path;
    c.spec = r->spec;
    c.scalar = r->flags & PLUGIN_CHECK_SCALAR;
    base_error_clear();
    if (entry->bare || check_load(&c))
        entry->fn(&c);
    fflush(NULL);
    memset(&o, 0, sizeof o);
    o.failed = c.failed;
    o.kind = c.magic.kind;
    snprintf(o.plugin, sizeof o.plugin, "%s", c.magic.name);
    memcpy(o.text, c.text, sizeof o.text);
    if (write(result, &o, sizeof o) != (ssize_t)sizeof o)
        _exit(9);
    _exit(0);
}

/* Waits for the child's outcome or its end; false on time-out. */
static bool read_outcome(int fd, struct outcome *o, bool *got)
{
    const double end = base_now() + CHECK_SECONDS;
    uint64_t have = 0;
    *got = false;
    while (have < sizeof *o) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        const double left = end - base_now();
        ssize_t n;
        int ready = left <= 0 ? 0 : poll(&p, 1, (int)(left * 1000) + 1);
        if (ready == 0)
            return false;
        if (ready < 0 && errno == EINTR)
            continue;
        n = ready < 0 ? -1 : read(fd, (char *)o + have, sizeof *o - have);
        if (n <= 0)
            return true; /* closed: the child is gone */
        have += (uint64_t)n;
    }
    o->plugin[sizeof o->plugin - 1] = 0;
    o->text[sizeof o->text - 1] = 0;
    *got = true;
    return true;
}

/* The first line of what the child printed; NULL when nothing. */
static char *printed_line(int fd)
{
    char text[160];
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    if (n <= 0)
        return NULL;
    text[n] = 0;
    for (char *p = text; *p != 0; p++)
        if (*p == '\n') {
            *p = 0;
            if (p != text)
                break;
            *p = ' ';
        } else if ((unsigned char)*p < 32 || (unsigned char)*p > 126) {
            *p = '?';
        }
    return base_strdup(text);
}

static char *describe_end(int status, const char *line)
{
    const char *sep = line != NULL ? "; it printed: " : "";
    if (WIFSIGNALED(status)) {
        const bool memory = WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS;
        return base_format("the plugin crashed with signal %d (%s)%s%s%s", WTERMSIG(status), strsignal(WTERMSIG(status)),
                           memory ? ": an access outside the buffers that it was given (they lie between guard pages, "
                                    "inputs are read-only), or more stack than 256 KiB"
                                  : "",
                           sep, line != NULL ? line : "");
    }
    return base_format("the plugin ended the process with exit status %d; a plugin never calls exit%s%s",
                       WEXITSTATUS(status), sep, line != NULL ? line : "");
}

static int32_t add_item(struct plugin_check_report *r, const char *name, bool ok, char *detail)
{
    struct plugin_check_item *items = base_realloc(r->items, r->count + 1u, sizeof *items);
    if (items == NULL) {
        base_free(detail);
        return IFX_ENOMEM;
    }
    r->items = items;
    items[r->count].ok = ok;
    items[r->count].detail = detail;
    snprintf(items[r->count].name, sizeof items[r->count].name, "%s", name);
    r->count++;
    r->failed += !ok;
    return IFX_OK;
}

static int32_t run_one(struct plugin_check_report *r, const struct check_entry *entry, bool *ok)
{
    struct outcome o;
    char *line = NULL, *detail = NULL;
    int pipes[2] = {-1, -1}, wait_status = 0;
    bool got = false, in_time;
    FILE *printed = tmpfile();
    int32_t status = IFX_OK;
    pid_t pid;

    *ok = false;
    if (printed == NULL || pipe(pipes) != 0) {
        status = base_error(IFX_EIO, "plugins --check: no temporary file or pipe: %s", strerror(errno));
        goto out;
    }
    fflush(NULL);
    pid = fork();
    if (pid < 0) {
        status = base_error(IFX_ENOMEM, "plugins --check: fork: %s", strerror(errno));
        goto out;
    }
    if (pid == 0) {
        close(pipes[0]);
        child_run(r, entry, pipes[1], fileno(printed));
    }
    close(pipes[1]);
    pipes[1] = -1;
    in_time = read_outcome(pipes[0], &o, &got);
    if (!in_time || got)
        kill(pid, SIGKILL); /* got: threads that a plugin left must not hold us up */
    while (waitpid(pid, &wait_status, 0) < 0 && errno == EINTR)
        ;
    line = printed_line(fileno(printed));
    if (!in_time) {
        detail = base_format("the plugin did not come back within %d seconds", CHECK_SECONDS);
    } else if (!got) {
        detail = describe_end(wait_status, line);
    } else {
        if (o.kind != 0) {
            r->kind = o.kind;
            memcpy(r->plugin, o.plugin, sizeof r->plugin);
        }
        *ok = o.failed == 0 && line == NULL;
        detail = o.failed == 0 && line != NULL
                     ? base_format("the plugin printed \"%s\"; it may only use host->log and host->error", line)
                 : o.text[0] != 0 ? base_strdup(o.text)
                                  : NULL;
    }
    status = add_item(r, entry->name, *ok, detail);
out:
    base_free(line);
    if (printed != NULL)
        fclose(printed);
    if (pipes[0] >= 0)
        close(pipes[0]);
    if (pipes[1] >= 0)
        close(pipes[1]);
    return status;
}

/* *go: no gate failed. */
static int32_t run_table(struct plugin_check_report *r, const struct check_entry *e, uint32_t flags, bool *go)
{
    bool ok;
    for (*go = true; *go && e->name != NULL; e++) {
        const int32_t status = run_one(r, e, &ok);
        if (status != IFX_OK)
            return status;
        *go = ok || (!e->gate && (flags & PLUGIN_CHECK_FIRST) == 0);
    }
    return IFX_OK;
}

/* "FILE.so,key=value" apart, unless a file has that name. */
static int32_t split_path(const char *path, struct plugin_check_report *report)
{
    struct stat st;
    const char *so = strstr(path, ".so,"), *comma = so != NULL ? so + 3 : strchr(path, ',');
    if (stat(path, &st) == 0 || comma == NULL) {
        report->path = base_strdup(path);
    } else {
        report->path = base_format("%.*s", (int)(comma - path), path);
        report->spec = base_strdup(comma + 1);
    }
    return report->path != NULL && (comma == NULL || stat(path, &st) == 0 || report->spec != NULL) ? IFX_OK : IFX_ENOMEM;
}

int32_t plugin_check_run(const char *path, uint32_t flags, struct plugin_check_report *report)
{
    static const struct check_entry first[] = {{"load", check_loads, true, false},
                                               {"accepted by this program", check_program, true, true},
                                               {NULL, NULL, false, false}};
    struct stat st;
    bool ok;
    int32_t status;

    memset(report, 0, sizeof *report);
    report->flags = flags;
    status = split_path(path, report);
    if (status != IFX_OK)
        return status;
    if (stat(report->path, &st) != 0)
        return base_error(IFX_ENOTFOUND, "%s: %s", report->path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return base_error(IFX_EINVAL, "%s: not a file; --check takes the .so itself", report->path);
    status = run_table(report, first, flags, &ok);
    if (status == IFX_OK && ok)
        status = run_table(report, table_of(report->kind), flags, &ok);
    return status;
}

void plugin_check_free(struct plugin_check_report *report)
{
    for (uint32_t i = 0; i < report->count; i++)
        base_free(report->items[i].detail);
    base_free(report->items);
    base_free(report->path);
    base_free(report->spec);
    memset(report, 0, sizeof *report);
}

static void print_json_text(const char *text, FILE *out)
{
    fputc('"', out);
    for (const unsigned char *p = (const unsigned char *)text; *p != 0; p++) {
        if (*p == '"' || *p == '\\')
            fprintf(out, "\\%c", *p);
        else if (*p < 32)
            fprintf(out, "\\u%04x", *p);
        else
            fputc(*p, out);
    }
    fputc('"', out);
}

static void print_json(const struct plugin_check_report *r, FILE *out)
{
    static const char *const kinds[] = {NULL, "expert", "kv", "model", "device"};
    fputs("{\"file\":", out);
    print_json_text(r->path, out);
    if (r->spec != NULL) {
        fputs(",\"options\":", out);
        print_json_text(r->spec, out);
    }
    fputs(",\"plugin\":", out);
    print_json_text(r->plugin, out);
    fputs(",\"kind\":", out);
    if (r->kind >= 1 && r->kind <= 4)
        print_json_text(kinds[r->kind], out);
    else
        fputs("null", out);
    fprintf(out, ",\"ok\":%s,\"failed\":%u,\"checks\":[", r->failed == 0 ? "true" : "false", r->failed);
    for (uint32_t i = 0; i < r->count; i++) {
        fprintf(out, "%s{\"name\":", i > 0 ? "," : "");
        print_json_text(r->items[i].name, out);
        fprintf(out, ",\"ok\":%s,\"detail\":", r->items[i].ok ? "true" : "false");
        if (r->items[i].detail != NULL)
            print_json_text(r->items[i].detail, out);
        else
            fputs("null", out);
        fputc('}', out);
    }
    fputs("]}\n", out);
}

void plugin_check_print(const struct plugin_check_report *r, bool json, FILE *out)
{
    if (json) {
        print_json(r, out);
        return;
    }
    for (uint32_t i = 0; i < r->count; i++) {
        const struct plugin_check_item *it = &r->items[i];
        fprintf(out, "%-4s  %s%s%s\n", it->ok ? "ok" : "FAIL", it->name, it->detail != NULL ? ": " : "",
                it->detail != NULL ? it->detail : "");
    }
    if (r->failed == 0)
        fprintf(out, "%s: conforms (%u checks)\n", r->path, r->count);
    else
        fprintf(out, "%s: does not conform (%u of %u checks failed)\n", r->path, r->failed, r->count);
}

int plugin_check_main(const char *path, uint32_t flags, bool json, FILE *out)
{
    struct plugin_check_report r;
    int32_t status = plugin_check_run(path, flags, &r);
    int exit_status = 1;
    if (status != IFX_OK) {
        fprintf(stderr, "infernix: plugins: %s\n", base_error_text());
    } else {
        plugin_check_print(&r, json, out);
        exit_status = r.failed == 0 ? 0 : 1;
    }
    plugin_check_free(&r);
    return exit_status;
}
