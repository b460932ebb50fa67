/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_container.c - a .infernix file.  An input that begins with '{' is an index: it is packed behind a right header and 15
 * pages (a config at the start of the second page, then zeros), so that the fuzzer need not find CRCs and lengths.
 */
#include "config.h"
#include "artifact_internal.h"
#include "container.h"
#include "fuzz.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

#define PAGES 16u

static uint64_t sink;

static uint8_t *wrap(const uint8_t *data, size_t size, size_t *bytes)
{
    static const char config[] = "{\"architectures\":[\"A\"]}";
    uint64_t at = PAGES * CONTAINER_PAGE;
    uLongf stored = compressBound(size);
    uint8_t *file = calloc(1, at + stored);
    if (file == NULL || compress2(file + at, &stored, data, size, 1) != Z_OK)
        abort();
    memcpy(file, CONTAINER_MAGIC, 8);
    memcpy(file + CONTAINER_PAGE, config, sizeof config - 1);
    container_put(file + HEADER_VERSION, 4, CONTAINER_VERSION);
    container_put(file + HEADER_FILE_BYTES, 8, at + stored);
    container_put(file + HEADER_INDEX_OFFSET, 8, at);
    container_put(file + HEADER_INDEX_STORED, 8, stored);
    container_put(file + HEADER_INDEX_BYTES, 8, size);
    container_put(file + HEADER_INDEX_CRC, 4, crc32(0, file + at, (uInt)stored));
    container_put(file + HEADER_CRC, 4, crc32(0, file, HEADER_CRC));
    *bytes = at + stored;
    return file;
}

static void use(struct artifact *a)
{
    struct artifact_records r;
    struct ifx_tensor t;
    const void *record;
    uint64_t bytes;
    artifact_set_verify(a, false);
    for (uint64_t i = 0; i < artifact_entry_count(a); i++) {
        const struct artifact_entry *e = artifact_entry_at(a, i);
        if (e->logical_name != NULL && artifact_tensor(a, e->logical_name, &t) == IFX_OK && t.data_bytes > 0)
            sink += ((const uint8_t *)t.data)[0] + ((const uint8_t *)t.data)[t.data_bytes - 1];
    }
    for (uint32_t i = 0; artifact_records_at(a, i, &r) == IFX_OK; i++)
        if (artifact_expert_record(a, i, (uint32_t)r.experts - 1, &record, &bytes) == IFX_OK)
            sink += ((const uint8_t *)record)[0] + ((const uint8_t *)record)[bytes - 1];
    artifact_set_verify(a, true);
    (void)artifact_verify(a, NULL, NULL, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct artifact *a;
    uint8_t *wrapped = NULL;
    size_t bytes = size;
    char path[64];
    if (size > 0 && data[0] == '{')
        wrapped = wrap(data, size, &bytes);
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, wrapped ? wrapped : data, bytes) != (ssize_t)bytes)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (artifact_open(path, &a) == IFX_OK) {
        use(a);
        artifact_close(a);
    }
    close(fd);
    free(wrapped);
    return 0;
}
