/* Arithmetic of numbers and of registers, for several files. */
#pragma once

#include "vectors.h"

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

/* a * b + c, rounded once, as in torch. Without a fused instruction the sum is computed in double, which is exact for
 * numbers of so few bits. */
INLINE float fused(float a, float b, float c, const bool fuses)
{
    return fuses ? __builtin_fmaf(a, b, c) : (float)((double)a * (double)b + (double)c);
}

/* Truncates to a whole number from 0 to 255; NaN becomes 0. */
INLINE uint8_t to_byte(float value)
{
    value = value > 0 ? value : 0;
    value = value < 255 ? value : 255;
    return (uint8_t)(int)value;
}

/* Image.blend() of a value of each of two images. */
INLINE uint8_t pillow_blend(uint8_t first, uint8_t second, float factor)
{
    return to_byte((float)first + factor * (float)((int)second - (int)first));
}

/* Rounds to the nearest whole number, ties to even; for values below 2^22. */
INLINE float round_even(float value)
{
    return (value + 0x1.8p23f) - 0x1.8p23f;
}

/* Computes the weights of four pixels, as get_cubic_upsample_coefficients() with A = -0.75. */
INLINE void cubic_weights(float *weights, float part)
{
    const float a = -0.75f;
    for (int n = 0; n < 4; n++) {
        float d = n == 0 ? part + 1 : n == 1 ? part : n == 2 ? 1 - part : 2 - part;
        weights[n] = n == 1 || n == 2 ? ((a + 2) * d - (a + 3)) * d * d + 1 : ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
    }
}

/* Rounded down. */
INLINE int64_t floor_of(float value)
{
    int64_t whole = (int64_t)value;
    return whole - ((float)whole > value);
}

/* Calls a function of (to, kind, ...) with the type of floating point `kind` as a constant; or with any type. */
#define WITH_FLOATS(function, to, kind, ...)                                                                           \
    ((kind) == FLOAT32   ? function(to, FLOAT32, __VA_ARGS__)                                                          \
     : (kind) == FLOAT16 ? function(to, FLOAT16, __VA_ARGS__)                                                          \
                         : function(to, BFLOAT16, __VA_ARGS__))
#define WITH_TYPES(function, to, kind, ...)                                                                            \
    ((kind) == UINT8 ? function(to, UINT8, __VA_ARGS__) : WITH_FLOATS(function, to, kind, __VA_ARGS__))

#ifdef HAS_VECTORS
VECTORS INLINE __m256 load_bytes(const uint8_t *at)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(LOAD_8(at)));
}

/* Loads eight values from number `i` on. */
VECTORS INLINE __m256 load_eight(const int kind, const void *from, int64_t i)
{
    if (kind == UINT8)
        return load_bytes((const uint8_t *)from + i);
    if (kind == FLOAT32)
        return _mm256_loadu_ps((const float *)from + i);
    __m128i halves = LOAD_16((const uint16_t *)from + i);
    return kind == FLOAT16 ? _mm256_cvtph_ps(halves)
                           : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

/* Stores 32 whole numbers as bytes, clipped to 0 and 255. */
VECTORS INLINE void store_numbers(uint8_t *to, const __m256i numbers[4])
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i low = _mm256_packs_epi32(numbers[0], numbers[1]), high = _mm256_packs_epi32(numbers[2], numbers[3]);
    __m256i all = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order);
    STORE_32(to, all);
}

/* Stores 32 values as bytes: truncated to whole numbers, clipped to 0 and 255. */
VECTORS INLINE void store_bytes(uint8_t *to, const __m256 values[4])
{
    const __m256i numbers[4] = {_mm256_cvttps_epi32(values[0]), _mm256_cvttps_epi32(values[1]),
                                _mm256_cvttps_epi32(values[2]), _mm256_cvttps_epi32(values[3])};
    store_numbers(to, numbers);
}
#endif
