/* model/jinja_expression.c: expressions of templates as trees, by recursive descent: choice, or, and, not, comparison,
 * + -, ~, * / // %, **, sign, then what stands behind a value. See jinja_int.h. */
#include "model/jinja_int.h"

#include <stdio.h>

jnode *jnode_new(jworld *w, jnode_kind kind) {
    jnode *node = jnew(w, sizeof *node);
    if (node) node->kind = kind, node->line = jnow(w)->line;
    return node;
}

jword *jnow(jworld *w) { return &w->words[w->at]; }
static jword *ahead(jworld *w) { return &w->words[w->at + (jnow(w)->kind != W_END)]; }
bool jat_op(jworld *w, int32_t op) { return jnow(w)->kind == W_OP && jnow(w)->op == op; }
bool jat_name(jworld *w, const char *name) { return jnow(w)->kind == W_NAME && jis(jnow(w)->text, name); }

bool jtake_op(jworld *w, int32_t op) {
    const bool here = !w->status && jat_op(w, op);
    w->at += here;
    return here;
}

bool jtake_name(jworld *w, const char *name) {
    const bool here = !w->status && jat_name(w, name);
    w->at += here;
    return here;
}

jnode *junexpected(jworld *w) {
    static const char *const twos[] = {"==", "!=", "<=", ">=", "//", "**"};
    const jword *word = jnow(w);
    char shown[64], op[2] = {(char)word->op, '\0'};
    w->line = word->line;
    const char *what = word->kind == W_NAME                          ? jshown(word->text, shown)
                       : word->kind == W_OP                          ? word->op < OP_EQ ? op : twos[word->op - OP_EQ]
                                                : word->kind == W_VALUE ? "a literal"
                       : word->kind == W_END || word->kind == W_TEXT ? "the end of the template"
                                                                     : "the end of the tag";
    jfail(w, EBB_BAD_FILE, "unexpected %s", what);
    return NULL;
}

void jneed_op(jworld *w, int32_t op) {
    if (!jtake_op(w, op)) junexpected(w);
}

static jnode *pair(jworld *w, jnode_kind kind, int32_t op, jnode *a, jnode *b) {
    jnode *node = jnode_new(w, kind);
    if (node) node->op = op, node->a = a, node->b = b;
    return node;
}

static void append(jnode ***tail, jnode *node) {
    if (!node) return;
    **tail = node;
    *tail = &node->next;
}

static jnode *literal(jworld *w, jvalue v) {
    jnode *node = jnode_new(w, N_LITERAL);
    if (node) node->value = v;
    return node;
}

/* ---- values ---- */

static jnode *parse_name(jworld *w) {
    static const struct {
        const char *name;
        jvalue value;
    } words[] = {{"true", {.kind = J_BOOL, .as.yes = true}},
                 {"True", {.kind = J_BOOL, .as.yes = true}},
                 {"false", {.kind = J_BOOL}},
                 {"False", {.kind = J_BOOL}},
                 {"none", {.kind = J_NONE}},
                 {"None", {.kind = J_NONE}}};
    const jtext name = jnow(w)->text;
    for (int32_t i = 0; i < COUNT(words); i++) {
        if (!jis(name, words[i].name)) continue;
        jnode *node = literal(w, words[i].value);
        w->at++;
        return node;
    }
    jnode *node = jnode_new(w, N_NAME);
    if (node) node->text = name;
    w->at++;
    return node;
}

static jnode *parse_strings(jworld *w) {
    jnode *node = literal(w, jnow(w)->value);
    jbuilder b = {0};
    if (ahead(w)->kind != W_VALUE) {
        w->at++;
        return node;
    }
    for (; jnow(w)->kind == W_VALUE && jnow(w)->value.kind == J_TEXT; w->at++) jput(w, &b, jnow(w)->value.as.text);
    if (node) node->value = jof_text(jbuilt(&b));
    return node;
}

static jnode *parse_list(jworld *w) {
    jnode *node = jnode_new(w, N_LIST), **tail = node ? &node->list : NULL;
    w->at++;
    while (!w->status && !jat_op(w, ']')) {
        append(&tail, jparse_expression(w));
        if (!jtake_op(w, ',')) break;
    }
    jneed_op(w, ']');
    return node;
}

static jnode *parse_dict(jworld *w) {
    jnode *node = jnode_new(w, N_DICT), **tail = node ? &node->list : NULL;
    w->at++;
    while (!w->status && !jat_op(w, '}')) {
        jnode *key = jparse_expression(w);
        jneed_op(w, ':');
        append(&tail, pair(w, N_PAIR, 0, key, jparse_expression(w)));
        if (!jtake_op(w, ',')) break;
    }
    jneed_op(w, '}');
    return node;
}

static jnode *parse_brackets(jworld *w) {
    jnode *node;
    w->at++;
    if (jat_op(w, ')')) node = jnode_new(w, N_TUPLE);
    else node = jparse_tuple(w);
    jneed_op(w, ')');
    return node;
}

static jnode *parse_primary(jworld *w) {
    const jword *word = jnow(w);
    jnode *node = NULL;
    if (!jenter(w)) word = NULL;
    else if (word->kind == W_NAME) node = parse_name(w);
    else if (word->kind == W_VALUE && word->value.kind == J_TEXT) node = parse_strings(w);
    else if (word->kind == W_VALUE) {
        node = literal(w, word->value);
        w->at++;
    } else if (jat_op(w, '(')) node = parse_brackets(w);
    else if (jat_op(w, '[')) node = parse_list(w);
    else if (jat_op(w, '{')) node = parse_dict(w);
    else junexpected(w);
    w->depth--;
    return node;
}

/* ---- what stands behind a value ---- */

static jnode *parse_args(jworld *w) {
    jnode *first = NULL, **tail = &first;
    bool named = false;
    jneed_op(w, '(');
    while (!w->status && !jat_op(w, ')')) {
        if (jat_op(w, '*') || jat_op(w, OP_POW)) {
            w->line = jnow(w)->line;
            jfail(w, EBB_UNSUPPORTED, "arguments with * are beyond what is served");
        }
        const jword *next = ahead(w);
        if (jnow(w)->kind == W_NAME && next->kind == W_OP && next->op == '=') {
            jnode *node = jnode_new(w, N_KEYWORD);
            if (node) node->text = jnow(w)->text;
            w->at += 2;
            jnode *value = jparse_expression(w);
            if (node) node->a = value;
            append(&tail, node);
            named = true;
        } else if (named) junexpected(w);
        else append(&tail, jparse_expression(w));
        if (!jtake_op(w, ',')) break;
    }
    jneed_op(w, ')');
    return first;
}

static jnode *parse_subscript(jworld *w, jnode *of) {
    jnode *node = pair(w, N_ITEM, 0, of, NULL), *part[3] = {NULL, NULL, NULL};
    int32_t colons = 0;
    w->at++;
    for (; !w->status && !jat_op(w, ']'); colons++) {
        if (!jat_op(w, ':')) part[colons] = jparse_expression(w);
        if (jat_op(w, ']')) break;
        if (colons == 2 || !jat_op(w, ':')) {
            junexpected(w);
            break;
        }
        w->at++;
    }
    if (!colons && !part[0] && !w->status) junexpected(w);
    jneed_op(w, ']');
    if (!node) return NULL;
    node->b = part[0], node->c = part[1], node->d = part[2];
    if (colons) node->kind = N_SLICE;
    return node;
}

static jnode *parse_attribute(jworld *w, jnode *of) {
    w->at++;
    const jword *word = jnow(w);
    if (word->kind == W_VALUE && word->value.kind == J_INT) {
        jnode *node = pair(w, N_ITEM, 0, of, literal(w, word->value));
        w->at++;
        return node;
    }
    if (word->kind != W_NAME) return junexpected(w);
    jnode *node = pair(w, N_ATTRIBUTE, 0, of, NULL);
    if (node) node->text = word->text;
    w->at++;
    return node;
}

static jnode *parse_call(jworld *w, jnode *of) {
    jnode *node = pair(w, N_CALL, 0, of, NULL), *args = parse_args(w);
    if (node) node->list = args;
    return node;
}

static jnode *parse_postfix(jworld *w, jnode *node) {
    while (!w->status) {
        if (jat_op(w, '.')) node = parse_attribute(w, node);
        else if (jat_op(w, '[')) node = parse_subscript(w, node);
        else if (jat_op(w, '(')) node = parse_call(w, node);
        else break;
    }
    return node;
}

/* The one argument of a test without brackets, as in `is divisibleby 3`. */
static bool at_argument(jworld *w) {
    const jword *word = jnow(w);
    if (word->kind == W_NAME) return !jis(word->text, "else") && !jis(word->text, "or") && !jis(word->text, "and");
    return word->kind == W_VALUE || jat_op(w, '[') || jat_op(w, '{');
}

/* A name, and names with dots behind it. */
static jtext parse_dotted(jworld *w) {
    const jtext name = jnow(w)->text;
    if (jnow(w)->kind != W_NAME) junexpected(w);
    else w->at++;
    if (jat_op(w, '.')) junexpected(w);
    return name;
}

static jnode *parse_test(jworld *w, jnode *of) {
    jnode *node = pair(w, N_TEST, 0, of, NULL), *args = NULL;
    w->at++;
    const bool negated = jtake_name(w, "not");
    const jtext name = parse_dotted(w);
    if (jat_op(w, '(')) args = parse_args(w);
    else if (!w->status && at_argument(w))
        args = jat_name(w, "is") ? junexpected(w) : parse_postfix(w, parse_primary(w));
    if (node) node->op = negated, node->text = name, node->list = args;
    return node;
}

static jnode *parse_filter(jworld *w, jnode *of) {
    jnode *node = pair(w, N_FILTER, 0, of, NULL);
    const jtext name = parse_dotted(w);
    jnode *args = jat_op(w, '(') ? parse_args(w) : NULL;
    if (node) node->text = name, node->list = args;
    return node;
}

jnode *jparse_filters(jworld *w, jnode *node) {
    while (!w->status) {
        if (jtake_op(w, '|')) node = parse_filter(w, node);
        else if (jat_name(w, "is") && node) node = parse_test(w, node);
        else if (jat_op(w, '(') && node) node = parse_call(w, node);
        else break;
    }
    return node;
}

/* ---- operators ---- */

static jnode *parse_sign(jworld *w, bool filters) {
    jnode *node;
    const int32_t op = jat_op(w, '-') ? '-' : jat_op(w, '+') ? '+' : 0;
    if (!op) node = parse_primary(w);
    else if (jenter(w)) {
        node = pair(w, N_UNARY, op, NULL, NULL);
        w->at++;
        jnode *of = parse_sign(w, false);
        if (node) node->a = of;
        w->depth--;
    } else return NULL;
    node = parse_postfix(w, node);
    return filters ? jparse_filters(w, node) : node;
}

/* The levels of operators that bind to their left, from + and - inwards. */
static jnode *parse_level(jworld *w, int32_t level) {
    static const int32_t levels[][4] = {{'+', '-'}, {'~'}, {'*', '/', OP_FLOOR, '%'}, {OP_POW}};
    if (level == COUNT(levels)) return parse_sign(w, true);
    jnode *node = parse_level(w, level + 1);
    while (!w->status && jnow(w)->kind == W_OP) {
        int32_t op = 0;
        for (int32_t i = 0; i < 4; i++)
            if (levels[level][i] == jnow(w)->op) op = jnow(w)->op;
        if (!op) break;
        jnode *made = pair(w, N_BINARY, op, node, NULL);
        w->at++;
        jnode *right = parse_level(w, level + 1);
        if (made) made->b = right;
        node = made;
    }
    return node;
}

/* The comparison at hand, which is taken; 0: none. */
static int32_t take_comparison(jworld *w) {
    const jword *word = jnow(w), *next = ahead(w);
    if (word->kind == W_OP && (word->op == '<' || word->op == '>' || (word->op >= OP_EQ && word->op <= OP_GE))) {
        w->at++;
        return word->op;
    }
    if (jtake_name(w, "in")) return OP_IN;
    if (!jat_name(w, "not") || next->kind != W_NAME || !jis(next->text, "in")) return 0;
    w->at += 2;
    return OP_NOT_IN;
}

static jnode *parse_comparison(jworld *w) {
    jnode *first = parse_level(w, 0), *node = NULL, **tail = NULL;
    for (int32_t op; !w->status && (op = take_comparison(w));) {
        if (!node && (node = pair(w, N_COMPARE, 0, first, NULL))) tail = &node->list;
        jnode *right = parse_level(w, 0);
        if (tail) append(&tail, pair(w, N_PAIR, op, right, NULL));
    }
    return node ? node : first;
}

static jnode *parse_not(jworld *w) {
    if (!jat_name(w, "not")) return parse_comparison(w);
    jnode *node = pair(w, N_NOT, 0, NULL, NULL);
    w->at++;
    jnode *of = jenter(w) ? parse_not(w) : NULL;
    w->depth--;
    if (node) node->a = of;
    return node;
}

static jnode *parse_and(jworld *w) {
    jnode *node = parse_not(w);
    while (jtake_name(w, "and")) node = pair(w, N_AND, 0, node, parse_not(w));
    return node;
}

jnode *jparse_no_choice(jworld *w) {
    jnode *node = jenter(w) ? parse_and(w) : NULL;
    while (jtake_name(w, "or")) node = pair(w, N_OR, 0, node, parse_and(w));
    w->depth--;
    return node;
}

jnode *jparse_expression(jworld *w) {
    jnode *node = jparse_no_choice(w);
    while (jtake_name(w, "if")) {
        jnode *condition = jparse_no_choice(w);
        node = pair(w, N_CHOICE, 0, condition, node);
        jnode *other = NULL;
        if (jtake_name(w, "else")) {
            other = jenter(w) ? jparse_expression(w) : NULL;
            w->depth--;
        }
        if (node) node->c = other;
    }
    return node;
}

/* ---- several at once ---- */

static bool at_tuple_end(jworld *w) {
    return jnow(w)->kind == W_BLOCK_END || jnow(w)->kind == W_PRINT_END || jnow(w)->kind == W_END || jat_op(w, ')') ||
           jat_name(w, "in");
}

static jnode *parse_commas(jworld *w, jnode *(*one)(jworld *)) {
    jnode *first = one(w);
    if (!jat_op(w, ',')) return first;
    jnode *node = jnode_new(w, N_TUPLE), **tail = node ? &node->list : NULL;
    if (node) append(&tail, first);
    while (node && jtake_op(w, ',') && !at_tuple_end(w)) append(&tail, one(w));
    return node;
}

jnode *jparse_tuple(jworld *w) { return parse_commas(w, jparse_expression); }

static jnode *parse_one_target(jworld *w) {
    if (jtake_op(w, '(')) {
        jnode *inner = jenter(w) ? jparse_target(w) : NULL;
        w->depth--;
        jneed_op(w, ')');
        return inner;
    }
    if (jnow(w)->kind != W_NAME) return junexpected(w);
    jnode *node = parse_name(w);
    if (node && node->kind != N_NAME) {
        w->at--;
        return junexpected(w);
    }
    return jat_op(w, '.') ? parse_attribute(w, node) : node;
}

jnode *jparse_target(jworld *w) { return parse_commas(w, parse_one_target); }

void jparse_parameters(jworld *w, jnode *macro) {
    jnode **tail = &macro->d;
    jneed_op(w, '(');
    bool defaults = false;
    while (!w->status && !jat_op(w, ')')) {
        jnode *node = jnode_new(w, N_KEYWORD);
        if (jnow(w)->kind != W_NAME || !node) {
            junexpected(w);
            return;
        }
        node->text = jnow(w)->text;
        w->at++;
        if (jtake_op(w, '=')) node->a = jparse_expression(w), defaults = true;
        else if (defaults) junexpected(w);
        append(&tail, node);
        if (!jtake_op(w, ',')) break;
    }
    jneed_op(w, ')');
}
