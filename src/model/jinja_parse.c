/* model/jinja_parse.c: statements of templates as trees. See jinja_int.h. */
#include "model/jinja_int.h"

#include <stdio.h>

static jnode *parse_body(jworld *w, const char *const *ends);

static void end_block(jworld *w) {
    if (w->status) return;
    if (jnow(w)->kind == W_BLOCK_END) w->at++;
    else junexpected(w);
}

/* A body up to {% END %}, which is taken. */
static jnode *body_to(jworld *w, const char *end) {
    const char *const ends[] = {end, NULL};
    jnode *body = parse_body(w, ends);
    if (!w->status) w->at++;
    end_block(w);
    return body;
}

static jnode *parse_if(jworld *w) {
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    jnode *node = jnode_new(w, N_IF), **tail = node ? &node->list : NULL;
    bool otherwise = false;
    while (node && !w->status) {
        jnode *branch = jnode_new(w, N_BRANCH);
        if (!branch) break;
        if (!otherwise) branch->a = jparse_tuple(w);
        end_block(w);
        branch->list = parse_body(w, otherwise ? ends + 2 : ends);
        *tail = branch, tail = &branch->next;
        if (w->status) break;
        otherwise = jat_name(w, "else");
        const bool done = jat_name(w, "endif");
        w->at++;
        if (!done) continue;
        end_block(w);
        break;
    }
    return node;
}

static jnode *parse_for(jworld *w) {
    static const char *const ends[] = {"else", "endfor", NULL};
    jnode *node = jnode_new(w, N_FOR);
    if (!node) return NULL;
    node->a = jparse_target(w);
    if (!jtake_name(w, "in")) return junexpected(w);
    jnode *first = jparse_no_choice(w), *tuple = NULL, **tail = NULL;
    while (jtake_op(w, ',')) {
        if (!tuple && (tuple = jnode_new(w, N_TUPLE))) tuple->list = first, tail = first ? &first->next : NULL;
        jnode *more = jnow(w)->kind == W_BLOCK_END || !tail ? NULL : jparse_no_choice(w);
        if (!more) break;
        *tail = more, tail = &more->next;
    }
    node->b = tuple ? tuple : first;
    if (jtake_name(w, "if")) node->c = jparse_expression(w);
    if (jat_name(w, "recursive")) {
        w->line = jnow(w)->line;
        jfail(w, EBB_UNSUPPORTED, "recursive loops are beyond what is served");
    }
    end_block(w);
    w->loops++;
    node->list = parse_body(w, ends);
    w->loops--;
    if (w->status) return NULL;
    const bool otherwise = jtake_name(w, "else");
    if (otherwise) {
        end_block(w);
        if ((node->d = jnode_new(w, N_BODY))) node->d->list = parse_body(w, ends + 1);
    }
    if (!w->status) w->at++;
    end_block(w);
    return node;
}

static jnode *parse_set(jworld *w) {
    jnode *node = jnode_new(w, N_SET);
    if (!node) return NULL;
    node->a = jparse_target(w);
    if (jtake_op(w, '=')) {
        node->b = jparse_tuple(w);
        end_block(w);
        return node;
    }
    node->c = jat_op(w, '|') ? jparse_filters(w, NULL) : NULL;
    end_block(w);
    node->list = body_to(w, "endset");
    return node;
}

static jnode *parse_macro(jworld *w) {
    jnode *node = jnode_new(w, N_MACRO);
    if (!node || jnow(w)->kind != W_NAME) return junexpected(w);
    const int32_t loops = w->loops;
    node->text = jnow(w)->text;
    w->at++;
    jparse_parameters(w, node);
    end_block(w);
    w->loops = 0;
    node->list = body_to(w, "endmacro");
    w->loops = loops;
    return node;
}

/* {% with a = 1, b = 2 %}: the values are taken before any of them is set. */
static jnode *parse_with(jworld *w) {
    jnode *node = jnode_new(w, N_BODY), **tail = node ? &node->d : NULL;
    while (node && !w->status && jnow(w)->kind != W_BLOCK_END) {
        jnode *set = jnode_new(w, N_SET);
        if (!set) break;
        set->a = jparse_target(w);
        jneed_op(w, '=');
        set->b = jparse_expression(w);
        *tail = set, tail = &set->next;
        if (!jtake_op(w, ',')) break;
    }
    end_block(w);
    jnode *body = body_to(w, "endwith");
    if (node) node->list = body;
    return node;
}

static jnode *parse_filter_block(jworld *w) {
    jnode *node = jnode_new(w, N_FILTERED);
    if (!node) return NULL;
    /* the name stands where a | would be behind a value: the same words with one in front */
    if (jnow(w)->kind != W_NAME) return junexpected(w);
    jword *before = &w->words[w->at - 1];
    const jword kept = *before;
    *before = (jword){.kind = W_OP, .op = '|', .line = kept.line};
    w->at--;
    node->c = jparse_filters(w, NULL);
    *before = kept;
    end_block(w);
    node->list = body_to(w, "endfilter");
    return node;
}

static jnode *parse_generation(jworld *w) {
    jnode *node = jnode_new(w, N_BODY);
    end_block(w);
    jnode *body = body_to(w, "endgeneration");
    if (node) node->list = body;
    return node;
}

static jnode *parse_jump(jworld *w, jnode_kind kind) {
    jnode *node = jnode_new(w, kind);
    if (!w->loops) {
        w->line = jnow(w)->line;
        jfail(w, EBB_BAD_FILE, "%s outside a loop", kind == N_BREAK ? "break" : "continue");
    }
    end_block(w);
    return node;
}

static jnode *parse_break(jworld *w) { return parse_jump(w, N_BREAK); }
static jnode *parse_continue(jworld *w) { return parse_jump(w, N_CONTINUE); }

static jnode *parse_statement(jworld *w) {
    static const struct {
        const char *name;
        jnode *(*parse)(jworld *w);
    } rows[] = {{"if", parse_if},
                {"for", parse_for},
                {"set", parse_set},
                {"macro", parse_macro},
                {"with", parse_with},
                {"filter", parse_filter_block},
                {"generation", parse_generation},
                {"break", parse_break},
                {"continue", parse_continue}};
    const jtext name = jnow(w)->text;
    char shown[64];
    if (jnow(w)->kind != W_NAME) return junexpected(w);
    for (int32_t i = 0; i < COUNT(rows); i++) {
        if (!jis(name, rows[i].name)) continue;
        w->at++;
        return rows[i].parse(w);
    }
    w->line = jnow(w)->line;
    if (name.n > 3 && !memcmp(name.s, "end", 3)) jfail(w, EBB_BAD_FILE, "unexpected %s", jshown(name, shown));
    else jfail(w, EBB_UNSUPPORTED, "{%% %s %%} is beyond what is served", jshown(name, shown));
    return NULL;
}

static jnode *parse_print(jworld *w) {
    jnode *node = jnode_new(w, N_PRINT);
    w->at++;
    if (jnow(w)->kind == W_PRINT_END) return junexpected(w);
    jnode *of = jparse_tuple(w);
    if (node) node->a = of;
    if (w->status) return NULL;
    if (jnow(w)->kind != W_PRINT_END) return junexpected(w);
    w->at++;
    return node;
}

static bool at_end(jworld *w, const char *const *ends) {
    for (; *ends; ends++)
        if (jat_name(w, *ends)) return true;
    return false;
}

/* Statements up to a block whose name is one of `ends` and at hand then; NULL: up to the end of the template. */
static jnode *parse_body(jworld *w, const char *const *ends) {
    jnode *first = NULL, **tail = &first;
    if (!jenter(w)) return NULL;
    while (!w->status && jnow(w)->kind != W_END) {
        jnode *node = NULL;
        if (jnow(w)->kind == W_TEXT) {
            if ((node = jnode_new(w, N_TEXT))) node->text = jnow(w)->text;
            w->at++;
        } else if (jnow(w)->kind == W_PRINT) node = parse_print(w);
        else {
            w->at++;
            if (ends && at_end(w, ends)) {
                w->depth--;
                return first;
            }
            node = parse_statement(w);
        }
        if (!node) break;
        *tail = node, tail = &node->next;
    }
    if (ends && !w->status) {
        w->line = jnow(w)->line;
        jfail(w, EBB_BAD_FILE, "the template ends where %s was expected", *ends);
    }
    w->depth--;
    return first;
}

jnode *jparse(jworld *w) { return parse_body(w, NULL); }
