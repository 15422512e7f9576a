/* cli/interrupt.h: Ctrl-C as a question that long work asks, instead of the end of the program. */
#ifndef CLI_INTERRUPT_H
#define CLI_INTERRUPT_H

#include <stdbool.h>

/* From now on Ctrl-C is only noted, and a read from the terminal that waits is broken off. `once`: a second one ends
 * the program. */
void interrupt_watch(bool once);
bool interrupted(void);
void interrupt_clear(void);

#endif
