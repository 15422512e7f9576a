/* one_head.h: one packed head of one method, and what tests of codecs measure on it: the stored matrix, the
 * idempotence numbers of a heavy-tailed matrix. Needs ebb-core only. */
#ifndef ONE_HEAD_H
#define ONE_HEAD_H

#include "core/core.h"
#include "ebb/state.h"
#include "state/layout.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct one_head {
    ebb_state_spec spec;
    ebb_state_layer layer;
    ebb_planes planes;
    ebb_head head;
    ebb_layout *layout; /* of calibrated methods: nothing moved, nothing scaled, the first rows protected */
    uint8_t *packed;
    float *tmp;
} one_head;

static inline void head_open(one_head *t, const char *method, int32_t dk, int32_t dv) {
    ebb_error error = {EBB_OK, ""};
    if (ebb_state_parse(method, &t->spec, &error)) fail_msg("%s", error.text);
    t->layer = (ebb_state_layer){.kind = EBB_GDN, .key_heads = 1, .heads = 1, .key_dim = dk, .value_dim = dv};
    t->head = (ebb_head){.layer = &t->layer, .param = t->spec.param, .rng_key = 99};
    t->layout = NULL;
    if (t->spec.method->codec->flags & EBB_NEEDS_TABLE) {
        assert_int_equal(layout_identity("any", &t->layer, 1, &t->layout, &error), EBB_OK);
        t->head.table = ebb_layout_table(t->layout, 0, NULL);
    }
    assert_int_equal(t->spec.method->codec->layout(&t->head, &t->planes, &error), EBB_OK);
    t->packed = malloc(t->planes.bytes); /* exactly: the sanitizer watches the end */
    t->tmp = malloc(t->planes.scratch * sizeof(float) + 1);
    memset(t->packed, 0xA5, t->planes.bytes);
}
static inline void head_close(one_head *t) {
    free(t->packed), free(t->tmp);
    ebb_layout_free(t->layout);
}

static inline void head_put(one_head *t, const float *S) {
    t->spec.method->codec->encode(&t->head, S, NULL, NULL, t->packed, t->tmp);
}
static inline void head_get(one_head *t, float *S) { t->spec.method->codec->decode(&t->head, t->packed, S); }

static inline const uint8_t *head_plane(const one_head *t, const char *name) {
    for (int32_t i = 0; i < t->planes.n; i++)
        if (!strcmp(t->planes.plane[i].name, name)) return t->packed + t->planes.plane[i].at;
    fail_msg("no plane %s", name);
    return NULL;
}

/* ||a - scale b|| */
static inline double head_distance(const float *a, const float *b, double scale, int64_t n) {
    double s = 0;
    for (int64_t i = 0; i < n; i++) s += pow((double)a[i] - scale * (double)b[i], 2);
    return sqrt(s);
}

/* The 128 x 128 matrix of tests/data/idem_matrix.f32. */
static inline void idem_matrix(float *X) {
    FILE *f = fopen(SOURCE_DIR "/tests/data/idem_matrix.f32", "rb");
    assert_non_null(f);
    assert_int_equal(fread(X, sizeof *X, 16384, f), 16384);
    fclose(f);
}

/* Of that matrix X, with a = .999: |Q(X) - X|, |Q(Q) - Q|, |Q(aQ) - aQ|, each over |X|; and 200 decays by a, each
 * stored: the distance from a^200 Q and the norm, over |a^200 Q|. */
typedef struct idem_numbers {
    double single, again, decayed, after, ratio;
} idem_numbers;

static inline idem_numbers idem_measure(const char *method) {
    enum { N = 16384 };
    float *X = malloc(N * sizeof *X), *Q = malloc(N * sizeof *Q), *aQ = malloc(N * sizeof *aQ),
          *Y = malloc(N * sizeof *Y);
    one_head t;
    head_open(&t, method, 128, 128);
    idem_matrix(X);
    const double size = head_distance(X, X, 0, N);
    idem_numbers m;
    head_put(&t, X), head_get(&t, Q);
    m.single = head_distance(Q, X, 1, N) / size;
    head_put(&t, Q), head_get(&t, Y);
    m.again = head_distance(Y, Q, 1, N) / size;
    for (int i = 0; i < N; i++) aQ[i] = .999f * Q[i];
    head_put(&t, aQ), head_get(&t, Y);
    m.decayed = head_distance(Y, aQ, 1, N) / size;
    memcpy(Y, Q, N * sizeof *Y);
    for (int step = 0; step < 200; step++) {
        for (int i = 0; i < N; i++) Y[i] *= .999f;
        t.head.pos = step + 1; /* random numbers of its own */
        head_put(&t, Y), head_get(&t, Y);
    }
    const double a200 = pow((double).999f, 200), after = a200 * head_distance(Q, Q, 0, N);
    m.after = head_distance(Y, Q, a200, N) / after;
    m.ratio = head_distance(Y, Y, 0, N) / after;
    head_close(&t);
    free(X), free(Q), free(aQ), free(Y);
    return m;
}

/* Within 20 %; a limit of less than 1e-6 is rounding of FP32, and an upper bound. */
static inline void idem_close(const char *method, const char *what, double value, double want) {
    if (want < 1e-6 ? !(value <= 1e-6) : !(fabs(value - want) <= .2 * want))
        fail_msg("%s: %s is %.3g, expected %.3g", method, what, value, want);
}

static inline void idem_check(const char *method, idem_numbers want) {
    const idem_numbers m = idem_measure(method);
    idem_close(method, "single store", m.single, want.single);
    idem_close(method, "Q(Q) - Q", m.again, want.again);
    idem_close(method, "Q(aQ) - aQ", m.decayed, want.decayed);
    idem_close(method, "200 decays", m.after, want.after);
    idem_close(method, "norm after 200 decays, less 1", fabs(m.ratio - 1), fabs(want.ratio - 1));
}

#endif
