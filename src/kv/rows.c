/* kv/rows.c: copies of KV slots, and their rows in FP32, to read and to write. Called by engines and by anyone who
 * keeps caches. */
#include "core/image.h"
#include "kv/kv_int.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- checks ---- */

ebb_status kv_check_slot(const ebb_kv_pool *pool, int32_t slot, ebb_error *error) {
    if (!pool) return ebb_fail(error, EBB_BAD_ARGUMENT, "no KV pool");
    const int32_t slots = ebb_kv_pool_view(pool, 0)->slots;
    if (slot >= 0 && slot < slots) return EBB_OK;
    return ebb_fail(error, EBB_BAD_ARGUMENT, "KV slot %d does not exist; expected 0 to %d", slot, slots - 1);
}

ebb_status kv_check_room(const ebb_kv_pool *pool, int32_t slot, int64_t end, ebb_error *error) {
    const ebb_kv_view *v = ebb_kv_pool_view(pool, 0);
    const int32_t *block = v->block + (int64_t)slot * v->block_stride;
    if (end < 0 || end > (int64_t)v->block_stride * v->page)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "%" PRId64 " tokens of a KV slot that holds 0 to %" PRId64, end,
                        (int64_t)v->block_stride * v->page);
    for (int64_t page = 0; page * v->page < end; page++)
        if (block[page] < 0)
            return ebb_fail(error, EBB_BAD_ARGUMENT,
                            "%" PRId64 " tokens of KV slot %d, whose page %" PRId64 " is not reserved", end, slot,
                            page);
    return EBB_OK;
}

/* ---- copies ---- */

static void copy_part(uint8_t *part, int64_t each, int32_t from, int32_t to) {
    if (each) memcpy(part + to * each, part + from * each, (size_t)each);
}

ebb_status ebb_kv_pool_copy(ebb_kv_pool *pool, int32_t from, int32_t to, int64_t pos, ebb_error *error) {
    const ebb_kv_view *v;
    ebb_status status = kv_check_slot(pool, from, error);
    if (status || (status = kv_check_slot(pool, to, error)) || (status = kv_check_room(pool, from, pos, error)) ||
        from == to)
        return status;
    if ((status = ebb_kv_pool_reserve(pool, to, pos, error))) return status;
    for (int32_t i = 0; (v = ebb_kv_pool_view(pool, i)); i++) {
        const int32_t *a = v->block + (int64_t)from * v->block_stride, *b = v->block + (int64_t)to * v->block_stride;
        for (int64_t page = 0; page * v->page < pos; page++)
            memcpy(v->pages + b[page] * v->page_bytes, v->pages + a[page] * v->page_bytes, (size_t)v->page_bytes);
        copy_part(v->tail, v->tail_slot, from, to);
        copy_part(v->extra, v->extra_slot, from, to);
    }
    return EBB_OK;
}

/* ---- rows in FP32 ---- */

typedef struct row_job {
    const ebb_kv_view *v;
    kv_shape kv;
    ebb_planes planes;
    float *group; /* [group][all], part by part; then one row */
    float *tmp;
    uint8_t *packed;
} row_job;

static ebb_status open_job(const ebb_kv_pool *pool, int32_t layer, int32_t slot, int64_t first, int64_t n,
                           const void *rows, row_job *job, ebb_error *error) {
    ebb_kv_rule rule;
    *job = (row_job){0};
    ebb_status status = kv_check_slot(pool, slot, error);
    if (status) return status;
    const ebb_kv_view *v = job->v = ebb_kv_pool_view(pool, layer);
    if (!v) return ebb_fail(error, EBB_BAD_ARGUMENT, "the KV pool has no layer %d", layer);
    if (first < 0 || n < 0 || first > IMAGE_MAX_POSITION || n > IMAGE_MAX_POSITION || (n && !rows))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "%" PRId64 " rows from token %" PRId64 ", or no place for them", n,
                        first);
    if ((status = kv_check_room(pool, slot, first + n, error)) ||
        (status = v->codec->layout(v->layer, v->param, &rule, &job->planes, error)))
        return status;
    job->kv = kv_shape_of(v->layer);
    job->packed = aligned_new(job->planes.bytes);
    job->tmp = aligned_new(job->planes.scratch * sizeof *job->tmp);
    job->group = aligned_new(((size_t)v->rule.group + 1) * (size_t)job->kv.all * sizeof *job->group);
    if (job->packed && job->tmp && job->group) return EBB_OK;
    return ebb_fail(error, EBB_NO_MEMORY, "no memory for a row of keys and values");
}

static void close_job(row_job *job) { free(job->packed), free(job->tmp), free(job->group); }

/* The token `in` of the group in job->group, to or from a row of all its parts. */
static void group_row(const row_job *job, int64_t in, float *read, const float *write) {
    float *part = job->group;
    for (int32_t i = 0, at = 0; i < job->v->layer->parts; i++) {
        const int32_t dims = job->v->layer->part[i].dims;
        if (read) memcpy(read + at, part + in * dims, (size_t)dims * sizeof *part);
        else memcpy(part + in * dims, write + at, (size_t)dims * sizeof *part);
        part += (int64_t)job->v->rule.group * dims;
        at += dims;
    }
}

/* The 16-bit row of a token that is a vertical key; NULL: it is none. */
static const uint16_t *vertical_row(const row_job *job, int32_t slot, int32_t head, int64_t token) {
    const kv_verticals all = kv_verticals_of(job->v, &job->kv, slot, head, token);
    for (int32_t i = 0; i < all.n; i++)
        if (all.place[i] == token % job->v->page) return all.rows + (int64_t)i * job->kv.all;
    return NULL;
}

/* codes, values: the bounds of keys and values. */
static void read_row(const row_job *job, int32_t slot, int32_t head, int64_t token, int64_t codes, int64_t values,
                     float *row) {
    const ebb_kv_view *v = job->v;
    const int32_t all = job->kv.all, at = job->kv.v_at;
    const uint16_t *vertical = token < codes ? vertical_row(job, slot, head, token) : NULL;
    if (vertical) {
        kv_row_read(&v->rule, vertical, all, row);
        return;
    }
    if (token < codes || token < values) {
        kv_get(v, &job->planes, slot, head, token, job->group, job->packed);
        group_row(job, token % v->rule.group, row, NULL);
    }
    if (!v->rule.tail || (token < codes && (token < values || job->kv.shared))) return;
    const uint16_t *wide = kv_tail_row(v, all, slot, head, token);
    if (token >= codes) kv_row_read(&v->rule, wide, job->kv.shared ? all : at, row);
    if (token >= values && !job->kv.shared) kv_row_read(&v->rule, wide + at, job->kv.v, row + at);
}

ebb_status ebb_kv_read(const ebb_kv_pool *pool, int32_t layer, int32_t slot, int64_t pos, int64_t first, int64_t n,
                       float *rows, ebb_error *error) {
    row_job job;
    ebb_status status = open_job(pool, layer, slot, first, n, rows, &job, error);
    if (!status && first + n > pos)
        status = ebb_fail(error, EBB_BAD_ARGUMENT, "tokens up to %" PRId64 " of a slot that stands at %" PRId64,
                          first + n, pos);
    if (!status && n) {
        const int64_t codes = kv_codes_below(job.v, slot, EBB_ROLE_K, pos),
                      values = kv_codes_below(job.v, slot, EBB_ROLE_V, pos);
        for (int64_t t = first; t < first + n; t++)
            for (int32_t head = 0; head < job.v->layer->heads; head++, rows += job.kv.all)
                read_row(&job, slot, head, t, codes, values, rows);
    }
    close_job(&job);
    return status;
}

/* As attention appends it: the row to the tail, then codes of what the tail holds; a group's with its last token. */
static void write_row(const row_job *job, int32_t slot, int32_t head, int64_t token, const float *row) {
    const ebb_kv_view *v = job->v;
    const int32_t group = v->rule.group;
    if (!v->rule.tail) {
        kv_put(v, &job->planes, slot, head, token, row, job->packed, job->tmp);
        return;
    }
    float *one = job->group + (int64_t)group * job->kv.all;
    kv_row_write(&v->rule, row, job->kv.all, kv_tail_row(v, job->kv.all, slot, head, token));
    if ((token + 1) % group) return;
    for (int32_t in = 0; in < group; in++) {
        kv_row_read(&v->rule, kv_tail_row(v, job->kv.all, slot, head, token + 1 - group + in), job->kv.all, one);
        group_row(job, in, NULL, one);
    }
    kv_put(v, &job->planes, slot, head, token, job->group, job->packed, job->tmp);
}

ebb_status ebb_kv_write(ebb_kv_pool *pool, int32_t layer, int32_t slot, int64_t first, int64_t n, const float *rows,
                        ebb_error *error) {
    row_job job;
    ebb_status status = open_job(pool, layer, slot, first, n, rows, &job, error);
    if (!status && (job.v->marks || job.v->codec->rewrite))
        status = ebb_fail(error, EBB_UNSUPPORTED,
                          "rows cannot be written into a KV store of %s%s: what it keeps depends on the queries or the "
                          "end of a prompt, which rows do not have",
                          ebb_kv_pool_spec(pool)->method->name, job.v->rule.select ? "" : " with this prefill");
    for (int64_t t = first; !status && t < first + n; t++)
        for (int32_t head = 0; head < job.v->layer->heads; head++, rows += job.kv.all)
            write_row(&job, slot, head, t, rows);
    close_job(&job);
    return status;
}
