/* SPDX-License-Identifier: Apache-2.0
 *
 * container.h - the .infernix file, version 1 (docs/format.md): shared by reader and writer.
 */
#ifndef INFERNIX_ARTIFACT_CONTAINER_H
#define INFERNIX_ARTIFACT_CONTAINER_H

#include <stdint.h>

#define CONTAINER_MAGIC    "\x89IFX\r\n\x1a\n" /* 8 bytes; a text-mode transfer breaks it visibly */
#define CONTAINER_VERSION  1u
#define CONTAINER_PAGE     4096u
#define CONTAINER_ALIGN    64u /* tensors and assets inside a section */
#define CONTAINER_HEADER   128u
#define CONTAINER_INDEX_MAX (256u << 20)

/* Header: byte offsets of little-endian numbers.  Magic, version and writer stay where they are in every version. */
#define HEADER_VERSION      8u
#define HEADER_BYTES        12u
#define HEADER_FILE_BYTES   16u
#define HEADER_INDEX_OFFSET 24u
#define HEADER_INDEX_STORED 32u
#define HEADER_INDEX_BYTES  40u
#define HEADER_INDEX_CRC    48u
#define HEADER_WRITER       64u /* text, 0-padded */
#define HEADER_WRITER_BYTES 56u
#define HEADER_CRC          124u /* of the bytes before it */

static inline uint64_t container_get(const uint8_t *p, uint32_t bytes)
{
    uint64_t v = 0;
    for (uint32_t i = bytes; i-- > 0;)
        v = v << 8 | p[i];
    return v;
}

static inline void container_put(uint8_t *p, uint32_t bytes, uint64_t v)
{
    for (uint32_t i = 0; i < bytes; i++, v >>= 8)
        p[i] = (uint8_t)v;
}

static inline uint64_t container_round(uint64_t v, uint64_t align)
{
    return (v + align - 1) / align * align;
}

#endif
