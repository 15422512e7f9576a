/* cli/method_list.h: a list of methods on the command line: "leap8:r=2,p=32,int8". */
#ifndef CLI_METHOD_LIST_H
#define CLI_METHOD_LIST_H

#include "ebb/core.h"

typedef struct method_list {
    const char **names; /* [n] */
    int32_t n;
    char *text; /* what the names point into */
} method_list;

/* Cut `text` at its commas; a comma before key=... belongs to the parameters of the method before it. EBB_BAD_ARGUMENT:
 * an empty name. */
ebb_status method_list_read(const char *text, method_list *list, ebb_error *error);
void method_list_free(method_list *list);

#endif
