/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_safetensors.c - one safetensors file.  An input that begins with '{' is a header: its length is put before it and 64
 * data bytes after it, so that the fuzzer need not find the length word.
 */
#include "config.h"
#include "artifact_internal.h"
#include "fuzz.h"
#include <stdlib.h>
#include <string.h>

static uint64_t sink; /* every byte that a header promises must be there */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bool header = size > 0 && data[0] == '{';
    size_t bytes = header ? size + 8 + 64 : size;
    uint8_t *file = calloc(1, bytes ? bytes : 1); /* exactly so long that the sanitizer sees a byte too far */
    struct art_faults f = {0};
    struct st_file *s;
    if (file == NULL)
        return 0;
    memcpy(file + (header ? 8 : 0), data, size);
    for (int i = 0; header && i < 8; i++)
        file[i] = (uint8_t)((uint64_t)size >> (8 * i));
    st_parse("fuzz", file, bytes, &s, &f);
    for (uint64_t i = 0; s != NULL && i < s->n; i++) {
        const struct st_tensor *t = &s->tensors[i];
        for (uint64_t b = t->begin; b < t->end; b++)
            sink += file[s->data_offset + b];
    }
    if ((s == NULL) != (f.count > 0))
        abort();
    (void)art_faults_end(&f, IFX_EFORMAT, "fuzz");
    st_close(s);
    free(file);
    return 0;
}
