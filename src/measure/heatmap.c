/* measure/heatmap.c: tables of shares as an SVG (heatmap.h). Only whole numbers are printed, so that a figure has the
 * same bytes in every locale. Called by the commands that draw. */
#include "measure/heatmap.h"
#include "core/core.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { CELL = 44, HEIGHT = 24, TOP = 48, BOTTOM = 44, LETTER = 8, GAP = 16 };

static void put_text(FILE *f, const char *text) {
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c == '&') fputs("&amp;", f);
        else if (c == '<') fputs("&lt;", f);
        else if (c == '>') fputs("&gt;", f);
        else fputc(c < 32 || c > 126 ? '?' : c, f);
    }
}

static void put_line(FILE *f, int x, int y, const char *anchor, const char *text) {
    fprintf(f, "<text x=\"%d\" y=\"%d\" text-anchor=\"%s\">", x, y, anchor);
    put_text(f, text);
    fputs("</text>\n", f);
}

/* White to blue; the number stands in it, dark on light and light on dark. */
static void put_cell(FILE *f, int x, int y, double share) {
    const int percent = (int)lround(100 * fmin(fmax(share, 0), 1));
    fprintf(f, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"rgb(%d,%d,%d)\"/>\n", x, y, CELL - 2,
            HEIGHT - 2, 255 - 255 * percent / 100, 255 - 141 * percent / 100, 255 - 77 * percent / 100);
    fprintf(f, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\" fill=\"%s\">%d</text>\n", x + CELL / 2, y + 16,
            percent > 55 ? "white" : "black", percent);
}

ebb_status heatmap_write(const heatmap *m, const char *path, ebb_error *error) {
    size_t widest = 0;
    for (int32_t r = 0; r < m->rows; r++)
        if (strlen(m->row[r]) > widest) widest = strlen(m->row[r]);
    const int left = (int)widest * LETTER + 2 * GAP, width = left + m->columns * CELL + 2 * GAP,
              height = TOP + m->rows * HEIGHT + BOTTOM;
    FILE *f = fopen(path, "wb");
    if (!f) return ebb_fail(error, EBB_BAD_FILE, "%s: cannot be written: %s", path, strerror(errno));
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
            "font-size=\"13\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
            width, height);
    put_line(f, GAP, 24, "start", m->title);
    for (int32_t r = 0; r < m->rows; r++) {
        put_line(f, left - GAP, TOP + r * HEIGHT + 16, "end", m->row[r]);
        for (int32_t c = 0; c < m->columns; c++)
            if (isfinite(m->cells[r * m->columns + c]))
                put_cell(f, left + c * CELL, TOP + r * HEIGHT, m->cells[r * m->columns + c]);
    }
    put_line(f, left, height - 16, "start", m->x);
    fputs("</svg>\n", f);
    const bool bad = ferror(f);
    if (fclose(f) || bad) return ebb_fail(error, EBB_BAD_FILE, "%s: cannot be written: %s", path, strerror(errno));
    return EBB_OK;
}
