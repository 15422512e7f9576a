/* measure/plot.c: line plots as SVG. Numbers are printed by hand, to hundredths of a unit, so that a figure has the
 * same bytes in every locale. Called by the commands that draw. */
#include "measure/plot.h"
#include "core/core.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    WIDTH = 800,
    LEAST_HEIGHT = 500,
    LEFT = 84,
    TOP = 64,
    BOTTOM = 58,
    LABEL_GAP = 15,  /* between the base lines of two labels */
    LABEL_LEAD = 56, /* from the plot's right side to a label: leader, then a sample of the line */
    MOST_TICKS = 64
};
#define LIMIT 1e290 /* larger numbers, and positive ones below 1 / LIMIT on a logarithmic axis, are not drawn */

/* Okabe and Ito's colours, less the yellow that a white ground swallows. */
static const char *const colors[PLOT_COLORS] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                                "#000000", "#E69F00", "#56B4E9"};
static const char *const dashes[PLOT_DASHES] = {"", "7 3", "2 3", "9 3 2 3", "14 4"};

/* ---- text ---- */

typedef struct buffer {
    char *at;
    size_t n, room;
    bool failed;
} buffer;

static bool grow(buffer *b, size_t more) {
    if (b->failed) return false;
    if (b->room - b->n > more) return true;
    char *at = realloc(b->at, b->room = 2 * b->room + more + 1024);
    if (!at) return !(b->failed = true);
    b->at = at;
    return true;
}

static void EBB_PRINTF(2, 3) put(buffer *b, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n < 0 || n >= (int)sizeof text) b->failed = true;
    if (!grow(b, (size_t)n)) return;
    memcpy(b->at + b->n, text, (size_t)n + 1);
    b->n += (size_t)n;
}

/* Bytes of the character at `s` if XML 1.0 allows it, else 0. */
static int character(const unsigned char *s) {
    uint32_t c = s[0];
    int n = c < 0x80 ? 1 : c >= 0xC2 && c < 0xE0 ? 2 : c >= 0xE0 && c < 0xF0 ? 3 : c >= 0xF0 && c < 0xF5 ? 4 : 0;
    if (n == 1) return c >= 0x20 && c != 0x7F ? 1 : 0;
    c &= 0xFFu >> (n + 1);
    for (int i = 1; i < n; i++) {
        if ((s[i] & 0xC0) != 0x80) return 0;
        c = c << 6 | (s[i] & 0x3F);
    }
    const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    bool bad = c < least[n] || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000) || (c & 0xFFFE) == 0xFFFE || c < 0xA0;
    return bad ? 0 : n;
}

static void put_text(buffer *b, const char *text) {
    for (const unsigned char *s = (const unsigned char *)text; *s;) {
        const int n = character(s);
        if (n == 0) put(b, "\xEF\xBF\xBD");
        else if (*s == '&') put(b, "&amp;");
        else if (*s == '<') put(b, "&lt;");
        else if (*s == '>') put(b, "&gt;");
        else if (*s == '"') put(b, "&quot;");
        else put(b, "%.*s", n, (const char *)s);
        s += n ? n : 1;
    }
}

static int64_t characters(const char *text) {
    int64_t n = 0;
    for (; *text; text++) n += ((unsigned char)*text & 0xC0) != 0x80;
    return n;
}

/* `v` with that many decimals and commas between thousands; |v| 10^decimals must stay below 2^63. */
static void put_fixed(buffer *b, double v, int decimals, bool commas) {
    int64_t power = 1;
    for (int i = 0; i < decimals; i++) power *= 10;
    int64_t all = llround(v * (double)power), whole;
    char digits[32], *at = digits + sizeof digits - 1;
    if (all < 0) put(b, "%s", commas ? "\xE2\x88\x92" : "-"); /* a label has the sign of typographers */
    if (all < 0) all = -all;
    *at = '\0';
    whole = all / power;
    for (int i = 0; i == 0 || whole; i++, whole /= 10) {
        if (commas && i && i % 3 == 0) *--at = ',';
        *--at = (char)('0' + whole % 10);
    }
    put(b, "%s", at);
    if (decimals) put(b, ".%0*lld", decimals, (long long)(all % power));
}

static void put_at(buffer *b, const char *name, double v) {
    put(b, " %s=\"", name);
    put_fixed(b, v, 2, false);
    put(b, "\"");
}

/* ---- axes ---- */

typedef struct tick {
    double value; /* mantissa * 10^exponent */
    double mantissa;
    int exponent, decimals; /* of the mantissa */
    bool minor;             /* a stroke without a label */
} tick;

typedef struct axis {
    bool log;
    double lo, hi;   /* of the values, their logarithms if log */
    double from, to; /* where these lie on the page */
    bool scientific; /* how the labels are written */
    tick ticks[MOST_TICKS];
    int32_t n;
} axis;

static bool drawable(bool log, double v) { return fabs(v) < LIMIT && (!log || v > 1 / LIMIT); }
static bool drawable_point(const plot *p, const plot_series *s, int64_t i) {
    return drawable(p->x.log, s->x[i]) && drawable(p->y.log, s->y[i]);
}
static double place(const axis *a, double v) {
    return a->from + ((a->log ? log10(v) : v) - a->lo) / (a->hi - a->lo) * (a->to - a->from);
}

/* Least and largest of what will be drawn. */
static void find_range(const plot *p, bool vertical, double *lo, double *hi) {
    *lo = INFINITY, *hi = -INFINITY;
    for (int32_t i = 0; i < p->n; i++)
        for (int64_t j = 0; j < p->series[i].n; j++) {
            const double v = vertical ? p->series[i].y[j] : p->series[i].x[j];
            if (!drawable_point(p, &p->series[i], j)) continue;
            *lo = fmin(*lo, v);
            *hi = fmax(*hi, v);
        }
    if (*lo > *hi) *lo = 1, *hi = 10; /* nothing to draw */
}

static void add_tick(axis *a, double mantissa, int exponent, int decimals, bool minor) {
    if (a->n == MOST_TICKS) return;
    a->ticks[a->n++] = (tick){mantissa * pow(10, exponent), mantissa, exponent, decimals, minor};
}

/* A logarithmic axis ends at 1, 2 or 5 times a power of ten; labels at the powers, and at 2 and 5 where they are few.
 */
static void make_log_axis(axis *a, double lo, double hi) {
    static const int steps[] = {1, 2, 5, 10};
    const int first = (int)floor(log10(lo) + 1e-9), last = (int)ceil(log10(hi) - 1e-9);
    a->lo = first, a->hi = last;
    for (int32_t i = 1; i < COUNT(steps); i++) {
        if (first + log10(steps[i]) <= log10(lo) + 1e-9) a->lo = first + log10(steps[i]);
        if (last - log10(steps[i]) >= log10(hi) - 1e-9) a->hi = last - log10(steps[i]);
    }
    if (a->hi - a->lo < 0.1) a->lo = first, a->hi = last > first ? last : first + 1;
    const int decades = last - first, stride = 1 + decades / 10;
    const bool few = floor(a->hi + 1e-9) - ceil(a->lo - 1e-9) < 2, tight = a->hi - a->lo < 0.8;
    a->scientific = first < -3 || last > 6;
    for (int e = first; e <= last; e++)
        for (int m = 1; m < 10; m++) {
            const double at = e + log10(m);
            const bool labelled = m == 1 ? (e - first) % stride == 0 : tight || (few && (m == 2 || m == 5));
            if (at < a->lo - 1e-9 || at > a->hi + 1e-9 || (m > 1 && decades > 6)) continue;
            add_tick(a, m, e, 0, !labelled);
        }
}

static void make_linear_axis(axis *a, double lo, double hi) {
    if (hi - lo <= 1e-12 * fmax(fabs(lo), fabs(hi))) {
        const double wide = lo == 0 ? 1 : 0.5 * fabs(lo);
        lo -= wide, hi += wide;
    }
    const double rough = (hi - lo) / 6;
    int exponent = (int)floor(log10(rough));
    const double m = rough / pow(10, exponent), mantissa = m <= 1 ? 1 : m <= 2 ? 2 : m <= 5 ? 5 : 10;
    const double step = mantissa * pow(10, exponent), first = floor(lo / step + 1e-9), last = ceil(hi / step - 1e-9);
    if (mantissa == 10) exponent++; /* of the step's last digit */
    a->lo = first * step, a->hi = last * step;
    const double most = fmax(fabs(a->lo), fabs(a->hi));
    const int top = (int)floor(log10(most) + 1e-9);
    a->scientific = exponent < -4 || top > 6;
    for (double i = first; i <= last; i++) {
        if (!a->scientific) add_tick(a, i * step, 0, exponent < 0 ? -exponent : 0, false);
        else add_tick(a, i * step / pow(10, top), top, top - exponent < 15 ? top - exponent : 15, false);
    }
}

static void make_axis(const plot *p, bool vertical, double from, double to, axis *a) {
    double lo, hi;
    find_range(p, vertical, &lo, &hi);
    *a = (axis){.log = vertical ? p->y.log : p->x.log, .from = from, .to = to};
    if (a->log) make_log_axis(a, lo, hi);
    else make_linear_axis(a, lo, hi);
}

static void put_tick_label(buffer *b, const axis *a, const tick *t) {
    if (!a->scientific) {
        put_fixed(b, t->value, a->log && t->exponent < 0 ? -t->exponent : t->decimals, true);
        return;
    }
    if (t->mantissa == 0) {
        put(b, "0");
        return;
    }
    if (!a->log || t->mantissa != 1) {
        put_fixed(b, t->mantissa, t->decimals, true);
        put(b, "\xC3\x97"); /* times */
    }
    put(b, "10<tspan dy=\"-5\" font-size=\"9\">%s%d</tspan>", t->exponent < 0 ? "\xE2\x88\x92" : "", abs(t->exponent));
}

/* ---- the page ---- */

typedef struct page {
    const plot *p;
    double right, bottom, height; /* of the plot area; of the page */
    axis x, y;
    double *end_x, *end_y, *label_y; /* [n]: of the labelled series */
} page;

static void put_line(buffer *b, double x1, double y1, double x2, double y2, const char *style) {
    put(b, "<line");
    put_at(b, "x1", x1), put_at(b, "y1", y1), put_at(b, "x2", x2), put_at(b, "y2", y2);
    put(b, " %s/>\n", style);
}

static void put_axis(buffer *b, const page *g, const axis *a, bool vertical) {
    static const char grid[] = "stroke=\"#E4E4E4\"", stroke[] = "stroke=\"#444444\"";
    for (int32_t i = 0; i < a->n; i++) {
        const tick *t = &a->ticks[i];
        const double at = place(a, t->value), reach = t->minor ? 3 : 6;
        if (vertical) {
            if (!t->minor) put_line(b, LEFT, at, g->right, at, grid);
            put_line(b, LEFT - reach, at, LEFT, at, stroke);
        } else {
            if (!t->minor) put_line(b, at, TOP, at, g->bottom, grid);
            put_line(b, at, g->bottom, at, g->bottom + reach, stroke);
        }
        if (t->minor) continue;
        put(b, "<text");
        put_at(b, "x", vertical ? LEFT - 10 : at), put_at(b, "y", vertical ? at + 4 : g->bottom + 20);
        put(b, " text-anchor=\"%s\">", vertical ? "end" : "middle");
        put_tick_label(b, a, t);
        put(b, "</text>\n");
    }
}

static void put_heading(buffer *b, const char *text, double x, double y, const char *style) {
    if (!text) return;
    put(b, "<text");
    put_at(b, "x", x), put_at(b, "y", y);
    put(b, " %s>", style);
    put_text(b, text);
    put(b, "</text>\n");
}

static void put_frame(buffer *b, const page *g) {
    const double middle = (TOP + g->bottom) / 2;
    char turned[96];
    put_axis(b, g, &g->x, false);
    put_axis(b, g, &g->y, true);
    put_line(b, LEFT, g->bottom, g->right, g->bottom, "stroke=\"#444444\"");
    put_line(b, LEFT, TOP, LEFT, g->bottom, "stroke=\"#444444\"");
    put_heading(b, g->p->title, LEFT, 28, "font-size=\"17\" font-weight=\"bold\"");
    put_heading(b, g->p->subtitle, LEFT, 48, "fill=\"#555555\"");
    put_heading(b, g->p->x.title, (LEFT + g->right) / 2, g->bottom + 44, "text-anchor=\"middle\" font-size=\"13\"");
    snprintf(turned, sizeof turned, "text-anchor=\"middle\" font-size=\"13\" transform=\"rotate(-90 20 %d)\"",
             (int)middle);
    put_heading(b, g->p->y.title, 20, (int)middle, turned);
}

static void put_style(buffer *b, const plot_series *s) {
    const char *dash = dashes[s->dash % PLOT_DASHES];
    put(b, " fill=\"none\" stroke=\"%s\" stroke-width=\"%s\"", colors[s->color % PLOT_COLORS], s->thin ? "1" : "2");
    if (s->thin) put(b, " stroke-opacity=\"0.35\"");
    if (*dash) put(b, " stroke-dasharray=\"%s\"", dash);
}

/* The line, and points on it where they are few or stand alone. */
static void put_series(buffer *b, const page *g, const plot_series *s) {
    bool pen = false;
    put(b, "<path");
    put_style(b, s);
    put(b, " stroke-linejoin=\"round\" d=\"");
    for (int64_t i = 0; i < s->n; i++) {
        const bool draw = drawable_point(g->p, s, i);
        if (draw) {
            put(b, "%s", pen ? " L" : "M");
            put_fixed(b, place(&g->x, s->x[i]), 2, false);
            put(b, " ");
            put_fixed(b, place(&g->y, s->y[i]), 2, false);
        }
        pen = draw;
    }
    put(b, "\"/>\n");
    for (int64_t i = 0; i < s->n; i++) {
        const bool left = i > 0 && drawable_point(g->p, s, i - 1);
        const bool alone = !left && !(i + 1 < s->n && drawable_point(g->p, s, i + 1));
        if (!drawable_point(g->p, s, i) || (!alone && (s->thin || s->n > 40))) continue;
        put(b, "<circle");
        put_at(b, "cx", place(&g->x, s->x[i])), put_at(b, "cy", place(&g->y, s->y[i]));
        put(b, " r=\"%s\" fill=\"%s\"%s/>\n", s->thin ? "1" : "2.4", colors[s->color % PLOT_COLORS],
            s->thin ? " fill-opacity=\"0.35\"" : "");
    }
}

/* ---- labels at the ends of lines ---- */

/* Where the last drawn point of a series lies; false: none is drawn. */
static bool find_end(const page *g, const plot_series *s, double *x, double *y) {
    for (int64_t i = s->n; i-- > 0;)
        if (drawable_point(g->p, s, i)) {
            *x = place(&g->x, s->x[i]);
            *y = place(&g->y, s->y[i]);
            return true;
        }
    *x = -1, *y = g->bottom;
    return false;
}

/* Move sorted wishes y[0 .. n-1] apart to at least LABEL_GAP, each as little as possible: in y[i] - i * gap this is
 * monotone regression, by merging neighbouring blocks that fall. */
static void spread(double *y, int32_t n, double top, double bottom) {
    for (int32_t i = 0; i < n; i++) y[i] -= i * LABEL_GAP;
    for (int32_t end = 1; end <= n; end++) {
        int32_t first = end - 1; /* the block that ends at `end` */
        double mean = y[first];
        while (first > 0 && y[first - 1] > mean) {
            int32_t before = first - 1; /* the block before it has one value throughout */
            while (before > 0 && y[before - 1] == y[first - 1]) before--;
            mean = (mean * (end - first) + y[first - 1] * (first - before)) / (end - before);
            first = before;
        }
        for (int32_t i = first; i < end; i++) y[i] = mean;
    }
    for (int32_t i = 0; i < n; i++) y[i] = fmin(fmax(y[i], top), bottom - (n - 1) * LABEL_GAP) + i * LABEL_GAP;
}

/* Fill end_x, end_y and label_y of the labelled series. */
static void place_labels(page *g, int32_t *order, double *wish) {
    int32_t n = 0;
    for (int32_t i = 0; i < g->p->n; i++) {
        if (!g->p->series[i].label) continue;
        find_end(g, &g->p->series[i], &g->end_x[i], &g->end_y[i]);
        int32_t at = n++;
        for (; at > 0 && g->end_y[order[at - 1]] > g->end_y[i]; at--) order[at] = order[at - 1];
        order[at] = i;
    }
    for (int32_t i = 0; i < n; i++) wish[i] = g->end_y[order[i]];
    spread(wish, n, TOP, g->bottom);
    for (int32_t i = 0; i < n; i++) g->label_y[order[i]] = wish[i];
}

/* A hair from the line's end, a sample of the line, the name. */
static void put_label(buffer *b, const page *g, int32_t i) {
    const plot_series *s = &g->p->series[i];
    const double y = g->label_y[i], sample = g->right + 18;
    const bool drawn = g->end_x[i] >= 0;
    if (!s->label) return;
    if (g->end_x[i] > LEFT + 0.8 * (g->right - LEFT))
        put_line(b, g->end_x[i], g->end_y[i], sample, y, "stroke=\"#BBBBBB\"");
    put(b, "<path");
    put_style(b, s);
    put(b, " d=\"M");
    put_fixed(b, sample, 2, false), put(b, " "), put_fixed(b, y, 2, false);
    put(b, " h32\"/>\n");
    put(b, "<text");
    put_at(b, "x", g->right + LABEL_LEAD), put_at(b, "y", y + 4);
    put(b, ">");
    put_text(b, s->label);
    put(b, "%s</text>\n", drawn ? "" : " (no points)");
}

/* Characters are taken to be 0.6 of their size wide: no label of a usual font is wider. */
static void lay_out(page *g) {
    const plot *p = g->p;
    int32_t labels = 0;
    int64_t widest = 0;
    for (int32_t i = 0; i < p->n; i++) {
        const plot_series *s = &p->series[i];
        double x, y;
        if (!s->label) continue;
        labels++;
        widest = max_i64(widest, characters(s->label) + (find_end(g, s, &x, &y) ? 0 : 12));
    }
    const double room = labels ? fmin(LABEL_LEAD + 7.2 * (double)widest + 12, WIDTH / 2) : 24;
    g->right = WIDTH - room;
    g->height = fmax(LEAST_HEIGHT, TOP + BOTTOM + LABEL_GAP * labels);
    g->bottom = g->height - BOTTOM;
}

static void put_page(buffer *b, const page *g) {
    put(b,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" role=\"img\" "
        "font-family=\"Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif\" font-size=\"12\">\n<title>",
        WIDTH, (int)g->height, WIDTH, (int)g->height);
    put_text(b, g->p->title ? g->p->title : "plot");
    put(b, "</title>\n<rect width=\"%d\" height=\"%d\" fill=\"#FFFFFF\"/>\n", WIDTH, (int)g->height);
    put_frame(b, g);
    for (int32_t thin = 1; thin >= 0; thin--) /* companions lie behind */
        for (int32_t i = 0; i < g->p->n; i++)
            if (g->p->series[i].thin == (thin == 1)) put_series(b, g, &g->p->series[i]);
    for (int32_t i = 0; i < g->p->n; i++) put_label(b, g, i);
    put(b, "</svg>\n");
}

ebb_status plot_svg(const plot *p, char **svg, size_t *bytes, ebb_error *error) {
    if (!p || !svg || !bytes || p->n < 0 || (p->n && !p->series))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a plot needs its series and a place to go");
    const size_t n = (size_t)p->n + 1;
    page g = {.p = p};
    buffer b = {0};
    double *ends = calloc(4 * n, sizeof *ends);
    int32_t *order = calloc(n, sizeof *order);
    if (ends && order) {
        g.end_x = ends, g.end_y = ends + n, g.label_y = ends + 2 * n;
        make_axis(p, false, LEFT, WIDTH, &g.x); /* which points are drawn does not depend on where */
        make_axis(p, true, LEAST_HEIGHT, TOP, &g.y);
        lay_out(&g);
        g.x.to = g.right, g.y.from = g.bottom;
        place_labels(&g, order, ends + 3 * n);
        put_page(&b, &g);
    } else b.failed = true;
    free(ends), free(order);
    *svg = b.at, *bytes = b.n;
    if (!b.failed) return EBB_OK;
    free(b.at);
    *svg = NULL;
    return ebb_fail(error, EBB_NO_MEMORY, "no memory for a figure of %d lines", p->n);
}

ebb_status plot_write(const plot *p, const char *path, ebb_error *error) {
    char *svg = NULL;
    size_t bytes = 0;
    ebb_status status = plot_svg(p, &svg, &bytes, error);
    if (status) return status;
    FILE *file = fopen(path, "wb");
    bool good = file && fwrite(svg, 1, bytes, file) == bytes;
    if (file && fclose(file) != 0) good = false;
    if (!good) status = ebb_fail(error, EBB_BAD_FILE, "%s: cannot be written: %s", path, strerror(errno));
    free(svg);
    return status;
}
