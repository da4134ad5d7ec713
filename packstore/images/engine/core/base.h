/*
 * The engine: baseline JPEG (ITU-T T.81, 8 bits, Huffman coding) and raw pixels to crops that are resized and mirrored.
 *
 * core/     what all share: requests, memory
 * simd/     vector instructions, arithmetic with them, and the table of the loops that there are twice
 * shape/    pixels to the size, type and layout that is wanted
 * jpeg/     coded data to rows of RGB, or of luma alone
 * ops/      programs: operations on the pixels that are shown; see program.h
 * io/       small files, many in a call; rows of PNG files of one channel; the pages of an LMDB
 * answer.c  answers requests by these
 * permute.c random orders of records
 * api.c     the layout of structures, decoders, sizes of files
 *
 * Python calls the functions that are marked with EXPORT. core, simd, shape, jpeg: each includes only folders before
 * it, as do ops and io, which nothing but answer.c and api.c includes.
 *
 * Files come from anybody, so no number in them is believed. Everything that is not flawless, or not known here, is
 * REFUSED: other decoders find out what it is. Each thread has a decoder of its own, and nothing else is kept.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if !defined(__GNUC__)
#error "a compiler that knows GNU C is needed"
#elif __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "packstore runs on little-endian processors alone: it reads and writes numbers as they lie in memory"
#elif __SIZEOF_POINTER__ != 8
#error "packstore runs on 64-bit processors alone: sizes and offsets of stores take 64 bits"
#endif

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)
#define INLINE static inline __attribute__((always_inline))
#define NOT_INLINE __attribute__((noinline))
#if defined(__x86_64__)
#define HAS_VECTORS 1 /* AVX2; used only if the processor has it */
#define VECTORS __attribute__((target("avx2,bmi2,f16c,fma")))
#elif defined(__aarch64__)
#define HAS_VECTORS 1 /* NEON, which every 64-bit ARM has */
#define VECTORS
#endif

enum { FLOAT32, FLOAT16, BFLOAT16, UINT8 };
enum { PADDING = 64 }; /* bytes after rows of samples that vector instructions may touch */

/* Result of every function that can fail; only DONE is success. Compare with these names. `list_names` alone returns 0
 * or an errno instead. */
enum outcome { DONE, REFUSED, NO_MORE, BEGUN, HELD };

struct box {
    int64_t top, left, height, width;
};

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

/* Reads a number that may be unaligned. */
#define READER(name, type)                                                                                             \
    INLINE type name(const void *at)                                                                                   \
    {                                                                                                                  \
        type value;                                                                                                    \
        memcpy(&value, at, sizeof value);                                                                              \
        return value;                                                                                                  \
    }
READER(read_2, uint16_t)
READER(read_4, uint32_t)
READER(read_8, uint64_t)

INLINE int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

INLINE int64_t size_of(int64_t kind)
{
    return kind == UINT8 ? 1 : kind == FLOAT32 ? 4 : 2;
}

/* memory.c */
enum outcome grow_buffer(struct buffer *, size_t size);
void trim_buffers(struct scratch *);
void free_buffers(struct scratch *);
