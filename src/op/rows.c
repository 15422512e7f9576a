/* op/rows.c: THE table of kernel rows. A new row is declared and listed here, best first; plans, ops and ebb-check find
 * it by walking these lists. */
#include "op/rows.h"

#include <string.h>

extern const gemm_row gemm_ref;
extern const delta_row delta_ref;
extern const chunk_row chunk_ref;
extern const attn_row attn_ref;
extern const point_row point_ref;
extern const append_row append_ref;
extern const select_row select_ref;

#ifdef EBB_X86
extern const gemm_row gemm_avx2, gemm_avx512;
extern const delta_row delta_avx2, delta_avx512;
extern const chunk_row chunk_avx2, chunk_avx512;
extern const attn_row attn_avx2, attn_avx512, attn_avx512vnni;
extern const point_row point_avx2, point_avx512;
extern const append_row append_avx2, append_avx512;
extern const select_row select_avx2, select_avx512;
#    define ROWS(family) &family##_avx512, &family##_avx2, &family##_ref, NULL
#elif defined(EBB_ARM)
extern const gemm_row gemm_neon;
extern const delta_row delta_neon;
extern const chunk_row chunk_neon;
extern const attn_row attn_neon;
extern const point_row point_neon;
extern const append_row append_neon;
extern const select_row select_neon;
#    define ROWS(family) &family##_neon, &family##_ref, NULL
#else
#    define ROWS(family) &family##_ref, NULL
#endif

static const gemm_row *const gemm_rows[] = {ROWS(gemm)};
static const delta_row *const delta_rows[] = {ROWS(delta)};
static const chunk_row *const chunk_rows[] = {ROWS(chunk)};
static const attn_row *const attn_rows[] = {
#ifdef EBB_X86
    &attn_avx512vnni, /* called avx512: the same bits */
#endif
    ROWS(attn)};
static const point_row *const point_rows[] = {ROWS(point)};
static const append_row *const append_rows[] = {ROWS(append)};
static const select_row *const select_rows[] = {ROWS(select)};

static const row_table cpu_rows = {gemm_rows, delta_rows, chunk_rows, attn_rows, point_rows, append_rows, select_rows};

const row_table *rows_of(const ebb_device *device) {
    (void)device; /* the CPU is the one kind */
    return &cpu_rows;
}

const gemm_row *gemm_row_of(const ebb_device *device) {
    const gemm_row *const *row = rows_of(device)->gemm;
    while ((*row)->id.needs & ~device->features) row++; /* ref needs nothing */
    return *row;
}

const point_row *point_row_of(const ebb_device *device) {
    const point_row *const *row = rows_of(device)->point;
    while ((*row)->id.needs & ~device->features) row++;
    return *row;
}

const append_row *append_row_of(const ebb_device *device) {
    const append_row *const *row = rows_of(device)->append;
    while ((*row)->id.needs & ~device->features) row++;
    return *row;
}

const select_row *select_row_of(const ebb_device *device) {
    const select_row *const *row = rows_of(device)->select;
    while ((*row)->id.needs & ~device->features) row++;
    return *row;
}

uint64_t numerics_row(uint64_t id, const char *family, const kernel_id *row) {
    id = hash64(id, family, strlen(family) + 1);
    id = hash64(id, row->name, strlen(row->name) + 1);
    return mix64(hash64(id, &row->version, sizeof row->version));
}

uint64_t numerics_codec(uint64_t id, const char *codec, const ebb_param *params, const double *values) {
    id = hash64(id, codec, strlen(codec) + 1);
    for (int32_t i = 0; params[i].name; i++) id = hash64(id, &values[i], sizeof values[i]);
    return mix64(id);
}
