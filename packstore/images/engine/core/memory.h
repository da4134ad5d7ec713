/* Memory that grows and is used again. */
#ifndef PACKSTORE_MEMORY_H
#define PACKSTORE_MEMORY_H

#include "base.h"

/* Buffer that grows and is reused. */
struct buffer {
    void *at;
    size_t size;
};

/* Buffers that grow and are reused. Contains nothing but buffers: see memory.c. */
struct scratch {
    struct buffer located, unstuffed[2]; /* segments */
    struct buffer points, skips;         /* one point for each MCU and the end; see skip.c */
    struct buffer lengths;               /* bits of chroma of each MCU, uint16_t */
    struct buffer missing;               /* number of MCUs without samples, for each row */
    struct buffer plane[3], sums[2], wide[2], pixels, made;
    struct buffer taps[2], resized, line;          /* taps of columns and rows; kept rows; source rows */
    struct buffer shared;                          /* pixels of the file that several requests share */
    struct buffer copied, floats, remembered, sum; /* for one step; for several: an image, a sum of images */
};

/* What a thread works with: the loops for its processor, and memory. */
struct worker {
    const struct kernels *kernels;
    struct scratch scratch;
};

enum outcome grow_buffer(struct buffer *, size_t size);
void trim_buffers(struct scratch *);
void free_buffers(struct scratch *);

#endif
