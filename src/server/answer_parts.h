/* server/answer_parts.h: the parts of an answer as it comes: what the model thinks, what it says, which functions it
 * calls; and the strings at which an answer ends. Called by the server.
 *
 * Qwen writes thoughts between <think> and </think>, calls as JSON, or as <function=NAME><parameter=KEY>, between
 * <tool_call> and </tool_call>. Kimi writes <|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>JSON
 * <|tool_call_end|>. Models forget newlines and closing marks: what can be understood is a call, and what cannot comes
 * out as text. Nothing that a model writes is an error. */
#ifndef SERVER_ANSWER_PARTS_H
#define SERVER_ANSWER_PARTS_H

#include "ebb/core.h"

#include <jansson.h>

/* ---- text that grows ---- */

typedef struct text_buffer {
    char *data; /* NUL-terminated where not NULL */
    size_t bytes, room;
} text_buffer;
bool text_add(text_buffer *text, const char *data, size_t bytes); /* false: no memory */
bool text_format(text_buffer *text, const char *format, ...) EBB_PRINTF(2, 3);
void text_drop(text_buffer *text, size_t bytes); /* the first ones */
void text_free(text_buffer *text);

/* ---- stop strings ---- */

enum { STOP_MOST = 16, STOP_LONGEST = 1024 };

typedef struct stop_strings {
    const char *const *strings; /* [n], none of them empty */
    int32_t n;
    text_buffer held; /* what may be the beginning of one of them */
    bool stopped;
} stop_strings;
/* Feed text; `out` gets what is certain to come before any stop string. Once one is complete, stopped is true, and what
 * follows is dropped. */
bool stop_feed(stop_strings *s, const char *text, size_t bytes, text_buffer *out);
bool stop_end(stop_strings *s, text_buffer *out); /* the answer is over: what was held is text */
void stop_free(stop_strings *s);

/* ---- parts ---- */

typedef enum part_kind { PART_CONTENT, PART_REASONING } part_kind;

/* Where parts go; false ends the parsing: no memory. `arguments` is the text of a JSON object. */
typedef struct part_sink {
    void *ctx;
    bool (*text)(void *ctx, part_kind kind, const char *text, size_t bytes);
    bool (*call)(void *ctx, const char *name, const char *arguments);
} part_sink;

typedef struct part_parser {
    part_sink sink;
    const json_t *tools; /* the request's tools, or NULL: calls are text then */
    bool reasoning;      /* <think> begins thoughts */
    bool thinking;       /* the answer begins inside of thoughts: the prompt opened them */
    /* the parser's own */
    bool begun, called, said;
    bool fresh; /* blanks that come now belong to the mark before them, not to the text */
    int32_t state, tries;
    size_t seen; /* of what is held: there is no mark in it */
    text_buffer held;
} part_parser;

bool part_feed(part_parser *p, const char *text, size_t bytes);
bool part_end(part_parser *p);
bool part_thinking(const part_parser *p); /* does it stand in thoughts? */
void part_free(part_parser *p);

/* The calls in the text between <tool_call> and </tool_call>, with what is missing of closing braces: their number, 0
 * when it cannot be understood, -1 without memory. */
int32_t parse_calls(const char *text, size_t bytes, const json_t *tools, const part_sink *sink);

#endif
