/* SPDX-License-Identifier: Apache-2.0
 *
 * check_plugin [--json] [--first] [--scalar] FILE.so[,key=value]... : the conformance suite without the rest of the program, for machines that
 * lack its libraries.  --first: stop at the first failure; --scalar: at that level alone.
 */
#include "check.h"

#include <string.h>

int main(int argc, char **argv)
{
    bool json = false;
    uint32_t flags = 0;
    int failed = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            json = true;
        else if (strcmp(argv[i], "--first") == 0)
            flags |= PLUGIN_CHECK_FIRST;
        else if (strcmp(argv[i], "--scalar") == 0)
            flags |= PLUGIN_CHECK_SCALAR;
        else
            failed |= plugin_check_main(argv[i], flags, json, stdout);
    }
    return failed;
}
