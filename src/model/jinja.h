/* model/jinja.h: chat templates are programs in Jinja; this runs them, as jinja2 does when transformers compiles them:
 * immutable sandbox, trim_blocks, lstrip_blocks, loop controls, its own tojson, raise_exception, strftime_now. The part
 * of the language that templates of released models use is served; what is beyond it is refused by line. Called by
 * chat.c and tests. */
#ifndef MODEL_JINJA_H
#define MODEL_JINJA_H

#include <jansson.h>

#include "core/core.h"

/* What a hostile template may use up before it ends with a sentence; 0: the usual amount. */
typedef struct jinja_limits {
    int64_t steps; /* nodes run, and bytes looked at in units of 16 */
    size_t memory, output;
} jinja_limits;

typedef struct jinja_call {
    const char *source; /* UTF-8 */
    size_t bytes;
    const json_t *data;    /* object: variables whose texts come from people */
    const json_t *trusted; /* the same, of the model's own files; may be NULL */
    int64_t now;           /* of strftime_now, in seconds since 1970 on the local clock; 0: it is not defined */
    jinja_limits limits;
} jinja_call;

typedef struct jinja_text {
    char *text; /* NUL-terminated, malloc'ed */
    uint8_t
        *from_data; /* [bytes], malloc'ed: 1 where a byte comes from a text of `data`, so that it is no special token */
    size_t bytes;
} jinja_text;

/* EBB_BAD_FILE: a template that is wrong, or takes too much; EBB_UNSUPPORTED: beyond what is served; EBB_BAD_ARGUMENT:
 * it does not take the data (raise_exception); EBB_NO_MEMORY. Sentences begin with "chat template, line N". */
ebb_status jinja_render(const jinja_call *call, jinja_text *out, ebb_error *error);
void jinja_text_free(jinja_text *text);

#endif
