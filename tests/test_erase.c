/* test_erase.c: layers of kind EBB_ERASE: S <- (I - p e^T) diag(e^g) S + k v^T. The judge is the recurrence in FP64.
 * Steps, prefill, drafts, rollback and images over windows of several methods; GDN-2 and KDA as special cases; and what
 * is refused. */
#include "ebb/image.h"
#include "erase_world.h"

enum { N = 100, NEW = 8, LONG = 300 };

static ebb_device *device;
/* {.kind = kind, .key_heads = key_heads, .heads = heads, .head_begin = head_begin, .key_dim = key_dim, .value_dim =
 * value_dim, .conv_width = conv_width, .index = index} */
static const ebb_state_layer plain = {.kind = EBB_ERASE, .key_heads = 2, .heads = 2, .key_dim = 16, .value_dim = 24},
                             gva = {.kind = EBB_ERASE, .key_heads = 2, .heads = 6, .key_dim = 8, .value_dim = 12},
                             odd = {.kind = EBB_ERASE, .key_heads = 1, .heads = 2, .key_dim = 7, .value_dim = 5},
                             thin = {.kind = EBB_ERASE, .key_heads = 1, .heads = 1, .key_dim = 1, .value_dim = 3},
                             wide = {.kind = EBB_ERASE, .key_heads = 1, .heads = 1, .key_dim = 64, .value_dim = 48};
static const ebb_state_layer *const layers[] = {&plain, &gva, &odd, &thin, &wide};

static void open_world(erase_world *w, const char *method, ebb_state_layer layer, int32_t max_new, int64_t n) {
    erase_world_open(w, device, method, layer, max_new, n);
}

/* ---- steps ---- */

/* Some three times what was measured. */
static const struct {
    const char *method;
    double limit;
} methods[] = {{"fp32", 1e-6},   {"fp32-w", 1e-6},           {"replay", 1e-6}, {"bf16", 2e-2},
               {"bf16-w", 6e-3}, {"fp16-w", 1.5e-3},         {"int8", 6e-2},   {"int8-w", 2e-2},
               {"leap8", 2e-2},  {"leap8:sticky=150", 2e-2}, {"leap4", .25},   {"damp-w", 1.5e-2}};

static void test_steps(void **state) {
    (void)state;
    for (int m = 0; m < COUNT(methods); m++)
        for (int i = 0; i < COUNT(layers); i++) {
            erase_world w;
            open_world(&w, methods[m].method, *layers[i], 1, N);
            poison(&w);
            float *out = decode(&w, 0, 0), *S = read_state(&w, 0, N);
            const double far = distance(&w, N, out, S);
            if (!(far < methods[m].limit))
                fail_msg("%s %dx%d: %.2e from FP64", methods[m].method, layers[i]->key_dim, layers[i]->value_dim, far);
            free(out), free(S);
            close_world(&w);
        }
}

static void test_adversarial_steps(void **state) {
    (void)state;
    for (int windowed = 0; windowed < 2; windowed++)
        for (int i = 0; i < COUNT(layers); i++) {
            erase_world w;
            open_world(&w, windowed ? "fp32-w" : "fp32", *layers[i], 1, N);
            for (int f = 0; f < FILLINGS; f++) {
                fill(&w, (filling)f);
                poison(&w);
                float *out = decode(&w, 0, 0), *S = read_state(&w, 0, N);
                const double far = distance(&w, N, out, S);
                if (!(far < 1e-6))
                    fail_msg("'%s' %dx%d: %.2e from FP64", filling_name[f], layers[i]->key_dim, layers[i]->value_dim,
                             far);
                free(out), free(S);
            }
            close_world(&w);
        }
}

/* A codec that keeps the decay that it is told. */
static const ebb_state_codec *spied;
static float spied_decay[16];
static void spy_encode(const ebb_head *head, const float *S, const float *decay, const void *old, void *packed,
                       float *tmp) {
    if (decay) memcpy(spied_decay, decay, (size_t)head->layer->key_dim * sizeof *decay);
    spied->encode(head, S, decay, old, packed, tmp);
}

/* Each key channel has its own decay of the folded window. */
static void test_window_decay(void **state) {
    (void)state;
    erase_world w;
    float out[12];
    ebb_error error;
    const ebb_state_layer layer = {.kind = EBB_ERASE, .key_heads = 1, .heads = 1, .key_dim = 8, .value_dim = 12};
    open_world(&w, "fp32-w", layer, 1, N);
    spied = ebb_state_pool_view(w.w.pool, 0)->codec;
    ebb_state_codec spy = *spied;
    spy.encode = spy_encode;
    for (int64_t t = 0; t <= 32; t++) {
        const int32_t slot = 0, cu[2] = {0, 1};
        const ebb_batch b = {1, 1, &slot, cu, &t};
        ebb_delta_args a = args_of(&w, &b, &w.in, t, out);
        a.s.codec = &spy;
        must(ebb_delta_step(w.w.queue, &w.w.plan, &a, &error), &error);
    }
    for (int u = 0; u < 8; u++) {
        double G = 0;
        for (int64_t t = 16; t < 32; t++) G += w.in.g[t * 8 + u];
        assert_true(fabs(spied_decay[u] - exp(G)) < 1e-6);
    }
    close_world(&w);
}

/* ---- prefill ---- */

static void test_prefill(void **state) {
    (void)state;
    static const int32_t lengths[] = {0, 1, 3, 63, 65, LONG};
    for (int i = 0; i < COUNT(layers); i++) {
        erase_world w;
        open_world(&w, "fp32-w", *layers[i], 1, LONG);
        float *out = calloc((size_t)(LONG * w.nv), 4);
        for (int f = 0; f < FILLINGS; f++)
            for (int n = 0; n < COUNT(lengths); n++) {
                fill(&w, (filling)f);
                poison(&w);
                run(&w, true, 0, 0, lengths[n], out);
                float *S = read_state(&w, 0, lengths[n]);
                const double far = distance(&w, lengths[n], out, S);
                if (!(far < 1e-5))
                    fail_msg("'%s' %dx%d, %d tokens: %.2e from FP64", filling_name[f], layers[i]->key_dim,
                             layers[i]->value_dim, lengths[n], far);
                free(S);
            }
        free(out);
        close_world(&w);
    }
}

/* Prompts cut anywhere, with steps between them, so that chunks begin at records and at any place of their 64. */
static void test_mixture(void **state) {
    (void)state;
    static const int32_t cuts[] = {1, 3, 17, 64, 255, 256, 257};
    enum { MOST = 1200 };
    for (int m = 0; m < 3; m++) {
        erase_world w;
        open_world(&w, m == 0 ? "fp32" : m == 1 ? "fp32-w" : "leap8", gva, NEW, MOST);
        float *out = calloc((size_t)(MOST * w.nv), 4);
        poison(&w);
        for (int64_t pos = 0, i = 0; pos < MOST; i++) {
            const bool prefill = i % 3 != 1;
            const int32_t n = (int32_t)min_i64(prefill ? cuts[i % COUNT(cuts)] : 1 + i % NEW, MOST - pos);
            run(&w, prefill, 0, pos, n, out + pos * w.nv);
            pos += n;
        }
        float *S = read_state(&w, 0, MOST);
        const double far = distance(&w, MOST, out, S);
        if (!(far < (m < 2 ? 1e-5 : 3e-2))) fail_msg("method %d: %.2e from FP64", m, far);
        free(out), free(S);
        close_world(&w);
    }
}

/* ---- the promises of the store, bit for bit ---- */

/* A step of T tokens in slot 1 of which `good` are real and the rest junk. */
static void draft(erase_world *w, int64_t pos, int32_t T, int32_t good, uint64_t *s, float *out) {
    inputs in = inputs_new(&w->w.layer, T);
    for (int64_t i = 0; i < T * w->nk; i++) in.q[i] = world_uniform(s), in.k[i] = 3 * world_uniform(s);
    for (int64_t i = 0; i < 2 * T * w->nk; i++) in.ep[i] = 3 * world_uniform(s);
    for (int64_t i = 0; i < T * w->nv; i++) in.v[i] = 1e4f * world_uniform(s);
    for (int64_t i = 0; i < T * w->ng; i++) in.g[i] = -3;
    memcpy(in.q, w->in.q + pos * w->nk, (size_t)(good * w->nk) * 4);
    memcpy(in.k, w->in.k + pos * w->nk, (size_t)(good * w->nk) * 4);
    memcpy(in.ep, w->in.ep + 2 * pos * w->nk, (size_t)(2 * good * w->nk) * 4);
    memcpy(in.v, w->in.v + pos * w->nv, (size_t)(good * w->nv) * 4);
    memcpy(in.g, w->in.g + pos * w->ng, (size_t)(good * w->ng) * 4);
    run_inputs(w, false, 1, pos, &in, 0, T, out);
    inputs_free(&in);
}

static void drafts_equal_plain(const char *method, ebb_state_layer layer, int32_t prompt) {
    erase_world w;
    uint64_t s = 77;
    open_world(&w, method, layer, NEW, N);
    poison(&w);
    float *one_by_one = decode(&w, 0, prompt), *out = calloc((size_t)(N * w.nv), 4);
    if (prompt) run(&w, true, 1, 0, prompt, out);
    for (int64_t pos = prompt; pos < N;) {
        const int32_t T = (int32_t)min_i64(1 + (int64_t)(mix64(s++) % NEW), N - pos);
        const int32_t good = 1 + (int32_t)(mix64(s++) % (uint64_t)T);
        if (mix64(s++) % 4 == 0) draft(&w, pos, T, (int32_t)(mix64(s++) % (uint64_t)(T + 1)), &s, out);
        draft(&w, pos, T, good, &s, out);
        if (memcmp(out, one_by_one + pos * w.nv, (size_t)(good * w.nv) * 4))
            fail_msg("%s: other bits at token %lld after drafts", method, (long long)pos);
        pos += good;
    }
    free(one_by_one), free(out);
    close_world(&w);
}
static void test_drafts(void **state) {
    (void)state;
    int32_t n;
    const ebb_state_method *all = ebb_state_methods(&n);
    for (int32_t m = 0; m < n; m++) {
        drafts_equal_plain(all[m].name, gva, 0);
        drafts_equal_plain(all[m].name, odd, 21);
    }
}

static void test_rollback(void **state) {
    (void)state;
    for (int m = 0; m < COUNT(methods); m++) {
        erase_world w;
        uint64_t s = 3;
        open_world(&w, methods[m].method, plain, NEW, N);
        poison(&w);
        float *one_by_one = decode(&w, 0, 0), *out = calloc((size_t)w.nv, 4);
        for (int64_t pos = 0, furthest = 0; pos < N; pos++) {
            run(&w, false, 1, pos, 1, out);
            assert_memory_equal(out, one_by_one + pos * w.nv, (size_t)w.nv * 4);
            furthest = max_i64(furthest, pos);
            const int64_t base = *base_of(ebb_state_pool_view(w.w.pool, 0), 1, 0),
                          reach = min_i64(pos - base, pos - furthest + NEW);
            if (mix64(s++) % 5 == 0) pos -= (int64_t)(mix64(s++) % (uint64_t)(reach + 1));
        }
        free(one_by_one), free(out);
        close_world(&w);
    }
}

/* Three sequences in one call, the middle one padding, the others at positions of their own: the bits of each alone. */
static void test_batch(void **state) {
    (void)state;
    enum { T = 4 };
    erase_world w;
    open_world(&w, "leap8", gva, NEW, N);
    poison(&w);
    float *one_by_one = decode(&w, 0, 0), out[3 * T * 6 * 12];
    for (int64_t t = 0; t + 50 + T <= N; t += T) {
        const int32_t slot[3] = {2, -1, 1}, cu[4] = {0, T, 2 * T, 3 * T};
        const int64_t pos[3] = {t, 1 << 20, t + 50}, from[3] = {t, 0, t + 50};
        inputs in = inputs_new(&gva, 3 * T);
        for (int64_t i = 0; t == 0 && i < 50; i++) run(&w, false, 1, i, 1, out);
        for (int i = 0; i < 3; i++) {
            memcpy(in.q + i * T * w.nk, w.in.q + from[i] * w.nk, (size_t)(T * w.nk) * 4);
            memcpy(in.k + i * T * w.nk, w.in.k + from[i] * w.nk, (size_t)(T * w.nk) * 4);
            memcpy(in.ep + i * T * 2 * w.nk, w.in.ep + from[i] * 2 * w.nk, (size_t)(T * 2 * w.nk) * 4);
            memcpy(in.v + i * T * w.nv, w.in.v + from[i] * w.nv, (size_t)(T * w.nv) * 4);
            memcpy(in.g + i * T * w.ng, w.in.g + from[i] * w.ng, (size_t)(T * w.ng) * 4);
        }
        const ebb_batch b = {3, 3 * T, slot, cu, pos};
        const ebb_delta_args a = args_of(&w, &b, &in, 0, out);
        ebb_error error;
        must(ebb_delta_step(w.w.queue, &w.w.plan, &a, &error), &error);
        assert_memory_equal(out, one_by_one + t * w.nv, (size_t)(T * w.nv) * 4);
        assert_memory_equal(out + 2 * T * w.nv, one_by_one + (t + 50) * w.nv, (size_t)(T * w.nv) * 4);
        inputs_free(&in);
    }
    free(one_by_one);
    close_world(&w);
}

/* ---- images ---- */

/* Saved at every phase of a window, loaded into another slot of another pool that is full of NaN, and gone on with. */
static void images_go_on(const char *method, ebb_state_layer layer) {
    const ebb_origin origin = {7, 9, "delta ref"};
    const ebb_state_layer *l = &layer;
    erase_world a, b;
    ebb_error error = {EBB_OK, ""};
    size_t before = 0;
    open_world(&a, method, layer, 1, N);
    open_world(&b, method, layer, 5, N);
    const size_t each = a.w.spec.window == 1 || !strcmp(method, "fp32-w") ? 4 : 2;
    const size_t token = 2 * each * (size_t)(a.nk + a.nv) + 4 * (size_t)a.ng;
    float *one_by_one = decode(&a, 0, 21), *out = calloc((size_t)(N * a.nv), 4);
    run(&a, true, 1, 0, 21, out);
    for (int64_t t = 21; t < 60; t++) {
        int64_t pos;
        const size_t bytes = ebb_state_image_bytes(a.w.pool, 1, t, &origin, &error);
        assert_true(bytes > 0);
        uint8_t *image = malloc(bytes), *again = malloc(bytes);
        must(ebb_state_save(a.w.pool, 1, t, &origin, image, bytes, &error), &error);
        poison(&b);
        must(ebb_state_load(b.w.pool, 2, image, bytes, &pos, &error), &error);
        assert_int_equal(pos, t);
        assert_int_equal(ebb_state_image_bytes(b.w.pool, 2, t, &origin, &error), bytes);
        must(ebb_state_save(b.w.pool, 2, t, &origin, again, bytes, &error), &error);
        assert_memory_equal(image, again, bytes);
        assert_non_null(strstr((const char *)image + 64, "kind=erase key_heads="));
        if (a.w.spec.window > 1 && t > 21 && t < 21 + a.w.spec.window) assert_int_equal(bytes - before, token);
        before = bytes;
        for (int64_t i = t; i < t + 20; i++) run(&b, false, 2, i, 1, out + i * a.nv);
        if (memcmp(out + t * a.nv, one_by_one + t * a.nv, (size_t)(20 * a.nv) * 4))
            fail_msg("%s %dx%d: other bits behind an image at token %lld", method, l->key_dim, l->value_dim,
                     (long long)t);
        run(&a, false, 1, t, 1, out);
        free(image), free(again);
    }
    free(one_by_one), free(out);
    close_world(&a), close_world(&b);
}
static void test_images(void **state) {
    (void)state;
    static const char *const some[] = {"fp32", "fp32-w", "bf16-w", "int8", "leap8"};
    for (int m = 0; m < COUNT(some); m++) {
        images_go_on(some[m], gva);
        images_go_on(some[m], odd);
    }
}

/* ---- special cases ---- */

/* GDN-2: u = w o v - S^T (b o k), S <- S + k u^T: remove = k, erase = b o k, and w o v as v. */
static void test_gdn2(void **state) {
    (void)state;
    enum { DK = 16, DV = 24 };
    erase_world w;
    uint64_t s = 5;
    open_world(&w, "fp32-w", plain, 1, N);
    float *raw = calloc((size_t)(N * w.nv), 4), *write = calloc((size_t)(N * w.nv), 4),
          *gate = calloc((size_t)(N * w.nk), 4);
    for (int64_t i = 0; i < N * w.nv; i++) {
        raw[i] = w.in.v[i], write[i] = .5f + .5f * world_uniform(&s);
        w.in.v[i] = write[i] * raw[i];
    }
    for (int64_t i = 0; i < N * w.nk; i++) {
        float *e = w.in.ep + i / w.nk * 2 * w.nk + i % w.nk;
        gate[i] = .5f + .5f * world_uniform(&s);
        e[0] = gate[i] * w.in.k[i], e[w.nk] = w.in.k[i];
    }
    float *steps = decode(&w, 0, 0), *prompt = calloc((size_t)(N * w.nv), 4);
    run(&w, true, 1, 0, N, prompt);
    for (int32_t h = 0; h < 2; h++) {
        double S[DK * DV] = {0}, *o = calloc(N * DV, sizeof *o);
        for (int64_t t = 0; t < N; t++) {
            const float *k = w.in.k + t * w.nk + h * DK, *q = w.in.q + t * w.nk + h * DK, *b = gate + t * w.nk + h * DK;
            double read[DV] = {0};
            for (int u = 0; u < DK; u++)
                for (int i = 0; i < DV; i++)
                    read[i] += (S[u * DV + i] *= exp((double)w.in.g[t * w.ng + h * DK + u])) * b[u] * k[u];
            for (int u = 0; u < DK; u++)
                for (int i = 0; i < DV; i++) {
                    const int64_t at = t * w.nv + h * DV + i;
                    S[u * DV + i] += k[u] * ((double)write[at] * raw[at] - read[i]);
                    o[t * DV + i] += S[u * DV + i] * q[u] / sqrt(DK);
                }
        }
        assert_true(relative(steps + h * DV, w.nv, o, N, DV) < 1e-5);
        assert_true(relative(prompt + h * DV, w.nv, o, N, DV) < 1e-5);
        free(o);
    }
    free(raw), free(write), free(gate), free(steps), free(prompt);
    close_world(&w);
}

static double apart(const float *x, const float *y, int64_t n) {
    double d = 0, e = 1e-300;
    for (int64_t i = 0; i < n; i++) d += pow((double)x[i] - y[i], 2), e += pow((double)y[i], 2);
    return sqrt(d / e);
}

/* KDA: remove = k, erase = beta k, and beta v as v: what a layer of kind KDA gives on its best rows. */
static void test_kda(void **state) {
    (void)state;
    ebb_state_layer layer = plain;
    layer.kind = EBB_KDA;
    for (int windowed = 0; windowed < 2; windowed++) {
        delta_world kda;
        erase_world w;
        ebb_error error;
        must(world_open(&kda, device, windowed ? "fp32-w" : "fp32", NULL, layer, 2, 1, LONG, &error), &error);
        world_inputs(&kda, 42, .02f);
        open_world(&w, windowed ? "fp32-w" : "fp32", plain, 1, LONG);
        for (int64_t i = 0; i < LONG * w.nk; i++) {
            const int64_t t = i / w.nk, h = i % w.nk / plain.key_dim;
            float *e = w.in.ep + t * 2 * w.nk + i % w.nk;
            e[0] = kda.beta[t * plain.heads + h] * kda.k[i], e[w.nk] = kda.k[i];
        }
        for (int64_t i = 0; i < LONG * w.nv; i++) w.in.v[i] = kda.beta[i / plain.value_dim] * kda.v[i];
        float *out = calloc((size_t)(LONG * w.nv), 4), *steps = decode(&w, 0, 0);
        for (int64_t t = 0; t < LONG; t++) must(world_run(&kda, false, 0, t, 1, out + t * w.nv, &error), &error);
        assert_true(apart(steps, out, LONG * w.nv) < 1e-5);
        must(world_run(&kda, true, 1, 0, LONG, out, &error), &error);
        run(&w, true, 1, 0, LONG, steps);
        assert_true(apart(steps, out, LONG * w.nv) < 1e-5);
        float *S = read_state(&w, 1, LONG), *S_kda = calloc((size_t)(plain.heads * 16 * 24), 4);
        must(world_read(&kda, 1, LONG, S_kda, &error), &error);
        assert_true(apart(S, S_kda, plain.heads * 16 * 24) < 1e-5);
        free(out), free(steps), free(S), free(S_kda);
        world_close(&kda), close_world(&w);
    }
}

/* ---- contract ---- */

static void test_sizes(void **state) {
    (void)state;
    ebb_state_spec spec;
    ebb_state_sizes kda, erase;
    ebb_error error;
    ebb_state_layer layer = gva;
    must(ebb_state_parse("leap8", &spec, &error), &error);
    must(ebb_state_size(&spec, &layer, 4, &erase, &error), &error);
    layer.kind = EBB_KDA;
    must(ebb_state_size(&spec, &layer, 4, &kda, &error), &error);
    assert_int_equal(erase.cap, kda.cap);
    assert_int_equal(erase.packed, kda.packed);
    assert_int_equal(erase.key_records, 2 * kda.key_records);
    assert_int_equal(erase.delta_records, 2 * kda.delta_records);
    assert_int_equal(erase.decay_records, kda.decay_records);
    layer.kind = EBB_ERASE + 1;
    assert_int_equal(ebb_state_size(&spec, &layer, 4, &erase, &error), EBB_BAD_ARGUMENT);
    assert_non_null(strstr(error.text, "3 (ERASE)"));
}

static void test_rows_and_stages(void **state) {
    (void)state;
    erase_world w;
    ebb_plan plan;
    ebb_error error;
    open_world(&w, "leap8", plain, 1, N);
    const ebb_state_view *view = ebb_state_pool_view(w.w.pool, 0);
    assert_string_equal(w.w.plan.row_name, "ref");
    assert_string_equal(w.w.plan.chunk_name, "ref");
    for (const delta_row *const *row = rows_of(device)->delta; *row; row++)
        if (strcmp((*row)->id.name, "ref")) {
            assert_int_equal(ebb_delta_plan(device, view, (*row)->id.name, 0, 1, 1, 1, &plan, &error), EBB_UNSUPPORTED);
            if (!((*row)->id.needs & ~ebb_device_features(device)))
                assert_non_null(strstr(error.text, "serves GDN and KDA layers"));
        }
    static const uint32_t refused[] = {EBB_L2NORM, EBB_GATES, EBB_L2NORM | EBB_OUT_NORM};
    for (int i = 0; i < COUNT(refused); i++) {
        assert_int_equal(ebb_delta_plan(device, view, NULL, refused[i], 1, 1, 1, &plan, &error), EBB_UNSUPPORTED);
        assert_non_null(strstr(error.text, "kind ERASE"));
    }
    close_world(&w);
}

static void test_output_norm(void **state) {
    (void)state;
    erase_world w;
    ebb_error error;
    open_world(&w, "fp32", plain, 1, N);
    float *bare = decode(&w, 0, 0), *out = calloc((size_t)(N * w.nv), 4), weight[24];
    for (int i = 0; i < 24; i++) weight[i] = .5f + .03f * (float)i;
    ebb_queue *queue;
    ebb_plan planned;
    must(ebb_delta_plan(device, ebb_state_pool_view(w.w.pool, 0), NULL, EBB_OUT_NORM, 1, 1, N, &planned, &error),
         &error);
    must(ebb_queue_open(device, planned.scratch, &queue, &error), &error);
    const int32_t slot = 1, cu[2] = {0, N};
    const int64_t pos = 0;
    const ebb_batch b = {1, N, &slot, cu, &pos};
    const ebb_mixer mixer = {.out_norm = weight, .eps = 1e-6f, .gate = EBB_GATE_SIGMOID};
    ebb_delta_args a = args_of(&w, &b, &w.in, 0, out);
    a.mixer = &mixer;
    must(ebb_delta_prefill(queue, &planned, &a, &error), &error);
    for (int64_t row = 0; row < N * 2; row++) {
        double sum = 0;
        for (int i = 0; i < 24; i++) sum += pow(bare[row * 24 + i], 2);
        for (int i = 0; i < 24; i++) {
            const double z = w.in.v[row * 24 + i],
                         want = bare[row * 24 + i] / sqrt(sum / 24 + 1e-6) * weight[i] / (1 + exp(-z));
            assert_true(fabs(out[row * 24 + i] - want) < 1e-4);
        }
    }
    ebb_queue_close(queue);
    free(bare), free(out);
    close_world(&w);
}

/* Tensors that a kind reads must be there, tensors that it does not read must not. */
static void test_tensors(void **state) {
    (void)state;
    erase_world w;
    delta_world gdn;
    ebb_error error;
    float out[48], beta[2] = {1, 1};
    const int32_t slot = 0, cu[2] = {0, 1};
    const int64_t pos = 0;
    const ebb_batch b = {1, 1, &slot, cu, &pos};
    open_world(&w, "fp32", plain, 1, 4);
    const ebb_delta_args good = args_of(&w, &b, &w.in, 0, out);
    ebb_delta_args a = good;
    must(ebb_delta_step(w.w.queue, &w.w.plan, &a, &error), &error);
    a.beta = (ebb_tensor){beta, EBB_FP32, 2, {1, 2}, {2, 1}};
    assert_int_equal(ebb_delta_step(w.w.queue, &w.w.plan, &a, &error), EBB_BAD_ARGUMENT);
    assert_non_null(strstr(error.text, "beta has data"));
    a = good, a.erase.data = NULL;
    assert_int_equal(ebb_delta_prefill(w.w.queue, &w.w.plan, &a, &error), EBB_BAD_ARGUMENT);
    assert_non_null(strstr(error.text, "erase has no data"));
    a = good, a.remove.shape[2] = 15;
    assert_int_equal(ebb_delta_step(w.w.queue, &w.w.plan, &a, &error), EBB_BAD_ARGUMENT);
    assert_non_null(strstr(error.text, "remove is 1 x 2 x 15, expected 1 x 2 x 16"));
    a = good, a.g.shape[2] = 1;
    assert_int_equal(ebb_delta_step(w.w.queue, &w.w.plan, &a, &error), EBB_BAD_ARGUMENT);
    ebb_state_layer layer = plain;
    layer.kind = EBB_GDN;
    must(world_open(&gdn, device, "fp32", NULL, layer, 1, 1, 4, &error), &error);
    a = world_args(&gdn, &b, gdn.q, gdn.k, gdn.v, gdn.g, gdn.beta, out);
    a.remove = good.remove;
    assert_int_equal(ebb_delta_step(gdn.queue, &gdn.plan, &a, &error), EBB_BAD_ARGUMENT);
    assert_non_null(strstr(error.text, "remove has data, which only layers of kind ERASE read"));
    world_close(&gdn);
    close_world(&w);
}

static int setup(void **state) {
    (void)state;
    return ebb_device_open("cpu", NULL, &device, NULL) != EBB_OK;
}
static int teardown(void **state) {
    (void)state;
    ebb_device_close(device);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_adversarial_steps),
        cmocka_unit_test(test_window_decay),
        cmocka_unit_test(test_prefill),
        cmocka_unit_test(test_mixture),
        cmocka_unit_test(test_drafts),
        cmocka_unit_test(test_rollback),
        cmocka_unit_test(test_batch),
        cmocka_unit_test(test_images),
        cmocka_unit_test(test_gdn2),
        cmocka_unit_test(test_kda),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_rows_and_stages),
        cmocka_unit_test(test_output_norm),
        cmocka_unit_test(test_tensors),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
