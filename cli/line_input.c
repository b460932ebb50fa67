/* SPDX-License-Identifier: Apache-2.0
 *
 * line_input.c - see line_input.h.
 */
#include "config.h"
#include "line_input.h"
#include <errno.h>
#include <locale.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef HAVE_LIBEDIT
#include <histedit.h>
#endif

struct line_input {
    bool terminal;
    const char *prompt;
    char *line; /* getline's */
    size_t room;
#ifdef HAVE_LIBEDIT
    EditLine *edit;
    History *history;
#endif
};

#ifdef HAVE_LIBEDIT
static char *edit_prompt(EditLine *edit)
{
    struct line_input *in = NULL;
    el_get(edit, EL_CLIENTDATA, &in);
    return (char *)in->prompt; /* libedit only reads it */
}

static void open_editor(struct line_input *in)
{
    HistEvent event;
    setlocale(LC_CTYPE, ""); /* characters only: numbers stay in the C locale */
    in->history = history_init();
    in->edit = el_init("infernix", stdin, stdout, stderr);
    if (in->edit == NULL)
        return;
    el_set(in->edit, EL_CLIENTDATA, in);
    el_set(in->edit, EL_PROMPT, edit_prompt);
    el_set(in->edit, EL_EDITOR, "emacs");
    el_set(in->edit, EL_SIGNAL, 1);
    if (in->history != NULL) {
        history(in->history, &event, H_SETSIZE, 500);
        el_set(in->edit, EL_HIST, history, in->history);
    }
    el_source(in->edit, NULL);
}
#endif

int32_t line_input_open(struct line_input **out)
{
    struct line_input *in = base_calloc(1, sizeof *in);
    if (in == NULL)
        return IFX_ENOMEM;
    in->terminal = isatty(STDIN_FILENO) == 1;
#ifdef HAVE_LIBEDIT
    if (in->terminal)
        open_editor(in);
#endif
    *out = in;
    return IFX_OK;
}

void line_input_close(struct line_input *in)
{
    if (in == NULL)
        return;
#ifdef HAVE_LIBEDIT
    if (in->history != NULL)
        history_end(in->history);
    if (in->edit != NULL)
        el_end(in->edit);
#endif
    free(in->line);
    base_free(in);
}

/* One physical line without its newline, valid until the next call; NULL at the end or when interrupted (errno EINTR). */
static const char *raw_line(struct line_input *in, const char *prompt)
{
    ssize_t n;
    errno = 0;
#ifdef HAVE_LIBEDIT
    if (in->edit != NULL) {
        int count = 0;
        in->prompt = prompt;
        const char *got = el_gets(in->edit, &count);
        if (got == NULL || count <= 0) {
            errno = base_cancelled() ? EINTR : 0;
            return NULL;
        }
        free(in->line);
        in->line = strndup(got, (size_t)count);
        in->room = 0;
        n = in->line != NULL ? (ssize_t)count : -1;
    } else
#endif
    {
        if (in->terminal) {
            fputs(prompt, stderr);
            fflush(stderr);
        }
        n = getline(&in->line, &in->room, stdin);
        if (n < 0 && base_cancelled()) {
            clearerr(stdin);
            errno = EINTR;
            return NULL;
        }
    }
    if (n < 0)
        return NULL;
    while (n > 0 && (in->line[n - 1] == '\n' || in->line[n - 1] == '\r'))
        in->line[--n] = 0;
    return in->line;
}

static void remember(struct line_input *in, const char *text)
{
#ifdef HAVE_LIBEDIT
    HistEvent event;
    if (in->history != NULL && text[0] != 0)
        history(in->history, &event, H_ENTER, text);
#else
    (void)in, (void)text;
#endif
}

/* Whether more stands ready than a hand can type: the next lines of what was pasted. */
static bool pasted(const struct line_input *in)
{
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    return in->terminal && poll(&p, 1, 20) > 0 && (p.revents & POLLIN) != 0;
}

int line_input_read(struct line_input *in, const char *prompt, struct base_buf *text)
{
    bool block = false, more = true;
    text->len = 0;
    if (base_buf_add(text, "", 0))
        return 0;
    if (text->data != NULL)
        text->data[0] = 0;
    for (bool first = true; more; first = false) {
        const char *line = raw_line(in, first ? prompt : ". ");
        if (line == NULL)
            return errno == EINTR ? -1 : text->len > 0;
        if (strcmp(line, "\"\"\"") == 0 && (block || first)) {
            more = block = !block;
            continue;
        }
        size_t n = strlen(line);
        bool joined = n > 0 && line[n - 1] == '\\' && !block;
        more = block || joined;
        if (text->len > 0 && base_buf_add(text, "\n", 1))
            return 0;
        if (base_buf_add(text, line, n - joined))
            return 0;
        more = more || pasted(in);
    }
    if (text->data != NULL)
        remember(in, text->data);
    return 1;
}
