/* SPDX-License-Identifier: Apache-2.0
 *
 * demo.c - where the demo model is.
 */
#include "engine.h"

#include <string.h>
#include <unistd.h>

/* The folder of the running program, or "". */
static void program_folder(char *out, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", out, size - 1);
    out[n > 0 ? n : 0] = 0;
    char *slash = strrchr(out, '/');
    if (slash)
        *slash = 0;
    else
        out[0] = 0;
}

int32_t ifx_demo_path(char **out)
{
    /* Beside a moved prefix, in a build tree (program or test one or two folders down), then where it was installed. */
    static const char *const beside[] = {"/../share/infernix/demo.infernix", "/../demo/demo.infernix",
                                         "/../../demo/demo.infernix", NULL};
    char folder[4096];
    struct base_buf tried = {0};
    int32_t st = IFX_OK;
    *out = NULL;
    program_folder(folder, sizeof folder);
    for (const char *const *b = beside; !st && *b && folder[0]; b++) {
        char *path = base_format("%s%s", folder, *b);
        if (!path)
            st = IFX_ENOMEM;
        else if (access(path, R_OK) == 0) {
            *out = path;
            break;
        } else {
            st = base_buf_addf(&tried, " %s", path);
            base_free(path);
        }
    }
    if (!st && !*out && access(PKGDATADIR "/demo.infernix", R_OK) == 0) {
        *out = base_strdup(PKGDATADIR "/demo.infernix");
        st = *out ? IFX_OK : IFX_ENOMEM;
    }
    if (!st && !*out)
        st = base_error(IFX_ENOTFOUND, "no MODEL was given and the demo model is not installed; looked for%s %s",
                        tried.data ? tried.data : "", PKGDATADIR "/demo.infernix");
    base_buf_free(&tried);
    return st;
}
