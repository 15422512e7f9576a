/* server/body_int.h: between body.c and body_chat.c. */
#ifndef SERVER_BODY_INT_H
#define SERVER_BODY_INT_H

#include "server/body.h"

json_t *body_member(const json_t *object, const char *key); /* NULL: absent or null */
ebb_status body_chat(api_request *r, ebb_error *error);     /* messages, tools and what else only chats have */

#endif
