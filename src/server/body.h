/* server/body.h: the JSON bodies of requests, read and checked before anything is done. Called by the server's routes.
 * docs/server.md has the fields. One that is not known is refused by name, as is a value out of its range. */
#ifndef SERVER_BODY_H
#define SERVER_BODY_H

#include "ebb/op.h"

#include <jansson.h>

enum { BODY_MOST_CHOICES = 16, BODY_MOST_LOGPROBS = 20, BODY_MOST_BIAS = 1024 };

typedef enum answer_form { FORM_TEXT, FORM_OBJECT, FORM_SCHEMA, FORM_CALL } answer_form;
typedef enum tool_choice { TOOLS_AUTO, TOOLS_NONE, TOOLS_REQUIRED, TOOLS_NAMED } tool_choice;

typedef struct token_bias {
    int32_t token;
    float bias;
} token_bias;

typedef struct api_request {
    bool chat;    /* /v1/chat/completions, else /v1/completions */
    json_t *root; /* the body: texts below lie in it */
    const char *model;
    bool stream, stream_usage, progress;

    json_t *messages; /* as templates want them */
    json_t *tools;    /* in `root`; NULL: none, or tool_choice is none */
    tool_choice choice;
    const char *tool_name; /* TOOLS_NAMED */
    bool one_call;         /* parallel_tool_calls is false: an answer ends with its first call */
    json_t *variables;     /* for the template, or NULL */
    bool split_reasoning;

    json_t *prompts; /* of a completion: array of texts and of arrays of ids */
    bool echo;

    int32_t n;
    int64_t max_tokens; /* -1: as many as the context holds */
    ebb_sampling sampling;
    double presence, frequency;
    int32_t logprobs; /* -1: none; else how many of the likeliest beside the one taken */
    token_bias *bias;
    int32_t n_bias;
    const char *stops[16];
    int32_t n_stops;
    answer_form form;
    const json_t *schema;
    bool ignore_stop; /* tokens that end an answer do not: for load generators */
} api_request;

/* `preset`: the sampling where the body says nothing. EBB_BAD_ARGUMENT or EBB_UNSUPPORTED with the sentence for the
 * client. */
ebb_status body_read(bool chat, const char *text, size_t bytes, const ebb_sampling *preset, api_request *r,
                     ebb_error *error);
void body_free(api_request *r);

/* {"content" or "text" or "prompt": TEXT, "add_special": flag} of /tokenize; {"tokens": [...]} of /detokenize. */
ebb_status body_tokenize(const char *text, size_t bytes, json_t **root, const char **content, bool *special,
                         ebb_error *error);
ebb_status body_detokenize(const char *text, size_t bytes, json_t **root, json_t **tokens, ebb_error *error);

#endif
