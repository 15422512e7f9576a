/* server/forms.h: the masks of forms that requests ask for, kept for the next request of the same form: an application
 * asks for one schema again and again. Called by the server's routes; what is in them belongs to the engine's thread.
 */
#ifndef SERVER_FORMS_H
#define SERVER_FORMS_H

#include "server/body.h"
#include "server/mask.h"

#include <pthread.h>

enum { FORMS_KEPT = 16 };

typedef struct form {
    char *key; /* NULL: free */
    masker *masks;
    int32_t holders;
    uint64_t used;
} form;

typedef struct form_cache {
    pthread_mutex_t lock;
    const token_table *table;
    uint64_t clock;
    form *forms[FORMS_KEPT];
} form_cache;

void forms_open(form_cache *cache, const token_table *table);
void forms_close(form_cache *cache);
/* The form of a request, held by the caller; NULL for text. EBB_BAD_ARGUMENT, EBB_UNSUPPORTED: its schema. */
ebb_status forms_get(form_cache *cache, const api_request *request, form **f, ebb_error *error);
/* `full`: its tables are at their limit, the next request of this form begins with new ones. */
void forms_release(form_cache *cache, form *f, bool full);

#endif
