/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_tokenize.c - text to ids and back.
 */
#include "config.h"
#include "cli_internal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct cli_option options[] = {
    {"-m, --model", "MODEL", "the model whose tokenizer is used, when it should not be the first argument", false},
    {"--tokenizer", "PATH", "a folder with tokenizer.json, or the file itself, instead of a model", false},
    {"-f, --file", "FILE", "read the text or ids from a file (- is standard input)", false},
    {"--jsonl", NULL, "the input is JSON lines: strings or {\"text\": ...}, with --decode lists or {\"ids\": ...}", false},
    {"--decode", NULL, "ids to text", false},
    {"--specials", NULL, "control tokens spelled in the text are control tokens (default: text)", false},
    {"--skip-special", NULL, "with --decode: leave special tokens out", false},
    {NULL, NULL, NULL, false},
};

struct tokenize {
    struct cli *cli;
    struct text_tokenizer *t;
    bool decode, specials, skip, json, unwritten;
};

static int32_t out_of_json(void)
{
    return base_error(IFX_ENOMEM, "no memory for the JSON text");
}

static json_t *ids_json(const int32_t *ids, uint64_t n)
{
    json_t *list = json_array();
    for (uint64_t i = 0; i < n && list != NULL; i++)
        json_array_append_new(list, json_integer(ids[i]));
    return list;
}

static json_t *tokens_json(const struct text_tokenizer *t, const int32_t *ids, uint64_t n)
{
    json_t *list = json_array();
    for (uint64_t i = 0; i < n && list != NULL; i++) {
        struct base_buf b = {0};
        if (text_decode(t, &ids[i], 1, false, &b) == IFX_OK)
            json_array_append_new(list, json_stringn(b.data ? b.data : "", b.len));
        base_buf_free(&b);
    }
    return list;
}

static int32_t print(struct tokenize *k, const char *text, uint64_t n)
{
    if (n > 0 && fwrite(text, 1, (size_t)n, stdout) != (size_t)n) {
        k->unwritten = true;
        return base_error(IFX_EIO, "standard output: cannot write");
    }
    return IFX_OK;
}

static int32_t print_line(struct tokenize *k, json_t *value)
{
    char *text = value ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    json_decref(value);
    int32_t st = text == NULL ? out_of_json() : print(k, text, strlen(text));
    free(text);
    return st == IFX_OK ? print(k, "\n", 1) : st;
}

/* One text or one list of ids; `lines`: the input is JSON lines. */
static int32_t show_ids(struct tokenize *k, const int32_t *ids, uint64_t n, bool lines)
{
    if (k->json)
        return print_line(k, json_pack("{s:o, s:o, s:I}", "ids", ids_json(ids, n), "tokens", tokens_json(k->t, ids, n),
                                       "count", (json_int_t)n));
    struct base_buf b = {0};
    int32_t st = base_buf_add(&b, "", 0);
    for (uint64_t i = 0; i < n && st == IFX_OK; i++)
        st = base_buf_addf(&b, "%s%d", i ? "," : lines ? "[" : "", ids[i]);
    if (st == IFX_OK)
        st = base_buf_addf(&b, "%s\n", !lines ? "" : n ? "]" : "[]");
    if (st == IFX_OK)
        st = print(k, b.data, b.len);
    base_buf_free(&b);
    return st;
}

static int32_t encode(struct tokenize *k, const char *text, uint64_t bytes, bool lines)
{
    int32_t *ids = NULL;
    uint64_t n = 0;
    int32_t st = text_encode(k->t, text, bytes, k->specials ? TEXT_SPECIALS : 0, &ids, &n);
    if (st == IFX_OK)
        st = show_ids(k, ids, n, lines);
    base_free(ids);
    return st;
}

static int32_t decode(struct tokenize *k, const int32_t *ids, uint64_t n, bool lines)
{
    struct base_buf b = {0};
    int32_t st = IFX_OK;
    for (uint64_t i = 0; i < n && st == IFX_OK; i++) /* text_decode takes them for padding of the vocabulary */
        if (ids[i] < 0 || (uint32_t)ids[i] >= text_vocab_size(k->t))
            st = base_error(IFX_EINVAL, "--decode: %d is out of range: 0 to %u", ids[i], text_vocab_size(k->t) - 1);
    if (st == IFX_OK)
        st = text_decode(k->t, ids, n, k->skip, &b);
    if (st == IFX_OK && k->json)
        st = print_line(k, json_pack("{s:o}", "text", json_stringn(b.data ? b.data : "", b.len)));
    else if (st == IFX_OK && lines)
        st = print_line(k, json_stringn(b.data ? b.data : "", b.len));
    else if (st == IFX_OK)
        st = print(k, b.data, b.len);
    base_buf_free(&b);
    return st;
}

static int32_t decode_text(struct tokenize *k, const char *text, uint64_t bytes)
{
    int32_t *ids = NULL;
    uint64_t n = 0;
    if (memchr(text, 0, (size_t)bytes) != NULL)
        return base_error(IFX_EINVAL, "--decode: the ids hold a NUL byte");
    if (text[strspn(text, " \t\r\n,[]")] == 0)
        return decode(k, NULL, 0, false);
    int32_t st = cli_parse_ids(text, "--decode", INT32_MAX, &ids, &n);
    if (st == IFX_OK)
        st = decode(k, ids, n, false);
    base_free(ids);
    return st;
}

static int32_t decode_json(struct tokenize *k, const json_t *value)
{
    const json_t *list = json_is_object(value) ? json_object_get(value, "ids") : value;
    uint64_t n = json_array_size(list);
    if (!json_is_array(list))
        return base_error(IFX_EINVAL, "a list of ids or {\"ids\": list} is expected");
    int32_t *ids = base_calloc(n, sizeof(*ids)), st = ids == NULL ? IFX_ENOMEM : IFX_OK;
    for (uint64_t i = 0; i < n && st == IFX_OK; i++) {
        const json_t *id = json_array_get(list, i);
        json_int_t v = json_integer_value(id);
        if (!json_is_integer(id) || v < 0 || v > INT32_MAX)
            st = base_error(IFX_EINVAL, "ids[%llu] is not a token id", (unsigned long long)i);
        else
            ids[i] = (int32_t)v;
    }
    if (st == IFX_OK)
        st = decode(k, ids, n, true);
    base_free(ids);
    return st;
}

static int32_t one_line(struct tokenize *k, const char *line, uint64_t n)
{
    json_error_t e;
    json_t *value = json_loadb(line, n, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &e);
    if (value == NULL)
        return base_error(IFX_EINVAL, "not valid JSON at column %d: %s", e.column, e.text);
    int32_t st;
    const json_t *text = json_is_object(value) ? json_object_get(value, "text") : value;
    if (k->decode)
        st = decode_json(k, value);
    else if (json_is_string(text))
        st = encode(k, json_string_value(text), json_string_length(text), true);
    else
        st = base_error(IFX_EINVAL, "a string or {\"text\": string} is expected");
    json_decref(value);
    return st;
}

static int32_t json_lines(struct tokenize *k, const char *text, uint64_t bytes)
{
    uint64_t line = 0;
    for (uint64_t at = 0; at < bytes;) {
        const char *end = memchr(text + at, '\n', bytes - at);
        uint64_t n = end ? (uint64_t)(end - text) - at : bytes - at, blank = 0;
        line++;
        while (blank < n && (text[at + blank] == ' ' || text[at + blank] == '\t' || text[at + blank] == '\r'))
            blank++;
        if (blank < n) {
            int32_t st = one_line(k, text + at, n);
            if (st != IFX_OK)
                return k->unwritten ? st : base_error_prefix(st, "line %llu", (unsigned long long)line);
        }
        at += n + 1;
    }
    return IFX_OK;
}

static int32_t work(struct tokenize *k, const char *text, uint64_t bytes)
{
    int32_t st;
    if (cli_flag(k->cli, "--jsonl"))
        st = json_lines(k, text, bytes);
    else if (k->decode)
        st = decode_text(k, text, bytes);
    else
        st = encode(k, text, bytes, false);
    if (st == IFX_OK && fflush(stdout) != 0)
        st = base_error(IFX_EIO, "standard output: cannot write");
    return st;
}

int32_t cli_open_tokenizer(struct cli *cli, const char *model, struct text_tokenizer **out)
{
    const char *path = cli_text(cli, "--tokenizer", model);
    char *demo = NULL;
    int32_t st = IFX_OK;
    if (path == NULL) {
        st = ifx_demo_path(&demo);
        path = demo;
    }
    if (st == IFX_OK)
        st = text_tokenizer_open(path, out);
    base_free(demo);
    return st;
}

static int run(struct cli *cli)
{
    struct tokenize k = {.cli = cli, .decode = cli_flag(cli, "--decode"), .specials = cli_flag(cli, "--specials"),
                         .skip = cli_flag(cli, "--skip-special"), .json = cli_json(cli)};
    const char *model = NULL, *file = cli_text(cli, "--file", NULL);
    char *text = NULL;
    uint64_t bytes = 0;
    uint32_t next = 0;
    if (cli_text(cli, "--tokenizer", NULL) == NULL)
        model = cli_model_arg(cli, &next);
    else if (cli_text(cli, "--model", NULL) != NULL)
        return cli_usage(cli, "--tokenizer and --model: give one of them");
    const char *arg = cli_arg(cli, next);
    if (cli_argc(cli) > next + 1)
        return cli_usage(cli, "too many arguments: %s; a text with spaces needs quotes", cli_arg(cli, next + 1));
    if (arg != NULL && file != NULL)
        return cli_usage(cli, "more than one input: give an argument or --file");
    if (k.decode && k.specials)
        return cli_usage(cli, "--specials is for text, not for --decode");
    if (!k.decode && k.skip)
        return cli_usage(cli, "--skip-special needs --decode");
    if (arg == NULL && file == NULL && isatty(STDIN_FILENO))
        return cli_usage(cli, "nothing to do: give a text, --file FILE, or standard input");
    int32_t st = cli_open_tokenizer(cli, model, &k.t);
    if (st == IFX_OK && arg == NULL)
        st = cli_read_text(file != NULL ? file : "-", &text, &bytes);
    if (st == IFX_OK)
        st = work(&k, arg != NULL ? arg : text, arg != NULL ? strlen(arg) : bytes);
    base_free(text);
    text_tokenizer_destroy(k.t);
    return st == IFX_OK ? 0 : cli_fail(cli);
}

const struct cli_command cmd_tokenize = {
    .name = "tokenize",
    .synopsis = "[MODEL] [TEXT] [options]",
    .summary = "text or JSON lines to token ids, and back",
    .options = options,
    .examples = "  infernix tokenize \"Once upon a time\"          ids, separated by commas, on one line\n"
                "  infernix tokenize --decode 12,34,56            the text, with nothing added\n"
                "  infernix tokenize --tokenizer DIR -f book.txt  no model needed\n"
                "  infernix tokenize --jsonl < texts.jsonl        one list of ids for each line\n",
    .run = run,
};
