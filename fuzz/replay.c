/* SPDX-License-Identifier: Apache-2.0
 *
 * replay.c - runs files through a fuzz target: seeds in `make check`, or a file that a fuzzer found.
 */
#include "fuzz.h"
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        FILE *f = fopen(argv[i], "rb");
        long n = -1;
        if (f != NULL && fseek(f, 0, SEEK_END) == 0)
            n = ftell(f);
        uint8_t *data = n >= 0 ? malloc((size_t)n + 1) : NULL;
        if (data == NULL || fseek(f, 0, SEEK_SET) != 0 || fread(data, 1, (size_t)n, f) != (size_t)n) {
            fprintf(stderr, "%s: cannot read\n", argv[i]);
            return 1;
        }
        fclose(f);
        LLVMFuzzerTestOneInput(data, (size_t)n);
        free(data);
    }
    printf("%d files\n", argc - 1);
    return argc > 1 ? 0 : 1;
}
