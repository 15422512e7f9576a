/* model/jinja_calls.c: what a template can call: arguments, filters, tests, methods, attributes, global functions. See
 * jinja_int.h. */
#define _GNU_SOURCE
#include "model/jinja_int.h"
#include "model/tokenizer.h"

#include <time.h>

/* ---- arguments ---- */

enum { MOST_ARGUMENTS = 5 };

const jrow *jrow_find(const jrow *table, jtext name) {
    for (; table->name; table++)
        if (jis(name, table->name)) return table;
    return NULL;
}

/* The names in `words`, cut at blanks. */
static int32_t cut(const char *words, jtext name[MOST_ARGUMENTS]) {
    int32_t n = 0;
    while (*words) {
        const size_t length = strcspn(words, " ");
        name[n++] = (jtext){words, NULL, length};
        words += length + (words[length] == ' ');
    }
    return n;
}

jvalue jcall_row(jworld *w, const jrow *row, jvalue self, const jargs *args) {
    jtext name[MOST_ARGUMENTS];
    jvalue v[MOST_ARGUMENTS] = {{.kind = J_ABSENT}};
    char shown[64];
    if (w->status) return self;
    if (row->words[0] == '*') return row->call(w, self, args);
    const int32_t n = cut(row->words, name);
    if (args->n > (size_t)n) return jfail(w, EBB_BAD_FILE, "%s takes %d arguments, it got %zu", row->name, n, args->n);
    for (size_t i = 0; i < args->n; i++) v[i] = args->v[i];
    for (size_t k = 0; k < args->n_named; k++) {
        int32_t i = 0;
        while (i < n && !jsame(name[i], args->names[k])) i++;
        if (i == n || v[i].kind != J_ABSENT)
            return jfail(w, EBB_BAD_FILE, "%s takes no argument %s here", row->name, jshown(args->names[k], shown));
        v[i] = args->named[k];
    }
    for (int32_t i = 0; i < row->needed; i++)
        if (v[i].kind == J_ABSENT)
            return jfail(w, EBB_BAD_FILE, "%s needs its argument %s", row->name, jshown(name[i], shown));
    const jargs bound = {.v = v, .n = (size_t)n};
    return row->call(w, self, &bound);
}

int64_t jint_arg(jworld *w, jvalue v, int64_t otherwise) {
    if (v.kind == J_ABSENT || v.kind == J_NONE) return otherwise;
    if (v.kind == J_BOOL) return v.as.yes;
    if (v.kind == J_INT) return v.as.i;
    jfail(w, EBB_BAD_FILE, "a whole number was expected, it is '%s'", jkind_name(v));
    return otherwise;
}

jtext jtext_arg(jworld *w, jvalue v, const char *otherwise) {
    if (v.kind == J_ABSENT) return jwords(otherwise);
    if (v.kind == J_TEXT) return v.as.text;
    char shown[64];
    if (v.kind == J_UNDEFINED) jfail(w, EBB_BAD_FILE, "'%s' is undefined", jshown(v.as.text, shown));
    jfail(w, EBB_BAD_FILE, "a text was expected, it is '%s'", jkind_name(v));
    return jwords(otherwise);
}

/* ---- filters ---- */

jvalue jfilter(jworld *w, jtext name, jvalue v, const jargs *args) {
    static const jrow json[] = {{"tojson", "ensure_ascii indent separators sort_keys", 0, jfilter_tojson}, {0}};
    const jrow *row = jrow_find(json, name);
    char shown[64];
    if (!row) row = jrow_find(jtext_filters, name);
    if (!row) row = jrow_find(jlist_filters, name);
    if (!row) return jfail(w, EBB_UNSUPPORTED, "the filter %s is beyond what is served", jshown(name, shown));
    return jcall_row(w, row, v, args);
}

/* ---- tests ---- */

static bool has_case(jworld *w, jvalue v, bool upper) {
    const jargs none = {0};
    const jvalue text = jof_text(jto_text(w, v));
    const jvalue other = jfilter(w, jwords(upper ? "upper" : "lower"), text, &none);
    const jvalue opposite = jfilter(w, jwords(upper ? "lower" : "upper"), text, &none);
    return jequal(w, text, other) && !jequal(w, text, opposite);
}

static bool same_thing(jvalue a, jvalue b) {
    if (a.kind != b.kind) return false;
    if (a.kind == J_BOOL) return a.as.yes == b.as.yes;
    if (a.kind == J_INT) return a.as.i == b.as.i;
    if (a.kind == J_TEXT) return jsame(a.as.text, b.as.text);
    return a.kind == J_NONE || (jis_seq(a) && a.as.seq == b.as.seq) || (a.kind == J_DICT && a.as.dict == b.as.dict);
}

static bool test_kind(jtext name, jvalue v, bool *holds) {
    const jkind k = v.kind;
    const struct {
        const char *name;
        bool holds;
    } rows[] = {{"defined", k != J_UNDEFINED},
                {"undefined", k == J_UNDEFINED},
                {"none", k == J_NONE},
                {"boolean", k == J_BOOL},
                {"true", k == J_BOOL && v.as.yes},
                {"false", k == J_BOOL && !v.as.yes},
                {"integer", k == J_INT},
                {"float", k == J_REAL},
                {"number", jnumber(v)},
                {"string", k == J_TEXT},
                {"mapping", k == J_DICT},
                {"iterable", jis_seq(v) || k == J_TEXT || k == J_DICT || k == J_UNDEFINED || k == J_LOOP},
                {"sequence", k == J_TEXT || k == J_DICT || k == J_UNDEFINED || (k >= J_LIST && k <= J_RANGE)},
                {"callable", k == J_MACRO || k == J_METHOD || k == J_FUNCTION}};
    for (int32_t i = 0; i < COUNT(rows); i++) {
        if (!jis(name, rows[i].name)) continue;
        *holds = rows[i].holds;
        return true;
    }
    return false;
}

/* Tests of two values: the other names of comparisons. */
static bool test_pair(jworld *w, jtext name, jvalue v, jvalue other, bool *holds) {
    static const struct {
        const char *name;
        int32_t op;
    } rows[] = {{"eq", OP_EQ}, {"equalto", OP_EQ},   {"==", OP_EQ},       {"ne", OP_NE}, {"!=", OP_NE},
                {"lt", '<'},   {"lessthan", '<'},    {"<", '<'},          {"le", OP_LE}, {"<=", OP_LE},
                {"gt", '>'},   {"greaterthan", '>'}, {">", '>'},          {"ge", OP_GE}, {">=", OP_GE},
                {"in", OP_IN}, {"sameas", 's'},      {"divisibleby", '%'}};
    int32_t op = 0;
    for (int32_t i = 0; i < COUNT(rows); i++)
        if (jis(name, rows[i].name)) op = rows[i].op;
    if (!op || w->status) return op != 0;
    if (op == OP_EQ || op == OP_NE) *holds = jequal(w, v, other) == (op == OP_EQ);
    else if (op == OP_IN) *holds = jcontains(w, other, v);
    else if (op == 's') *holds = same_thing(v, other);
    else if (op == '%') *holds = !jtruth(jbinary(w, '%', v, other));
    else {
        const int c = jcompare(w, v, other);
        *holds = op == '<' ? c < 0 : op == '>' ? c > 0 : op == OP_LE ? c <= 0 : c >= 0;
    }
    return true;
}

bool jtest(jworld *w, jtext name, jvalue v, const jargs *args) {
    bool holds = false, known = true;
    char shown[64];
    const bool plain = args->n == 0 && args->n_named == 0;
    if (w->status) return false;
    if (args->n == 1 && args->n_named == 0) known = test_pair(w, name, v, args->v[0], &holds);
    else if (!plain) known = false;
    else if (jis(name, "odd") || jis(name, "even")) holds = jtruth(jbinary(w, '%', v, jof_int(2))) == jis(name, "odd");
    else if (jis(name, "upper") || jis(name, "lower")) holds = has_case(w, v, jis(name, "upper"));
    else known = test_kind(name, v, &holds);
    if (!known)
        jfail(w, EBB_UNSUPPORTED, "the test %s with %zu arguments is beyond what is served", jshown(name, shown),
              args->n + args->n_named);
    return holds;
}

/* ---- attributes and items ---- */

/* What Python's texts, lists and dicts have beside what is served. */
static bool python_has(jvalue v, jtext name) {
    static const char *const text[] = {"casefold",    "center",    "encode",       "expandtabs", "format",
                                       "format_map",  "index",     "isalnum",      "isalpha",    "isascii",
                                       "isdecimal",   "isdigit",   "isidentifier", "islower",    "isnumeric",
                                       "isprintable", "isspace",   "istitle",      "isupper",    "ljust",
                                       "maketrans",   "partition", "rindex",       "rjust",      "rpartition",
                                       "swapcase",    "translate", "zfill",        NULL};
    static const char *const list[] = {"append", "clear",  "copy",    "extend", "insert",
                                       "pop",    "remove", "reverse", "sort",   NULL};
    static const char *const dict[] = {"clear", "copy", "fromkeys", "pop", "popitem", "setdefault", "update", NULL};
    static const char *const none[] = {NULL};
    const char *const *names = v.kind == J_TEXT ? text : v.kind == J_LIST ? list : v.kind == J_DICT ? dict : none;
    for (; *names; names++)
        if (jis(name, *names)) return true;
    return false;
}

jvalue jmethod_find(jworld *w, jvalue v, jtext name) {
    const jvalue absent = {.kind = J_ABSENT};
    const jrow *row = NULL;
    if (v.kind == J_TEXT) row = jrow_find(jtext_methods, name);
    else if (v.kind == J_LIST || v.kind == J_TUPLE) row = jrow_find(jlist_methods, name);
    else if (v.kind == J_DICT) row = jrow_find(jdict_methods, name);
    if (!row && !python_has(v, name)) return absent;
    jmethod *method = jnew(w, sizeof *method);
    if (!method) return absent;
    *method = (jmethod){v, name, row};
    return (jvalue){.kind = J_METHOD, .as.method = method};
}

static jvalue cycle(jworld *w, jvalue self, const jargs *args) {
    if (!args->n) return jfail(w, EBB_BAD_FILE, "no items for cycling given");
    return args->v[self.as.loop->at % args->n];
}

static jvalue changed(jworld *w, jvalue self, const jargs *args) {
    jvalue now = jnew_seq(w, J_TUPLE);
    for (size_t i = 0; i < args->n; i++) jseq_add(w, now.as.seq, args->v[i]);
    const bool same = self.as.loop->changed.kind == J_TUPLE && jequal(w, self.as.loop->changed, now);
    self.as.loop->changed = now;
    return jof_bool(!same);
}

static jvalue loop_attribute(jworld *w, jvalue v, jtext name) {
    static const jrow calls[] = {{"cycle", "*", 0, cycle}, {"changed", "*", 0, changed}, {0}};
    const jloop *loop = v.as.loop;
    const size_t n = loop->seq->n, at = loop->at;
    const int64_t i = (int64_t)at, left = (int64_t)(n - at);
    if (jis(name, "index")) return jof_int(i + 1);
    if (jis(name, "index0")) return jof_int(i);
    if (jis(name, "revindex")) return jof_int(left);
    if (jis(name, "revindex0")) return jof_int(left - 1);
    if (jis(name, "first")) return jof_bool(i == 0);
    if (jis(name, "last")) return jof_bool(left == 1);
    if (jis(name, "length")) return jof_int((int64_t)n);
    if (jis(name, "depth")) return jof_int(1);
    if (jis(name, "depth0")) return jof_int(0);
    if (jis(name, "previtem")) return at ? loop->seq->v[at - 1] : junknown(jwords("there is no previous item"));
    if (jis(name, "nextitem")) return at + 1 < n ? loop->seq->v[at + 1] : junknown(jwords("there is no next item"));
    const jrow *row = jrow_find(calls, name);
    jmethod *method = row ? jnew(w, sizeof *method) : NULL;
    if (!method) return junknown(name);
    *method = (jmethod){v, name, row};
    return (jvalue){.kind = J_METHOD, .as.method = method};
}

jvalue jattribute(jworld *w, jvalue v, jtext name) {
    char shown[64];
    if (v.kind == J_UNDEFINED) return jfail(w, EBB_BAD_FILE, "'%s' is undefined", jshown(v.as.text, shown));
    if (v.kind == J_LOOP) return loop_attribute(w, v, name);
    const jvalue method = jmethod_find(w, v, name);
    if (method.kind != J_ABSENT || w->status) return method;
    if (v.kind != J_DICT && v.kind != J_NAMESPACE) return junknown(name);
    const jvalue *member = jdict_get(w, v.as.dict, jof_text(name));
    return member ? *member : junknown(name);
}

static jvalue at_index(jworld *w, jvalue v, int64_t i) {
    const int64_t n = (int64_t)(v.kind == J_TEXT ? jcount(v.as.text) : v.as.seq->n);
    if (v.kind == J_TEXT && !jspend(w, v.as.text.n)) return v;
    if (i < 0) i += n;
    if (i < 0 || i >= n) return junknown(jwords("an item out of range"));
    if (v.kind != J_TEXT) return v.as.seq->v[i];
    const size_t at = jchar_at(v.as.text, 0, (size_t)i);
    return jof_text(jpart(v.as.text, at, at + jchar_bytes(v.as.text, at)));
}

jvalue jitem(jworld *w, jvalue v, jvalue key) {
    char shown[64];
    if (v.kind == J_UNDEFINED) return jfail(w, EBB_BAD_FILE, "'%s' is undefined", jshown(v.as.text, shown));
    if (v.kind == J_DICT) {
        const jvalue *member = jdict_get(w, v.as.dict, key);
        if (member) return *member;
    }
    const bool indexed = v.kind == J_TEXT || v.kind == J_LIST || v.kind == J_TUPLE || v.kind == J_RANGE;
    if (indexed && (key.kind == J_INT || key.kind == J_BOOL)) return at_index(w, v, jint_arg(w, key, 0));
    if (key.kind == J_TEXT) return jattribute(w, v, key.as.text);
    return junknown(jwords("an item"));
}

/* ---- calls ---- */

jvalue jcall(jworld *w, jvalue callee, const jargs *args) {
    char shown[64];
    if (callee.kind == J_UNDEFINED) return jfail(w, EBB_BAD_FILE, "'%s' is undefined", jshown(callee.as.text, shown));
    if (callee.kind == J_MACRO) return jcall_macro(w, callee, args);
    if (callee.kind == J_FUNCTION) return jcall_row(w, callee.as.row, jof_none(), args);
    if (callee.kind != J_METHOD) return jfail(w, EBB_BAD_FILE, "'%s' object is not callable", jkind_name(callee));
    const jmethod *method = callee.as.method;
    if (method->row) return jcall_row(w, method->row, method->self, args);
    if (method->self.kind == J_TEXT || jis(method->name, "copy"))
        return jfail(w, EBB_UNSUPPORTED, "the method %s is beyond what is served", jshown(method->name, shown));
    return jfail(w, EBB_BAD_FILE, "%s changes a %s, which templates may not", jshown(method->name, shown),
                 jkind_name(method->self));
}

/* ---- global functions ---- */

static jvalue make_range(jworld *w, jvalue self, const jargs *args) {
    enum { MOST = 100000 }; /* jinja2's sandbox has the same */
    (void)self;
    const bool two = args->v[1].kind != J_ABSENT;
    int64_t from = two ? jint_arg(w, args->v[0], 0) : 0, to = jint_arg(w, args->v[two], 0);
    const int64_t step = jint_arg(w, args->v[2], 1);
    jvalue made = jnew_seq(w, J_RANGE);
    if (!step) return jfail(w, EBB_BAD_FILE, "range() with a step of zero");
    while (!w->status && (step > 0 ? from < to : from > to)) {
        if (made.as.seq->n == MOST) return jfail(w, EBB_BAD_FILE, "range() of more than %d numbers", MOST);
        jseq_add(w, made.as.seq, jof_int(from));
        if (__builtin_add_overflow(from, step, &from)) break;
    }
    return made;
}

static jvalue make_dict(jworld *w, jvalue self, const jargs *args) {
    (void)self;
    jvalue made = jnew_dict(w);
    if (args->n > 1 || (args->n && args->v[0].kind != J_DICT))
        return jfail(w, EBB_UNSUPPORTED, "dict() and namespace() of other than a dict are beyond what is served");
    for (size_t i = 0; args->n && !w->status && i < args->v[0].as.dict->n; i++)
        jdict_set(w, made.as.dict, args->v[0].as.dict->key[i], args->v[0].as.dict->value[i]);
    for (size_t k = 0; !w->status && k < args->n_named; k++)
        jdict_set(w, made.as.dict, jof_text(args->names[k]), args->named[k]);
    return made;
}

static jvalue make_namespace(jworld *w, jvalue self, const jargs *args) {
    jvalue made = make_dict(w, self, args);
    if (!w->status) made.kind = J_NAMESPACE;
    return made;
}

/* The sentence of the template itself, about a conversation that it does not take. */
static jvalue raise_exception(jworld *w, jvalue self, const jargs *args) {
    (void)self;
    const jtext says = jto_text(w, args->v[0]);
    return jfail(w, EBB_BAD_ARGUMENT, "%.*s", (int)(says.n < 200 ? says.n : 200), says.s);
}

static jvalue strftime_now(jworld *w, jvalue self, const jargs *args) {
    (void)self;
    char format[64], text[512];
    struct tm parts;
    const time_t now = (time_t)w->now;
    const jtext asked = jtext_arg(w, args->v[0], "");
    if (w->status) return self;
    if (asked.n >= sizeof format) return jfail(w, EBB_UNSUPPORTED, "a date format of more than 63 bytes");
    memcpy(format, asked.s, asked.n);
    format[asked.n] = '\0';
    if (strstr(format, "%f") || strstr(format, "%z") || strstr(format, "%Z") || !gmtime_r(&now, &parts))
        return jfail(w, EBB_UNSUPPORTED, "the date format %s is beyond what is served", format);
    jbuilder b = {0};
    text[strftime(text, sizeof text, format, &parts)] = '\0';
    jput_c(w, &b, text);
    return jof_text(jbuilt(&b));
}

static jvalue not_served(jworld *w, jvalue self, const jargs *args) {
    (void)self, (void)args;
    return jfail(w, EBB_UNSUPPORTED, "cycler, joiner and lipsum are beyond what is served");
}

bool jglobal(jtext name, jvalue *v) {
    static const jrow rows[] = {{"range", "start stop step", 1, make_range},
                                {"namespace", "*", 0, make_namespace},
                                {"dict", "*", 0, make_dict},
                                {"raise_exception", "message", 1, raise_exception},
                                {"strftime_now", "format", 1, strftime_now},
                                {"cycler", "*", 0, not_served},
                                {"joiner", "*", 0, not_served},
                                {"lipsum", "*", 0, not_served},
                                {0}};
    const jrow *row = jrow_find(rows, name);
    if (row) *v = (jvalue){.kind = J_FUNCTION, .as.row = row};
    return row != NULL;
}
