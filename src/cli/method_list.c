/* cli/method_list.c: a list of methods on the command line. Called by commands that compare methods. */
#include "cli/method_list.h"

#include <stdlib.h>
#include <string.h>

/* Does a parameter begin here: key=...? A method has a colon, a comma or the end before any equals sign. */
static bool is_parameter(const char *word) { return word[strcspn(word, ",:=")] == '='; }

ebb_status method_list_read(const char *text, method_list *list, ebb_error *error) {
    const size_t bytes = strlen(text) + 1;
    int32_t most = 1;
    for (const char *c = text; *c; c++) most += *c == ',';
    *list = (method_list){.names = calloc((size_t)most, sizeof *list->names), .text = malloc(bytes)};
    if (!list->names || !list->text) {
        method_list_free(list);
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for a list of methods");
    }
    memcpy(list->text, text, bytes);
    for (char *c = list->text, *name = c;; c++) {
        const bool end = *c == '\0';
        if (!end && (*c != ',' || is_parameter(c + 1))) continue;
        *c = '\0';
        if (!*name) {
            method_list_free(list);
            return ebb_fail(error, EBB_BAD_ARGUMENT, "'%s' has an empty name, expected METHOD,METHOD,...", text);
        }
        list->names[list->n++] = name;
        name = c + 1;
        if (end) return EBB_OK;
    }
}

void method_list_free(method_list *list) {
    free(list->names), free(list->text);
    *list = (method_list){0};
}
