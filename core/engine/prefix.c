/* SPDX-License-Identifier: Apache-2.0
 *
 * prefix.c - beginnings of prompts that are kept for the next one.
 */
#include "engine.h"

int32_t ifx_sequence_attach(struct ifx_sequence *s, const int32_t *tokens, uint64_t n, uint64_t *cached)
{
    (void)tokens;
    (void)n;
    *cached = 0;
    return s->length || s->broken ? base_error(IFX_EINVAL, "only an empty sequence can begin with what was kept") : IFX_OK;
}

int32_t ifx_sequence_publish(struct ifx_sequence *s)
{
    (void)s;
    return IFX_OK;
}

void ifx_prefix_stats(struct ifx_model *m, struct ifx_prefix_stats *out)
{
    (void)m;
    *out = (struct ifx_prefix_stats){0};
}
