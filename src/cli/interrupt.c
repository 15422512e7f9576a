/* cli/interrupt.c: Ctrl-C. The flag is the one mutable global of the program: a signal handler has nothing else to
 * write to. */
#define _GNU_SOURCE
#include "cli/interrupt.h"

#include <signal.h>
#include <string.h>

static volatile sig_atomic_t pressed;

static void on_interrupt(int signal_number) {
    (void)signal_number;
    pressed = 1;
}

void interrupt_watch(bool once) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt;
    action.sa_flags = once ? (int)SA_RESETHAND : 0; /* no SA_RESTART: a read returns */
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

bool interrupted(void) { return pressed != 0; }
void interrupt_clear(void) { pressed = 0; }
