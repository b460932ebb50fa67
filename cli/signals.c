/* SPDX-License-Identifier: Apache-2.0
 *
 * signals.c - Ctrl-C: the first asks the work to stop, the second ends the process at once.  A closed pipe ends it quietly.
 */
#include "config.h"
#include "cli_internal.h"
#include <signal.h>
#include <unistd.h>

static volatile sig_atomic_t interrupts;

static void on_interrupt(int signal)
{
    (void)signal;
    if (interrupts++ > 0)
        _exit(130);
    base_cancel_request();
}

void cli_signals_init(void)
{
    struct sigaction act = {.sa_handler = on_interrupt};
    sigemptyset(&act.sa_mask);
    sigaction(SIGINT, &act, NULL); /* no SA_RESTART: a read from the terminal has to come back */
    act.sa_handler = SIG_DFL; /* whoever started us may have ignored it */
    sigaction(SIGPIPE, &act, NULL);
}

void cli_signals_reset(void)
{
    interrupts = 0;
    base_cancel_reset();
}

bool cli_interrupted(void)
{
    return interrupts > 0;
}
