/*
 * The engine: baseline JPEG (ITU-T T.81, 8 bits, Huffman coding) and raw pixels to crops that are resized and mirrored.
 *
 * jpeg/     coded data to rows of RGB, or of luma alone
 *   headers.c      markers and their segments up to the scan
 *   checkpoints.c  the seek index of a file: where in its scan pieces begin
 *   skip.c         a scan passed over, for that index
 *   tables.c       Huffman tables
 *   entropy.c      Huffman decoding, two restart segments or two images at a time
 *   pixels.c       a box of an image, from coded data to rows
 *   idct.c         the inverse DCT: that of libjpeg-turbo, bit for bit
 *   colours.c      upsampling and colours: likewise
 * shape/    pixels to the size, type and layout that is wanted
 *   taps.c         the weights of resizing: those of torch for uint8, bit for bit
 *   resize.c       antialiased resizing by these
 *   planes.c       the same of floating point: that of torch, but for the last bits
 *   place.c        pixels that are not resized: cut out, padded, mirrored
 *   convert.c      types and layouts: normalised bytes, planes, interleaved channels
 * ops/      programs: operations on the pixels that are shown; see program.h
 * io/       small files, many in a call; rows of PNG files of one channel; the pages of an LMDB
 * simd/     vector instructions, arithmetic with them, and the table of the loops that there are twice
 * core/     what all share: requests, memory
 * answer.c  answers requests by these
 * permute.c random orders of records
 * api.c     what Python calls
 *
 * core, simd, shape, jpeg: each includes only folders before it, as do ops and io, which nothing but answer.c and api.c
 * includes.
 *
 * Files come from anybody, so no number in them is believed. Everything that is not flawless, or not known here, is
 * REFUSED: other decoders find out what it is. Each thread has a decoder of its own, and nothing else is kept.
 */
#ifndef PACKSTORE_BASE_H
#define PACKSTORE_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if !defined(__GNUC__)
#error "a compiler that knows GNU C is needed"
#elif __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "packstore runs on little-endian processors alone: it reads and writes numbers as they lie in memory"
#elif __SIZEOF_POINTER__ != 8
#error "packstore runs on 64-bit processors alone: sizes and offsets of stores take 64 bits"
#endif

#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)
#define INLINE static inline __attribute__((always_inline))
#define NOT_INLINE __attribute__((noinline))
#if defined(__x86_64__)
#define HAS_VECTORS 1 /* AVX2; used only if the processor has it */
#define VECTORS __attribute__((target("avx2,bmi2")))
#define VECTORS_F16C __attribute__((target("avx2,bmi2,f16c")))
#define VECTORS_FMA __attribute__((target("avx2,bmi2,fma")))
#elif defined(__aarch64__)
#define HAS_VECTORS 1 /* NEON, which every 64-bit ARM has */
#define VECTORS
#define VECTORS_F16C
#define VECTORS_FMA
#endif

enum { FLOAT32, FLOAT16, BFLOAT16, UINT8 };
enum { PADDING = 64 }; /* bytes after rows of samples that vector instructions may touch */

/* Result of every function that can fail; only DONE is success. Compare with these names. `list_names` alone returns 0
 * or an errno instead. */
enum outcome { DONE, REFUSED, NO_MORE, BEGUN, HELD };

struct box {
    int64_t top, left, height, width;
};

INLINE int64_t size_of(int64_t kind)
{
    return kind == UINT8 ? 1 : kind == FLOAT32 ? 4 : 2;
}

#endif
