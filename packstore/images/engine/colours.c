/* Upsampling and colours, bit for bit as jdsample.c (fancy upsampling) and jdcolor.c of libjpeg-turbo; rows mirrored.
 */
#include "samples.h"

#include <string.h>

/* Three parts of one row, times `weight`, and one of the next, with a column more on each side. */
INLINE void blend(int16_t *restrict to, const uint8_t *restrict near, const uint8_t *restrict far, int64_t count,
                  int weight)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = (int16_t)(weight * near[i] + (weight == 1 ? 0 : far[i]));
    to[-1] = to[0];
    to[count] = to[count - 1];
}

/* Each of `count` columns becomes two: three parts of it, and one of its neighbour on that side. */
INLINE void widen(uint8_t *restrict to, const int16_t *restrict from, int64_t count, int even, int odd, int shift)
{
    for (int64_t i = 0; i < count; i++) {
        to[2 * i] = (uint8_t)((3 * from[i] + from[i - 1] + even) >> shift);
        to[2 * i + 1] = (uint8_t)((3 * from[i] + from[i + 1] + odd) >> shift);
    }
}

/* Between two rows. */
INLINE void heighten(uint8_t *restrict to, const uint8_t *restrict near, const uint8_t *restrict far, int64_t count,
                     int bias)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = (uint8_t)((3 * near[i] + far[i] + bias) >> 2);
}

void blend_plain(int16_t *to, const uint8_t *near, const uint8_t *far, int64_t count, int weight)
{
    blend(to, near, far, count, weight);
}

void widen_plain(uint8_t *to, const int16_t *from, int64_t count, int even, int odd, int shift)
{
    widen(to, from, count, even, odd, shift);
}

void heighten_plain(uint8_t *to, const uint8_t *near, const uint8_t *far, int64_t count, int bias)
{
    heighten(to, near, far, count, bias);
}

/* A row of pixels from right to left. */
void mirror_plain(uint8_t *to, const uint8_t *from, int64_t pixels)
{
    for (int64_t i = 0; i < pixels; i++)
        memcpy(to + 3 * i, from + 3 * (pixels - 1 - i), 3);
}

/* 1.402, 1.772, 0.34414 and 0.71414 with 16 bits behind the binary point. */
void colours_plain(uint8_t *to, const uint8_t *y, const uint8_t *cb, const uint8_t *cr, int64_t count)
{
    for (int64_t i = 0; i < count; i++, to += 3) {
        int blue = cb[i] - 128, red = cr[i] - 128;
        to[0] = clamp(y[i] + ((91881 * red + 32768) >> 16));
        to[1] = clamp(y[i] + ((-22554 * blue - 46802 * red + 32768) >> 16));
        to[2] = clamp(y[i] + ((116130 * blue + 32768) >> 16));
    }
}

#ifdef HAS_AVX2
AVX2 void blend_avx2(int16_t *to, const uint8_t *near, const uint8_t *far, int64_t count, int weight)
{
    blend(to, near, far, count, weight);
}

AVX2 void widen_avx2(uint8_t *to, const int16_t *from, int64_t count, int even, int odd, int shift)
{
    widen(to, from, count, even, odd, shift);
}

AVX2 void heighten_avx2(uint8_t *to, const uint8_t *near, const uint8_t *far, int64_t count, int bias)
{
    heighten(to, near, far, count, bias);
}

/* 16 values of 16 bits each to bytes. */
AVX2 INLINE __m128i to_bytes(__m256i values)
{
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi16(values, values), 0xD8));
}

/* 16 pixels. In 16 bits: 1.402 = 1 + 0.402, 1.772 = 2 - 0.228, 0.71414 = 1 - 0.28586. */
AVX2 INLINE void sixteen_pixels(uint8_t *to, const uint8_t *luma, const uint8_t *cb, const uint8_t *cr)
{
    const __m256i centre = _mm256_set1_epi16(128), one = _mm256_set1_epi16(1);
    __m256i y = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)luma));
    __m256i u = _mm256_sub_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)cb)), centre);
    __m256i v = _mm256_sub_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)cr)), centre);
    __m256i u2 = _mm256_add_epi16(u, u), v2 = _mm256_add_epi16(v, v);
    __m256i red = _mm256_srai_epi16(_mm256_add_epi16(_mm256_mulhi_epi16(v2, _mm256_set1_epi16(26345)), one), 1);
    __m256i blue = _mm256_srai_epi16(_mm256_add_epi16(_mm256_mulhi_epi16(u2, _mm256_set1_epi16(-14942)), one), 1);
    __m256i half = _mm256_set1_epi32(32768), weights = pairs(-22554, 18734);
    __m256i low = _mm256_add_epi32(_mm256_madd_epi16(_mm256_unpacklo_epi16(u, v), weights), half);
    __m256i high = _mm256_add_epi32(_mm256_madd_epi16(_mm256_unpackhi_epi16(u, v), weights), half);
    __m256i green = _mm256_packs_epi32(_mm256_srai_epi32(low, 16), _mm256_srai_epi32(high, 16));
    __m128i r = to_bytes(_mm256_add_epi16(_mm256_add_epi16(y, v), red));
    __m128i g = to_bytes(_mm256_add_epi16(_mm256_sub_epi16(y, v), green));
    __m128i b = to_bytes(_mm256_add_epi16(_mm256_add_epi16(y, u2), blue));
    __m128i part;
#define SPREAD(from, ...) _mm_shuffle_epi8(from, _mm_setr_epi8(__VA_ARGS__))
    part = _mm_or_si128(SPREAD(r, 0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1, -1, 5),
                        SPREAD(g, -1, 0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1, -1));
    part = _mm_or_si128(part, SPREAD(b, -1, -1, 0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1));
    _mm_storeu_si128((__m128i *)to, part);
    part = _mm_or_si128(SPREAD(r, -1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1, 10, -1),
                        SPREAD(g, 5, -1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1, 10));
    part = _mm_or_si128(part, SPREAD(b, -1, 5, -1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1));
    _mm_storeu_si128((__m128i *)(to + 16), part);
    part = _mm_or_si128(SPREAD(r, -1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15, -1, -1),
                        SPREAD(g, -1, -1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15, -1));
    part = _mm_or_si128(part, SPREAD(b, 10, -1, -1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15));
    _mm_storeu_si128((__m128i *)(to + 32), part);
#undef SPREAD
}

/* Reads up to 15 samples behind the last, of which rows have PADDING; writes none. */
AVX2 void colours_avx2(uint8_t *to, const uint8_t *y, const uint8_t *cb, const uint8_t *cr, int64_t count)
{
    int64_t i = 0;
    for (; i + 16 <= count; i += 16)
        sixteen_pixels(to + 3 * i, y + i, cb + i, cr + i);
    if (i < count) {
        uint8_t last[48];
        sixteen_pixels(last, y + i, cb + i, cr + i);
        memcpy(to + 3 * i, last, (size_t)(3 * (count - i)));
    }
}

/* Five pixels of 16 bytes at a time; the byte behind them belongs to the next five. */
AVX2 void mirror_avx2(uint8_t *to, const uint8_t *from, int64_t pixels)
{
    const __m128i order = _mm_setr_epi8(13, 14, 15, 10, 11, 12, 7, 8, 9, 4, 5, 6, 1, 2, 3, 0);
    int64_t i = 0;
    for (; i + 6 <= pixels; i += 5) {
        __m128i five = _mm_loadu_si128((const __m128i *)(from + 3 * (pixels - 5 - i) - 1));
        _mm_storeu_si128((__m128i *)(to + 3 * i), _mm_shuffle_epi8(five, order));
    }
    for (; i < pixels; i++)
        memcpy(to + 3 * i, from + 3 * (pixels - 1 - i), 3);
}
#endif
