/* check/check.h: the harness of ebb-check, in the manner of dav1d's checkasm. A family walks its rows; every row that
 * this CPU can run is compared with op/ref. `check_row` opens a report line, `check_fail` marks it, with what differed.
 */
#ifndef CHECK_CHECK_H
#define CHECK_CHECK_H

#include "op/rows.h"

typedef struct check {
    int32_t features; /* of this machine */
    bool all;         /* --all: every combination, not only those that run other code */
    bool quick;       /* --quick: small sizes only, for an emulated CPU */
    const char *only; /* --family NAME, or NULL */
    int64_t passed, failed;
    bool row_failed;
} check;

void check_row(check *c, const char *family, const char *row, const char *what); /* begin one comparison */
void check_fail(check *c, const char *format, ...) EBB_PRINTF(2, 3); /* at most one line a comparison is printed */
void check_done(check *c);                                           /* end it, count it */
bool check_can(const check *c, const kernel_id *id);

/* Deterministic inputs. */
typedef struct rng {
    uint64_t s;
} rng;
uint64_t rng_next(rng *r);
float rng_uniform(rng *r); /* -1 .. 1 */
float rng_normal(rng *r);
int64_t rng_below(rng *r, int64_t n);

/* Largest |a - b| / (atol + rtol |b|); above 1 fails. NaN on one side only counts as infinite. */
double check_distance(const float *a, const float *b, int64_t n, double atol, double rtol);
bool check_same_bits(const float *a, const float *b, int64_t n);

/* The families, one file each. */
void check_gemm(check *c);
void check_point(check *c);
void check_delta(check *c);
void check_chunk(check *c);
void check_attention(check *c);
void check_append(check *c);
void check_select(check *c);

#endif
