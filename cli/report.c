/* SPDX-License-Identifier: Apache-2.0
 *
 * report.c - what a model runs on, as a line and as JSON.
 */
#include "config.h"
#include "cli_internal.h"
#include <stdio.h>
#include <stdlib.h>

static const char *cpu_level(const struct cli *cli)
{
    uint32_t level = base_cpu_detect();
    const char *text = cli_text(cli, "--cpu", NULL);
    if (text != NULL && base_cpu_parse(text, &level) != IFX_OK)
        level = base_cpu_detect();
    return base_cpu_name(level);
}

void cli_log_setup(const struct ifx_model *model)
{
    struct ifx_model_info i;
    ifx_model_info(model, &i);
    base_log(IFX_LOG_INFO, "%s: %s, experts %s; on %s, KV %s, context %u, prompt chunks of %u%s", i.path, i.architecture,
             i.expert_format != NULL ? i.expert_format : "none", i.device, i.kv_dtype, i.ctx, i.prefill_chunk,
             base_fallback_count() > 0 ? "; not all is as asked, see the warnings" : "");
}

json_t *cli_setup_json(struct cli *cli, const struct ifx_model *model)
{
    struct ifx_model_info i;
    json_t *fallbacks = json_array();
    ifx_model_info(model, &i);
    for (uint32_t k = 0; fallbacks != NULL && k < base_fallback_count(); k++)
        json_array_append_new(fallbacks, json_string(base_fallback_at(k)));
    return json_pack("{s:s, s:s, s:s?, s:s, s:s, s:I, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "model", i.path,
                     "architecture", i.architecture, "experts", i.expert_format, "device", i.device, "cpu",
                     cpu_level(cli), "threads", (json_int_t)base_pool_threads(ifx_context_pool(cli->context)),
                     "kv_dtype", i.kv_dtype, "ctx", (json_int_t)i.ctx, "prefill_chunk", (json_int_t)i.prefill_chunk,
                     "dense_bytes", (json_int_t)i.dense_bytes, "expert_bytes", (json_int_t)i.expert_bytes, "kv_bytes",
                     (json_int_t)i.kv_bytes, "state_bytes", (json_int_t)i.state_bytes, "fallbacks", fallbacks);
}

int cli_print_json(struct cli *cli, json_t *object)
{
    if (object == NULL) {
        base_error(IFX_ENOMEM, "cannot make the JSON report: no memory, or text that is not UTF-8");
        return cli_fail(cli);
    }
    /* Nine digits hold a float32 exactly and keep the report readable; jansson writes "." in every locale. */
    char *text = json_dumps(object, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    json_decref(object);
    if (text == NULL) {
        base_error(IFX_ENOMEM, "cannot make the JSON report: no memory");
        return cli_fail(cli);
    }
    puts(text);
    free(text);
    return 0;
}
