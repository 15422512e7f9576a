/* model/jinja_eval.c: the value of an expression: names, operators, comparisons, calls. Numbers are 64-bit, and one
 * that does not fit fails. See jinja_int.h. */
#include "model/jinja_int.h"

#include <math.h>

static jvalue undefined(jworld *w, jvalue v) {
    char shown[64];
    return jfail(w, EBB_BAD_FILE, "'%s' is undefined", jshown(v.as.text, shown));
}

static jvalue too_large(jworld *w) { return jfail(w, EBB_BAD_FILE, "a whole number that does not fit 64 bits"); }

/* ---- arithmetic ---- */

static int64_t whole(jvalue v) { return v.kind == J_BOOL ? v.as.yes : v.as.i; }

/* Python rounds quotients down, and a remainder has the sign of its divisor. */
static jvalue divide(jworld *w, int32_t op, jvalue a, jvalue b) {
    if (jto_real(b) == 0) return jfail(w, EBB_BAD_FILE, "division by zero");
    if (op == '/') return jof_real(jto_real(a) / jto_real(b));
    if (a.kind == J_REAL || b.kind == J_REAL) {
        const double x = jto_real(a), y = jto_real(b);
        double rest = fmod(x, y);
        if (rest != 0 && (rest < 0) != (y < 0)) rest += y;
        return jof_real(op == '%' ? rest : floor((x - rest) / y + 0.5));
    }
    const int64_t x = whole(a), y = whole(b);
    if (y == -1) {
        if (op == '%') return jof_int(0);
        return x == INT64_MIN ? too_large(w) : jof_int(-x);
    }
    int64_t quotient = x / y, rest = x % y;
    if (rest != 0 && (rest < 0) != (y < 0)) rest += y, quotient--;
    return jof_int(op == '%' ? rest : quotient);
}

static jvalue power(jworld *w, jvalue a, jvalue b) {
    if (a.kind == J_REAL || b.kind == J_REAL || whole(b) < 0) return jof_real(pow(jto_real(a), jto_real(b)));
    int64_t result = 1;
    const int64_t base = whole(a);
    if (base == 0 || base == 1) return jof_int(whole(b) == 0 ? 1 : base);
    if (base == -1) return jof_int(whole(b) % 2 ? -1 : 1);
    for (int64_t i = whole(b); i > 0; i--)
        if (__builtin_mul_overflow(result, base, &result)) return too_large(w);
    return jof_int(result);
}

static jvalue numbers(jworld *w, int32_t op, jvalue a, jvalue b) {
    const bool real = a.kind == J_REAL || b.kind == J_REAL;
    int64_t result = 0;
    bool over = false;
    if (op == OP_POW) return power(w, a, b);
    if (op == '/' || op == OP_FLOOR || op == '%') return divide(w, op, a, b);
    if (op == '+') {
        if (real) return jof_real(jto_real(a) + jto_real(b));
        over = __builtin_add_overflow(whole(a), whole(b), &result);
    } else if (op == '-') {
        if (real) return jof_real(jto_real(a) - jto_real(b));
        over = __builtin_sub_overflow(whole(a), whole(b), &result);
    } else {
        if (real) return jof_real(jto_real(a) * jto_real(b));
        over = __builtin_mul_overflow(whole(a), whole(b), &result);
    }
    return over ? too_large(w) : jof_int(result);
}

static jvalue join(jworld *w, jtext a, jtext b) {
    jbuilder made = {0};
    if (!jspend(w, a.n + b.n)) return junknown(jwords(""));
    jput(w, &made, a);
    jput(w, &made, b);
    return jof_text(jbuilt(&made));
}

static jvalue join_seq(jworld *w, jvalue a, jvalue b) {
    jvalue made = jnew_seq(w, a.kind);
    if (w->status || !jspend(w, 16 * (a.as.seq->n + b.as.seq->n))) return made;
    for (size_t i = 0; i < a.as.seq->n; i++) jseq_add(w, made.as.seq, a.as.seq->v[i]);
    for (size_t i = 0; i < b.as.seq->n; i++) jseq_add(w, made.as.seq, b.as.seq->v[i]);
    return made;
}

static jvalue repeat(jworld *w, jvalue of, int64_t times) {
    jbuilder b = {0};
    if (of.kind == J_TEXT) {
        for (int64_t i = 0; of.as.text.n && i < times && jspend(w, of.as.text.n); i++) jput(w, &b, of.as.text);
        return jof_text(jbuilt(&b));
    }
    jvalue made = jnew_seq(w, of.kind);
    for (int64_t i = 0; !w->status && of.as.seq->n && i < times && jspend(w, 16 * of.as.seq->n); i++)
        for (size_t j = 0; j < of.as.seq->n; j++) jseq_add(w, made.as.seq, of.as.seq->v[j]);
    return made;
}

static bool repeats(jvalue v) { return v.kind == J_TEXT || v.kind == J_LIST || v.kind == J_TUPLE; }

jvalue jbinary(jworld *w, int32_t op, jvalue a, jvalue b) {
    if (w->status) return junknown(jwords(""));
    if (op == '~') {
        const jtext left = jto_text(w, a), right = jto_text(w, b);
        return join(w, left, right);
    }
    if (jnumber(a) && jnumber(b)) return numbers(w, op, a, b);
    if (a.kind == J_UNDEFINED || b.kind == J_UNDEFINED) return undefined(w, a.kind == J_UNDEFINED ? a : b);
    if (op == '+' && a.kind == J_TEXT && b.kind == J_TEXT) return join(w, a.as.text, b.as.text);
    if (op == '+' && a.kind == b.kind && (a.kind == J_LIST || a.kind == J_TUPLE)) return join_seq(w, a, b);
    if (op == '*' && repeats(a) && (b.kind == J_INT || b.kind == J_BOOL)) return repeat(w, a, whole(b));
    if (op == '*' && repeats(b) && (a.kind == J_INT || a.kind == J_BOOL)) return repeat(w, b, whole(a));
    if (op == '%' && a.kind == J_TEXT) return jfail(w, EBB_UNSUPPORTED, "%% on a text is beyond what is served");
    char shown[3] = {(char)op, '\0', '\0'};
    if (op == OP_FLOOR) memcpy(shown, "//", 2);
    else if (op == OP_POW) memcpy(shown, "**", 2);
    return jfail(w, EBB_BAD_FILE, "%s is not defined between '%s' and '%s'", shown, jkind_name(a), jkind_name(b));
}

static jvalue sign(jworld *w, int32_t op, jvalue v) {
    if (v.kind == J_UNDEFINED) return undefined(w, v);
    if (!jnumber(v)) return jfail(w, EBB_BAD_FILE, "a sign before a '%s'", jkind_name(v));
    if (v.kind == J_REAL) return jof_real(op == '-' ? -v.as.real : v.as.real);
    if (op == '-' && whole(v) == INT64_MIN) return too_large(w);
    return jof_int(op == '-' ? -whole(v) : whole(v));
}

/* ---- comparisons ---- */

static bool compare(jworld *w, int32_t op, jvalue a, jvalue b) {
    switch (op) {
    case OP_EQ:
        return jequal(w, a, b);
    case OP_NE:
        return !jequal(w, a, b);
    case OP_IN:
        return jcontains(w, b, a);
    case OP_NOT_IN:
        return !jcontains(w, b, a);
    }
    const bool unordered = (a.kind == J_REAL && isnan(a.as.real)) || (b.kind == J_REAL && isnan(b.as.real));
    const int c = jcompare(w, a, b);
    return !unordered && (op == '<' ? c < 0 : op == '>' ? c > 0 : op == OP_LE ? c <= 0 : c >= 0);
}

/* a < b < c is a < b and b < c, and stops at the first that is not so. */
static jvalue comparison(jworld *w, const jnode *node) {
    jvalue left = jeval(w, node->a);
    bool holds = true;
    for (const jnode *p = node->list; p && holds && !w->status; p = p->next) {
        const jvalue right = jeval(w, p->a);
        if (w->status) break;
        holds = compare(w, p->op, left, right);
        left = right;
    }
    return jof_bool(holds);
}

/* ---- the rest ---- */

static jvalue look_up(jworld *w, jtext name) {
    jvalue v;
    int64_t looked = 0;
    for (const jscope *s = w->scope; s; s = s->parent)
        for (const jbinding *b = s->first; b; b = b->next, looked++)
            if (jsame(b->name, name)) return b->value;
    jspend(w, (size_t)looked);
    return jglobal(name, &v) && (w->now || !jis(name, "strftime_now")) ? v : junknown(name);
}

void jeval_args(jworld *w, const jnode *list, jargs *args) {
    size_t n = 0, n_named = 0;
    *args = (jargs){0};
    for (const jnode *a = list; a; a = a->next) n += a->kind != N_KEYWORD, n_named += a->kind == N_KEYWORD;
    jvalue *v = jnew(w, (n + n_named) * sizeof *v);
    jtext *names = jnew(w, n_named * sizeof *names);
    if (!v || !names) return;
    *args = (jargs){.v = v, .names = names, .named = v + n};
    for (const jnode *a = list; a && !w->status; a = a->next) {
        if (a->kind != N_KEYWORD) args->v[args->n++] = jeval(w, a);
        else {
            args->names[args->n_named] = a->text;
            args->named[args->n_named++] = jeval(w, a->a);
        }
    }
}

static jvalue collection(jworld *w, const jnode *node) {
    jvalue made = node->kind == N_DICT ? jnew_dict(w) : jnew_seq(w, node->kind == N_LIST ? J_LIST : J_TUPLE);
    for (const jnode *item = node->list; item && !w->status; item = item->next) {
        if (node->kind != N_DICT) jseq_add(w, made.as.seq, jeval(w, item));
        else {
            const jvalue key = jeval(w, item->a), value = jeval(w, item->b);
            if (!w->status) jdict_set(w, made.as.dict, key, value);
        }
    }
    return made;
}

static jvalue filter_or_test(jworld *w, const jnode *node) {
    jargs args;
    const jvalue v = node->a ? jeval(w, node->a) : w->piped;
    jeval_args(w, node->list, &args);
    w->line = node->line;
    if (w->status) return v;
    if (node->kind == N_FILTER) return jfilter(w, node->text, v, &args);
    return jof_bool(jtest(w, node->text, v, &args) != node->op);
}

static jvalue call(jworld *w, const jnode *node) {
    jargs args;
    const jvalue callee = jeval(w, node->a);
    jeval_args(w, node->list, &args);
    w->line = node->line;
    return w->status ? callee : jcall(w, callee, &args);
}

static jvalue slice(jworld *w, const jnode *node) {
    const jvalue absent = jof_none();
    const jvalue v = jeval(w, node->a), from = node->b ? jeval(w, node->b) : absent;
    const jvalue to = node->c ? jeval(w, node->c) : absent, step = node->d ? jeval(w, node->d) : absent;
    return w->status ? v : jslice(w, v, from, to, step);
}

static jvalue value_of(jworld *w, const jnode *node) {
    jvalue a, b;
    switch (node->kind) {
    case N_LITERAL:
        return node->value;
    case N_NAME:
        return look_up(w, node->text);
    case N_LIST:
    case N_TUPLE:
    case N_DICT:
        return collection(w, node);
    case N_UNARY:
        a = jeval(w, node->a);
        return w->status ? a : sign(w, node->op, a);
    case N_BINARY:
        a = jeval(w, node->a), b = jeval(w, node->b);
        w->line = node->line;
        return jbinary(w, node->op, a, b);
    case N_COMPARE:
        return comparison(w, node);
    case N_AND:
        a = jeval(w, node->a);
        return jtruth(a) ? jeval(w, node->b) : a;
    case N_OR:
        a = jeval(w, node->a);
        return jtruth(a) ? a : jeval(w, node->b);
    case N_NOT:
        return jof_bool(!jtruth(jeval(w, node->a)));
    case N_CHOICE:
        a = jeval(w, node->a);
        if (jtruth(a)) return jeval(w, node->b);
        return node->c ? jeval(w, node->c) : junknown(jwords("an if without else"));
    case N_ATTRIBUTE:
        a = jeval(w, node->a);
        return w->status ? a : jattribute(w, a, node->text);
    case N_ITEM:
        a = jeval(w, node->a), b = jeval(w, node->b);
        return w->status ? a : jitem(w, a, b);
    case N_SLICE:
        return slice(w, node);
    case N_CALL:
        return call(w, node);
    case N_FILTER:
    case N_TEST:
        return filter_or_test(w, node);
    default:
        return jfail(w, EBB_BAD_FILE, "a statement in the place of an expression");
    }
}

jvalue jeval(jworld *w, const jnode *node) {
    jvalue v = junknown(jwords(""));
    if (w->status || !node) return v;
    if (jspend(w, 0) && jenter(w)) {
        w->line = node->line;
        v = value_of(w, node);
    }
    w->depth--;
    return v;
}
