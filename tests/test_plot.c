/* tests/test_plot.c: figures are well-formed whatever they are given, the same every time, and draw what can be drawn.
 */
#define _GNU_SOURCE
#include "measure/plot.h"

#include "core/core.h"

#include <ctype.h>
#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "must.h"

enum { POINTS = 12, MOST = 40 };

/* ---- a small check of XML: tags nest, attributes are quoted, text has no < and only the known entities ---- */

static const char *skip_entity(const char *s) {
    static const char *const known[] = {"&amp;", "&lt;", "&gt;", "&quot;"};
    for (int32_t i = 0; i < COUNT(known); i++)
        if (!strncmp(s, known[i], strlen(known[i]))) return s + strlen(known[i]);
    fail_msg("'%.12s' is no entity", s);
    return s;
}

static const char *skip_name(const char *s) {
    const char *from = s;
    while (isalnum((unsigned char)*s) || *s == '-') s++;
    assert_true(s > from);
    return s;
}

/* From after the name of a tag to after its '>'; *empty: it ends itself. */
static const char *skip_attributes(const char *s, bool *empty) {
    while (*s == ' ') {
        s = skip_name(s + 1);
        assert_true(s[0] == '=' && s[1] == '"');
        for (s += 2; *s != '"';) {
            assert_true(*s && *s != '<');
            s = *s == '&' ? skip_entity(s) : s + 1;
        }
        s++;
    }
    *empty = *s == '/';
    s += *empty;
    assert_int_equal(*s, '>');
    return s + 1;
}

static void well_formed(const char *s) {
    const char *open[16];
    size_t length[16];
    int32_t depth = 0;
    bool empty, done = false;
    while (*s) {
        assert_false(done && *s != '\n');
        assert_true((unsigned char)*s >= 0x20 || *s == '\n');
        if (*s == '&') s = skip_entity(s);
        else if (*s != '<') s++;
        else if (s[1] == '/') {
            const char *end = skip_name(s + 2);
            assert_true(depth > 0);
            depth--;
            assert_true((size_t)(end - s - 2) == length[depth] && !memcmp(s + 2, open[depth], length[depth]));
            assert_int_equal(*end, '>');
            s = end + 1;
            done = depth == 0;
        } else {
            assert_true(depth < COUNT(open));
            open[depth] = s + 1;
            s = skip_name(s + 1);
            length[depth] = (size_t)(s - open[depth]);
            s = skip_attributes(s, &empty);
            depth += !empty;
        }
    }
    assert_true(done);
}

static bool is_utf8(const char *text) { return mbstowcs(NULL, text, 0) != (size_t)-1; }

static char *draw(const plot *p) {
    ebb_error error;
    char *svg = NULL;
    size_t bytes = 0;
    must(plot_svg(p, &svg, &bytes, &error), &error);
    assert_int_equal(strlen(svg), bytes);
    well_formed(svg);
    assert_true(is_utf8(svg));
    assert_null(strstr(svg, "nan"));
    assert_null(strstr(svg, "inf"));
    return svg;
}

static int32_t count(const char *text, const char *what) {
    int32_t n = 0;
    for (; (text = strstr(text, what)); text += strlen(what)) n++;
    return n;
}

/* ---- tests ---- */

static void text_is_escaped(void **state) {
    (void)state;
    const double x[] = {1, 10}, y[] = {0.5, 0.25};
    const plot_series s = {.label = "<b>&\"a\"</b>\n\x01 caf\xe9 \xed\xa0\x80 \xef\xbf\xbf \xc2\x85 \xf4\x90\x80\x80 "
                                    "\xc3\xa9\xf0\x9f\x99\x82",
                           .x = x,
                           .y = y,
                           .n = 2};
    const plot p = {"]]> & <", NULL, {"x < y", true}, {"&amp;", false}, &s, 1};
    char *svg = draw(&p);
    assert_non_null(strstr(svg, "&lt;b&gt;&amp;&quot;a&quot;&lt;/b&gt;\xef\xbf\xbd\xef\xbf\xbd caf\xef\xbf\xbd "));
    assert_non_null(strstr(svg, "\xc3\xa9\xf0\x9f\x99\x82</text>"));
    assert_non_null(strstr(svg, ">&amp;amp;</text>"));
    assert_int_equal(count(svg, "\xef\xbf\xbf"), 0);
    free(svg);
}

static void what_cannot_be_drawn_is_left_out(void **state) {
    (void)state;
    const double x[] = {0, 1, 2, 3, 4, 5, 6, 7, 8}, y[] = {1, 2, NAN, 3, -1, 4, 0, INFINITY, 1e-310};
    plot_series s = {.label = "s", .x = x, .y = y, .n = COUNT(x)};
    plot p = {NULL, NULL, {"x", true}, {"y", true}, &s, 1};
    char *svg = draw(&p);
    assert_int_equal(count(svg, "<circle"), 3); /* at 1, 3, 5 */
    assert_int_equal(count(svg, " L"), 0);      /* no line across a gap */
    free(svg);
    p.x.log = p.y.log = false;
    svg = draw(&p);
    assert_int_equal(count(svg, "<circle"), 7); /* all but NaN and infinity */
    assert_int_equal(count(svg, " L"), 4);      /* 0-1, 3-4-5-6 */
    free(svg);
    s.n = 0;
    svg = draw(&p);
    assert_int_equal(count(svg, "<circle"), 0);
    assert_non_null(strstr(svg, "s (no points)"));
    free(svg);
    p.n = 0;
    free(draw(&p));
}

/* Text of every tick of the x axis, in order, separated by blanks. */
static void tick_labels(const char *svg, char *to, size_t room) {
    to[0] = '\0';
    for (const char *s = svg; (s = strstr(s, "text-anchor=\"middle\">")); s++) {
        const char *from = strchr(s, '>') + 1, *end = strstr(from, "</text>");
        snprintf(to + strlen(to), room - strlen(to), "%s%.*s", *to ? " " : "", (int)(end - from), from);
    }
}

static void ticks(void **state) {
    (void)state;
    static const struct {
        double lo, hi;
        bool log;
        const char *labels;
    } cases[] = {
        {1, 16384, true, "1 10 100 1,000 10,000"},
        {0, 4096, false, "0 1,000 2,000 3,000 4,000 5,000"},
        {-0.1, 0.24, false,
         "\xe2\x88\x92"
         "0.1 0.0 0.1 0.2 0.3"},
        {0.031, 0.042, true, "0.02 0.03 0.04 0.05"},
        {0.002, 0.4, true, "0.002 0.005 0.01 0.02 0.05 0.1 0.2 0.5"},
        {7, 7, true, "5 6 7 8 9 10"},
        {3, 30, true, "2 5 10 20 50"},
        {1e5, 1e5, false, "40,000 60,000 80,000 100,000 120,000 140,000 160,000"},
    };
    char labels[256];
    for (int32_t i = 0; i < COUNT(cases); i++) {
        const double x[] = {cases[i].lo, cases[i].hi}, y[] = {1, 2};
        const plot_series s = {.x = x, .y = y, .n = 2};
        const plot p = {NULL, NULL, {NULL, cases[i].log}, {NULL, false}, &s, 1};
        char *svg = draw(&p);
        tick_labels(svg, labels, sizeof labels);
        assert_string_equal(labels, cases[i].labels);
        free(svg);
    }
}

/* Any two numbers make an axis with at least two labels, and points inside the frame. */
static void every_range_has_an_axis(void **state) {
    (void)state;
    static const double numbers[] = {0,    1,     -1,   1e-300, 1e289, -1e289, 3e-17, 123456789,
                                     1e15, 1e-15, 1e16, 0.1,    0.3,   1e-7,   7e6,   1 + 1e-15};
    char labels[1024];
    for (int32_t i = 0; i < COUNT(numbers); i++)
        for (int32_t j = 0; j < COUNT(numbers); j++)
            for (int32_t log = 0; log < 2; log++) {
                const double x[] = {numbers[i], numbers[j]}, y[] = {1, 2};
                const plot_series s = {.x = x, .y = y, .n = 2};
                const plot p = {NULL, NULL, {NULL, log == 1}, {NULL, false}, &s, 1};
                char *svg = draw(&p);
                tick_labels(svg, labels, sizeof labels);
                if (!strchr(labels, ' ')) fail_msg("%g to %g: labels '%s'", x[0], x[1], labels);
                for (const char *c = svg; (c = strstr(c, "cx=\"")); c++) {
                    const double at = strtod(c + 4, NULL);
                    if (!(at >= 83.9 && at <= 800)) fail_msg("%g to %g: a point at %g", x[0], x[1], at);
                }
                free(svg);
            }
}

/* As many lines as there are looks, all ending at one place: labels keep apart and inside the page. */
static void labels_do_not_overlap(void **state) {
    (void)state;
    static double x[POINTS], y[MOST][POINTS];
    static char names[MOST][16];
    plot_series s[MOST];
    double at[MOST];
    for (int32_t i = 0; i < MOST; i++) {
        for (int32_t j = 0; j < POINTS; j++) x[j] = j + 1, y[i][j] = 1 + (i % 7 == 0 ? i : 0) * 1e-3 * j;
        snprintf(names[i], sizeof names[i], "line-%d", i);
        s[i] = (plot_series){.label = names[i], .x = x, .y = y[i], .n = POINTS, .color = i, .dash = i};
    }
    for (int32_t n = 1; n <= MOST; n += 13) {
        const plot p = {"t", "s", {"x", false}, {"y", false}, s, n};
        char *svg = draw(&p);
        const double height = strtod(strstr(svg, "height=\"") + 8, NULL);
        for (int32_t i = 0; i < n; i++) {
            char end[32];
            snprintf(end, sizeof end, ">%s</text>", names[i]);
            const char *label = strstr(svg, end);
            assert_non_null(label);
            while (strncmp(label, "y=\"", 3) != 0) label--;
            at[i] = strtod(label + 3, NULL);
            assert_true(at[i] > 20 && at[i] < height - 20);
            for (int32_t j = 0; j < i; j++) assert_true(fabs(at[i] - at[j]) >= 14.9);
        }
        free(svg);
    }
}

static void labels_keep_their_order(void **state) {
    (void)state;
    const double x[] = {1, 2}, y[][2] = {{1, 1}, {1, 1.01}, {1, 5}, {1, 1.02}, {1, 9}};
    static const char *const names[] = {"a", "b", "c", "d", "e"};
    static const int32_t order[] = {4, 2, 3, 1, 0}; /* from the top */
    plot_series s[5];
    for (int32_t i = 0; i < 5; i++) s[i] = (plot_series){.label = names[i], .x = x, .y = y[i], .n = 2, .color = i};
    const plot p = {NULL, NULL, {"x", false}, {"y", true}, s, 5};
    char *svg = draw(&p);
    double before = 0;
    for (int32_t i = 0; i < 5; i++) {
        char end[16];
        snprintf(end, sizeof end, ">%s</text>", names[order[i]]);
        const char *label = strstr(svg, end);
        while (strncmp(label, "y=\"", 3) != 0) label--;
        assert_true(strtod(label + 3, NULL) > before);
        before = strtod(label + 3, NULL);
    }
    free(svg);
}

static void two_drawings_are_one(void **state) {
    (void)state;
    double x[POINTS], y[POINTS];
    for (int32_t j = 0; j < POINTS; j++) x[j] = pow(3, j), y[j] = 1e-5 * pow(1.7, j);
    const plot_series s[] = {{.label = "a", .x = x, .y = y, .n = POINTS},
                             {.x = x, .y = y, .n = POINTS, .color = 3, .dash = 2, .thin = true}};
    const plot p = {"t", "s", {"x", true}, {"y", true}, s, 2};
    char *first = draw(&p), *second = draw(&p), path[] = "/tmp/ebb-plot-XXXXXX", *file = NULL;
    size_t bytes = 0;
    ebb_error error;
    assert_string_equal(first, second);
    assert_int_equal(count(first, "<circle"), POINTS); /* a companion has none */
    close(mkstemp(path));
    must(plot_write(&p, path, &error), &error);
    must(read_file(path, 1 << 20, &file, &bytes, &error), &error);
    assert_string_equal(file, first);
    unlink(path);
    free(file), free(first), free(second);
    assert_int_equal(plot_write(&p, "/nowhere/at/all.svg", &error), EBB_BAD_FILE);
    assert_non_null(strstr(error.text, "/nowhere/at/all.svg: "));
    assert_int_equal(plot_write(NULL, path, &error), EBB_BAD_ARGUMENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_escaped),
        cmocka_unit_test(what_cannot_be_drawn_is_left_out),
        cmocka_unit_test(ticks),
        cmocka_unit_test(every_range_has_an_axis),
        cmocka_unit_test(labels_do_not_overlap),
        cmocka_unit_test(labels_keep_their_order),
        cmocka_unit_test(two_drawings_are_one),
    };
    setlocale(LC_CTYPE, "C.UTF-8");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
