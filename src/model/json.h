/* model/json.h: reading the JSON files of a model folder: small helpers over jansson. Every failure is one sentence
 * that names the file, the field and what was expected. For src/model only. */
#ifndef MODEL_JSON_H
#define MODEL_JSON_H

#include <jansson.h>

#include "core/core.h"

/* A value and where it stands, for sentences. `file` is borrowed from the caller of json_open. */
typedef struct json_place {
    const json_t *value;
    const char *file;
    char path[96]; /* "model.vocab"; empty for the whole file */
} json_place;

/* Load `file`, at most `limit` bytes, whose top value is an object; a key that appears twice in one object is refused.
 * `root` stands at the top and owns the document until json_close. */
ebb_status json_open(const char *file, size_t limit, json_place *root, ebb_error *error);
void json_close(json_place *root); /* after a failed json_open it does nothing */

/* The tail of a long path, cut at a slash: sentences have little room. */
const char *json_file(const char *path);
/* `text` as it can stand in a sentence: control characters become '?', long text is cut at a character. Returns `out`.
 */
const char *json_shown(const char *text, char out[64]);

/* Members of the object at `at`. An optional member that is absent or null leaves *value alone. */
typedef enum json_need { JSON_NEEDED, JSON_OPTIONAL } json_need;
bool json_has(const json_place *at, const char *key); /* present and not null */
ebb_status json_get_bool(const json_place *at, const char *key, json_need need, bool *value, ebb_error *error);
/* A whole number lo .. hi (2.0 is one, 2.5 is not). */
ebb_status json_get_int(const json_place *at, const char *key, json_need need, int64_t lo, int64_t hi, int64_t *value,
                        ebb_error *error);
ebb_status json_get_number(const json_place *at, const char *key, json_need need, double *value, ebb_error *error);
ebb_status json_get_text(const json_place *at, const char *key, json_need need, const char **value, ebb_error *error);
ebb_status json_get_object(const json_place *at, const char *key, json_need need, json_place *value, ebb_error *error);
/* json_array_size(value->value) elements; take them with json_item. */
ebb_status json_get_array(const json_place *at, const char *key, json_need need, json_place *value, ebb_error *error);
/* Element `i` (in range) of the array at `at`, of any type. */
void json_item(const json_place *at, size_t i, json_place *item);
/* An error about the value at `at`: "FILE: field PATH " and then the formatted text. */
ebb_status json_fail(const json_place *at, ebb_error *error, ebb_status code, const char *format, ...) EBB_PRINTF(4, 5);

#endif
