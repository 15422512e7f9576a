/* engine/image.c: a sequence in a file, and back. Called by programs. The layout is in docs/images.md: fixed fields,
 * tokens, the image of its states, the image of its KV cache.
 *
 * FP32 goes through a pool of the method "fp32" with one slot: an export converts the slot into it and saves that, an
 * import loads into it and converts. */
#include "core/image.h"
#include "engine/engine_int.h"
#include "state/records.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- between methods: states and KV rows as FP32 ---- */

/* The states of one layer of a slot, to or from S [heads][key_dim][value_dim]. Reading folds what is due. */
static ebb_status move_states(ebb_device *device, const char *algorithm, const ebb_state_view *v, int32_t slot,
                              int64_t pos, float *S, bool write, ebb_error *error) {
    static const int32_t cu[2] = {0, 0};
    ebb_plan plan;
    ebb_queue *queue = NULL;
    ebb_status status = ebb_delta_plan(device, v, algorithm, 0, 1, 1, 1, &plan, error);
    if (!status) status = ebb_queue_open(device, plan.scratch, &queue, error);
    ebb_delta_args args = {.size = sizeof args, .s = *v, .b = {.seqs = 1, .slot = &slot, .cu = cu, .pos = &pos}};
    if (!status && write) status = ebb_delta_write(queue, &plan, &args, S, error);
    else if (!status) status = ebb_delta_read(queue, &plan, &args, S, error);
    if (!status) status = ebb_queue_sync(queue, error);
    ebb_queue_close(queue);
    return status;
}

static float *layer_matrices(const ebb_state_layer *l, ebb_error *error) {
    const size_t bytes = (size_t)l->heads * (size_t)l->key_dim * (size_t)l->value_dim * sizeof(float);
    float *S = aligned_new(bytes);
    if (!S) ebb_fail(error, EBB_NO_MEMORY, "no memory for %zu bytes of states in FP32", bytes);
    return S;
}

/* Fold the windows that are due, so that an image does not depend on when kernels last did, and fits any ring. */
static ebb_status fold(const ebb_engine *e, int32_t id, ebb_error *error) {
    const int64_t pos = e->seqs[id].pos;
    const ebb_state_view *v;
    ebb_status status = EBB_OK;
    for (int32_t i = 0; e->state && pos > 0 && !status && (v = ebb_state_pool_view(e->state, i)); i++) {
        bool due = false;
        for (int32_t head = 0; head < v->layer->heads; head++) due |= pos - *base_of(v, id, head) >= v->window;
        if (!due) continue;
        float *S = layer_matrices(v->layer, error);
        if (!S) return EBB_NO_MEMORY;
        status = move_states(ebb_model_device(e->model), e->config.algorithm, v, id, pos, S, false, error);
        free(S);
    }
    return status;
}

/* One end of a conversion: a slot, and the rows that serve its pool. */
typedef struct state_end {
    ebb_state_pool *pool;
    int32_t slot;
    const char *algorithm;
} state_end;

static ebb_status convert_states(ebb_device *device, state_end from, state_end to, int64_t pos, ebb_error *error) {
    const ebb_state_view *v;
    ebb_status status = EBB_OK;
    for (int32_t i = 0; pos > 0 && !status && (v = ebb_state_pool_view(from.pool, i)); i++) {
        const size_t inputs = (size_t)EBB_MAX_CONV * (size_t)ebb_state_conv_channels(v->layer);
        float *S = layer_matrices(v->layer, error), *conv = aligned_new(inputs * sizeof *conv);
        if (!S) status = EBB_NO_MEMORY;
        else if (!conv) status = ebb_fail(error, EBB_NO_MEMORY, "no memory for conv inputs in FP32");
        if (!status) status = move_states(device, from.algorithm, v, from.slot, pos, S, false, error);
        if (!status)
            status = move_states(device, to.algorithm, ebb_state_pool_view(to.pool, i), to.slot, pos, S, true, error);
        if (!status) status = ebb_state_conv_read(from.pool, i, from.slot, pos, conv, error);
        if (!status) status = ebb_state_conv_write(to.pool, i, to.slot, pos, conv, error);
        free(S), free(conv);
    }
    return status;
}

static ebb_status convert_kv(const ebb_kv_pool *from, int32_t from_slot, ebb_kv_pool *to, int32_t to_slot, int64_t pos,
                             ebb_error *error) {
    const ebb_kv_view *v;
    ebb_status status = ebb_kv_pool_reserve(to, to_slot, pos, error);
    for (int32_t i = 0; !status && (v = ebb_kv_pool_view(from, i)); i++) {
        size_t dims = 0;
        for (int32_t p = 0; p < v->layer->parts; p++) dims += (size_t)v->layer->part[p].dims;
        float *rows = aligned_new((size_t)EBB_KV_PAGE * (size_t)v->layer->heads * dims * sizeof *rows);
        if (!rows) return ebb_fail(error, EBB_NO_MEMORY, "no memory for a page of keys and values in FP32");
        for (int64_t t = 0; t < pos && !status; t += EBB_KV_PAGE) {
            const int64_t n = min_i64(EBB_KV_PAGE, pos - t);
            status = ebb_kv_read(from, i, from_slot, pos, t, n, rows, error);
            if (!status) status = ebb_kv_write(to, i, to_slot, t, n, rows, error);
        }
        free(rows);
    }
    return status;
}

static ebb_status open_fp32_states(const ebb_engine *e, ebb_state_pool **pool, ebb_error *error) {
    ebb_state_spec spec;
    ebb_state_pool_config c = {.size = sizeof c,
                               .spec = &spec,
                               .layers = ebb_model_state_layers(e->model),
                               .n_layers = e->info->state_layers,
                               .slots = 1,
                               .max_new = EBB_MAX_NEW};
    ebb_status status = ebb_state_parse("fp32", &spec, error);
    return status ? status : ebb_state_pool_open(ebb_model_device(e->model), &c, pool, error);
}

static ebb_status open_fp32_kv(const ebb_engine *e, int64_t tokens, ebb_kv_pool **pool, ebb_error *error) {
    ebb_kv_spec spec;
    ebb_kv_pool_config c = {.size = sizeof c,
                            .spec = &spec,
                            .layers = ebb_model_kv_layers(e->model),
                            .n_layers = e->info->kv_layers,
                            .slots = 1,
                            .max_tokens = max_i64(tokens, 1)};
    ebb_status status = ebb_kv_parse("fp32", &spec, error);
    return status ? status : ebb_kv_pool_open(ebb_model_device(e->model), &c, pool, error);
}

/* ---- the payload ---- */

enum { KEEP = 1 }; /* flags */

/* The fixed fields, as they lie in the file. */
typedef struct fields {
    int64_t tokens; /* committed and waiting; first, for the frame reads it */
    int32_t produced, flags;
    float temperature, top_p, min_p;
    int32_t top_k;
    float repeat_penalty;
    int32_t repeat_last;
    uint64_t seed, state_bytes, kv_bytes;
} fields;
_Static_assert(sizeof(fields) == 64, "the fields have no padding");

static size_t token_bytes(int64_t tokens) { return align_up((size_t)tokens * sizeof(int32_t), 8); }

/* What is written: a sequence whose memory lies in these slots. */
typedef struct source {
    const sequence *s;
    state_end state; /* pool NULL: the model has none */
    const ebb_kv_pool *kv;
    int32_t kv_slot;
} source;

static ebb_status describe(const ebb_engine *e, const source *from, const ebb_origin *origin, image_text *t,
                           ebb_error *error) {
    char state[512] = "none", kv[512] = "none";
    ebb_status status = EBB_OK;
    if (from->state.pool) status = ebb_state_text(ebb_state_pool_spec(from->state.pool), state, sizeof state, error);
    if (!status && from->kv) status = ebb_kv_text(ebb_kv_pool_spec(from->kv), kv, sizeof kv, error);
    if (status) return status;
    image_text_add(t, "model %s\nstate %s\nkv %s\n", e->info->architecture, state, kv);
    image_text_rows(t, origin);
    return t->failed ? ebb_fail(error, EBB_NO_MEMORY, "no memory for the description of an image") : EBB_OK;
}

/* Sizes of the two images inside. */
static ebb_status measure(const source *from, const ebb_origin *origin, fields *f, ebb_error *error) {
    const int64_t pos = from->s->pos;
    ebb_error why = {EBB_OK, ""};
    if (from->state.pool) f->state_bytes = ebb_state_image_bytes(from->state.pool, from->state.slot, pos, origin, &why);
    if (from->kv && !why.code) f->kv_bytes = ebb_kv_image_bytes(from->kv, from->kv_slot, pos, origin, &why);
    return why.code ? ebb_fail(error, why.code, "%s", why.text) : EBB_OK;
}

static ebb_status fill(const source *from, const ebb_origin *origin, const fields *f, uint8_t *at, ebb_error *error) {
    const sequence *s = from->s;
    ebb_status status = EBB_OK;
    memcpy(at, f, sizeof *f);
    at += sizeof *f;
    memset(at, 0, token_bytes(s->end));
    memcpy(at, s->tokens, (size_t)s->end * sizeof *s->tokens);
    at += token_bytes(s->end);
    if (from->state.pool)
        status = ebb_state_save(from->state.pool, from->state.slot, s->pos, origin, at, f->state_bytes, error);
    at += f->state_bytes;
    if (!status && from->kv) status = ebb_kv_save(from->kv, from->kv_slot, s->pos, origin, at, f->kv_bytes, error);
    return status;
}

/* *out is the caller's; `name` says in a sentence where it is to go. */
static ebb_status make_image(const ebb_engine *e, const source *from, const char *name, uint8_t **out, size_t *size,
                             ebb_error *error) {
    const sequence *s = from->s;
    const ebb_sampling *p = &s->sampling;
    const ebb_origin origin = {ebb_runner_numerics(e->runner), e->info->hash, ebb_runner_rows(e->runner)};
    fields f = {s->end,   s->produced,       s->keep ? KEEP : 0, p->temperature, p->top_p, p->min_p,
                p->top_k, p->repeat_penalty, p->repeat_last,     p->seed,        0,        0};
    image_text text = {0};
    uint8_t *image = NULL;
    size_t payload = sizeof f + token_bytes(s->end), bytes = 0;
    ebb_status status = describe(e, from, &origin, &text, error);
    if (!status) status = measure(from, &origin, &f, error);
    if (status) goto done;
    if (size_add(payload, f.state_bytes, &payload) && size_add(payload, f.kv_bytes, &payload))
        bytes = image_bytes(text.bytes, payload);
    image = bytes ? aligned_new(bytes) : NULL;
    if (!image) {
        status = ebb_fail(error, EBB_NO_MEMORY, "%s: no memory for an image of %zu bytes", name, bytes);
        goto done;
    }
    status = fill(from, &origin, &f, image_begin(image, bytes, EBB_IMAGE_SEQUENCE, s->pos, &origin, &text), error);
    if (status) goto done;
    image_seal(image, bytes);
    *out = image, *size = bytes;
    image = NULL;
done:
    free(image), free(text.text);
    return status;
}

static ebb_status write_sequence(const ebb_engine *e, const source *from, const char *path, ebb_error *error) {
    uint8_t *image;
    size_t bytes;
    ebb_status status = make_image(e, from, path, &image, &bytes, error);
    if (status) return status;
    status = replace_file(path, image, bytes, error);
    free(image);
    return status;
}

/* ---- saving ---- */

static ebb_status check_save(const sequence *s, int32_t id, const char *path, ebb_error *error) {
    if (!s) return ebb_fail(error, EBB_BAD_ARGUMENT, "no open sequence %d", id);
    if (!path || !*path) return ebb_fail(error, EBB_BAD_ARGUMENT, "a sequence needs the name of a file to go to");
    return EBB_OK;
}

ebb_status ebb_sequence_save(ebb_engine *e, int32_t id, const char *path, ebb_error *error) {
    const sequence *s = sequence_find(e, id);
    ebb_status status = check_save(s, id, path, error);
    if (status || (status = fold(e, id, error))) return status;
    const source from = {s, {e->state, id, e->config.algorithm}, e->kv, id};
    return write_sequence(e, &from, path, error);
}

ebb_status ebb_sequence_export(ebb_engine *e, int32_t id, const char *path, ebb_error *error) {
    const sequence *s = sequence_find(e, id);
    source from = {.s = s};
    ebb_kv_pool *kv = NULL;
    ebb_status status = check_save(s, id, path, error);
    if (status) return status;
    if (e->state && !(status = open_fp32_states(e, &from.state.pool, error)))
        status = convert_states(ebb_model_device(e->model), (state_end){e->state, id, e->config.algorithm}, from.state,
                                s->pos, error);
    if (!status && e->kv && !(status = open_fp32_kv(e, s->pos, &kv, error)))
        status = convert_kv(e->kv, id, kv, 0, s->pos, error);
    from.kv = kv;
    if (!status) status = write_sequence(e, &from, path, error);
    ebb_kv_pool_close(kv);
    ebb_state_pool_close(from.state.pool);
    return status;
}

/* ---- loading ---- */

/* Is the image inside of the method "fp32", and this store of another one? */
static bool is_import(const void *image, size_t bytes, int32_t kind, const char *own, const char *fp32) {
    image_view view;
    size_t n;
    if (image_open(image, bytes, kind, &view, NULL)) return false; /* refused below, with its sentence */
    const char *method = image_word(&view, "method", &n);
    return method && strlen(fp32) == n && !memcmp(method, fp32, n) && strcmp(own, fp32) != 0;
}

static ebb_status load_states(ebb_engine *e, int32_t id, const uint8_t *image, size_t bytes, int64_t *pos,
                              bool *imported, ebb_error *error) {
    char own[512], exact[512];
    ebb_state_spec fp32;
    ebb_state_pool *pool = NULL;
    ebb_status status = ebb_state_parse("fp32", &fp32, error);
    if (status || (status = ebb_state_text(&fp32, exact, sizeof exact, error)) ||
        (status = ebb_state_text(&e->state_spec, own, sizeof own, error)))
        return status;
    *imported = is_import(image, bytes, EBB_IMAGE_STATE, own, exact);
    if (!*imported) return ebb_state_load(e->state, id, image, bytes, pos, error);
    if (!(status = open_fp32_states(e, &pool, error))) status = ebb_state_load(pool, 0, image, bytes, pos, error);
    if (!status)
        status = convert_states(ebb_model_device(e->model), (state_end){pool, 0, NULL},
                                (state_end){e->state, id, e->config.algorithm}, *pos, error);
    ebb_state_pool_close(pool);
    return status;
}

/* *pos: on entry, where the file says that the sequence stands. */
static ebb_status load_kv(ebb_engine *e, int32_t id, const uint8_t *image, size_t bytes, int64_t *pos, bool *imported,
                          ebb_error *error) {
    char own[512], exact[512];
    ebb_kv_spec fp32;
    ebb_kv_pool *pool = NULL;
    ebb_status status = ebb_kv_parse("fp32", &fp32, error);
    if (status || (status = ebb_kv_text(&fp32, exact, sizeof exact, error)) ||
        (status = ebb_kv_text(&e->kv_spec, own, sizeof own, error)))
        return status;
    *imported = is_import(image, bytes, EBB_IMAGE_KV, own, exact);
    if (!*imported) return ebb_kv_load(e->kv, id, image, bytes, pos, error);
    if (!(status = open_fp32_kv(e, *pos, &pool, error))) status = ebb_kv_load(pool, 0, image, bytes, pos, error);
    if (!status) status = convert_kv(pool, 0, e->kv, id, *pos, error);
    ebb_kv_pool_close(pool);
    return status;
}

/* Everything about the fields and tokens of a file that this engine cannot take. */
static ebb_status check_fields(const ebb_engine *e, const image_view *view, const fields *f, const uint8_t *tokens,
                               ebb_error *error) {
    const int64_t pos = view->info.position;
    const size_t rest = view->payload_bytes - sizeof *f;
    if (f->tokens > e->config.max_tokens)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "%" PRId64 " tokens, but the context of this engine holds %" PRId64,
                        f->tokens, e->config.max_tokens);
    if (token_bytes(f->tokens) > rest || f->state_bytes > rest - token_bytes(f->tokens) ||
        f->kv_bytes != rest - token_bytes(f->tokens) - f->state_bytes)
        return ebb_fail(error, EBB_BAD_FILE,
                        "%" PRId64 " tokens, %" PRIu64 " bytes of state and %" PRIu64
                        " of KV are not the %zu bytes there",
                        f->tokens, f->state_bytes, f->kv_bytes, rest);
    if ((f->state_bytes != 0) != (e->state != NULL) || (f->kv_bytes != 0) != (e->kv != NULL))
        return ebb_fail(error, EBB_BAD_FILE, "state or KV cache is missing, or one too many for this model");
    for (int64_t i = 0; i < f->tokens; i++) {
        int32_t id;
        memcpy(&id, tokens + (size_t)i * sizeof id, sizeof id);
        if (id < 0 || id >= e->info->vocab)
            return ebb_fail(error, EBB_BAD_FILE, "token %" PRId64 " is %d; expected 0 to %d", i, id,
                            e->info->vocab - 1);
    }
    const bool waiting = f->tokens > pos;
    if (f->produced < -1 || f->produced >= e->info->vocab || (waiting && f->produced >= 0))
        return ebb_fail(error, EBB_BAD_FILE, "a produced token of %d with %" PRId64 " tokens waiting", f->produced,
                        f->tokens - pos);
    if (f->flags & ~KEEP || (f->flags && !waiting))
        return ebb_fail(error, EBB_BAD_FILE, "flags of %d with %" PRId64 " tokens waiting", f->flags, f->tokens - pos);
    return EBB_OK;
}

static ebb_status check_model(const ebb_engine *e, const image_view *view, ebb_error *error) {
    size_t n;
    const char *architecture = image_word(view, "model", &n);
    if (view->info.model == e->info->hash) return EBB_OK;
    return ebb_fail(error, EBB_BAD_ARGUMENT,
                    "it belongs to model %016" PRIx64 " (%.*s); this is model %016" PRIx64 " (%s)", view->info.model,
                    architecture ? (int)min_i64((int64_t)n, 40) : 1, architecture ? architecture : "?", e->info->hash,
                    e->info->architecture);
}

/* What a person should know about a sequence that was taken in. */
static void say(const ebb_engine *e, const char *path, const image_view *view, bool state, bool kv) {
    char sentence[600];
    if (state || kv)
        snprintf(sentence, sizeof sentence,
                 "%s: FP32 imported into %s%s%s%s; what follows is what this method makes of it", path,
                 state ? "state " : "", state ? e->state_spec.method->name : "", kv ? (state ? ", kv " : "kv ") : "",
                 kv ? e->kv_spec.method->name : "");
    else if (view->info.numerics != ebb_runner_numerics(e->runner))
        snprintf(sentence, sizeof sentence,
                 "%s was written by rows '%.*s' (numerics %016" PRIx64 "), these are '%s' (%016" PRIx64
                 "); what follows may differ in the last bits",
                 path, (int)min_i64((int64_t)view->rows_bytes, 160), view->rows, view->info.numerics,
                 ebb_runner_rows(e->runner), ebb_runner_numerics(e->runner));
    else return;
    ebb_device_notice(ebb_model_device(e->model), sentence);
}

/* The memory of a sequence into slot `id`, which is open and empty. */
static ebb_status load_memory(ebb_engine *e, int32_t id, const image_view *view, const fields *f, const uint8_t *at,
                              bool *state, bool *kv, ebb_error *error) {
    int64_t pos = view->info.position, there = pos;
    ebb_status status = EBB_OK;
    *state = *kv = false;
    if (e->state) status = load_states(e, id, at, f->state_bytes, &there, state, error);
    if (!status && there == pos && e->kv) status = load_kv(e, id, at + f->state_bytes, f->kv_bytes, &there, kv, error);
    if (!status && there != pos)
        status = ebb_fail(error, EBB_BAD_FILE, "a sequence at position %" PRId64 " with memory of position %" PRId64,
                          pos, there);
    return status;
}

static ebb_status load_sequence(ebb_engine *e, const char *name, const uint8_t *image, size_t bytes,
                                const ebb_sampling *sampling, int32_t *id, ebb_error *error) {
    image_view view;
    fields f;
    bool state, kv;
    ebb_status status = image_open(image, bytes, EBB_IMAGE_SEQUENCE, &view, error);
    if (status || (status = check_model(e, &view, error))) return status;
    if (view.payload_bytes < sizeof f)
        return ebb_fail(error, EBB_BAD_FILE, "a sequence of %zu bytes; its fields take %zu", view.payload_bytes,
                        sizeof f);
    memcpy(&f, view.payload, sizeof f);
    const uint8_t *tokens = view.payload + sizeof f;
    if ((status = check_fields(e, &view, &f, tokens, error))) return status;
    const ebb_sampling saved = {f.temperature, f.top_p, f.min_p, f.top_k, f.repeat_penalty, f.repeat_last, f.seed};
    if ((status = ebb_sequence_open(e, sampling ? sampling : &saved, id, error))) return status;
    status = load_memory(e, *id, &view, &f, tokens + token_bytes(f.tokens), &state, &kv, error);
    if (status) {
        ebb_sequence_close(e, *id);
        return status;
    }
    sequence *s = &e->seqs[*id];
    memcpy(s->tokens, tokens, (size_t)f.tokens * sizeof *s->tokens);
    s->pos = s->furthest = s->floor = view.info.position;
    s->end = f.tokens;
    s->produced = f.produced;
    s->keep = f.flags & KEEP;
    s->blank = true;
    say(e, name, &view, state, kv);
    return EBB_OK;
}

ebb_status ebb_sequence_load(ebb_engine *e, const char *path, const ebb_sampling *sampling, int32_t *id,
                             ebb_error *error) {
    mapped_file file = {NULL, 0};
    ebb_error why = {EBB_OK, ""};
    int32_t loaded;
    if (!e || !path || !id)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "loading a sequence needs an engine, a file and a place for its id");
    ebb_status status = map_file(path, &file, error);
    if (status) return status;
    status = load_sequence(e, path, file.data, file.bytes, sampling, &loaded, &why);
    unmap_file(&file);
    if (status) return ebb_fail(error, status, "%s: %s", path, why.text);
    *id = loaded;
    return EBB_OK;
}

/* ---- in memory ---- */

static const char in_memory[] = "a sequence that makes room";

ebb_status sequence_put(ebb_engine *e, int32_t id, uint8_t **image, size_t *bytes, ebb_error *error) {
    const sequence *s = sequence_find(e, id);
    const source from = {s, {e->state, id, e->config.algorithm}, e->kv, id};
    if (!s) return ebb_fail(error, EBB_BAD_ARGUMENT, "no open sequence %d", id);
    ebb_status status = fold(e, id, error);
    return status ? status : make_image(e, &from, in_memory, image, bytes, error);
}

ebb_status sequence_take(ebb_engine *e, const uint8_t *image, size_t bytes, int32_t *id, ebb_error *error) {
    return load_sequence(e, in_memory, image, bytes, NULL, id, error);
}
