/* cli/json_out.h: building the JSON that commands print. A member that cannot be made (no memory, or a text that is not
 * UTF-8) must not be left out in silence: then these give up the whole and answer NULL, which they also take and pass
 * on, as json_pack does. Called by the commands. */
#ifndef CLI_JSON_OUT_H
#define CLI_JSON_OUT_H

#include <jansson.h>

/* `array` with one more value, which is taken. */
static inline json_t *json_and(json_t *array, json_t *value) {
    if (array && json_array_append_new(array, value) == 0) return array;
    if (!array) json_decref(value); /* else it is released already */
    json_decref(array);
    return NULL;
}

/* `object` with one more member, whose value is taken. */
static inline json_t *json_with(json_t *object, const char *key, json_t *value) {
    if (object && json_object_set_new(object, key, value) == 0) return object;
    if (!object) json_decref(value);
    json_decref(object);
    return NULL;
}

#endif
