/* model/jinja_list.c: what templates do with lists and dicts: filters, methods, membership, slices. See jinja_int.h. */
#include "model/jinja_int.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- membership and slices ---- */

bool jcontains(jworld *w, jvalue in, jvalue what) {
    size_t at;
    if (in.kind == J_TEXT) return jfind(w, in.as.text, jtext_arg(w, what, ""), 0, &at);
    if (in.kind == J_DICT || in.kind == J_NAMESPACE) return jdict_get(w, in.as.dict, what) != NULL;
    const jseq *seq = jiterate(w, in);
    for (size_t i = 0; seq && i < seq->n && jspend(w, 0); i++)
        if (jequal(w, seq->v[i], what)) return true;
    return false;
}

/* A bound of a slice over n things, as Python counts it. */
static int64_t bound(jworld *w, jvalue v, int64_t n, int64_t step, int64_t otherwise) {
    if (v.kind == J_NONE || v.kind == J_ABSENT) return otherwise;
    int64_t i = jint_arg(w, v, 0);
    const int64_t lo = step < 0 ? -1 : 0, hi = step < 0 ? n - 1 : n;
    if (i < 0 && (i += n) < lo) i = lo;
    return i > hi ? hi : i;
}

jvalue jslice(jworld *w, jvalue v, jvalue from, jvalue to, jvalue by) {
    char shown[64];
    if (v.kind == J_UNDEFINED) return jfail(w, EBB_BAD_FILE, "'%s' is undefined", jshown(v.as.text, shown));
    if (v.kind != J_TEXT && v.kind != J_LIST && v.kind != J_TUPLE && v.kind != J_RANGE)
        return junknown(jwords("a slice of something that has none"));
    const int64_t n = (int64_t)(v.kind == J_TEXT ? jcount(v.as.text) : v.as.seq->n), step = jint_arg(w, by, 1);
    if (!step || !jspend(w, v.kind == J_TEXT ? v.as.text.n : 0))
        return jfail(w, EBB_BAD_FILE, "a slice with a step of zero");
    const int64_t first = bound(w, from, n, step, step < 0 ? n - 1 : 0), end = bound(w, to, n, step, step < 0 ? -1 : n);
    if (w->status) return v;
    if (v.kind == J_TEXT && step == 1) {
        const size_t a = jchar_at(v.as.text, 0, (size_t)first);
        return jof_text(jpart(v.as.text, a, end > first ? jchar_at(v.as.text, a, (size_t)(end - first)) : a));
    }
    const jseq *all = jiterate(w, v);
    jvalue made = jnew_seq(w, v.kind == J_TEXT ? J_LIST : v.kind);
    for (int64_t i = first; all && (step < 0 ? i > end : i < end) && jspend(w, 0);) {
        jseq_add(w, made.as.seq, all->v[i]);
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    if (v.kind != J_TEXT || w->status) return made;
    jbuilder b = {0};
    for (size_t i = 0; i < made.as.seq->n; i++) jput(w, &b, made.as.seq->v[i].as.text);
    return jof_text(jbuilt(&b));
}

/* ---- what several filters need ---- */

static const jvalue absent = {.kind = J_ABSENT};

static jvalue named(const jargs *args, const char *name) {
    for (size_t k = 0; k < args->n_named; k++)
        if (jis(args->names[k], name)) return args->named[k];
    return absent;
}

/* v.a.b for the attribute "a.b", as filters read it; a part of digits is an index. */
static jvalue attribute(jworld *w, jvalue v, jvalue path) {
    if (path.kind == J_ABSENT || path.kind == J_NONE) return v;
    if (path.kind == J_INT) return jitem(w, v, path);
    jtext rest = jtext_arg(w, path, "");
    while (!w->status) {
        const char *dot = memchr(rest.s, '.', rest.n);
        const size_t n = dot ? (size_t)(dot - rest.s) : rest.n;
        const jtext part = jpart(rest, 0, n);
        bool digits = n > 0 && n < 10;
        int64_t index = 0;
        for (size_t i = 0; i < n; i++) {
            digits = digits && part.s[i] >= '0' && part.s[i] <= '9';
            if (digits) index = 10 * index + (part.s[i] - '0');
        }
        v = jitem(w, v, digits ? jof_int(index) : jof_text(part));
        if (!dot) break;
        rest = jpart(rest, n + 1, rest.n);
    }
    return v;
}

/* What texts are compared by where case does not count. */
static jvalue folded(jworld *w, jvalue v, bool case_sensitive) {
    const jargs none = {0};
    return case_sensitive || v.kind != J_TEXT ? v : jfilter(w, jwords("lower"), v, &none);
}

/* Sorted by `keys`, equal ones in their order: a merge of runs. */
static void sort(jworld *w, jvalue *keys, jvalue *values, size_t n, bool reverse) {
    jvalue *k = jnew(w, n * sizeof *k), *v = jnew(w, n * sizeof *v);
    if (!k || !v) return;
    for (size_t run = 1; run < n && !w->status; run *= 2) {
        for (size_t from = 0; from < n && !w->status; from += 2 * run) {
            const size_t middle = from + run < n ? from + run : n, end = middle + run < n ? middle + run : n;
            size_t a = from, b = middle;
            for (size_t to = from; to < end && jspend(w, 0); to++) {
                int c = -1;
                if (a < middle && b < end) c = reverse ? jcompare(w, keys[b], keys[a]) : jcompare(w, keys[a], keys[b]);
                const size_t next = b == end || (a < middle && c <= 0) ? a++ : b++;
                k[to] = keys[next], v[to] = values[next];
            }
        }
        if (w->status) return;
        memcpy(keys, k, n * sizeof *k), memcpy(values, v, n * sizeof *v);
    }
}

/* ---- filters ---- */

static jvalue length(jworld *w, jvalue v, const jargs *args) {
    (void)args;
    if (v.kind == J_TEXT) return jof_int((int64_t)jcount(v.as.text));
    if (v.kind == J_UNDEFINED) return jof_int(0);
    if (v.kind == J_DICT) return jof_int((int64_t)v.as.dict->n);
    if (v.kind == J_LOOP) return jof_int((int64_t)v.as.loop->seq->n);
    if (jis_seq(v) && v.kind != J_ITERATOR) return jof_int((int64_t)v.as.seq->n);
    return jfail(w, EBB_BAD_FILE, "object of type '%s' has no length", jkind_name(v));
}

static jvalue default_filter(jworld *w, jvalue v, const jargs *args) {
    (void)w;
    const bool missing = v.kind == J_UNDEFINED || (jtruth(args->v[1]) && !jtruth(v));
    return !missing ? v : args->v[0].kind == J_ABSENT ? jof_text(jwords("")) : args->v[0];
}

static jvalue first(jworld *w, jvalue v, const jargs *args) {
    (void)args;
    const jseq *seq = jiterate(w, v);
    return seq && seq->n ? seq->v[0] : junknown(jwords("the first item of nothing"));
}

static jvalue last(jworld *w, jvalue v, const jargs *args) {
    (void)args;
    if (v.kind == J_ITERATOR) return jfail(w, EBB_BAD_FILE, "'generator' object is not reversible");
    const jseq *seq = jiterate(w, v);
    return seq && seq->n ? seq->v[seq->n - 1] : junknown(jwords("the last item of nothing"));
}

static jvalue join(jworld *w, jvalue v, const jargs *args) {
    jbuilder b = {0};
    const jtext between = args->v[0].kind == J_ABSENT ? jwords("") : jto_text(w, args->v[0]);
    const jseq *seq = jiterate(w, v);
    for (size_t i = 0; seq && i < seq->n && jspend(w, between.n); i++) {
        if (i) jput(w, &b, between);
        jput(w, &b, jto_text(w, attribute(w, seq->v[i], args->v[1])));
    }
    return jof_text(jbuilt(&b));
}

static jvalue copy_of(jworld *w, const jseq *seq, jkind kind) {
    jvalue made = jnew_seq(w, kind);
    for (size_t i = 0; seq && i < seq->n && !w->status; i++) jseq_add(w, made.as.seq, seq->v[i]);
    return made;
}

static jvalue list(jworld *w, jvalue v, const jargs *args) {
    (void)args;
    return copy_of(w, jiterate(w, v), J_LIST);
}

static jvalue reverse(jworld *w, jvalue v, const jargs *args) {
    (void)args;
    const jvalue none = jof_none();
    if (v.kind == J_TEXT) return jslice(w, v, none, none, jof_int(-1));
    const jseq *seq = jiterate(w, v);
    jvalue made = jnew_seq(w, J_ITERATOR);
    for (size_t i = seq ? seq->n : 0; i > 0 && !w->status; i--) jseq_add(w, made.as.seq, seq->v[i - 1]);
    return made;
}

static jvalue pairs(jworld *w, const jdict *d, jkind kind) {
    jvalue made = jnew_seq(w, kind);
    for (size_t i = 0; i < d->n && jspend(w, 0); i++) {
        const jvalue pair = jnew_seq(w, J_TUPLE);
        jseq_add(w, pair.as.seq, d->key[i]);
        jseq_add(w, pair.as.seq, d->value[i]);
        jseq_add(w, made.as.seq, pair);
    }
    return made;
}

static jvalue items(jworld *w, jvalue v, const jargs *args) {
    (void)args;
    if (v.kind == J_UNDEFINED) return jnew_seq(w, J_ITERATOR);
    if (v.kind != J_DICT) return jfail(w, EBB_BAD_FILE, "items of a '%s', a mapping was expected", jkind_name(v));
    return pairs(w, v.as.dict, J_ITERATOR);
}

static jvalue sort_filter(jworld *w, jvalue v, const jargs *args) {
    const jseq *seq = jiterate(w, v);
    const jvalue made = copy_of(w, seq, J_LIST), keys = copy_of(w, seq, J_LIST);
    for (size_t i = 0; !w->status && i < seq->n; i++)
        keys.as.seq->v[i] = folded(w, attribute(w, seq->v[i], args->v[2]), jtruth(args->v[1]));
    if (!w->status) sort(w, keys.as.seq->v, made.as.seq->v, seq->n, jtruth(args->v[0]));
    return made;
}

static jvalue dictsort(jworld *w, jvalue v, const jargs *args) {
    if (v.kind != J_DICT) return jfail(w, EBB_BAD_FILE, "dictsort of a '%s'", jkind_name(v));
    const jtext by = jtext_arg(w, args->v[1], "key");
    const jvalue made = pairs(w, v.as.dict, J_LIST), keys = copy_of(w, w->status ? NULL : made.as.seq, J_LIST);
    if (!w->status && !jis(by, "key") && !jis(by, "value"))
        return jfail(w, EBB_BAD_FILE, "You can only sort by either \"key\" or \"value\"");
    for (size_t i = 0; !w->status && i < keys.as.seq->n; i++)
        keys.as.seq->v[i] = folded(w, made.as.seq->v[i].as.seq->v[jis(by, "value")], jtruth(args->v[0]));
    if (!w->status) sort(w, keys.as.seq->v, made.as.seq->v, keys.as.seq->n, jtruth(args->v[2]));
    return made;
}

static jvalue unique(jworld *w, jvalue v, const jargs *args) {
    const jseq *seq = jiterate(w, v);
    const jvalue made = jnew_seq(w, J_ITERATOR), seen = jnew_dict(w);
    for (size_t i = 0; seq && i < seq->n && !w->status; i++) {
        const jvalue key = folded(w, attribute(w, seq->v[i], args->v[1]), jtruth(args->v[0]));
        if (w->status || jdict_get(w, seen.as.dict, key)) continue;
        jdict_set(w, seen.as.dict, key, jof_none());
        jseq_add(w, made.as.seq, seq->v[i]);
    }
    return made;
}

static jvalue extreme(jworld *w, jvalue v, const jargs *args, int sign) {
    const jseq *seq = jiterate(w, v);
    jvalue best = junknown(jwords("an item of nothing")), key = best;
    for (size_t i = 0; seq && i < seq->n && !w->status; i++) {
        const jvalue k = folded(w, attribute(w, seq->v[i], args->v[1]), jtruth(args->v[0]));
        if (i && sign * jcompare(w, k, key) <= 0) continue;
        best = seq->v[i], key = k;
    }
    return best;
}

static jvalue min(jworld *w, jvalue v, const jargs *args) { return extreme(w, v, args, -1); }
static jvalue max(jworld *w, jvalue v, const jargs *args) { return extreme(w, v, args, 1); }

static jvalue sum(jworld *w, jvalue v, const jargs *args) {
    const jseq *seq = jiterate(w, v);
    jvalue total = args->v[1].kind == J_ABSENT ? jof_int(0) : args->v[1];
    for (size_t i = 0; seq && i < seq->n && jspend(w, 0); i++)
        total = jbinary(w, '+', total, attribute(w, seq->v[i], args->v[0]));
    return total;
}

static jvalue abs_filter(jworld *w, jvalue v, const jargs *args) {
    (void)args;
    if (v.kind == J_REAL) return jof_real(fabs(v.as.real));
    if (!jnumber(v)) return jfail(w, EBB_BAD_FILE, "abs of a '%s'", jkind_name(v));
    const int64_t i = jint_arg(w, v, 0);
    return i < 0 ? jbinary(w, '-', jof_int(0), jof_int(i)) : jof_int(i);
}

/* Rounded as Python does: to the nearest decimal, of what the double holds exactly. */
static jvalue round_filter(jworld *w, jvalue v, const jargs *args) {
    const int64_t digits = jint_arg(w, args->v[0], 0);
    const jtext how = jtext_arg(w, args->v[1], "common");
    char text[400];
    if (!jnumber(v) || digits < 0 || digits > 20)
        return jfail(w, EBB_UNSUPPORTED, "the filter round of this is beyond what is served");
    if (jis(how, "common") && v.kind != J_REAL) return jof_int(jint_arg(w, v, 0));
    if (!jis(how, "common")) {
        const double power = pow(10, (double)digits), scaled = jto_real(v) * power;
        return jof_real((jis(how, "ceil") ? ceil(scaled) : floor(scaled)) / power);
    }
    snprintf(text, sizeof text, "%.*f", (int)digits, v.as.real);
    return jof_real(strtod(text, NULL));
}

/* ---- map, select and their kin ---- */

static jargs rest_of(const jargs *args, size_t from) {
    jargs rest = *args;
    from = from < args->n ? from : args->n;
    rest.v += from, rest.n -= from;
    return rest;
}

static jvalue map(jworld *w, jvalue v, const jargs *args) {
    const jseq *seq = jiterate(w, v);
    const jvalue made = jnew_seq(w, J_ITERATOR), path = named(args, "attribute"), otherwise = named(args, "default");
    const jargs rest = rest_of(args, 1);
    const bool by_path = args->n == 0 && path.kind != J_ABSENT;
    if (args->n_named > (size_t)(path.kind != J_ABSENT) + (otherwise.kind != J_ABSENT) && by_path)
        return jfail(w, EBB_BAD_FILE, "map takes no other arguments beside attribute and default");
    if (!by_path && !args->n) return jfail(w, EBB_BAD_FILE, "map requires a filter argument");
    const jtext name = by_path ? jwords("") : jtext_arg(w, args->v[0], "");
    for (size_t i = 0; seq && i < seq->n && jspend(w, 0); i++) {
        jvalue one = by_path ? attribute(w, seq->v[i], path) : jfilter(w, name, seq->v[i], &rest);
        if (by_path && one.kind == J_UNDEFINED && otherwise.kind != J_ABSENT) one = otherwise;
        jseq_add(w, made.as.seq, one);
    }
    return made;
}

/* `by_path`: the first argument is an attribute; what comes then is a test, or nothing: is it true? */
static jvalue choose(jworld *w, jvalue v, const jargs *args, bool by_path, bool wanted) {
    const jseq *seq = jiterate(w, v);
    const jvalue made = jnew_seq(w, J_ITERATOR);
    if (by_path && !args->n) return jfail(w, EBB_BAD_FILE, "Missing parameter for attribute name");
    const jargs rest = rest_of(args, (size_t)by_path + 1);
    const bool tested = args->n > (size_t)by_path;
    const jtext name = tested ? jtext_arg(w, args->v[by_path], "") : jwords("");
    for (size_t i = 0; seq && i < seq->n && jspend(w, 0); i++) {
        const jvalue one = by_path ? attribute(w, seq->v[i], args->v[0]) : seq->v[i];
        const bool holds = w->status ? false : tested ? jtest(w, name, one, &rest) : jtruth(one);
        if (holds == wanted) jseq_add(w, made.as.seq, seq->v[i]);
    }
    return made;
}

static jvalue select_filter(jworld *w, jvalue v, const jargs *args) { return choose(w, v, args, false, true); }
static jvalue reject(jworld *w, jvalue v, const jargs *args) { return choose(w, v, args, false, false); }
static jvalue selectattr(jworld *w, jvalue v, const jargs *args) { return choose(w, v, args, true, true); }
static jvalue rejectattr(jworld *w, jvalue v, const jargs *args) { return choose(w, v, args, true, false); }

const jrow jlist_filters[] = {{"length", "", 0, length},
                              {"count", "", 0, length},
                              {"default", "default_value boolean", 0, default_filter},
                              {"d", "default_value boolean", 0, default_filter},
                              {"first", "", 0, first},
                              {"last", "", 0, last},
                              {"join", "d attribute", 0, join},
                              {"list", "", 0, list},
                              {"reverse", "", 0, reverse},
                              {"items", "", 0, items},
                              {"sort", "reverse case_sensitive attribute", 0, sort_filter},
                              {"dictsort", "case_sensitive by reverse", 0, dictsort},
                              {"unique", "case_sensitive attribute", 0, unique},
                              {"min", "case_sensitive attribute", 0, min},
                              {"max", "case_sensitive attribute", 0, max},
                              {"sum", "attribute start", 0, sum},
                              {"abs", "", 0, abs_filter},
                              {"round", "precision method", 0, round_filter},
                              {"map", "*", 0, map},
                              {"select", "*", 0, select_filter},
                              {"reject", "*", 0, reject},
                              {"selectattr", "*", 0, selectattr},
                              {"rejectattr", "*", 0, rejectattr},
                              {0}};

/* ---- methods ---- */

static jvalue index_method(jworld *w, jvalue v, const jargs *args) {
    for (size_t i = 0; i < v.as.seq->n && jspend(w, 0); i++)
        if (jequal(w, v.as.seq->v[i], args->v[0])) return jof_int((int64_t)i);
    return jfail(w, EBB_BAD_FILE, "index: the item is not in the list");
}

static jvalue count_method(jworld *w, jvalue v, const jargs *args) {
    int64_t n = 0;
    for (size_t i = 0; i < v.as.seq->n && jspend(w, 0); i++) n += jequal(w, v.as.seq->v[i], args->v[0]);
    return jof_int(n);
}

static jvalue get_method(jworld *w, jvalue v, const jargs *args) {
    const jvalue *member = jdict_get(w, v.as.dict, args->v[0]);
    return member ? *member : args->v[1].kind == J_ABSENT ? jof_none() : args->v[1];
}

static jvalue items_method(jworld *w, jvalue v, const jargs *args) { return (void)args, pairs(w, v.as.dict, J_VIEW); }

static jvalue column(jworld *w, const jvalue *of, size_t n) {
    jvalue made = jnew_seq(w, J_VIEW);
    for (size_t i = 0; i < n && !w->status; i++) jseq_add(w, made.as.seq, of[i]);
    return made;
}

static jvalue keys_method(jworld *w, jvalue v, const jargs *args) {
    return (void)args, column(w, v.as.dict->key, v.as.dict->n);
}
static jvalue values_method(jworld *w, jvalue v, const jargs *args) {
    return (void)args, column(w, v.as.dict->value, v.as.dict->n);
}

const jrow jlist_methods[] = {{"index", "value", 1, index_method}, {"count", "value", 1, count_method}, {0}};
const jrow jdict_methods[] = {{"get", "key default", 1, get_method},
                              {"items", "", 0, items_method},
                              {"keys", "", 0, keys_method},
                              {"values", "", 0, values_method},
                              {0}};
