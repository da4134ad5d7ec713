/* What is done with samples in more than one place. */
#ifndef PACKSTORE_SAMPLES_H
#define PACKSTORE_SAMPLES_H

#include "engine.h"

INLINE uint8_t clamp(int value)
{
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

#ifdef HAS_AVX2
#include <immintrin.h>

/* Two numbers of 16 bits, again and again. */
AVX2 INLINE __m256i pairs(int a, int b)
{
    return _mm256_set1_epi32((int)((uint32_t)(uint16_t)b << 16 | (uint16_t)a));
}
#endif

#endif
