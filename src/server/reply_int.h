/* server/reply_int.h: between reply.c and reply_text.c. */
#ifndef SERVER_REPLY_INT_H
#define SERVER_REPLY_INT_H

#include "server/reply.h"

void reply_text_open(reply *r, reply_choice *c, bool thinking);
void reply_text_close(reply_choice *c);
/* A token of the answer; *stop: the answer ends with it. False: no memory. */
bool reply_text_token(reply_choice *c, const job_event *e, bool *stop);
bool reply_text_end(reply_choice *c); /* what was held comes out */

#endif
