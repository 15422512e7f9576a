/* server/schema.c: from JSON Schema to a grammar (schema.h). Called by the server.
 *
 * Blanks between tokens of JSON are bounded (one, or a newline and up to sixteen), numbers too (18 digits, 16 behind
 * the point, two of an exponent): a model cannot go on for ever inside either. Members come in the order of
 * `properties`. */
#include "server/schema.h"
#include "core/core.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_DEPTH = 64, MOST_PROPERTIES = 512, MOST_COUNT = 1024, MOST_REFS = 256, BLANKS = 16 };

/* A sequence of elements that is being written. */
typedef struct sequence {
    grammar_element e[GRAMMAR_ALTERNATIVE];
    int32_t n;
    bool full;
} sequence;

typedef struct builder {
    grammar *g;
    const json_t *root;
    const char *where; /* the property that is being read, for sentences */
    int32_t depth;
    ebb_error *error;
    int32_t space, string, chars, character, integer, number, value, object, array;
    struct {
        const json_t *schema;
        int32_t rule;
    } refs[MOST_REFS];
    int32_t n_refs;
    sequence s; /* of the alternative at hand: never across a call that builds another */
} builder;

static ebb_status build(builder *b, const json_t *schema, int32_t *rule);

/* ---- sequences ---- */

static sequence *begin(builder *b) {
    b->s.n = 0, b->s.full = false;
    return &b->s;
}

static void put(sequence *s, grammar_element e) {
    if (s->n < GRAMMAR_ALTERNATIVE) s->e[s->n++] = e;
    else s->full = true;
}

static void put_text(sequence *s, const char *text) {
    for (; *text; text++) put(s, grammar_byte((uint8_t)*text));
}

static void put_rule(sequence *s, int32_t rule) { put(s, grammar_of(rule)); }

static ebb_status end(builder *b, int32_t rule) {
    if (b->s.full)
        return ebb_fail(b->error, EBB_BAD_ARGUMENT, "the schema has a name or a value of more than %d bytes",
                        GRAMMAR_ALTERNATIVE);
    grammar_alternative(b->g, rule, b->s.e, b->s.n);
    return EBB_OK;
}

/* One byte of these: pairs of first and last, as "az09". */
static grammar_element one_of(grammar *g, const char *pairs) {
    uint8_t bits[32] = {0};
    for (; *pairs; pairs += 2)
        for (int32_t c = (uint8_t)pairs[0]; c <= (uint8_t)pairs[1]; c++) bits[c >> 3] |= (uint8_t)(1 << (c & 7));
    return grammar_set(g, bits);
}

/* An alternative in short: bytes stand for themselves, ranges in [] as for one_of. */
static void add(builder *b, int32_t rule, const char *text) {
    sequence *s = begin(b);
    while (*text) {
        if (*text != '[') {
            put(s, grammar_byte((uint8_t)*text++));
            continue;
        }
        char pairs[32];
        const size_t n = strcspn(text + 1, "]");
        memcpy(pairs, text + 1, n);
        pairs[n] = '\0';
        put(s, one_of(b->g, pairs));
        text += n + 2;
    }
    grammar_alternative(b->g, rule, s->e, s->n);
}

static void add_rules(builder *b, int32_t rule, const char *before, int32_t first, int32_t second, int32_t third) {
    sequence *s = begin(b);
    put_text(s, before);
    if (first >= 0) put_rule(s, first);
    if (second >= 0) put_rule(s, second);
    if (third >= 0) put_rule(s, third);
    grammar_alternative(b->g, rule, s->e, s->n);
}

/* ---- what every grammar of JSON has ---- */

/* Up to `most` times `one`. */
static int32_t up_to(builder *b, grammar_element one, int32_t most) {
    int32_t rest = grammar_rule(b->g);
    grammar_alternative(b->g, rest, NULL, 0);
    for (int32_t i = 0; i < most; i++) {
        const int32_t rule = grammar_rule(b->g);
        const grammar_element e[2] = {one, grammar_of(rest)};
        grammar_alternative(b->g, rule, NULL, 0);
        grammar_alternative(b->g, rule, e, 2);
        rest = rule;
    }
    return rest;
}

static void add_characters(builder *b) {
    uint8_t plain[32] = {0};
    for (int32_t c = 0x20; c < 0x80; c++)
        if (c != '"' && c != '\\') plain[c >> 3] |= (uint8_t)(1 << (c & 7));
    const grammar_element any = grammar_set(b->g, plain);
    b->character = grammar_rule(b->g);
    grammar_alternative(b->g, b->character, &any, 1);
    add(b, b->character, "\\[\"\"\\\\//bbffnnrrtt]");
    /* \uXXXX, surrogates in pairs only */
    add(b, b->character, "\\u[09acACefEF][09afAF][09afAF][09afAF]");
    add(b, b->character, "\\u[ddDD][07][09afAF][09afAF]");
    add(b, b->character, "\\u[ddDD][89abAB][09afAF][09afAF]\\u[ddDD][cfCF][09afAF][09afAF]");
    /* well-formed UTF-8 */
    add(b, b->character, "[\xc2\xdf][\x80\xbf]");
    add(b, b->character, "\xe0[\xa0\xbf][\x80\xbf]");
    add(b, b->character, "[\xe1\xec\xee\xef][\x80\xbf][\x80\xbf]");
    add(b, b->character, "\xed[\x80\x9f][\x80\xbf]");
    add(b, b->character, "\xf0[\x90\xbf][\x80\xbf][\x80\xbf]");
    add(b, b->character, "[\xf1\xf3][\x80\xbf][\x80\xbf][\x80\xbf]");
    add(b, b->character, "\xf4[\x80\x8f][\x80\xbf][\x80\xbf]");
}

static void add_numbers(builder *b) {
    const grammar_element digit = one_of(b->g, "09");
    const int32_t more = up_to(b, digit, 17), decimals = up_to(b, digit, 15), power = up_to(b, digit, 1);
    const int32_t natural = grammar_rule(b->g), fraction = grammar_rule(b->g), exponent = grammar_rule(b->g);
    const grammar_element large[] = {one_of(b->g, "19"), grammar_of(more)};
    const grammar_element behind[] = {grammar_byte('.'), digit, grammar_of(decimals)};
    const grammar_element e = one_of(b->g, "eeEE"), sign = one_of(b->g, "++--");
    const grammar_element bare[] = {e, digit, grammar_of(power)}, with[] = {e, sign, digit, grammar_of(power)};
    add(b, natural, "0");
    grammar_alternative(b->g, natural, large, 2);
    grammar_alternative(b->g, fraction, NULL, 0);
    grammar_alternative(b->g, fraction, behind, 3);
    grammar_alternative(b->g, exponent, NULL, 0);
    grammar_alternative(b->g, exponent, bare, 3);
    grammar_alternative(b->g, exponent, with, 4);
    b->integer = grammar_rule(b->g), b->number = grammar_rule(b->g);
    add_rules(b, b->integer, "", natural, -1, -1);
    add_rules(b, b->integer, "-", natural, -1, -1);
    add_rules(b, b->number, "", b->integer, fraction, exponent);
}

/* KEY blanks : blanks VALUE blanks REST, behind `before`. */
static void put_member(builder *b, sequence *s, const char *before, const char *key, int32_t value, int32_t rest) {
    put_text(s, before);
    if (*before) put_rule(s, b->space);
    if (key) put_text(s, key);
    else put_rule(s, b->string);
    put_rule(s, b->space);
    put_text(s, ":");
    put_rule(s, b->space);
    put_rule(s, value);
    put_rule(s, b->space);
    put_rule(s, rest);
}

/* Any value, and an object of any members, each of the rule `value`. */
static int32_t object_of(builder *b, int32_t value) {
    const int32_t rest = grammar_rule(b->g);
    add(b, rest, "}");
    put_member(b, begin(b), ",", NULL, value, rest);
    end(b, rest);
    const int32_t first = grammar_rule(b->g);
    add(b, first, "}");
    put_member(b, begin(b), "", NULL, value, rest);
    end(b, first);
    const int32_t whole = grammar_rule(b->g);
    add_rules(b, whole, "{", b->space, first, -1);
    return whole;
}

/* From `least` to `most` items (most < 0: any number) of the rule `value`. */
static int32_t array_of(builder *b, int32_t value, int32_t least, int32_t most) {
    const int32_t loop = most >= 0 ? most : least > 1 ? least : 1;
    int32_t after = -1;
    for (int32_t k = loop; k >= 0; k--) { /* after k items */
        const int32_t rule = grammar_rule(b->g);
        if (k >= least) add(b, rule, "]");
        if (k < loop || most < 0) {
            sequence *s = begin(b);
            if (k) put_text(s, ","), put_rule(s, b->space);
            put_rule(s, value), put_rule(s, b->space), put_rule(s, k < loop ? after : rule);
            end(b, rule);
        }
        after = rule;
    }
    const int32_t array = grammar_rule(b->g);
    add_rules(b, array, "[", b->space, after, -1);
    return array;
}

static void add_common(builder *b) {
    const grammar_element newline = grammar_byte('\n'), blank = grammar_byte(' ');
    const grammar_element line[] = {newline, grammar_of(up_to(b, blank, BLANKS))};
    b->space = grammar_rule(b->g);
    grammar_alternative(b->g, b->space, NULL, 0);
    grammar_alternative(b->g, b->space, &blank, 1);
    grammar_alternative(b->g, b->space, line, 2);
    add_characters(b);
    b->chars = grammar_rule(b->g), b->string = grammar_rule(b->g);
    add(b, b->chars, "\"");
    add_rules(b, b->chars, "", b->character, b->chars, -1);
    add_rules(b, b->string, "\"", b->chars, -1, -1);
    add_numbers(b);
    b->value = grammar_rule(b->g);
    b->object = object_of(b, b->value);
    b->array = array_of(b, b->value, 0, -1);
    add_rules(b, b->value, "", b->string, -1, -1);
    add_rules(b, b->value, "", b->number, -1, -1);
    add_rules(b, b->value, "", b->object, -1, -1);
    add_rules(b, b->value, "", b->array, -1, -1);
    add(b, b->value, "true");
    add(b, b->value, "false");
    add(b, b->value, "null");
}

/* ---- schemas ---- */

enum {
    AT_ANY = 1,
    AT_REF = 2,
    AT_CHOICE = 4,
    AT_LITERAL = 8,
    AT_OBJECT = 16,
    AT_ARRAY = 32,
    AT_STRING = 64,
    AT_ALL = 127
};

static ebb_status unserved(builder *b, const char *what) {
    return ebb_fail(b->error, EBB_UNSUPPORTED, "schema%s%.60s: %s", b->where ? " of property " : "",
                    b->where ? b->where : "", what);
}

/* Every keyword has to be one that this place serves, or one that constrains nothing. */
static ebb_status check_keywords(builder *b, const json_t *schema, int32_t at) {
    static const struct {
        const char *name;
        int32_t at;
    } known[] = {
        {"title", AT_ALL},
        {"description", AT_ALL},
        {"default", AT_ALL},
        {"examples", AT_ALL},
        {"$schema", AT_ALL},
        {"$id", AT_ALL},
        {"$comment", AT_ALL},
        {"deprecated", AT_ALL},
        {"readOnly", AT_ALL},
        {"writeOnly", AT_ALL},
        {"$defs", AT_ALL},
        {"definitions", AT_ALL},
        {"$ref", AT_REF},
        {"anyOf", AT_CHOICE},
        {"oneOf", AT_CHOICE},
        {"allOf", AT_CHOICE},
        {"enum", AT_LITERAL},
        {"const", AT_LITERAL},
        {"properties", AT_OBJECT},
        {"required", AT_OBJECT},
        {"additionalProperties", AT_OBJECT},
        {"items", AT_ARRAY},
        {"minItems", AT_ARRAY},
        {"maxItems", AT_ARRAY},
        {"minLength", AT_STRING},
        {"maxLength", AT_STRING},
        {"type", AT_ANY | AT_LITERAL | AT_OBJECT | AT_ARRAY | AT_STRING},
    };
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)schema, key, value) {
        bool served = false;
        for (int32_t i = 0; i < COUNT(known); i++) served |= strcmp(known[i].name, key) == 0 && (known[i].at & at);
        if (served) continue;
        char what[120];
        snprintf(what, sizeof what, "the keyword '%.50s' is not served here", key);
        return unserved(b, what);
    }
    return EBB_OK;
}

/* A count that a keyword gives; `absent` where it is not there. */
static ebb_status read_count(builder *b, const json_t *schema, const char *key, int32_t absent, int32_t *count) {
    const json_t *value = json_object_get(schema, key);
    *count = absent;
    if (!value) return EBB_OK;
    if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) > MOST_COUNT) {
        char what[120];
        snprintf(what, sizeof what, "%s must be a whole number from 0 to %d", key, MOST_COUNT);
        return unserved(b, what);
    }
    *count = (int32_t)json_integer_value(value);
    return EBB_OK;
}

static bool has_type(const json_t *value, const char *type) {
    if (strcmp(type, "string") == 0) return json_is_string(value);
    if (strcmp(type, "integer") == 0) return json_is_integer(value);
    if (strcmp(type, "number") == 0) return json_is_number(value);
    if (strcmp(type, "boolean") == 0) return json_is_boolean(value);
    if (strcmp(type, "null") == 0) return json_is_null(value);
    if (strcmp(type, "object") == 0) return json_is_object(value);
    return strcmp(type, "array") == 0 && json_is_array(value);
}

static bool allows(const json_t *types, const json_t *value) {
    const json_t *one;
    size_t i;
    if (!types) return true;
    if (json_is_string(types)) return has_type(value, json_string_value(types));
    json_array_foreach((json_t *)types, i,
                       one) if (json_is_string(one) && has_type(value, json_string_value(one))) return true;
    return false;
}

static ebb_status add_literal(builder *b, int32_t rule, const json_t *value) {
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    if (!text) return ebb_fail(b->error, EBB_NO_MEMORY, "no memory for a value of a schema");
    put_text(begin(b), text);
    free(text);
    return end(b, rule);
}

static ebb_status build_literals(builder *b, const json_t *schema, int32_t rule) {
    const json_t *one = json_object_get(schema, "const"), *all = json_object_get(schema, "enum"), *value;
    const json_t *types = json_object_get(schema, "type");
    size_t i;
    ebb_status status = check_keywords(b, schema, AT_LITERAL);
    if (status) return status;
    if (one) return allows(types, one) ? add_literal(b, rule, one) : unserved(b, "const is not of the type");
    if (!json_is_array(all) || !json_array_size(all)) return unserved(b, "enum must be an array of at least one value");
    json_array_foreach((json_t *)all, i, value) {
        if (!allows(types, value)) return unserved(b, "enum has a value that is not of the type");
        if ((status = add_literal(b, rule, value))) return status;
    }
    return EBB_OK;
}

static ebb_status build_choice(builder *b, const json_t *schema, int32_t rule) {
    const json_t *all = json_object_get(schema, "anyOf"), *one;
    size_t i;
    ebb_status status = check_keywords(b, schema, AT_CHOICE);
    if (status) return status;
    if (!all) all = json_object_get(schema, "oneOf");
    if (!all && json_array_size(json_object_get(schema, "allOf")) != 1)
        return unserved(b, "allOf is served with one schema only");
    if (!all) all = json_object_get(schema, "allOf");
    if (!json_is_array(all) || !json_array_size(all))
        return unserved(b, "anyOf must be an array of at least one schema");
    json_array_foreach((json_t *)all, i, one) {
        int32_t inner;
        if ((status = build(b, one, &inner))) return status;
        add_rules(b, rule, "", inner, -1, -1);
    }
    return EBB_OK;
}

/* The schema that "#/$defs/NAME" names; NULL: there is none. */
static const json_t *find_ref(const builder *b, const char *ref) {
    const json_t *at = b->root;
    if (*ref++ != '#') return NULL;
    while (at && *ref) {
        char name[256];
        size_t n = 0;
        if (*ref++ != '/') return NULL;
        while (*ref && *ref != '/' && n < sizeof name - 1) {
            name[n] = *ref++;
            if (name[n] == '~' && (*ref == '0' || *ref == '1')) name[n] = *ref++ == '0' ? '~' : '/';
            n++;
        }
        name[n] = '\0';
        at = json_object_get(at, name);
    }
    return at;
}

static ebb_status build_ref(builder *b, const json_t *schema, int32_t *rule) {
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    const json_t *target = ref ? find_ref(b, ref) : NULL;
    ebb_status status = check_keywords(b, schema, AT_REF);
    if (status) return status;
    if (!target) return unserved(b, "$ref must name a schema of the same document, as #/$defs/NAME");
    for (int32_t i = 0; i < b->n_refs; i++) {
        if (b->refs[i].schema != target) continue;
        *rule = b->refs[i].rule;
        return EBB_OK;
    }
    if (b->n_refs == MOST_REFS) return unserved(b, "more than 256 schemas are named by $ref");
    const int32_t own = grammar_rule(b->g); /* known before it is built: it may name itself */
    int32_t inner;
    b->refs[b->n_refs].schema = target;
    b->refs[b->n_refs++].rule = own;
    if ((status = build(b, target, &inner))) return status;
    add_rules(b, own, "", inner, -1, -1);
    *rule = own;
    return EBB_OK;
}

/* ---- objects ---- */

typedef struct member {
    char *key; /* as JSON, quoted */
    int32_t value;
    bool needed;
} member;

static bool is_needed(const json_t *required, const char *name) {
    const json_t *one;
    size_t i;
    json_array_foreach((json_t *)required, i,
                       one) if (json_is_string(one) && !strcmp(json_string_value(one), name)) return true;
    return false;
}

static ebb_status check_required(builder *b, const json_t *required, const json_t *properties) {
    const json_t *one;
    size_t i;
    if (!required) return EBB_OK;
    if (!json_is_array(required)) return unserved(b, "required must be an array of names");
    json_array_foreach((json_t *)required, i, one) {
        if (!json_is_string(one)) return unserved(b, "required must be an array of names");
        if (!json_object_get(properties, json_string_value(one)))
            return unserved(b, "required names a property that properties does not have");
    }
    return EBB_OK;
}

/* Where members m[i ..] follow: the rules with and without a comma before the next one. */
static ebb_status join_members(builder *b, const member *m, int32_t n, int32_t extra, int32_t whole) {
    int32_t next = grammar_rule(b->g), first = grammar_rule(b->g);
    ebb_status status = EBB_OK;
    add(b, next, "}");
    add(b, first, "}");
    if (extra >= 0) {
        put_member(b, begin(b), ",", NULL, extra, next);
        end(b, next);
        put_member(b, begin(b), "", NULL, extra, next);
        end(b, first);
    }
    for (int32_t i = n - 1; i >= 0 && !status; i--) {
        const int32_t with = grammar_rule(b->g), without = grammar_rule(b->g);
        put_member(b, begin(b), ",", m[i].key, m[i].value, next);
        status = end(b, with);
        put_member(b, begin(b), "", m[i].key, m[i].value, next);
        if (!status) status = end(b, without);
        if (!m[i].needed) add_rules(b, with, "", next, -1, -1), add_rules(b, without, "", first, -1, -1);
        next = with, first = without;
    }
    if (!status) add_rules(b, whole, "{", b->space, first, -1);
    return status;
}

static ebb_status read_member(builder *b, const char *name, const json_t *schema, const json_t *required, member *m) {
    const char *outer = b->where;
    json_t *text = json_string(name);
    m->key = text ? json_dumps(text, JSON_ENCODE_ANY) : NULL;
    json_decref(text);
    if (!m->key) return ebb_fail(b->error, EBB_NO_MEMORY, "no memory for a property of a schema");
    m->needed = is_needed(required, name);
    b->where = name;
    const ebb_status status = build(b, schema, &m->value);
    b->where = outer;
    return status;
}

static ebb_status build_object(builder *b, const json_t *schema, int32_t rule) {
    const json_t *properties = json_object_get(schema, "properties"), *required = json_object_get(schema, "required");
    const json_t *additional = json_object_get(schema, "additionalProperties");
    const char *name;
    json_t *inner;
    int32_t n = 0, extra = -1;
    ebb_status status = check_required(b, required, properties);
    if (status) return status;
    if (properties && !json_is_object(properties)) return unserved(b, "properties must be an object");
    if (json_object_size(properties) > MOST_PROPERTIES) return unserved(b, "more than 512 properties");
    if (json_is_true(additional) || (!properties && !additional)) extra = b->value;
    else if (json_is_object(additional) && (status = build(b, additional, &extra))) return status;
    member *m = calloc(json_object_size(properties) + 1, sizeof *m);
    if (!m) return ebb_fail(b->error, EBB_NO_MEMORY, "no memory for the properties of a schema");
    json_object_foreach((json_t *)properties, name, inner) {
        if ((status = read_member(b, name, inner, required, &m[n++]))) break;
    }
    if (!status) status = join_members(b, m, n, extra, rule);
    for (int32_t i = 0; i < n; i++) free(m[i].key);
    free(m);
    return status;
}

/* ---- arrays and strings ---- */

static ebb_status build_array(builder *b, const json_t *schema, int32_t rule) {
    const json_t *items = json_object_get(schema, "items");
    int32_t least, most, value = b->value;
    ebb_status status = read_count(b, schema, "minItems", 0, &least);
    if (!status) status = read_count(b, schema, "maxItems", -1, &most);
    if (status) return status;
    if (most >= 0 && most < least) return unserved(b, "maxItems is below minItems");
    if (items && (status = build(b, items, &value))) return status;
    add_rules(b, rule, "", array_of(b, value, least, most), -1, -1);
    return EBB_OK;
}

static ebb_status build_string(builder *b, const json_t *schema, int32_t rule) {
    int32_t least, most;
    ebb_status status = read_count(b, schema, "minLength", 0, &least);
    if (!status) status = read_count(b, schema, "maxLength", -1, &most);
    if (status) return status;
    if (most >= 0 && most < least) return unserved(b, "maxLength is below minLength");
    int32_t rest = b->chars;
    if (most >= 0) {
        rest = grammar_rule(b->g);
        add(b, rest, "\"");
    }
    for (int32_t k = (most < 0 ? least : most) - 1; k >= 0; k--) { /* after k characters */
        const int32_t before = grammar_rule(b->g);
        if (k >= least) add(b, before, "\"");
        add_rules(b, before, "", b->character, rest, -1);
        rest = before;
    }
    add_rules(b, rule, "\"", rest, -1, -1);
    return EBB_OK;
}

static ebb_status build_type(builder *b, const json_t *schema, const char *type, int32_t rule) {
    if (strcmp(type, "object") == 0) return build_object(b, schema, rule);
    if (strcmp(type, "array") == 0) return build_array(b, schema, rule);
    if (strcmp(type, "string") == 0) return build_string(b, schema, rule);
    if (strcmp(type, "integer") == 0) add_rules(b, rule, "", b->integer, -1, -1);
    else if (strcmp(type, "number") == 0) add_rules(b, rule, "", b->number, -1, -1);
    else if (strcmp(type, "boolean") == 0) add(b, rule, "true"), add(b, rule, "false");
    else if (strcmp(type, "null") == 0) add(b, rule, "null");
    else return unserved(b, "type must be object, array, string, integer, number, boolean or null");
    return EBB_OK;
}

static int32_t place_of(const char *type) {
    if (strcmp(type, "object") == 0) return AT_OBJECT;
    if (strcmp(type, "array") == 0) return AT_ARRAY;
    return strcmp(type, "string") == 0 ? AT_STRING : AT_ANY;
}

static ebb_status build_types(builder *b, const json_t *schema, int32_t rule) {
    const json_t *types = json_object_get(schema, "type"), *one;
    const char *implied = json_object_get(schema, "properties") || json_object_get(schema, "additionalProperties")
                              ? "object"
                          : json_object_get(schema, "items") ? "array"
                                                             : NULL;
    size_t i;
    int32_t at = AT_ANY;
    ebb_status status;
    if (json_is_string(types)) implied = json_string_value(types);
    if (!json_is_array(types)) {
        if (types && !json_is_string(types)) return unserved(b, "type must be a name or an array of names");
        if ((status = check_keywords(b, schema, implied ? place_of(implied) | AT_ANY : AT_ANY))) return status;
        if (implied) return build_type(b, schema, implied, rule);
        add_rules(b, rule, "", b->value, -1, -1);
        return EBB_OK;
    }
    if (!json_array_size(types)) return unserved(b, "type is an empty array");
    json_array_foreach((json_t *)types, i, one) {
        if (!json_is_string(one)) return unserved(b, "type must be a name or an array of names");
        at |= place_of(json_string_value(one));
    }
    if ((status = check_keywords(b, schema, at))) return status;
    json_array_foreach((json_t *)types, i,
                       one) if ((status = build_type(b, schema, json_string_value(one), rule))) return status;
    return EBB_OK;
}

static ebb_status build(builder *b, const json_t *schema, int32_t *rule) {
    ebb_status status;
    if (json_is_true(schema)) {
        *rule = b->value;
        return EBB_OK;
    }
    if (!json_is_object(schema)) return unserved(b, "a schema must be an object");
    if (b->depth >= MOST_DEPTH) return unserved(b, "more than 64 schemas inside one another");
    b->depth++;
    *rule = grammar_rule(b->g);
    if (json_object_get(schema, "$ref")) status = build_ref(b, schema, rule);
    else if (json_object_get(schema, "anyOf") || json_object_get(schema, "oneOf") || json_object_get(schema, "allOf"))
        status = build_choice(b, schema, *rule);
    else if (json_object_get(schema, "enum") || json_object_get(schema, "const"))
        status = build_literals(b, schema, *rule);
    else status = build_types(b, schema, *rule);
    b->depth--;
    return status;
}

/* ---- the calls ---- */

static ebb_status open_builder(const json_t *root, builder **b, ebb_error *error) {
    *b = calloc(1, sizeof **b);
    if (*b) (*b)->g = grammar_new();
    if (!*b || !(*b)->g) {
        free(*b);
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for a grammar");
    }
    (*b)->root = root, (*b)->error = error;
    add_common(*b);
    return EBB_OK;
}

static ebb_status close_builder(builder *b, ebb_status status, int32_t rule, grammar **g) {
    if (!status) status = grammar_begin(b->g, rule, b->error);
    if (status) grammar_free(b->g);
    else *g = b->g;
    free(b);
    return status;
}

ebb_status schema_object(grammar **g, ebb_error *error) {
    builder *b;
    ebb_status status = open_builder(NULL, &b, error);
    return status ? status : close_builder(b, EBB_OK, b->object, g);
}

ebb_status schema_value(const json_t *schema, grammar **g, ebb_error *error) {
    builder *b;
    int32_t rule = 0;
    ebb_status status = open_builder(schema, &b, error);
    if (status) return status;
    status = build(b, schema, &rule);
    return close_builder(b, status, rule, g);
}

ebb_status schema_call(const char *const *names, json_t *const *parameters, int32_t n, grammar **g, ebb_error *error) {
    builder *b;
    ebb_status status = open_builder(NULL, &b, error);
    if (status) return status;
    const int32_t rule = grammar_rule(b->g);
    for (int32_t i = 0; i < n && !status; i++) {
        int32_t arguments = b->object;
        json_t *name = json_string(names[i]);
        char *text = name ? json_dumps(name, JSON_ENCODE_ANY) : NULL;
        json_decref(name);
        b->root = parameters[i], b->n_refs = 0, b->where = names[i];
        if (!text) status = ebb_fail(error, EBB_NO_MEMORY, "no memory for the name of a function");
        else if (parameters[i]) status = build(b, parameters[i], &arguments);
        if (!status) {
            sequence *s = begin(b);
            put_text(s, "<tool_call>\n{\"name\": "), put_text(s, text), put_text(s, ", \"arguments\": ");
            put_rule(s, arguments);
            put_text(s, "}\n</tool_call>");
            status = end(b, rule);
        }
        free(text);
    }
    return close_builder(b, status, rule, g);
}
