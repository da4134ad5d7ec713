/* Functions for samples that several files use. */
#ifndef PACKSTORE_SAMPLES_H
#define PACKSTORE_SAMPLES_H

#include "../simd/vectors.h"

INLINE uint8_t clamp(int value)
{
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

#if defined(__x86_64__)
/* Fills a register with a pair of 16-bit numbers. */
VECTORS INLINE __m256i pairs(int a, int b)
{
    return _mm256_set1_epi32((int)((uint32_t)(uint16_t)b << 16 | (uint16_t)a));
}
#endif

#endif
