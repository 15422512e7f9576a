/* model/synth.c: ebb_synth: checkpoints with random weights in the released layout, for measurements where the real
 * ones cannot be had. Values are keyed by seed, tensor and place, so that a file is the same on every machine, and
 * written as they are made: memory does not grow with the model. Called by programs. */
#define _GNU_SOURCE
#include "model/synth.h"

#include "format/float16.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define BLOCK ((size_t)1 << 20) /* of the file; a multiple of 4, and larger than any group of values */

/* ---- the file ---- */

static ebb_status flush(synth_file *f) {
    size_t at = 0;
    while (at < f->n) {
        const ssize_t written = write(f->fd, f->block + at, f->n - at);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return ebb_fail(f->error, EBB_BAD_FILE, "%s: cannot be written: %s", f->tmp, strerror(errno));
        at += (size_t)written;
    }
    f->done += f->n;
    f->n = 0;
    const ebb_progress *p = f->progress;
    if (p && p->report && !p->report(p->ctx, "writing, MiB", (int64_t)(f->done >> 20), (int64_t)(f->total >> 20) + 1))
        return ebb_fail(f->error, EBB_INTERRUPTED, "%s: interrupted after %llu of %llu bytes, nothing is kept", f->path,
                        (unsigned long long)f->done, (unsigned long long)f->total);
    return EBB_OK;
}

ebb_status synth_write(synth_file *f, const void *data, size_t bytes) {
    const uint8_t *from = data;
    ebb_status status = EBB_OK;
    while (bytes && !status) {
        if (f->n == BLOCK) status = flush(f);
        const size_t part = bytes < BLOCK - f->n ? bytes : BLOCK - f->n;
        memcpy(f->block + f->n, from, part);
        f->n += part, from += part, bytes -= part;
    }
    return status;
}

ebb_status synth_pad(synth_file *f, size_t to) {
    static const uint8_t zeros[64] = {0};
    const size_t over = (size_t)((f->done + f->n) % to);
    return synth_write(f, zeros, over ? to - over : 0);
}

/* The folder that `path` lies in, and how much there is room for. */
static ebb_status check_room(const char *path, uint64_t total, ebb_error *error) {
    struct statvfs disk;
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    if (!folder) return ebb_fail(error, EBB_NO_MEMORY, "no memory for a path");
    const bool known = statvfs(folder, &disk) == 0;
    const int reason = errno;
    free(folder);
    if (!known) return ebb_fail(error, EBB_BAD_FILE, "%s: cannot be written: %s", path, strerror(reason));
    const double there = (double)disk.f_bavail * (double)disk.f_frsize;
    if (there < (double)total)
        return ebb_fail(error, EBB_BAD_FILE, "%s: needs %.3f GB, its disk has %.3f GB free", path, (double)total / 1e9,
                        there / 1e9);
    return EBB_OK;
}

ebb_status synth_open(synth_file *f, const char *path, uint64_t total, const ebb_synth_config *config,
                      ebb_error *error) {
    *f = (synth_file){.fd = -1, .total = total, .seed = config->seed, .progress = &config->progress, .error = error};
    if (file_exists(path)) return ebb_fail(error, EBB_BAD_ARGUMENT, "%s: is there already", path);
    ebb_status status = check_room(path, total, error);
    if (status) return status;
    f->path = strdup(path);
    f->block = malloc(BLOCK);
    if (!f->path || !f->block || asprintf(&f->tmp, "%s.part", path) < 0) {
        f->tmp = f->path ? f->tmp : NULL;
        return ebb_fail(error, EBB_NO_MEMORY, "no memory to write %s", path);
    }
    f->fd = open(f->tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (f->fd < 0) return ebb_fail(error, EBB_BAD_FILE, "%s: cannot be written: %s", f->tmp, strerror(errno));
    return EBB_OK;
}

ebb_status synth_close(synth_file *f, ebb_status status) {
    const bool opened = f->tmp && f->fd >= 0;
    if (opened && !status) status = flush(f);
    if (opened && close(f->fd) != 0 && !status)
        status = ebb_fail(f->error, EBB_BAD_FILE, "%s: cannot be written: %s", f->tmp, strerror(errno));
    if (opened && !status && rename(f->tmp, f->path) != 0)
        status = ebb_fail(f->error, EBB_BAD_FILE, "%s: %s", f->path, strerror(errno));
    if (opened && status) unlink(f->tmp);
    free(f->path), free(f->tmp), free(f->block);
    *f = (synth_file){.fd = -1};
    return status;
}

/* ---- values ---- */

/* -1 .. 1, evenly, by 16 random bits. */
static float even_of(uint64_t bits) { return ((float)(int32_t)(bits & 0xffff) - 32767.5f) / 32767.5f; }

/* Of place i of the tensor that `key` names. */
static float even_at(uint64_t key, uint64_t i) { return even_of(mix64(key ^ i >> 2) >> (16 * (i & 3))); }

/* Half the width of an even distribution of variance 1 / k. */
static float width_of(int64_t k) { return sqrtf(3.0f / (float)k); }

/* Scales of trained models, roughly: activations stay about 1, heads forget within 10 to 10^4 tokens. */
static float value_at(const synth_values *v, uint64_t key, uint64_t i) {
    const float even = even_at(key, i), upper = 0.5f * (even + 1);
    switch ((outline_fill)v->fill) {
    case FILL_MATRIX:
    case FILL_CONV:
        return even * width_of(v->k);
    case FILL_OFFSET:
        return 0.1f * even + (v->converted ? 1 : 0);
    case FILL_NORM:
        return 1 + 0.1f * even;
    case FILL_A_LOG:
        return v->converted ? -(1 + 15 * upper) : logf(1 + 15 * upper);
    case FILL_DT_BIAS: { /* softplus of it is 0.001 .. 0.1 */
        const float step = expf(logf(0.001f) + upper * logf(100.0f));
        return step + logf(-expm1f(-step));
    }
    case FILL_BIAS:
        break;
    }
    return 0.01f * even;
}

enum { GROUP = 1024 }; /* values made at a time */

/* The values of value_at, a whole group and four at a time: most of a checkpoint is this. */
static void fill_matrix(float *out, uint64_t key, uint64_t begin, float width) {
    for (uint64_t i = 0; i < GROUP; i += 4) {
        const uint64_t bits = mix64(key ^ (begin + i) >> 2);
        for (uint64_t k = 0; k < 4; k++) out[i + k] = width * even_of(bits >> (16 * k));
    }
}

static ebb_status write_plain(synth_file *f, const synth_values *v, uint64_t key) {
    ebb_status status = EBB_OK;
    for (int64_t begin = 0; begin < v->n && !status; begin += GROUP) {
        const int64_t n = min_i64(GROUP, v->n - begin);
        float wide[GROUP];
        uint16_t half[GROUP];
        if (v->fill == FILL_MATRIX) fill_matrix(wide, key, (uint64_t)begin, width_of(v->k));
        else
            for (int64_t i = 0; i < n; i++) wide[i] = value_at(v, key, (uint64_t)(begin + i));
        for (int64_t i = 0; i < n; i++) half[i] = float_to_bf16(wide[i]);
        status = v->type == EBB_FP32 ? synth_write(f, wide, (size_t)n * sizeof *wide)
                                     : synth_write(f, half, (size_t)n * sizeof *half);
    }
    return status;
}

/* Blocks are made as they are, a scale and random codes: nothing is rounded to them. */
static ebb_status write_blocks(synth_file *f, const synth_values *v, uint64_t key) {
    enum { VALUES = 32, MOST = 34 };
    const bool q8 = v->type == EBB_Q8_0;
    const uint16_t scale = float_to_fp16(width_of(v->k) / (q8 ? 127.0f : 8.0f));
    const size_t codes = q8 ? 32 : 16;
    ebb_status status = EBB_OK;
    for (int64_t b = 0; b < v->n / VALUES && !status; b++) {
        uint8_t block[MOST];
        memcpy(block, &scale, sizeof scale);
        for (size_t i = 0; i < codes; i += 8) {
            const uint64_t random = mix64(key ^ ((uint64_t)b * 4 + i / 8));
            memcpy(block + 2 + i, &random, 8);
        }
        for (size_t i = 2; q8 && i < 2 + codes; i++) block[i] = block[i] == 0x80 ? 0x81 : block[i];
        status = synth_write(f, block, 2 + codes);
    }
    return status;
}

ebb_status synth_tensor(synth_file *f, const synth_values *v) {
    const uint64_t key = mix64(f->seed ^ hash64(HASH64_BEGIN, v->name, strlen(v->name)));
    const bool blocks = v->type == EBB_Q8_0 || v->type == EBB_Q4_0;
    return blocks ? write_blocks(f, v, key) : write_plain(f, v, key);
}

/* ---- model.safetensors ---- */

static size_t tensor_bytes(const outline_tensor *t) {
    return (size_t)outline_elements(t) * ebb_type_bytes((ebb_type)t->type);
}

void synth_put(synth_text *t, const void *data, size_t bytes) {
    if (t->failed) return;
    if (t->n + bytes > t->room) {
        const size_t room = 2 * (t->n + bytes) + 4096;
        char *grown = realloc(t->data, room);
        if (!grown) {
            t->failed = true;
            return;
        }
        t->data = grown, t->room = room;
    }
    memcpy(t->data + t->n, data, bytes);
    t->n += bytes;
}

void synth_print(synth_text *t, const char *format, ...) {
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    synth_put(t, text, strlen(text));
}

/* The header: its length in 8 bytes, then JSON padded with spaces so that the data begins at a multiple of 8. */
static void make_header(const ebb_outline *o, synth_text *out) {
    size_t at = 0;
    synth_print(out, "%s", "12345678{\"__metadata__\":{\"format\":\"pt\"}");
    for (int64_t i = 0; i < o->n; i++) {
        const outline_tensor *t = &o->tensors[i];
        synth_print(out, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t->name, t->type == EBB_FP32 ? "F32" : "BF16");
        for (int32_t d = 0; d < t->dims; d++) synth_print(out, d ? ",%lld" : "%lld", (long long)t->shape[d]);
        synth_print(out, "],\"data_offsets\":[%zu,%zu]}", at, at + tensor_bytes(t));
        at += tensor_bytes(t);
    }
    synth_print(out, "}");
    synth_print(out, "%*s", (int)((8 - out->n % 8) % 8), "");
    for (size_t i = 0; i < 8 && !out->failed; i++) out->data[i] = (char)((uint64_t)(out->n - 8) >> (8 * i) & 0xff);
}

static ebb_status write_weights(const ebb_outline *o, const char *path, const ebb_synth_config *config,
                                ebb_error *error) {
    synth_file f = {.fd = -1};
    synth_text header = {0};
    make_header(o, &header);
    ebb_status status = header.failed ? ebb_fail(error, EBB_NO_MEMORY, "no memory for the header of %s", path)
                                      : synth_open(&f, path, header.n + o->info.weight_bytes, config, error);
    if (!status) status = synth_write(&f, header.data, header.n);
    for (int64_t i = 0; i < o->n && !status; i++) {
        const outline_tensor *t = &o->tensors[i];
        status = synth_tensor(
            &f, &(synth_values){t->name, t->type, t->fill, false, outline_elements(t), t->shape[t->dims - 1]});
    }
    free(header.data);
    return synth_close(&f, status);
}

/* ---- the folder ---- */

size_t synth_byte_token(int byte, char text[3]) {
    int point = 0x100;
    for (int i = 0; i < byte; i++) point += !((i >= 0x21 && i <= 0x7e) || (i >= 0xa1 && i != 0xad));
    if ((byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad)) point = byte;
    const size_t n = point < 0x80 ? 1 : 2;
    text[0] = (char)(n == 1 ? point : 0xc0 | point >> 6);
    text[1] = (char)(n == 1 ? 0 : 0x80 | (point & 0x3f));
    text[n] = 0;
    return n;
}

/* A tokenizer.json of bytes: nothing is known of the model's own. */
static ebb_status write_byte_tokenizer(const char *path, int32_t ids, ebb_error *error) {
    json_t *vocab = json_object();
    bool whole = vocab != NULL;
    for (int i = 0; i < SYNTH_BYTES && i < ids && whole; i++) {
        char text[3];
        synth_byte_token(i, text);
        whole = json_object_set_new(vocab, text, json_integer(i)) == 0;
    }
    json_t *root = whole ? json_pack("{s:{s:s,s:O,s:[]},s:{s:s,s:b,s:b},s:{s:s}}", "model", "type", "BPE", "vocab",
                                     vocab, "merges", "pre_tokenizer", "type", "ByteLevel", "add_prefix_space", 0,
                                     "use_regex", 0, "decoder", "type", "ByteLevel")
                         : NULL;
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    ebb_status status = text ? replace_file(path, (const uint8_t *)text, strlen(text), error)
                             : ebb_fail(error, EBB_NO_MEMORY, "no memory for %s", path);
    free(text), json_decref(root), json_decref(vocab);
    return status;
}

/* Files beside the weights. The tokenizer's are taken together, or none. */
static const char *const side_files[] = {"config.json",           "tokenizer.json",      "tiktoken.model",
                                         "tokenizer_config.json", "chat_template.jinja", "generation_config.json"};
enum { CONFIG_FILE, TOKENIZER_FILE, TIKTOKEN_FILE };

typedef struct synth_folder {
    const char *path;
    char *to[COUNT(side_files)],
        *from[COUNT(side_files)]; /* their paths; there beforehand, so that undoing needs none */
    char *weights;
    bool made;                       /* by this call */
    bool written[COUNT(side_files)]; /* likewise */
} synth_folder;

/* Files lie beside the outline's config.json, which may have another name. */
static ebb_status name_files(synth_folder *folder, const char *config, ebb_error *error) {
    const char *slash = strrchr(config, '/');
    char *beside = slash ? strndup(config, (size_t)(slash - config)) : strdup(".");
    bool all = beside && (folder->weights = path_join(folder->path, "model.safetensors")) != NULL;
    for (int32_t i = 0; i < COUNT(side_files) && all; i++) {
        folder->to[i] = path_join(folder->path, side_files[i]);
        folder->from[i] = i == CONFIG_FILE ? strdup(config) : path_join(beside, side_files[i]);
        all = folder->to[i] && folder->from[i];
    }
    free(beside);
    return all ? EBB_OK : ebb_fail(error, EBB_NO_MEMORY, "no memory for the files of %s", folder->path);
}

static ebb_status open_folder(synth_folder *folder, ebb_error *error) {
    folder->made = mkdir(folder->path, 0777) == 0;
    if (!folder->made && errno != EEXIST)
        return ebb_fail(error, EBB_BAD_FILE, "%s: cannot be made: %s", folder->path, strerror(errno));
    for (int32_t i = 0; i < COUNT(side_files); i++)
        if (file_exists(folder->to[i])) return ebb_fail(error, EBB_BAD_ARGUMENT, "%s: is there already", folder->to[i]);
    return EBB_OK;
}

static ebb_status copy_file(const char *from, const char *to, ebb_error *error) {
    char *text = NULL;
    size_t bytes;
    ebb_status status = read_file(from, (size_t)1 << 30, &text, &bytes, error);
    if (!status) status = replace_file(to, (const uint8_t *)text, bytes, error);
    free(text);
    return status;
}

static ebb_status put_side_files(synth_folder *folder, const ebb_outline *o, ebb_error *error) {
    const bool tokens = file_exists(folder->from[TOKENIZER_FILE]) || file_exists(folder->from[TIKTOKEN_FILE]);
    ebb_status status = EBB_OK;
    for (int32_t i = 0; i < COUNT(side_files) && !status; i++) {
        if (!tokens && i == TOKENIZER_FILE) status = write_byte_tokenizer(folder->to[i], o->info.vocab, error);
        else if (i == CONFIG_FILE || (tokens && file_exists(folder->from[i])))
            status = copy_file(folder->from[i], folder->to[i], error);
        else continue;
        folder->written[i] = !status;
    }
    return status;
}

/* Where it failed, what was begun goes again. */
static void close_folder(synth_folder *folder, bool failed) {
    for (int32_t i = 0; i < COUNT(side_files); i++) {
        if (failed && folder->written[i]) unlink(folder->to[i]);
        free(folder->to[i]), free(folder->from[i]);
    }
    if (failed && folder->made) rmdir(folder->path);
    free(folder->weights);
}

static ebb_status synth_directory(const ebb_outline *o, const char *path, const ebb_synth_config *config,
                                  ebb_error *error) {
    synth_folder folder = {.path = path};
    ebb_status status = name_files(&folder, o->config.path, error);
    if (!status) status = open_folder(&folder, error);
    if (!status) status = put_side_files(&folder, o, error);
    if (!status) status = write_weights(o, folder.weights, config, error);
    close_folder(&folder, status != EBB_OK);
    return status;
}

ebb_status ebb_synth(const ebb_outline *outline, const char *path, const ebb_synth_config *config, ebb_error *error) {
    if (!outline || !path || !*path || !config || config->size != sizeof *config)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a synthetic checkpoint needs an outline, a path and a configuration");
    const size_t n = strlen(path);
    if (n > 5 && !strcmp(path + n - 5, ".gguf")) return synth_gguf(outline, path, config, error);
    if (config->type && config->type != EBB_BF16)
        return ebb_fail(error, EBB_UNSUPPORTED, "%s: weights of type %s are written to a .gguf file only", path,
                        ebb_type_name((ebb_type)config->type));
    return synth_directory(outline, path, config, error);
}
