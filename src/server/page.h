/* server/page.h: the chat page, src/server/page.html, as bytes in the program (cmake/embed.cmake). Called by http.c. */
#ifndef SERVER_PAGE_H
#define SERVER_PAGE_H

#include <stddef.h>

extern const unsigned char page[];
extern const size_t page_bytes;

#endif
