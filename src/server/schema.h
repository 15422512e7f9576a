/* server/schema.h: JSON, and JSON of a schema, as grammars (grammar.h). Called by the server when a request asks for a
 * form of its answer. What of JSON Schema is served is in docs/server.md; what is not served is refused by name. */
#ifndef SERVER_SCHEMA_H
#define SERVER_SCHEMA_H

#include "server/grammar.h"

#include <jansson.h>

/* Any JSON object. */
ebb_status schema_object(grammar **g, ebb_error *error);
/* Any JSON value of the schema. EBB_BAD_ARGUMENT names what is malformed, EBB_UNSUPPORTED the keyword not served. */
ebb_status schema_value(const json_t *schema, grammar **g, ebb_error *error);
/* A call of one of `n` functions: <tool_call>, {"name": NAME, "arguments": JSON of its schema}, </tool_call>. */
ebb_status schema_call(const char *const *names, json_t *const *parameters, int32_t n, grammar **g, ebb_error *error);

#endif
