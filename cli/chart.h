/* SPDX-License-Identifier: Apache-2.0
 *
 * chart.h - a line chart as SVG: axes with round numbers, a legend, marked columns.
 */
#ifndef INFERNIX_CLI_CHART_H
#define INFERNIX_CLI_CHART_H

#include "base.h"

#define CHART_SERIES 8
#define CHART_MARKS  8

struct chart_point {
    double x, y;
    double low, high; /* whisker; both equal to y: none */
};
struct chart_series {
    const char *name;
    struct chart_point *points; /* x ascending */
    uint32_t n;
    bool dashed;
};
struct chart_mark {
    double x;
    const char *text; /* beside a vertical line at x */
};
struct chart {
    const char *title, *subtitle, *x_label, *y_label;
    struct chart_series series[CHART_SERIES];
    uint32_t n_series;
    struct chart_mark marks[CHART_MARKS];
    uint32_t n_marks;
};
/* Whole or not at all; an existing file is replaced. */
int32_t chart_write(const struct chart *c, const char *path);

#endif
