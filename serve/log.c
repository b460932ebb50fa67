/* SPDX-License-Identifier: Apache-2.0
 *
 * log.c - the access log: one JSON object a line and request.  No text of prompts or answers unless it was asked for.
 */
#include "config.h"
#include "internal.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int32_t log_open(struct serve *s)
{
    s->log_fd = -1;
    if (s->o.access_log == NULL)
        return IFX_OK;
    if (strcmp(s->o.access_log, "-") == 0)
        s->log_fd = dup(STDOUT_FILENO);
    else
        s->log_fd = open(s->o.access_log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0640);
    if (s->log_fd < 0)
        return base_error(IFX_EIO, "--access-log %s: %s", s->o.access_log, strerror(errno));
    return IFX_OK;
}

static void stamp(char out[40])
{
    struct timespec now;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    size_t n = strftime(out, 32, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(out + n, 40 - n, ".%03dZ", (int)(now.tv_nsec / 1000000));
}

void log_exchange(struct serve *s, const struct exchange *x, bool complete)
{
    char when[40];
    if (s->log_fd < 0)
        return;
    stamp(when);
    json_t *o = json_pack("{s:s, s:s, s:s, s:s?, s:i, s:b, s:f, s:I}", "time", when, "client", x->address, "method", x->method, "path",
                          base_utf8_valid(x->url, strlen(x->url)) ? x->url : NULL, "status", (int)x->status, "complete", (int)complete,
                          "seconds", base_now() - x->started, "body_bytes", (json_int_t)x->received);
    if (o != NULL && x->n_prompt > 0)
        json_object_update_new(o, json_pack("{s:I, s:I, s:I, s:s}", "prompt_tokens", (json_int_t)x->n_prompt, "cached_tokens",
                                            (json_int_t)x->n_cached, "completion_tokens", (json_int_t)x->n_generated, "finish",
                                            !complete ? "cancelled" : x->finish != NULL ? x->finish : "none"));
    if (o != NULL && s->o.log_text && x->log_prompt != NULL)
        json_object_update_new(o, json_pack("{s:s, s:s?}", "prompt", x->log_prompt, "answer", x->log_answer));
    char *text = o != NULL ? json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
    char *line = text != NULL ? base_format("%s\n", text) : NULL;
    /* One write a line: lines of several threads and processes do not mix. */
    if (line != NULL && write(s->log_fd, line, strlen(line)) < 0)
        base_log(IFX_LOG_WARN, "--access-log: %s", strerror(errno));
    base_free(line);
    free(text);
    json_decref(o);
}
