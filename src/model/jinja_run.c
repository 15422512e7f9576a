/* model/jinja_run.c: statements of templates, scopes, macros; and the rendering itself. See jinja_int.h. */
#include "model/jinja_int.h"
#include "model/tokenizer.h"

#include <stdlib.h>

/* ---- scopes ---- */

static jscope *open_scope(jworld *w, jscope *parent) {
    jscope *scope = jnew(w, sizeof *scope);
    if (scope) scope->parent = parent;
    return scope;
}

void jset(jworld *w, jtext name, jvalue v) {
    if (w->status) return;
    for (jbinding *b = w->scope->first; b; b = b->next) {
        if (!jsame(b->name, name)) continue;
        b->value = v;
        return;
    }
    jbinding *b = jnew(w, sizeof *b);
    if (!b) return;
    *b = (jbinding){name, v, w->scope->first};
    w->scope->first = b;
}

static void unpack(jworld *w, const jnode *target, jvalue v) {
    const jseq *seq = jiterate(w, v);
    size_t n = 0;
    for (const jnode *t = target->list; t; t = t->next) n++;
    if (!seq) return;
    if (seq->n != n) {
        jfail(w, EBB_BAD_FILE, "%zu values for %zu names", seq->n, n);
        return;
    }
    size_t i = 0;
    for (const jnode *t = target->list; t; t = t->next) jassign(w, t, seq->v[i++]);
}

void jassign(jworld *w, const jnode *target, jvalue v) {
    if (w->status || !target) return;
    w->line = target->line;
    if (target->kind == N_NAME) jset(w, target->text, v);
    else if (target->kind == N_TUPLE) unpack(w, target, v);
    else {
        const jvalue space = jeval(w, target->a);
        if (!w->status && (target->kind != N_ATTRIBUTE || space.kind != J_NAMESPACE))
            jfail(w, EBB_BAD_FILE, "only attributes of a namespace can be set");
        if (!w->status) jdict_set(w, space.as.dict, jof_text(target->text), v);
    }
}

/* ---- output ---- */

static void print(jworld *w, jtext text) {
    if (!jspend(w, text.n)) return;
    jput(w, w->out, text);
    if (w->out->n > w->output) jfail(w, EBB_BAD_FILE, "the template writes more than a conversation may have");
}

/* What the statements write, as a text, in the scope at hand. */
static jvalue capture(jworld *w, const jnode *list) {
    jbuilder made = {0}, *out = w->out;
    w->out = &made;
    jrun(w, list);
    w->out = out;
    return jof_text(jbuilt(&made));
}

static jvalue filtered(jworld *w, const jnode *list, const jnode *filters) {
    jscope *scope = w->scope, *inner = open_scope(w, scope);
    if (!inner) return junknown(jwords(""));
    w->scope = inner;
    const jvalue text = capture(w, list);
    w->scope = scope;
    if (!filters || w->status) return text;
    w->piped = text;
    return jeval(w, filters);
}

/* ---- loops ---- */

/* The items that the loop's own `if` lets through. */
static const jseq *chosen(jworld *w, const jnode *node, const jseq *all) {
    if (!node->c || !all) return all;
    const jvalue made = jnew_seq(w, J_LIST);
    jscope *scope = w->scope;
    for (size_t i = 0; i < all->n && !w->status; i++) {
        if (!(w->scope = open_scope(w, scope))) break;
        jassign(w, node->a, all->v[i]);
        if (jtruth(jeval(w, node->c))) jseq_add(w, made.as.seq, all->v[i]);
    }
    w->scope = scope;
    return w->status ? NULL : made.as.seq;
}

static void run_loop(jworld *w, const jnode *node) {
    const jvalue over = jeval(w, node->b);
    const jseq *seq = chosen(w, node, jiterate(w, over));
    jloop *loop = jnew(w, sizeof *loop);
    jscope *scope = w->scope;
    if (!seq || !loop) return;
    *loop = (jloop){.seq = seq};
    jflow flow = FLOW_ON;
    for (size_t i = 0; i < seq->n && flow != FLOW_BREAK && !w->status; i++) {
        if (!jspend(w, 0) || !(w->scope = open_scope(w, scope))) break;
        loop->at = i;
        jset(w, jwords("loop"), (jvalue){.kind = J_LOOP, .as.loop = loop});
        jassign(w, node->a, seq->v[i]);
        flow = jrun(w, node->list);
    }
    w->scope = scope;
    if (!seq->n && node->d) jrun(w, node->d);
}

/* ---- macros ---- */

static size_t parameter(const jnode *macro, jtext name) {
    size_t i = 0;
    for (const jnode *p = macro->d; p; p = p->next, i++)
        if (jsame(p->text, name)) return i;
    return SIZE_MAX;
}

static void bind_macro(jworld *w, const jnode *macro, const jargs *args) {
    char shown[64], name[64];
    size_t i = 0, n = 0;
    for (const jnode *p = macro->d; p; p = p->next) n++;
    if (args->n > n)
        jfail(w, EBB_BAD_FILE, "macro %s takes %zu arguments, it got %zu", jshown(macro->text, shown), n, args->n);
    for (size_t k = 0; k < args->n_named; k++)
        if (parameter(macro, args->names[k]) == SIZE_MAX)
            jfail(w, EBB_BAD_FILE, "macro %s takes no argument %s", jshown(macro->text, shown),
                  jshown(args->names[k], name));
    for (const jnode *p = macro->d; p && !w->status; p = p->next, i++) {
        jvalue v = {.kind = J_ABSENT};
        if (i < args->n) v = args->v[i];
        for (size_t k = 0; k < args->n_named; k++)
            if (jsame(args->names[k], p->text)) v = args->named[k];
        if (v.kind == J_ABSENT) v = p->a ? jeval(w, p->a) : junknown(p->text);
        jset(w, p->text, v);
    }
}

jvalue jcall_macro(jworld *w, jvalue macro, const jargs *args) {
    jscope *scope = w->scope, *inner = open_scope(w, macro.scope);
    const int32_t line = w->line;
    if (!inner) return junknown(jwords(""));
    w->scope = inner;
    bind_macro(w, macro.as.macro, args);
    const jvalue text = capture(w, macro.as.macro->list);
    w->scope = scope;
    w->line = line;
    return text;
}

/* ---- statements ---- */

static void set(jworld *w, const jnode *node) {
    const jvalue v = node->b ? jeval(w, node->b) : filtered(w, node->list, node->c);
    jassign(w, node->a, v);
}

static jflow run_if(jworld *w, const jnode *node) {
    for (const jnode *branch = node->list; branch && !w->status; branch = branch->next)
        if (!branch->a || jtruth(jeval(w, branch->a))) return jrun(w, branch->list);
    return FLOW_ON;
}

static jflow run_body(jworld *w, const jnode *node) {
    jscope *scope = w->scope, *inner = open_scope(w, scope);
    const jnode *s = node->d;
    if (!inner) return FLOW_ON;
    for (; s && !w->status; s = s->next) {
        const jvalue v = jeval(w, s->b);
        w->scope = inner;
        jassign(w, s->a, v);
        w->scope = scope;
    }
    w->scope = inner;
    const jflow flow = jrun(w, node->list);
    w->scope = scope;
    return flow;
}

static jflow run_one(jworld *w, const jnode *node) {
    switch (node->kind) {
    case N_TEXT:
        print(w, node->text);
        break;
    case N_PRINT: {
        const jvalue v = jeval(w, node->a);
        w->line = node->line;
        print(w, w->status ? jwords("") : jto_text(w, v));
        break;
    }
    case N_IF:
        return run_if(w, node);
    case N_FOR:
        run_loop(w, node);
        break;
    case N_SET:
        set(w, node);
        break;
    case N_MACRO:
        jset(w, node->text, (jvalue){.kind = J_MACRO, .as.macro = node, .scope = w->scope});
        break;
    case N_BODY:
        return run_body(w, node);
    case N_FILTERED: {
        const jvalue v = filtered(w, node->list, node->c);
        print(w, w->status ? jwords("") : jto_text(w, v));
        break;
    }
    case N_BREAK:
        return FLOW_BREAK;
    case N_CONTINUE:
        return FLOW_CONTINUE;
    default:
        jfail(w, EBB_BAD_FILE, "an expression in the place of a statement");
    }
    return FLOW_ON;
}

jflow jrun(jworld *w, const jnode *list) {
    jflow flow = FLOW_ON;
    if (jenter(w))
        for (; list && flow == FLOW_ON && jspend(w, 0); list = list->next) {
            w->line = list->line;
            flow = run_one(w, list);
        }
    w->depth--;
    return flow;
}

/* ---- a rendering ---- */

static void set_all(jworld *w, const json_t *object, bool data) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)object, name, value) { /* it is only read */
        const jvalue v = jfrom_json(w, value, data, 0);
        jset(w, jwords(name), v);
    }
}

static ebb_status copy_out(jworld *w, jtext text, jinja_text *out) {
    out->text = malloc(text.n + 1);
    out->from_data = calloc(text.n + 1, 1);
    if (!out->text || !out->from_data) {
        jinja_text_free(out);
        return ebb_fail(w->error, EBB_NO_MEMORY, "no memory for the conversation");
    }
    memcpy(out->text, text.s, text.n);
    out->text[text.n] = '\0';
    if (text.mark) memcpy(out->from_data, text.mark, text.n);
    out->bytes = text.n;
    return EBB_OK;
}

static bool is_utf8(const char *text, size_t n) {
    int length = 1;
    for (size_t at = 0; at < n && length > 0; at += (size_t)length)
        length = utf8_length((const uint8_t *)text + at, n - at);
    return length > 0;
}

ebb_status jinja_render(const jinja_call *call, jinja_text *out, ebb_error *error) {
    enum { USUAL_STEPS = 50000000, USUAL_OUTPUT = 64 << 20, USUAL_MEMORY = 512 << 20 };
    const jinja_limits *limits = &call->limits;
    ebb_error unused;
    jbuilder made = {0};
    jworld w = {.steps = limits->steps ? limits->steps : USUAL_STEPS,
                .memory = limits->memory ? limits->memory : USUAL_MEMORY,
                .output = limits->output ? limits->output : USUAL_OUTPUT,
                .now = call->now,
                .line = 1,
                .error = error ? error : &unused,
                .out = &made};
    *out = (jinja_text){0};
    if (!is_utf8(call->source, call->bytes)) jfail(&w, EBB_BAD_FILE, "the template is not UTF-8");
    w.scope = open_scope(&w, NULL);
    set_all(&w, call->trusted, false);
    set_all(&w, call->data, true);
    if (!w.status) jlex(&w, call->source, call->bytes);
    jnode *tree = w.status ? NULL : jparse(&w);
    if (!w.status) jrun(&w, tree);
    if (!w.status) w.status = copy_out(&w, jbuilt(&made), out);
    jworld_free(&w);
    return w.status;
}

void jinja_text_free(jinja_text *text) {
    free(text->text);
    free(text->from_data);
    *text = (jinja_text){0};
}
