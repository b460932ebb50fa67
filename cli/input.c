/* SPDX-License-Identifier: Apache-2.0
 *
 * input.c - prompts, ids and MODEL as users give them.
 */
#include "config.h"
#include "cli_internal.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TEXT_MAX_BYTES (256u << 20)

static int32_t read_all(int fd, const char *name, struct base_buf *b)
{
    char part[65536];
    for (;;) {
        ssize_t n = read(fd, part, sizeof part);
        if (n == 0)
            return base_buf_add(b, "", 0);
        if (n < 0 && errno == EINTR && !base_cancelled())
            continue;
        if (n < 0 && errno == EINTR)
            return base_error(IFX_ECANCELLED, "interrupted");
        if (n < 0)
            return base_error(IFX_EIO, "%s: %s", name, strerror(errno));
        if (b->len + (uint64_t)n > TEXT_MAX_BYTES)
            return base_error(IFX_ELIMIT, "%s: longer than %u MiB", name, TEXT_MAX_BYTES >> 20);
        int32_t st = base_buf_add(b, part, (uint64_t)n);
        if (st != IFX_OK)
            return st;
    }
}

/* Pipes and devices are fine here: a prompt may come from another program. */
int32_t cli_read_text(const char *path, char **text, uint64_t *bytes)
{
    bool standard = strcmp(path, "-") == 0;
    struct base_buf b = {0};
    int fd = standard ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return base_error(IFX_EIO, "%s: %s", path, strerror(errno));
    int32_t st = read_all(fd, standard ? "standard input" : path, &b);
    if (!standard)
        close(fd);
    if (st == IFX_OK && b.data == NULL && (b.data = base_strdup("")) == NULL)
        st = IFX_ENOMEM;
    if (st != IFX_OK) {
        base_buf_free(&b);
        return st;
    }
    *text = b.data;
    *bytes = b.len;
    return IFX_OK;
}

static bool between(char c)
{
    return c == ',' || c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '[' || c == ']';
}

int32_t cli_parse_ids(const char *text, const char *what, uint32_t vocab, int32_t **ids, uint64_t *n)
{
    int32_t *list = NULL, st = IFX_OK;
    uint64_t count = 0, room = 0;
    char word[64];
    for (const char *p = text; st == IFX_OK;) {
        while (*p != 0 && between(*p))
            p++;
        if (*p == 0)
            break;
        size_t len = 0;
        while (p[len] != 0 && !between(p[len]))
            len++;
        if (len >= sizeof word) { /* cut, it could read as another number */
            st = base_error(IFX_EINVAL, "%s: \"%.20s...\" is not a whole number", what, p);
            break;
        }
        snprintf(word, sizeof word, "%.*s", (int)len, p);
        p += len;
        if (count == room) {
            room = room * 2 + 256;
            int32_t *grown = base_realloc(list, room, sizeof *list);
            if (grown == NULL) {
                st = IFX_ENOMEM;
                break;
            }
            list = grown;
        }
        int64_t id = 0;
        st = base_parse_i64(word, what, 0, (int64_t)vocab - 1, &id);
        list[count++] = (int32_t)id;
    }
    if (st == IFX_OK && count == 0)
        st = base_error(IFX_EINVAL, "%s: no token ids", what);
    if (st != IFX_OK) {
        base_free(list);
        return st;
    }
    *ids = list;
    *n = count;
    return IFX_OK;
}

static bool ends_with(const char *text, const char *tail)
{
    size_t n = strlen(text), k = strlen(tail);
    return n >= k && strcmp(text + n - k, tail) == 0;
}

const char *cli_model_arg(const struct cli *cli, uint32_t *next)
{
    const char *named = cli_text(cli, "--model", NULL), *first = cli_arg(cli, 0);
    *next = 0;
    if (named != NULL || first == NULL)
        return named;
    bool path = strchr(first, '/') != NULL && strpbrk(first, " \t\n") == NULL; /* a mistyped path is no prompt */
    if (cli_argc(cli) == 1 && access(first, F_OK) != 0 && !path && !ends_with(first, ".infernix")
        && !ends_with(first, ".safetensors"))
        return NULL;
    *next = 1;
    return first;
}
