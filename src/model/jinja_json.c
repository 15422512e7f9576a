/* model/jinja_json.c: values of JSON documents, and the filter tojson as transformers has it: json.dumps of Python. See
 * jinja_int.h. */
#include "model/jinja_int.h"
#include "model/tokenizer.h"

#include <math.h>
#include <stdio.h>

/* ---- documents as values ---- */

static jtext copied(jworld *w, const char *text, size_t n, bool data) {
    char *s = jnew(w, n + 1);
    uint8_t *mark = data ? jnew(w, n + 1) : NULL;
    if (!s || (data && !mark)) return jwords("");
    memcpy(s, text, n);
    if (data) memset(mark, 1, n);
    return (jtext){s, mark, n};
}

/* A role is named by who calls, and templates write <|ROLE|> with it: a plain word is as good as the template's own. */
static bool plain_word(const char *text) {
    return strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == strlen(text);
}

static jvalue object(jworld *w, const json_t *value, bool data, int32_t depth) {
    jvalue made = jnew_dict(w);
    const char *name;
    json_t *member;
    json_object_foreach((json_t *)value, name, member) { /* it is only read */
        if (w->status) break;
        const bool role = data && !strcmp(name, "role") && json_is_string(member);
        const jvalue v = jfrom_json(w, member, data && !(role && plain_word(json_string_value(member))), depth + 1);
        const jvalue key = jof_text(copied(w, name, strlen(name), data));
        if (!w->status) jdict_set(w, made.as.dict, key, v);
    }
    return made;
}

jvalue jfrom_json(jworld *w, const json_t *value, bool data, int32_t depth) {
    if (depth > J_MOST_DEPTH / 2)
        return jfail(w, EBB_BAD_ARGUMENT, "messages, tools or variables nested deeper than %d", J_MOST_DEPTH / 2);
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return object(w, value, data, depth);
    case JSON_ARRAY: {
        jvalue made = jnew_seq(w, J_LIST);
        for (size_t i = 0; !w->status && i < json_array_size(value); i++)
            jseq_add(w, made.as.seq, jfrom_json(w, json_array_get(value, i), data, depth + 1));
        return made;
    }
    case JSON_STRING:
        return jof_text(copied(w, json_string_value(value), json_string_length(value), data));
    case JSON_INTEGER:
        return jof_int(json_integer_value(value));
    case JSON_REAL:
        return jof_real(json_real_value(value));
    case JSON_TRUE:
    case JSON_FALSE:
        return jof_bool(json_is_true(value));
    case JSON_NULL:
        break;
    }
    return jof_none();
}

/* ---- tojson ---- */

typedef struct dumper {
    jworld *w;
    jbuilder b;
    jtext item, key; /* separators */
    jtext indent;    /* of one level */
    bool lines, ascii, sorted;
    int32_t depth;
} dumper;

static void dump(dumper *d, jvalue v);

static void escaped(dumper *d, uint32_t c) {
    static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
    char text[16];
    const char *simple = c < 0x80 ? strchr(from, (int)c) : NULL;
    if (simple && *simple) snprintf(text, sizeof text, "\\%c", to[simple - from]);
    else if (c < 0x10000) snprintf(text, sizeof text, "\\u%04x", c);
    else
        snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10), 0xdc00 + ((c - 0x10000) & 0x3ff));
    jput_c(d->w, &d->b, text);
}

static void dump_text(dumper *d, jtext t) {
    size_t from = 0;
    jput_c(d->w, &d->b, "\"");
    for (size_t at = 0, n; at < t.n && jspend(d->w, 0); at += n) {
        n = jchar_bytes(t, at);
        const uint32_t c = (uint32_t)utf8_decode((const uint8_t *)t.s + at, (int)n);
        if (c >= 0x20 && c != '"' && c != '\\' && (!d->ascii || c < 0x7f)) continue;
        jput(d->w, &d->b, jpart(t, from, at));
        escaped(d, c);
        from = at + n;
    }
    jput(d->w, &d->b, jpart(t, from, t.n));
    jput_c(d->w, &d->b, "\"");
}

static void new_line(dumper *d) {
    if (!d->lines) return;
    jput_c(d->w, &d->b, "\n");
    for (int32_t i = 0; i < d->depth; i++) jput(d->w, &d->b, d->indent);
}

static void dump_real(dumper *d, double real) {
    if (isfinite(real)) jput(d->w, &d->b, jrepr_real(d->w, real));
    else jput_c(d->w, &d->b, isnan(real) ? "NaN" : real > 0 ? "Infinity" : "-Infinity");
}

static void dump_key(dumper *d, jvalue key) {
    if (key.kind == J_TEXT) dump_text(d, key.as.text);
    else if (jnumber(key) || key.kind == J_NONE) {
        jput_c(d->w, &d->b, "\"");
        dump(d, key);
        jput_c(d->w, &d->b, "\"");
    } else jfail(d->w, EBB_BAD_FILE, "tojson: a key that is a '%s'", jkind_name(key));
}

/* The members in the order of their keys. */
static jdict sorted_members(dumper *d, const jdict *from) {
    jvalue made = jnew_dict(d->w);
    if (d->w->status) return (jdict){0};
    for (size_t i = 0; i < from->n && !d->w->status; i++) {
        jdict_set(d->w, made.as.dict, from->key[i], from->value[i]);
        jdict *m = made.as.dict;
        for (size_t j = m->n - 1; j > 0 && !d->w->status && jcompare(d->w, m->key[j], m->key[j - 1]) < 0; j--) {
            const jvalue key = m->key[j], value = m->value[j];
            m->key[j] = m->key[j - 1], m->value[j] = m->value[j - 1];
            m->key[j - 1] = key, m->value[j - 1] = value;
        }
    }
    return d->w->status ? (jdict){0} : *made.as.dict;
}

static void dump_dict(dumper *d, const jdict *dict) {
    const jdict members = d->sorted ? sorted_members(d, dict) : *dict;
    jput_c(d->w, &d->b, "{");
    d->depth++;
    for (size_t i = 0; i < members.n && !d->w->status; i++) {
        if (i) jput(d->w, &d->b, d->item);
        new_line(d);
        dump_key(d, members.key[i]);
        jput(d->w, &d->b, d->key);
        dump(d, members.value[i]);
    }
    d->depth--;
    if (members.n) new_line(d);
    jput_c(d->w, &d->b, "}");
}

static void dump_list(dumper *d, const jseq *seq) {
    jput_c(d->w, &d->b, "[");
    d->depth++;
    for (size_t i = 0; i < seq->n && !d->w->status; i++) {
        if (i) jput(d->w, &d->b, d->item);
        new_line(d);
        dump(d, seq->v[i]);
    }
    d->depth--;
    if (seq->n) new_line(d);
    jput_c(d->w, &d->b, "]");
}

static void dump(dumper *d, jvalue v) {
    jworld *w = d->w;
    if (jspend(w, 0) && jenter(w)) {
        if (v.kind == J_TEXT) dump_text(d, v.as.text);
        else if (v.kind == J_NONE) jput_c(w, &d->b, "null");
        else if (v.kind == J_BOOL) jput_c(w, &d->b, v.as.yes ? "true" : "false");
        else if (v.kind == J_INT) jput(w, &d->b, jto_text(w, v));
        else if (v.kind == J_REAL) dump_real(d, v.as.real);
        else if (v.kind == J_LIST || v.kind == J_TUPLE) dump_list(d, v.as.seq);
        else if (v.kind == J_DICT) dump_dict(d, v.as.dict);
        else jfail(w, EBB_BAD_FILE, "tojson: a '%s' is not JSON serializable", jkind_name(v));
    }
    w->depth--;
}

/* json.dumps has no blank behind a comma where it breaks lines. */
jvalue jfilter_tojson(jworld *w, jvalue self, const jargs *args) {
    const jvalue indent = args->v[1], separators = args->v[2];
    dumper d = {.w = w, .key = jwords(": ")};
    d.ascii = jtruth(args->v[0]);
    d.sorted = jtruth(args->v[3]);
    d.lines = indent.kind != J_ABSENT && indent.kind != J_NONE;
    d.item = jwords(d.lines ? "," : ", ");
    if (indent.kind == J_TEXT) d.indent = indent.as.text;
    else {
        const int64_t n = jint_arg(w, indent, 0);
        jbuilder blanks = {0};
        for (int64_t i = 0; i < n && jspend(w, 0); i++) jput_c(w, &blanks, " ");
        d.indent = jbuilt(&blanks);
    }
    if (separators.kind == J_LIST || separators.kind == J_TUPLE) {
        if (separators.as.seq->n != 2) return jfail(w, EBB_BAD_FILE, "tojson: separators must be two");
        d.item = jtext_arg(w, separators.as.seq->v[0], "");
        d.key = jtext_arg(w, separators.as.seq->v[1], "");
    } else if (separators.kind != J_ABSENT && separators.kind != J_NONE)
        return jfail(w, EBB_BAD_FILE, "tojson: separators must be a pair");
    dump(&d, self);
    return jof_text(jbuilt(&d.b));
}
