/* server/forms.c: forms of answers by their text (forms.h). Called by the server's routes. */
#include "server/forms.h"
#include "core/core.h"
#include "server/schema.h"

#include <stdlib.h>
#include <string.h>

void forms_open(form_cache *cache, const token_table *table) {
    memset(cache, 0, sizeof *cache);
    cache->table = table;
    pthread_mutex_init(&cache->lock, NULL);
}

static void form_free(form *f) {
    if (!f) return;
    masker_free(f->masks);
    free(f->key);
    free(f);
}

void forms_close(form_cache *cache) {
    for (int32_t i = 0; i < FORMS_KEPT; i++) form_free(cache->forms[i]);
    pthread_mutex_destroy(&cache->lock);
}

/* ---- what a request asks for ---- */

/* Its form as a text: equal texts are equal forms. */
static char *form_key(const api_request *r) {
    json_t *what = NULL;
    if (r->form == FORM_OBJECT) what = json_string("object");
    else if (r->form == FORM_SCHEMA) what = json_pack("{s:O}", "schema", (json_t *)r->schema);
    else what = json_pack("{s:O, s:s?}", "tools", r->tools, "name", r->tool_name);
    char *key = what ? json_dumps(what, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    json_decref(what);
    return key;
}

static ebb_status call_grammar(const api_request *r, grammar **g, ebb_error *error) {
    const size_t most = json_array_size(r->tools);
    const char **names = calloc(most + 1, sizeof *names);
    json_t **parameters = calloc(most + 1, sizeof *parameters);
    json_t *tool;
    size_t i;
    int32_t n = 0;
    ebb_status status = EBB_OK;
    if (!names || !parameters) status = ebb_fail(error, EBB_NO_MEMORY, "no memory for the tools of a request");
    if (!status) {
        json_array_foreach(r->tools, i, tool) {
            const json_t *function = json_object_get(tool, "function");
            const char *name = json_string_value(json_object_get(function, "name"));
            if (r->tool_name && strcmp(name, r->tool_name) != 0) continue;
            names[n] = name;
            parameters[n] = json_object_get(function, "parameters");
            if (json_is_null(parameters[n])) parameters[n] = NULL;
            n++;
        }
        status = schema_call(names, parameters, n, g, error);
    }
    free(names), free(parameters);
    return status;
}

static ebb_status make_grammar(const api_request *r, grammar **g, ebb_error *error) {
    if (r->form == FORM_OBJECT) return schema_object(g, error);
    return r->form == FORM_SCHEMA ? schema_value(r->schema, g, error) : call_grammar(r, g, error);
}

static ebb_status make_form(const token_table *table, const api_request *r, char *key, form **f, ebb_error *error) {
    grammar *g = NULL;
    const ebb_status status = make_grammar(r, &g, error);
    form *made = status ? NULL : calloc(1, sizeof *made);
    if (!status && !made) grammar_free(g);
    if (made && !(made->masks = masker_new(table, g))) {
        free(made);
        made = NULL;
    }
    if (!made) {
        free(key);
        return status ? status : ebb_fail(error, EBB_NO_MEMORY, "no memory for the form of an answer");
    }
    made->key = key;
    *f = made;
    return EBB_OK;
}

/* ---- the cache ---- */

/* A place for one more: free, or of the form that nobody holds and was used longest ago; -1: all are held. */
static int32_t find_place(const form_cache *cache) {
    int32_t place = -1;
    for (int32_t i = 0; i < FORMS_KEPT; i++) {
        const form *f = cache->forms[i];
        if (!f) return i;
        if (!f->holders && (place < 0 || f->used < cache->forms[place]->used)) place = i;
    }
    return place;
}

ebb_status forms_get(form_cache *cache, const api_request *r, form **f, ebb_error *error) {
    *f = NULL;
    if (r->form == FORM_TEXT) return EBB_OK;
    char *key = form_key(r);
    if (!key) return ebb_fail(error, EBB_NO_MEMORY, "no memory for the form of an answer");
    ebb_status status = EBB_OK;
    pthread_mutex_lock(&cache->lock);
    for (int32_t i = 0; i < FORMS_KEPT && !*f; i++)
        if (cache->forms[i] && strcmp(cache->forms[i]->key, key) == 0) *f = cache->forms[i];
    if (*f) free(key);
    else if (!(status = make_form(cache->table, r, key, f, error))) {
        const int32_t place = find_place(cache);
        if (place >= 0) {
            form_free(cache->forms[place]);
            cache->forms[place] = *f;
        }
    }
    if (*f) (*f)->holders++, (*f)->used = ++cache->clock;
    pthread_mutex_unlock(&cache->lock);
    return status;
}

void forms_release(form_cache *cache, form *f, bool full) {
    if (!f) return;
    bool kept = false;
    pthread_mutex_lock(&cache->lock);
    f->holders--;
    for (int32_t i = 0; i < FORMS_KEPT; i++) {
        if (cache->forms[i] != f) continue;
        kept = !full;
        if (full) cache->forms[i] = NULL;
    }
    const bool gone = !kept && !f->holders;
    pthread_mutex_unlock(&cache->lock);
    if (gone) form_free(f);
}
