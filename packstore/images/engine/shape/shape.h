/* Pixels to the size, type and layout that is wanted. */
#pragma once

#include "../core/requests.h"
#include "../simd/kernels.h"

enum { LOW_BITS = 11 }; /* of weights of 22 bits */

/* For each pixel of an axis: its first source pixel, and the weights of its source pixels. */
struct taps {
    int32_t *at;
    int16_t *weights;
    int64_t low_at; /* if weights have more than 16 bits: distance to their LOW_BITS lower bits; else 0 */
    int taps, precision;
    int64_t sampling;    /* set before make_taps() */
    int64_t first, stop; /* range of source pixels that all taps need */
};

/* Taps in float32. */
struct float_taps {
    int32_t *at;
    float *weights;
    int taps;
    int64_t first, stop;
};

/* State of resize_rows(). */
struct resizing {
    const struct kernels *kernels;
    struct taps across, down;
    int64_t channels, source_rows, rows, columns; /* rows of the source; size of the result */
    uint8_t *to, *kept, *line;                    /* the result; kept rows; a copy of two source rows */
    int64_t stride;                               /* bytes between rows of the result */
    bool columns_first;                           /* resize vertically before horizontally */
    int64_t row_bytes, reach;                     /* bytes of a kept row; bytes read from a source row */
    int64_t first, most;                          /* first kept row of the source; most rows that are kept */
    int64_t read, made;                           /* rows taken from the source; finished rows */
};

/* taps.c */
enum outcome make_taps(struct taps *, struct buffer *, int64_t source, int64_t target, int64_t from, int64_t count,
                       bool mirrored, int multiple);

/* resize.c */
enum outcome begin_resizing(struct resizing *, struct worker *, const struct task *);
void resize_rows(struct resizing *, const uint8_t *a, const uint8_t *b);
enum outcome resize(struct resizing *, struct worker *, const struct task *, const uint8_t *pixels, int64_t nbytes,
                    int64_t stride);

/* planes.c */
enum outcome resize_planes(struct worker *, const struct task *, float *to);

/* place.c */
void place(const struct kernels *, const struct task *);

/* convert.c */
float to_float(int kind, const void *from, int64_t i);
void convert_image(const struct kernels *, const struct task *, const void *from);
