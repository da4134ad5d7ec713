/* Bytes to floating point: times a factor, plus another, each rounded in float32 as torch does; then to the type wanted. */
#include "engine.h"

#include <string.h>

/* To float16, to the nearest, and to the even one of two. */
static uint16_t to_half(float value)
{
    uint32_t bits, sign;
    memcpy(&bits, &value, 4);
    sign = bits >> 16 & 0x8000;
    bits &= 0x7FFFFFFF;
    if (bits >= 0x47800000) /* 65536 and more, infinity, what is no number */
        return (uint16_t)(sign | (bits > 0x7F800000 ? 0x7E00 : 0x7C00));
    if (bits < 0x38800000) { /* below 2^-14: adding 0.5 rounds where a subnormal ends */
        float magnitude;
        memcpy(&magnitude, &bits, 4);
        magnitude += 0.5f;
        memcpy(&bits, &magnitude, 4);
        return (uint16_t)(sign | (bits - 0x3F000000));
    }
    bits += 0xC8000FFF + (bits >> 13 & 1); /* the exponent's bias from 127 to 15, and half of the last place */
    return (uint16_t)(sign | bits >> 13);
}

/* The upper half of a float32, to the nearest, and to the even one of two. */
static uint16_t to_bfloat(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return (uint16_t)(bits > 0x7F800000 && bits << 1 > 0xFF000000 ? 0x7FC0 : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static void store(void *to, int64_t i, int kind, float value)
{
    if (kind == FLOAT32)
        ((float *)to)[i] = value;
    else
        ((uint16_t *)to)[i] = kind == FLOAT16 ? to_half(value) : to_bfloat(value);
}

/* `count` values, whose channels take turns, from number `first` on. */
static void normalize_from(void *to, int kind, const uint8_t *from, int64_t first, int64_t count, const float *factors)
{
    for (int64_t i = first; i < count; i++) {
        float scaled = (float)from[i] * factors[i % 3];
        store(to, i, kind, scaled + factors[3 + i % 3]);
    }
}

void normalize_plain(void *to, int kind, const uint8_t *from, int64_t count, const float *factors)
{
    normalize_from(to, kind, from, 0, count, factors);
}

#ifdef HAS_AVX2
#include <immintrin.h>

#define AVX2_F16C __attribute__((target("avx2,bmi2,f16c")))

AVX2_F16C INLINE void store_eight(void *to, int64_t i, const int kind, __m256 values)
{
    if (kind == FLOAT32) {
        _mm256_storeu_ps((float *)to + i, values);
    } else if (kind == FLOAT16) {
        _mm_storeu_si128((__m128i *)((uint16_t *)to + i), _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
    } else {
        __m256i bits = _mm256_castps_si256(values), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        bits = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF))), 16);
        bits = _mm256_permute4x64_epi64(_mm256_packus_epi32(bits, bits), 0xD8);
        _mm_storeu_si128((__m128i *)((uint16_t *)to + i), _mm256_castsi256_si128(bits));
    }
}

/* 24 values at a time: eight pixels, with the factors of three registers. */
AVX2_F16C INLINE void normalize_vectors(void *to, const int kind, const uint8_t *from, int64_t count, const float *factors)
{
    float scales[24], shifts[24];
    for (int i = 0; i < 24; i++) {
        scales[i] = factors[i % 3];
        shifts[i] = factors[3 + i % 3];
    }
    int64_t at = 0;
    for (; at + 24 <= count; at += 24) {
#pragma GCC unroll 3
        for (int part = 0; part < 24; part += 8) {
            __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(from + at + part)));
            __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(bytes), _mm256_loadu_ps(scales + part));
            store_eight(to, at + part, kind, _mm256_add_ps(scaled, _mm256_loadu_ps(shifts + part)));
        }
    }
    normalize_from(to, kind, from, at, count, factors);
}

AVX2_F16C void normalize_avx2(void *to, int kind, const uint8_t *from, int64_t count, const float *factors)
{
    if (kind == FLOAT32)
        normalize_vectors(to, FLOAT32, from, count, factors);
    else if (kind == FLOAT16)
        normalize_vectors(to, FLOAT16, from, count, factors);
    else
        normalize_vectors(to, BFLOAT16, from, count, factors);
}
#endif
