/* SPDX-License-Identifier: Apache-2.0
 *
 * chart.c - see chart.h.
 */
#include "config.h"
#include "chart.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

#define WIDTH  960
#define HEIGHT 560
#define LEFT   84
#define RIGHT  28
#define TOP    76
#define BOTTOM 64

/* Told apart by people who see few colours, and in grey. */
static const char *const colours[CHART_SERIES] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                  "#e69f00", "#56b4e9", "#000000", "#999999"};

struct scale {
    double min, max, step, from, to; /* values; pixels */
};

static double at(const struct scale *s, double v)
{
    return s->from + (v - s->min) / (s->max - s->min) * (s->to - s->from);
}

/* About `ticks` steps of 1, 2 or 5 times a power of ten. */
static double round_step(double span, int ticks)
{
    double raw = span / ticks, unit = pow(10, floor(log10(raw))), f = raw / unit;
    return unit * (f <= 1 ? 1 : f <= 2 ? 2 : f <= 5 ? 5 : 10);
}

#define KEY_ROW   20.0
#define KEY_CHAR  7.2
#define KEY_FRAME 12.0

static double key_width(const struct chart *c)
{
    size_t longest = 0;
    for (uint32_t i = 0; i < c->n_series; i++)
        longest = strlen(c->series[i].name) > longest ? strlen(c->series[i].name) : longest;
    return 52 + KEY_CHAR * (double)longest;
}

/* Lines rise to the right: a key that reaches there gets room above them. */
static double room_for_key(const struct chart *c)
{
    double plot = HEIGHT - TOP - BOTTOM, key = KEY_FRAME + KEY_ROW * c->n_series + 16;
    return key_width(c) > (WIDTH - LEFT - RIGHT) / 2.0 && key < plot / 2 ? plot / (plot - key) : 1.05;
}

static void fit(const struct chart *c, struct scale *x, struct scale *y)
{
    double x0 = 0, x1 = 1, y1 = 0;
    bool first = true;
    for (uint32_t i = 0; i < c->n_series; i++)
        for (uint32_t k = 0; k < c->series[i].n; k++) {
            const struct chart_point *p = &c->series[i].points[k];
            x0 = first || p->x < x0 ? p->x : x0;
            x1 = first || p->x > x1 ? p->x : x1;
            y1 = p->high > y1 ? p->high : y1;
            first = false;
        }
    if (x0 < x1 / 4)
        x0 = 0;
    if (!(x1 > x0))
        x1 = x0 + 1;
    if (!(y1 > 0))
        y1 = 1;
    *x = (struct scale){.step = round_step(x1 - x0, 12), .from = LEFT, .to = WIDTH - RIGHT};
    x->min = floor(x0 / x->step) * x->step;
    x->max = ceil(x1 / x->step) * x->step;
    y1 *= room_for_key(c);
    *y = (struct scale){.step = round_step(y1, 7), .from = HEIGHT - BOTTOM, .to = TOP};
    y->max = ceil(y1 / y->step) * y->step;
}

static int32_t add_text(struct base_buf *b, const char *text)
{
    int32_t st = IFX_OK;
    for (; *text && st == IFX_OK; text++)
        st = *text == '&'   ? base_buf_add(b, "&amp;", 5)
             : *text == '<' ? base_buf_add(b, "&lt;", 4)
             : *text == '>' ? base_buf_add(b, "&gt;", 4)
                            : base_buf_add(b, text, 1);
    return st;
}

static int32_t label(struct base_buf *b, double x, double y, const char *style, const char *text)
{
    int32_t st = base_buf_addf(b, "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, style);
    if (st == IFX_OK)
        st = add_text(b, text);
    return st == IFX_OK ? base_buf_addf(b, "</text>\n") : st;
}

static int32_t line(struct base_buf *b, double x0, double y0, double x1, double y1, const char *style)
{
    return base_buf_addf(b, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", x0, y0, x1, y1, style);
}

static int32_t axes(struct base_buf *b, const struct chart *c, const struct scale *x, const struct scale *y)
{
    char text[32];
    int32_t st = IFX_OK;
    for (double v = y->min; v <= y->max + y->step / 2 && st == IFX_OK; v += y->step) {
        st = line(b, LEFT, at(y, v), WIDTH - RIGHT, at(y, v), v > y->min ? "stroke=\"#e4e4e4\"" : "stroke=\"#444\"");
        snprintf(text, sizeof text, "%g", v);
        if (st == IFX_OK)
            st = label(b, LEFT - 8, at(y, v) + 4, "text-anchor=\"end\" class=\"tick\"", text);
    }
    for (double v = x->min; v <= x->max + x->step / 2 && st == IFX_OK; v += x->step) {
        st = line(b, at(x, v), HEIGHT - BOTTOM, at(x, v), HEIGHT - BOTTOM + 5, "stroke=\"#444\"");
        snprintf(text, sizeof text, "%g", v);
        if (st == IFX_OK)
            st = label(b, at(x, v), HEIGHT - BOTTOM + 20, "text-anchor=\"middle\" class=\"tick\"", text);
    }
    if (st == IFX_OK)
        st = label(b, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 18, "text-anchor=\"middle\" class=\"name\"", c->x_label);
    if (st == IFX_OK)
        st = base_buf_addf(b, "<g transform=\"translate(22 %.1f) rotate(-90)\">", (TOP + HEIGHT - BOTTOM) / 2.0);
    if (st == IFX_OK)
        st = label(b, 0, 0, "text-anchor=\"middle\" class=\"name\"", c->y_label);
    return st == IFX_OK ? base_buf_addf(b, "</g>\n") : st;
}

/* Texts of neighbouring marks stand below one another. */
static int32_t marks(struct base_buf *b, const struct chart *c, const struct scale *x)
{
    int32_t st = IFX_OK;
    for (uint32_t i = 0; i < c->n_marks && st == IFX_OK; i++) {
        double px = at(x, c->marks[i].x);
        bool left = px > (LEFT + WIDTH - RIGHT) / 2.0;
        if (c->marks[i].x < x->min || c->marks[i].x > x->max)
            continue;
        st = line(b, px, TOP, px, HEIGHT - BOTTOM, "stroke=\"#888\" stroke-dasharray=\"4 4\"");
        if (st == IFX_OK)
            st = label(b, px + (left ? -6 : 6), HEIGHT - BOTTOM - 12 - 16 * (double)(i % 4),
                       left ? "text-anchor=\"end\" class=\"mark\"" : "class=\"mark\"", c->marks[i].text);
    }
    return st;
}

static int32_t series(struct base_buf *b, const struct chart_series *s, const char *colour, const struct scale *x,
                      const struct scale *y)
{
    char style[64];
    snprintf(style, sizeof style, "stroke=\"%s\" stroke-width=\"1.2\"", colour);
    int32_t st = base_buf_addf(b, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s points=\"", colour,
                               s->dashed ? " stroke-dasharray=\"7 4\"" : "");
    for (uint32_t i = 0; i < s->n && st == IFX_OK; i++)
        st = base_buf_addf(b, "%.1f,%.1f ", at(x, s->points[i].x), at(y, s->points[i].y));
    if (st == IFX_OK)
        st = base_buf_addf(b, "\"/>\n");
    for (uint32_t i = 0; i < s->n && st == IFX_OK; i++) {
        const struct chart_point *p = &s->points[i];
        double px = at(x, p->x);
        if (p->high > p->low)
            st = line(b, px, at(y, p->low), px, at(y, p->high), style);
        if (st == IFX_OK && s->n <= 60)
            st = base_buf_addf(b, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n", px, at(y, p->y), colour);
    }
    return st;
}

static int32_t legend(struct base_buf *b, const struct chart *c)
{
    double x0 = LEFT + 14, y0 = TOP + 8;
    int32_t st = base_buf_addf(b, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"4\" fill=\"#fff\" "
                               "fill-opacity=\"0.85\" stroke=\"#ccc\"/>\n", x0, y0, key_width(c), KEY_FRAME + KEY_ROW * c->n_series);
    for (uint32_t i = 0; i < c->n_series && st == IFX_OK; i++) {
        char style[96];
        double y = y0 + 18 + KEY_ROW * i;
        snprintf(style, sizeof style, "stroke=\"%s\" stroke-width=\"2.5\"%s", colours[i],
                 c->series[i].dashed ? " stroke-dasharray=\"7 4\"" : "");
        st = line(b, x0 + 10, y - 4, x0 + 34, y - 4, style);
        if (st == IFX_OK)
            st = label(b, x0 + 42, y, "class=\"key\"", c->series[i].name);
    }
    return st;
}

static int32_t draw(struct base_buf *b, const struct chart *c)
{
    struct scale x, y;
    fit(c, &x, &y);
    int32_t st = base_buf_addf(b, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
                               "font-family=\"system-ui, 'DejaVu Sans', sans-serif\">\n<style>.tick{font-size:12px;fill:#444}"
                               ".name{font-size:14px;fill:#222}.key{font-size:13px;fill:#222}.mark{font-size:12px;fill:#666}"
                               "</style>\n<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", WIDTH, HEIGHT, WIDTH, HEIGHT, WIDTH,
                               HEIGHT);
    if (st == IFX_OK)
        st = label(b, LEFT, 32, "font-size=\"18\" font-weight=\"600\" fill=\"#111\"", c->title);
    if (st == IFX_OK && c->subtitle)
        st = label(b, LEFT, 54, "font-size=\"13\" fill=\"#555\"", c->subtitle);
    if (st == IFX_OK)
        st = axes(b, c, &x, &y);
    if (st == IFX_OK)
        st = marks(b, c, &x);
    for (uint32_t i = 0; i < c->n_series && st == IFX_OK; i++)
        st = series(b, &c->series[i], colours[i], &x, &y);
    if (st == IFX_OK)
        st = legend(b, c);
    return st == IFX_OK ? base_buf_addf(b, "</svg>\n") : st;
}

int32_t chart_write(const struct chart *c, const char *path)
{
    struct base_buf b = {0};
    struct base_out *out = NULL;
    int32_t st = draw(&b, c);
    if (st == IFX_OK)
        st = base_out_open(path, true, &out);
    if (st == IFX_OK)
        st = base_out_write(out, b.data, b.len);
    if (st == IFX_OK)
        st = base_out_commit(&out);
    base_out_abort(&out);
    base_buf_free(&b);
    return st;
}
