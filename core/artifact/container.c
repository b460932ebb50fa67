/* SPDX-License-Identifier: Apache-2.0
 *
 * container.c - reader of .infernix files.
 */
#include "config.h"
#include "artifact_internal.h"
#include <string.h>

bool art_is_container(const void *data, uint64_t bytes)
{
    return bytes >= 8 && memcmp(data, "\x89IFX\r\n\x1a\n", 8) == 0;
}

int32_t art_container_open(struct artifact *a)
{
    return base_error(IFX_EUNSUPPORTED, "%s: .infernix files are not read yet", a->path);
}

void art_container_close(struct art_container *c)
{
    base_free(c);
}

int32_t art_section_verify(struct artifact *a, int32_t section)
{
    (void)a;
    (void)section;
    return IFX_OK;
}
