/* model/jinja_int.h: what the files of the template interpreter share. jinja_lex.c makes words of a source,
 * jinja_parse.c (statements) and jinja_expression.c a tree of them, jinja_run.c and jinja_eval.c run it; jinja_value.c
 * holds values, jinja_text.c and jinja_list.c what one does with them, jinja_json.c their form in JSON, jinja_calls.c
 * the tables of filters, tests, methods and functions.
 *
 * All memory is an arena that lives as long as one rendering. A failure is kept in the world: the first one counts,
 * and whatever is called after it comes back soon, with no value. */
#ifndef MODEL_JINJA_INT_H
#define MODEL_JINJA_INT_H

#include "model/jinja.h"

#include <string.h>

/* ---- values ---- */

typedef enum jkind {
    J_ABSENT, /* an argument that was not given */
    J_UNDEFINED,
    J_NONE,
    J_BOOL,
    J_INT,
    J_REAL,
    J_TEXT,
    J_LIST,
    J_TUPLE,
    J_RANGE,
    J_VIEW,     /* what keys(), values() and items() give */
    J_ITERATOR, /* can be gone through once */
    J_DICT,
    J_NAMESPACE,
    J_LOOP,
    J_MACRO,
    J_METHOD,
    J_FUNCTION
} jkind;

/* Bytes are not NUL-terminated. `mark`: 1 where a byte comes from data; NULL: none does. */
typedef struct jtext {
    const char *s;
    const uint8_t *mark;
    size_t n;
} jtext;

typedef struct jvalue jvalue;
struct jvalue {
    jkind kind;
    union {
        bool yes;
        int64_t i;
        double real;
        jtext text; /* of J_UNDEFINED: what it is that is not defined */
        struct jseq *seq;
        struct jdict *dict; /* of J_NAMESPACE too */
        struct jloop *loop;
        const struct jnode *macro;
        const struct jrow *row; /* J_FUNCTION */
        struct jmethod *method;
    } as;
    struct jscope *scope; /* where a J_MACRO was defined */
};

typedef struct jseq {
    jvalue *v;
    size_t n, room;
} jseq;

typedef struct jdict {
    jvalue *key, *value;
    size_t n, room;
} jdict;

typedef struct jloop {
    const jseq *seq;
    size_t at;
    jvalue changed; /* arguments of the last changed() */
} jloop;

/* ---- the tree ---- */

typedef enum jnode_kind {
    N_LITERAL,
    N_NAME,
    N_LIST,
    N_TUPLE,
    N_DICT, /* list: N_PAIR a: b */
    N_PAIR,
    N_UNARY,
    N_BINARY,
    N_COMPARE, /* a, list: N_PAIR op a */
    N_AND,
    N_OR,
    N_NOT,
    N_CHOICE, /* b if a else c */
    N_ATTRIBUTE,
    N_ITEM,
    N_SLICE, /* a[b:c:d] */
    N_CALL,
    N_KEYWORD, /* an argument text=a */
    N_FILTER,  /* a | text(list); a NULL: of what a block gives */
    N_TEST,    /* a is text(list); op: is not */
    N_TEXT,
    N_PRINT,
    N_IF,       /* list: N_BRANCH */
    N_BRANCH,   /* a: condition, NULL: else */
    N_FOR,      /* for a in b if c; list: body, d: N_BODY of else */
    N_SET,      /* a = b; b NULL: a = list, filtered by c */
    N_MACRO,    /* text; d: parameters, N_KEYWORD text=a; list: body */
    N_BODY,     /* list in a scope of its own; d: what it sets there first */
    N_FILTERED, /* list, filtered by c */
    N_BREAK,
    N_CONTINUE
} jnode_kind;

typedef struct jnode {
    jnode_kind kind;
    int32_t line, op;
    jtext text;
    jvalue value;
    struct jnode *a, *b, *c, *d;
    struct jnode *list, *next;
} jnode;

/* ---- words ---- */

typedef enum jword_kind { W_END, W_TEXT, W_PRINT, W_PRINT_END, W_BLOCK, W_BLOCK_END, W_NAME, W_VALUE, W_OP } jword_kind;
/* Operators of one character are that character. */
enum { OP_EQ = 256, OP_NE, OP_LE, OP_GE, OP_FLOOR, OP_POW, OP_IN, OP_NOT_IN };

typedef struct jword {
    jword_kind kind;
    int32_t line, op;
    jtext text;   /* W_TEXT, W_NAME */
    jvalue value; /* W_VALUE */
} jword;

/* ---- the world of one rendering ---- */

typedef struct jbinding {
    jtext name;
    jvalue value;
    struct jbinding *next;
} jbinding;
typedef struct jscope {
    struct jscope *parent;
    jbinding *first;
} jscope;

typedef struct jbuilder {
    char *s;
    uint8_t *mark; /* NULL: no byte is marked yet */
    size_t n, room;
} jbuilder;

typedef enum jflow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE } jflow;

typedef struct jworld {
    struct jchunk *chunks;
    size_t memory, output; /* what is left */
    int64_t steps, now;
    int32_t line, depth;
    ebb_status status;
    ebb_error *error;
    jword *words;
    size_t at;     /* of the parser */
    int32_t loops; /* around what is parsed */
    jbuilder *out;
    jscope *scope;
    jvalue piped; /* the text of a block, which a filter without a value takes */
} jworld;

enum { J_MOST_DEPTH = 300 };

/* ---- jinja_value.c ---- */

/* Keep the first failure: "chat template, line N: " and the text. Returns J_UNDEFINED. */
jvalue jfail(jworld *w, ebb_status code, const char *format, ...) EBB_PRINTF(3, 4);
const char *jshown(jtext text, char out[64]); /* for sentences */
void *jnew(jworld *w, size_t bytes);          /* zeroed; NULL: no memory or the limit, which is kept */
bool jspend(jworld *w, size_t bytes);         /* false: the steps are used up */
void jworld_free(jworld *w);

void jput(jworld *w, jbuilder *b, jtext text);
void jput_c(jworld *w, jbuilder *b, const char *text);
jtext jbuilt(const jbuilder *b);

jtext jwords(const char *text); /* the text of a C string */
bool jsame(jtext a, jtext b);
bool jis(jtext a, const char *b);
jtext jpart(jtext t, size_t from, size_t to);

jvalue junknown(jtext what);
jvalue jof_text(jtext t);
jvalue jof_int(int64_t i);
jvalue jof_real(double d);
jvalue jof_bool(bool yes);
jvalue jof_none(void);
jvalue jnew_seq(jworld *w, jkind kind);
void jseq_add(jworld *w, jseq *seq, jvalue v);
jvalue jnew_dict(jworld *w);
void jdict_set(jworld *w, jdict *d, jvalue key, jvalue v);
jvalue *jdict_get(jworld *w, const jdict *d, jvalue key); /* NULL: no such key */

bool jis_seq(jvalue v); /* has as.seq */
bool jnumber(jvalue v); /* bool, int, real */
double jto_real(jvalue v);
bool jtruth(jvalue v);
const char *jkind_name(jvalue v); /* as Python calls the type */
bool jequal(jworld *w, jvalue a, jvalue b);
int jcompare(jworld *w, jvalue a, jvalue b); /* < 0, 0, > 0; what has no order fails */
jtext jto_text(jworld *w, jvalue v);         /* str() */
jtext jrepr_real(jworld *w, double d);
/* What a loop over the value goes through; NULL: it fails. An iterator is empty afterwards. */
jseq *jiterate(jworld *w, jvalue v);

/* ---- arguments and tables: jinja_calls.c ---- */

typedef struct jargs {
    jvalue *v;
    size_t n;
    jtext *names; /* of the keyword arguments */
    jvalue *named;
    size_t n_named;
} jargs;

/* `words`: names of the arguments in order, with J_ABSENT for those not given; "*": as they are given. */
typedef struct jrow {
    const char *name, *words;
    int32_t needed;
    jvalue (*call)(jworld *w, jvalue self, const jargs *args);
} jrow;
typedef struct jmethod {
    jvalue self;
    jtext name;
    const jrow *row; /* NULL: Python has it, and it is not served */
} jmethod;

const jrow *jrow_find(const jrow *table, jtext name);
jvalue jcall_row(jworld *w, const jrow *row, jvalue self, const jargs *args);
jvalue jfilter(jworld *w, jtext name, jvalue v, const jargs *args);
bool jtest(jworld *w, jtext name, jvalue v, const jargs *args);
jvalue jattribute(jworld *w, jvalue v, jtext name);   /* v.name */
jvalue jitem(jworld *w, jvalue v, jvalue key);        /* v[key] */
jvalue jmethod_find(jworld *w, jvalue v, jtext name); /* J_ABSENT: no such method */
jvalue jcall(jworld *w, jvalue callee, const jargs *args);
jvalue jcall_macro(jworld *w, jvalue macro, const jargs *args); /* jinja_run.c */
bool jglobal(jtext name, jvalue *v);
int64_t jint_arg(jworld *w, jvalue v, int64_t otherwise); /* J_ABSENT, none: otherwise */
jtext jtext_arg(jworld *w, jvalue v, const char *otherwise);

/* rows of texts, lists and JSON: jinja_text.c, jinja_list.c, jinja_json.c */
extern const jrow jtext_filters[], jtext_methods[], jlist_filters[], jlist_methods[], jdict_methods[];
jvalue jfilter_tojson(jworld *w, jvalue self, const jargs *args);
jvalue jfrom_json(jworld *w, const json_t *value, bool data, int32_t depth);

size_t jcount(jtext t);                          /* characters */
size_t jchar_at(jtext t, size_t from, size_t n); /* the byte where the n-th character after `from` begins */
size_t jchar_bytes(jtext t, size_t at);
jtext jstrip(jtext t, const jtext *set, bool left, bool right); /* set NULL: blanks */
bool jfind(jworld *w, jtext t, jtext what, size_t from, size_t *at);
bool jcontains(jworld *w, jvalue in, jvalue what); /* what in in */
jvalue jslice(jworld *w, jvalue v, jvalue from, jvalue to, jvalue step);

/* ---- jinja_lex.c, jinja_parse.c, jinja_expression.c, jinja_run.c, jinja_eval.c ---- */

void jlex(jworld *w, const char *source, size_t n);
jnode *jparse(jworld *w);
jnode *jparse_expression(jworld *w);
jnode *jparse_no_choice(jworld *w); /* an expression without `if ... else` */
jnode *jparse_tuple(jworld *w);     /* expressions with commas between them */
jnode *jparse_target(jworld *w);
jnode *jparse_filters(jworld *w, jnode *of);
void jparse_parameters(jworld *w, jnode *macro);
jnode *jnode_new(jworld *w, jnode_kind kind);
jword *jnow(jworld *w); /* the word at hand */
bool jtake_op(jworld *w, int32_t op);
bool jtake_name(jworld *w, const char *name);
bool jat_op(jworld *w, int32_t op);
bool jat_name(jworld *w, const char *name);
void jneed_op(jworld *w, int32_t op);
jnode *junexpected(jworld *w);

jvalue jeval(jworld *w, const jnode *node);
void jeval_args(jworld *w, const jnode *list, jargs *args);
jvalue jbinary(jworld *w, int32_t op, jvalue a, jvalue b);
jflow jrun(jworld *w, const jnode *list);
void jset(jworld *w, jtext name, jvalue v); /* in the scope at hand */
void jassign(jworld *w, const jnode *target, jvalue v);
bool jenter(jworld *w); /* one deeper; false: too deep */

#endif
