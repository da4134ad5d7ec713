/* What is wanted of an image. packstore/images/engine/requests.py has the same structures. */
#pragma once

#include "base.h"

enum {
    SAMPLE_BILINEAR,
    SAMPLE_NEAREST,
    SAMPLE_BICUBIC,
    SAMPLE_BOX,
    SAMPLE_LANCZOS,
    SAMPLE_PILLOW_BILINEAR = 7, /* numbers between are those of filters that this engine does not know */
    SAMPLE_PILLOW_BICUBIC,
    SAMPLE_COLUMNS_FIRST = 16 /* added to a filter: resize vertically before horizontally */
};
enum { CONSTANT, EDGE, REFLECT, SYMMETRIC }; /* content of padding */
enum { MOST_SIDE = 65500 };                  /* pixels, the limit of libjpeg */

/* Formats of the sources and outputs of a call. */
struct form {
    int64_t from;     /* UINT8: JPEG files, or pixels (height, width, C); other types: planes (C, height, width) */
    int64_t to;       /* type of the outputs; floating point if `from` is */
    int64_t planes;   /* outputs are (C, height, width), not (height, width, C) */
    int64_t padding;  /* padding around sources that are not resized; resized sources are padded with zeros */
    float factors[6]; /* factor and summand of each channel, for bytes that become floating point; all equal for gray */
    float fill[3];    /* of each channel, for CONSTANT; all equal for gray */
    const void *table; /* output of each byte of each channel, (C, 256) of type `to`, instead of factors; or NULL */
};

/* Request for an image: resize a box of it, cut a window out of the result, and mirror that. */
struct request {
    const uint8_t *source; /* a JPEG file if `height` is 0, else pixels */
    int64_t nbytes;
    int64_t height, width;
    struct box box;
    int64_t size_height, size_width;
    struct box window;
    int64_t mirrored;
    uint8_t *to;
    const uint8_t *checkpoints; /* index of a JPEG file, see checkpoints.c; NULL for none */
    int64_t checkpoint_bytes;
    const struct step *program; /* program to run on the window's bytes; see ops/program.h */
    int64_t steps;              /* number of steps of the program; 0 for none */
    int64_t sampling;           /* filter that resizes bytes */
};

/* Task of a decoder: the output of one request. */
struct task {
    const struct request *request; /* NULL for none */
    const struct form *form;
    int64_t channels; /* channels of a pixel: 3, or 1 for gray, which is the luma of JPEG files */
    int64_t max_pixels;
    bool resized, without_index;
    int kind;           /* type before conversion */
    uint8_t *to;        /* memory for it; the output itself if nothing is converted */
    struct box visible; /* part of the window inside the resized box */
    struct box box;     /* box of the image whose pixels are needed */
    uint8_t *shown;     /* address of the visible part */
    int64_t rows;       /* rows of the box made from a JPEG file's samples so far */
    uint8_t *refused;
    const struct request *sharers; /* requests, one after the other, that take the same JPEG file */
    int64_t sharing;               /* their number; 0 if there is only one */
};
