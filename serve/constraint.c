/* SPDX-License-Identifier: Apache-2.0
 *
 * constraint.c - see constraint.h.
 */
#include "config.h"
#include "constraint.h"
#include <string.h>

int32_t constraint_read(struct reply *r, bool required, int *thinking)
{
    const json_t *format = NULL;
    const char *type = NULL;
    (void)thinking;
    int32_t st = field_object(r->body, "response_format", &format);
    if (!st && format != NULL && (field_string(format, "type", &type) || type == NULL))
        st = base_error(IFX_EINVAL, "response_format.type: missing or not a string");
    if (!st && type != NULL && strcmp(type, "text") != 0)
        st = base_error(IFX_EUNSUPPORTED, "response_format.type: \"%.40s\" is not supported", type);
    if (!st && required)
        st = base_error(IFX_EUNSUPPORTED, "tool_choice: only \"auto\" and \"none\" are supported");
    return st;
}
