/* SPDX-License-Identifier: Apache-2.0
 *
 * comma_locale.h - a locale with a decimal comma for tests: one that is installed, else one made in the working folder.
 */
#ifndef INFERNIX_TESTS_COMMA_LOCALE_H
#define INFERNIX_TESTS_COMMA_LOCALE_H

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Its name, for setlocale and, with what this sets in the environment, for programs; NULL: there is none and none could be made.  The test's own
 * locale is "C" afterwards. */
static inline const char *comma_locale(void)
{
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE"};
    char here[4096], path[4200];
    const char *found = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && found == NULL; i++)
        found = setlocale(LC_ALL, names[i]) != NULL ? names[i] : NULL;
    if (found == NULL && getcwd(here, sizeof here) != NULL
        && system("{ test -d locales.tmp/de_DE.UTF-8 || { mkdir -p locales.tmp && localedef -i de_DE -f UTF-8 locales.tmp/de_DE.UTF-8; }; } "
                  ">/dev/null 2>&1") == 0) {
        snprintf(path, sizeof path, "%s/locales.tmp", here);
        setenv("LOCPATH", path, 1);
        found = setlocale(LC_ALL, "de_DE.UTF-8") != NULL ? "de_DE.UTF-8" : NULL;
    }
    setlocale(LC_ALL, "C");
    return found;
}

#endif
