/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_make.c - `infernix bench --make`: a random model as a file.
 */
#include "config.h"
#include "bench.h"
#include <stdio.h>
#include <sys/stat.h>

int bench_make(struct cli *cli)
{
    const char *out = cli_text(cli, "--out", NULL), *format = cli_text(cli, "--experts", NULL);
    struct ifx_context *context;
    struct synthetic s;
    struct stat st;
    int64_t layers;
    char bytes[32];
    if (out == NULL)
        return cli_usage(cli, "--make: --out FILE says where to");
    if (synthetic_parse("--make", cli_text(cli, "--make", ""), &s))
        return cli_usage(cli, "%s", base_error_text());
    if (cli_int(cli, "--layers", 1, 1024, s.g.layers, &layers) || cli_float(cli, "--zipf", 0, 4, s.zipf, &s.zipf))
        return 2;
    s.g.layers = (uint32_t)layers;
    if (format != NULL)
        snprintf(s.format, sizeof s.format, "%.31s", format);
    int failed = cli_context(cli, &context);
    if (!failed)
        failed = cli_check_formats(cli);
    if (failed)
        return failed;
    if (synthetic_make(cli, context, &s, out, cli_flag(cli, "--force"), NULL, NULL))
        return cli_fail(cli);
    text_bytes(bytes, stat(out, &st) == 0 ? (uint64_t)st.st_size : 0);
    printf("%s: %s, %u layers of %u experts (%s), %s\n", out, s.g.description, s.g.layers, s.g.experts, s.format, bytes);
    return 0;
}
