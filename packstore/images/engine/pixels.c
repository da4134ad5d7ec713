/*
 * From coefficients to pixels, bit for bit as libjpeg-turbo: inverse DCT (jidctint.c), fancy upsampling (jdsample.c) and
 * YCbCr to RGB (jdcolor.c).
 */
#include "engine.h"

#include <string.h>

enum {
    /* Dequantised coefficients, and those after one pass, beyond which the 16-bit arithmetic of libjpeg-turbo's vector
       instructions gives something else than its C. No image of 8 bits has such. */
    MOST_COEFFICIENT = 4095,
    MOST_BETWEEN = 16383,
    MOST_PREDICTED = 1 << 15
};

/* --- A.3.3, the inverse DCT, by Loeffler, Ligtenberg and Moschytz, with 13 bits behind the binary point --------------- */

INLINE uint8_t clamp(int value)
{
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

/* One pass over 8 values `step` apart, rounded by `shift` bits. */
INLINE void pass(int *values, int step, int shift)
{
    int round = 1 << (shift - 1);
    int v0 = values[0], v1 = values[step], v2 = values[2 * step], v3 = values[3 * step];
    int v4 = values[4 * step], v5 = values[5 * step], v6 = values[6 * step], v7 = values[7 * step];
    int z1 = (v2 + v6) * 4433;
    int t2 = z1 - v6 * 15137, t3 = z1 + v2 * 6270, t0 = (v0 + v4) * 8192 + round, t1 = (v0 - v4) * 8192 + round;
    int even0 = t0 + t3, even3 = t0 - t3, even1 = t1 + t2, even2 = t1 - t2;
    int z5 = (v7 + v3 + v5 + v1) * 9633;
    int z3 = z5 - (v7 + v3) * 16069, z4 = z5 - (v5 + v1) * 3196;
    int y1 = -(v7 + v1) * 7373, y2 = -(v5 + v3) * 20995;
    int odd0 = v7 * 2446 + y1 + z3, odd1 = v5 * 16819 + y2 + z4;
    int odd2 = v3 * 25172 + y2 + z3, odd3 = v1 * 12299 + y1 + z4;
    values[0] = (even0 + odd3) >> shift;
    values[7 * step] = (even0 - odd3) >> shift;
    values[step] = (even1 + odd2) >> shift;
    values[6 * step] = (even1 - odd2) >> shift;
    values[2 * step] = (even2 + odd1) >> shift;
    values[5 * step] = (even2 - odd1) >> shift;
    values[3 * step] = (even3 + odd0) >> shift;
    values[4 * step] = (even3 - odd0) >> shift;
}

/* A block's samples; not 0 for a coefficient that is too large. `dc` is the first of `coefficients`. */
INLINE int block_plain(const int16_t *coefficients, int dc, const int16_t *quantisation, const int16_t *limit,
                       uint8_t *to, int64_t stride)
{
    int values[64], wrong = 0;
    for (int k = 0; k < 64; k++) {
        int coefficient = k ? coefficients[k] : dc;
        wrong |= coefficient > limit[k] || -coefficient > limit[k];
        values[k] = coefficient * quantisation[k];
    }
    if (wrong)
        return REFUSED;
    for (int x = 0; x < 8; x++)
        pass(values + x, 8, 11);
    for (int k = 0; k < 64; k++)
        wrong |= values[k] > MOST_BETWEEN || values[k] < -MOST_BETWEEN - 1;
    if (wrong)
        return REFUSED;
    for (int y = 0; y < 8; y++) {
        pass(values + 8 * y, 1, 18);
        for (int x = 0; x < 8; x++)
            to[y * stride + x] = clamp(values[8 * y + x] + 128);
    }
    return DONE;
}

/* Of a block that has nothing but its first coefficient. */
INLINE int flat_block(int dc, int quantisation, int limit, uint8_t *to, int64_t stride)
{
    if (dc > limit || -dc > limit)
        return REFUSED;
    uint8_t value = clamp(((dc * quantisation * 4 + 16) >> 5) + 128);
    for (int y = 0; y < 8; y++)
        memset(to + y * stride, value, 8);
    return DONE;
}

typedef int block_function(const int16_t *coefficients, int dc, const int16_t *quantisation, const int16_t *limit,
                           uint8_t *to, int64_t stride);

/* A stretch's samples into the planes, as far as they are needed. */
INLINE int stretch_samples(struct decoder *decoder, const struct lane *lane, int *predicted, block_function *block)
{
    const struct headers *headers = &decoder->headers;
    const int16_t *coefficients = lane->coefficients;
    int64_t row = lane->mcu / headers->across - decoder->row0, column = lane->mcu % headers->across;
    bool in_row = row >= 0 && row < decoder->row1 - decoder->row0;
    uint8_t *corner[MCU_BLOCKS] = {0}; /* of the block in the first MCU that is needed */
    int64_t step[MCU_BLOCKS] = {0};
    for (int b = 0; in_row && b < headers->blocks; b++) {
        int i = headers->component_of[b];
        const struct component *component = &headers->component[i];
        corner[b] = (uint8_t *)decoder->plane[i].at + 8 * (row * component->v + headers->block_y[b]) * decoder->stride[i] +
                    8 * headers->block_x[b];
        step[b] = 8 * component->h;
    }
    for (int64_t m = 0; m < lane->count; m++, column++) {
        bool wanted = in_row && column >= decoder->column0 && column < decoder->column1;
        for (int b = 0; b < headers->blocks; b++, coefficients += 64) {
            int i = headers->component_of[b], dc = predicted[i] += coefficients[0];
            if (UNLIKELY(dc >= MOST_PREDICTED || dc < -MOST_PREDICTED))
                return REFUSED;
            if (wanted && UNLIKELY(block(coefficients, dc, decoder->quantisation[i], decoder->limit[i],
                                         corner[b] + (column - decoder->column0) * step[b], decoder->stride[i]) != DONE))
                return REFUSED;
        }
    }
    return DONE;
}

static inline int any_block_plain(const int16_t *coefficients, int dc, const int16_t *quantisation, const int16_t *limit,
                                  uint8_t *to, int64_t stride)
{
    int any = 0;
    for (int k = 1; k < 64; k++)
        any |= coefficients[k];
    return any ? block_plain(coefficients, dc, quantisation, limit, to, stride)
               : flat_block(dc, quantisation[0], limit[0], to, stride);
}

static int samples_plain(struct decoder *decoder, const struct lane *lane, int *predicted)
{
    return stretch_samples(decoder, lane, predicted, any_block_plain);
}

/* --- upsampling, and the colours of JFIF ------------------------------------------------------------------------------ */

/* Three parts of one row, times `weight`, and one of the next, with a column more on each side. */
INLINE void blend(int16_t *restrict to, const uint8_t *restrict near, const uint8_t *restrict far, int64_t count, int weight)
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
INLINE void heighten(uint8_t *restrict to, const uint8_t *restrict near, const uint8_t *restrict far, int64_t count, int bias)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = (uint8_t)((3 * near[i] + far[i] + bias) >> 2);
}

static void blend_plain(int16_t *to, const uint8_t *near, const uint8_t *far, int64_t count, int weight)
{
    blend(to, near, far, count, weight);
}

static void widen_plain(uint8_t *to, const int16_t *from, int64_t count, int even, int odd, int shift)
{
    widen(to, from, count, even, odd, shift);
}

static void heighten_plain(uint8_t *to, const uint8_t *near, const uint8_t *far, int64_t count, int bias)
{
    heighten(to, near, far, count, bias);
}

/* A row of pixels from right to left. */
static void mirror_plain(uint8_t *to, const uint8_t *from, int64_t pixels)
{
    for (int64_t i = 0; i < pixels; i++)
        memcpy(to + 3 * i, from + 3 * (pixels - 1 - i), 3);
}

/* 1.402, 1.772, 0.34414 and 0.71414 with 16 bits behind the binary point. */
static void colours_plain(uint8_t *to, const uint8_t *y, const uint8_t *cb, const uint8_t *cr, int64_t count)
{
    for (int64_t i = 0; i < count; i++, to += 3) {
        int blue = cb[i] - 128, red = cr[i] - 128;
        to[0] = clamp(y[i] + ((91881 * red + 32768) >> 16));
        to[1] = clamp(y[i] + ((-22554 * blue - 46802 * red + 32768) >> 16));
        to[2] = clamp(y[i] + ((116130 * blue + 32768) >> 16));
    }
}

#ifdef HAS_AVX2
#include <immintrin.h>

/* The same inverse DCT by multiplying pairs: rows 0 and 4, 2 and 6, 1 and 7, 3 and 5 lie in the halves of a register,
 * interleaved; what comes out are columns 0 and 4, 1 and 5, 2 and 6, 3 and 7. */
#define PAIR(a, b) _mm256_set1_epi32((int)((uint32_t)(uint16_t)(b) << 16 | (uint16_t)(a)))

AVX2 INLINE __m256i interleaved(__m256i rows)
{
    const __m256i order = _mm256_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15, 0, 1, 8, 9, 2, 3, 10, 11, 4,
                                           5, 12, 13, 6, 7, 14, 15);
    return _mm256_shuffle_epi8(_mm256_permute4x64_epi64(rows, 0xD8), order);
}

AVX2 INLINE void pass_avx2(__m256i *rows, const int shift)
{
    const __m256i round = _mm256_set1_epi32(1 << (shift - 1));
    __m256i v04 = interleaved(rows[0]), v26 = interleaved(rows[1]), v17 = interleaved(rows[2]), v35 = interleaved(rows[3]);
    __m256i t0 = _mm256_add_epi32(_mm256_madd_epi16(v04, PAIR(8192, 8192)), round);
    __m256i t1 = _mm256_add_epi32(_mm256_madd_epi16(v04, PAIR(8192, -8192)), round);
    __m256i t2 = _mm256_madd_epi16(v26, PAIR(4433, 4433 - 15137)), t3 = _mm256_madd_epi16(v26, PAIR(4433 + 6270, 4433));
    __m256i even0 = _mm256_add_epi32(t0, t3), even3 = _mm256_sub_epi32(t0, t3);
    __m256i even1 = _mm256_add_epi32(t1, t2), even2 = _mm256_sub_epi32(t1, t2);
    __m256i odd0 = _mm256_add_epi32(_mm256_madd_epi16(v17, PAIR(9633 - 7373, 2446 - 7373 - 16069 + 9633)),
                                    _mm256_madd_epi16(v35, PAIR(9633 - 16069, 9633)));
    __m256i odd1 = _mm256_add_epi32(_mm256_madd_epi16(v17, PAIR(9633 - 3196, 9633)),
                                    _mm256_madd_epi16(v35, PAIR(9633 - 20995, 16819 - 20995 - 3196 + 9633)));
    __m256i odd2 = _mm256_add_epi32(_mm256_madd_epi16(v17, PAIR(9633, 9633 - 16069)),
                                    _mm256_madd_epi16(v35, PAIR(25172 - 20995 - 16069 + 9633, 9633 - 20995)));
    __m256i odd3 = _mm256_add_epi32(_mm256_madd_epi16(v17, PAIR(12299 - 7373 - 3196 + 9633, 9633 - 7373)),
                                    _mm256_madd_epi16(v35, PAIR(9633, 9633 - 3196)));
    __m256i c0 = _mm256_srai_epi32(_mm256_add_epi32(even0, odd3), shift);
    __m256i c7 = _mm256_srai_epi32(_mm256_sub_epi32(even0, odd3), shift);
    __m256i c1 = _mm256_srai_epi32(_mm256_add_epi32(even1, odd2), shift);
    __m256i c6 = _mm256_srai_epi32(_mm256_sub_epi32(even1, odd2), shift);
    __m256i c2 = _mm256_srai_epi32(_mm256_add_epi32(even2, odd1), shift);
    __m256i c5 = _mm256_srai_epi32(_mm256_sub_epi32(even2, odd1), shift);
    __m256i c3 = _mm256_srai_epi32(_mm256_add_epi32(even3, odd0), shift);
    __m256i c4 = _mm256_srai_epi32(_mm256_sub_epi32(even3, odd0), shift);
    __m256i p01 = _mm256_packs_epi32(c0, c1), p23 = _mm256_packs_epi32(c2, c3);
    __m256i p45 = _mm256_packs_epi32(c4, c5), p67 = _mm256_packs_epi32(c6, c7);
    __m256i a = _mm256_unpacklo_epi16(p01, p23), b = _mm256_unpackhi_epi16(p01, p23);
    __m256i c = _mm256_unpacklo_epi16(p45, p67), d = _mm256_unpackhi_epi16(p45, p67);
    p01 = _mm256_unpacklo_epi16(a, b);
    p23 = _mm256_unpackhi_epi16(a, b);
    p45 = _mm256_unpacklo_epi16(c, d);
    p67 = _mm256_unpackhi_epi16(c, d);
    rows[0] = _mm256_unpacklo_epi64(p01, p45);
    rows[1] = _mm256_unpackhi_epi64(p01, p45);
    rows[2] = _mm256_unpacklo_epi64(p23, p67);
    rows[3] = _mm256_unpackhi_epi64(p23, p67);
}

/* Rows `a` and `b` of a block of 16-bit numbers. */
AVX2 INLINE __m256i two_rows(const int16_t *block, int a, int b)
{
    return _mm256_set_m128i(_mm_loadu_si128((const __m128i *)(block + 8 * b)), _mm_loadu_si128((const __m128i *)(block + 8 * a)));
}

AVX2 INLINE int block_avx2(const int16_t *coefficients, int dc, const int16_t *quantisation, const int16_t *limit,
                           uint8_t *to, int64_t stride)
{
    static const int order[4][2] = {{0, 4}, {2, 6}, {1, 7}, {3, 5}};
    __m256i rows[4], wrong = _mm256_setzero_si256(), any = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        rows[i] = two_rows(coefficients, order[i][0], order[i][1]);
    __m256i first = _mm256_setr_epi16(-1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    any = _mm256_or_si256(_mm256_or_si256(_mm256_andnot_si256(first, rows[0]), rows[1]), _mm256_or_si256(rows[2], rows[3]));
    if (_mm256_testz_si256(any, any))
        return flat_block(dc, quantisation[0], limit[0], to, stride);
    rows[0] = _mm256_insert_epi16(rows[0], (int16_t)dc, 0);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m256i most = two_rows(limit, order[i][0], order[i][1]);
        wrong = _mm256_or_si256(wrong, _mm256_cmpgt_epi16(_mm256_abs_epi16(rows[i]), most));
        rows[i] = _mm256_mullo_epi16(rows[i], two_rows(quantisation, order[i][0], order[i][1]));
    }
    pass_avx2(rows, 11);
    __m256i half = _mm256_set1_epi16(MOST_BETWEEN + 1), beyond = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        beyond = _mm256_or_si256(beyond, _mm256_add_epi16(rows[i], half));
    wrong = _mm256_or_si256(wrong, _mm256_srai_epi16(beyond, 15));
    if (UNLIKELY(!_mm256_testz_si256(wrong, wrong)))
        return REFUSED;
    /* Columns 1 and 5, 2 and 6, 3 and 7 become 2 and 6, 1 and 7, 3 and 5. */
    __m256i c15 = rows[1];
    rows[1] = rows[2];
    rows[2] = _mm256_blend_epi32(c15, rows[3], 0xF0);
    rows[3] = _mm256_blend_epi32(rows[3], c15, 0xF0);
    pass_avx2(rows, 18);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        __m256i four = _mm256_xor_si256(_mm256_packs_epi16(rows[2 * i], rows[2 * i + 1]), _mm256_set1_epi8(-128));
        __m128i low = _mm256_castsi256_si128(four), high = _mm256_extracti128_si256(four, 1);
        uint8_t *at = to + 2 * i * stride;
        _mm_storel_epi64((__m128i *)at, low);
        _mm_storel_epi64((__m128i *)(at + stride), _mm_unpackhi_epi64(low, low));
        _mm_storel_epi64((__m128i *)(at + 4 * stride), high);
        _mm_storel_epi64((__m128i *)(at + 5 * stride), _mm_unpackhi_epi64(high, high));
    }
    return DONE;
}

AVX2 static int samples_avx2(struct decoder *decoder, const struct lane *lane, int *predicted)
{
    return stretch_samples(decoder, lane, predicted, block_avx2);
}

AVX2 static void blend_avx2(int16_t *to, const uint8_t *near, const uint8_t *far, int64_t count, int weight)
{
    blend(to, near, far, count, weight);
}

AVX2 static void widen_avx2(uint8_t *to, const int16_t *from, int64_t count, int even, int odd, int shift)
{
    widen(to, from, count, even, odd, shift);
}

AVX2 static void heighten_avx2(uint8_t *to, const uint8_t *near, const uint8_t *far, int64_t count, int bias)
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
    __m256i half = _mm256_set1_epi32(32768), weights = PAIR(-22554, 18734);
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
AVX2 static void colours_avx2(uint8_t *to, const uint8_t *y, const uint8_t *cb, const uint8_t *cr, int64_t count)
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
AVX2 static void mirror_avx2(uint8_t *to, const uint8_t *from, int64_t pixels)
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

/* --- a box of an image ------------------------------------------------------------------------------------------------ */

/* The MCUs that a box needs: upsampling looks at the samples around it where chroma has fewer. */
static void choose_mcus(struct decoder *decoder, const struct box *box)
{
    const struct headers *headers = &decoder->headers;
    int64_t above = headers->mcu_height > 8, beside = headers->mcu_width > 8;
    int64_t top = box->top - above, bottom = box->top + box->height + above;
    int64_t left = box->left - beside, right = box->left + box->width + beside;
    decoder->row0 = top > 0 ? top / headers->mcu_height : 0;
    decoder->column0 = left > 0 ? left / headers->mcu_width : 0;
    decoder->row1 = (bottom + headers->mcu_height - 1) / headers->mcu_height;
    decoder->column1 = (right + headers->mcu_width - 1) / headers->mcu_width;
    if (decoder->row1 > headers->rows)
        decoder->row1 = headers->rows;
    if (decoder->column1 > headers->across)
        decoder->column1 = headers->across;
}

static int make_planes(struct decoder *decoder)
{
    const struct headers *headers = &decoder->headers;
    for (int i = 0; i < headers->components; i++) {
        const struct component *component = &headers->component[i];
        const uint8_t *quantisation = headers->quantisation[component->quantisation];
        decoder->stride[i] = (decoder->column1 - decoder->column0) * component->h * 8;
        size_t samples = (size_t)(decoder->stride[i] * (decoder->row1 - decoder->row0) * component->v * 8);
        if (make_room(&decoder->plane[i], samples + PADDING) != DONE)
            return REFUSED;
        for (int k = 0; k < 64; k++) {
            decoder->quantisation[i][k] = quantisation[k];
            decoder->limit[i][k] = (int16_t)(MOST_COEFFICIENT / (quantisation[k] ? quantisation[k] : 1));
        }
    }
    return DONE;
}

/* Where the segments of the scan are, or that they are to be found on the way; and room for them. */
static int make_segments(struct decoder *decoder, const uint8_t *file, int64_t nbytes)
{
    const struct headers *headers = &decoder->headers;
    int64_t mcus = (int64_t)headers->rows * headers->across, most = nbytes - headers->scan_at;
    decoder->file = file;
    decoder->file_end = file + nbytes;
    decoder->next_segment = 0;
    decoder->scan = NULL;
    if (locate_segments(decoder, file, nbytes) == DONE) {
        const struct located *located = decoder->located.at;
        most = 0;
        for (int64_t i = 0; i < decoder->segments; i++)
            if (located[i].marker - located[i].start > most)
                most = located[i].marker - located[i].start;
    } else {
        decoder->scan = file + headers->scan_at;
        decoder->segments = headers->interval ? (mcus + headers->interval - 1) / headers->interval : 1;
    }
    for (int i = 0; i < LANES; i++)
        if (make_room(&decoder->unstuffed[i], (size_t)most + AHEAD) != DONE)
            return REFUSED;
    return DONE;
}

/* A row of chroma samples of an image whose chroma has fewer rows, or columns, or both. `y` is a row of the image; `left`
 * and `count` say which columns, in pixels from the first MCU that is there. Returns where they are. */
static const uint8_t *chroma_row(struct decoder *decoder, int which, int64_t y, int64_t left, int64_t count)
{
    const struct headers *headers = &decoder->headers;
    const struct kernels *kernels = decoder->kernels;
    const uint8_t *plane = decoder->plane[1 + which].at;
    int64_t stride = decoder->stride[1 + which], v = headers->mcu_height / 8, h = headers->mcu_width / 8;
    int64_t rows = (headers->height + v - 1) / v, columns = (headers->width + h - 1) / h; /* A.1.1 */
    int64_t near = y / v, far = near;
    if (v == 2) {
        far = y & 1 ? near + 1 : near - 1;
        far = far < 0 ? 0 : far >= rows ? rows - 1 : far;
    }
    const uint8_t *near_row = plane + (near - decoder->row0 * 8) * stride;
    const uint8_t *far_row = plane + (far - decoder->row0 * 8) * stride;
    uint8_t *wide = decoder->wide[which].at;
    if (h == 1) {
        if (v == 1)
            return near_row + left;
        kernels->heighten(wide, near_row + left, far_row + left, count, y & 1 ? 2 : 1);
        return wide;
    }
    int64_t first = left >> 1, stop = (left + count + 1) >> 1;
    if (columns <= 2) { /* libjpeg repeats samples of such: jinit_upsampler() */
        for (int64_t x = left; x < left + count; x++)
            wide[x - 2 * first] = near_row[x >> 1];
        return wide + (left & 1);
    }
    /* The columns beside are those that the image has; at its edges the last one counts twice. */
    int64_t here = columns - decoder->column0 * 8, from = first > 0 ? first - 1 : 0, to = stop < here ? stop + 1 : here;
    int16_t *sums = (int16_t *)decoder->sums[which].at + PADDING / 2;
    kernels->blend(sums + 1, near_row + from, far_row + from, to - from, v == 2 ? 3 : 1);
    sums += 1 + first - from;
    if (v == 2)
        kernels->widen(wide, sums, stop - first, 8, 7, 4);
    else
        kernels->widen(wide, sums, stop - first, 1, 2, 2);
    return wide + (left & 1);
}

/* The pixels of the box, from the planes. */
static int write_pixels(struct decoder *decoder, const struct box *box, uint8_t *to)
{
    const struct headers *headers = &decoder->headers;
    int64_t left = box->left - decoder->column0 * headers->mcu_width, top = decoder->row0 * headers->mcu_height;
    bool subsampled = headers->blocks > 3;
    for (int i = 0; subsampled && i < 2; i++)
        if (make_room(&decoder->wide[i], (size_t)box->width + 2 * PADDING) != DONE ||
            make_room(&decoder->sums[i], (size_t)(box->width + 4 * PADDING) * sizeof(int16_t)) != DONE)
            return REFUSED;
    for (int64_t y = box->top; y < box->top + box->height; y++, to += 3 * box->width) {
        const uint8_t *luma = (const uint8_t *)decoder->plane[0].at + (y - top) * decoder->stride[0] + left;
        if (headers->components == 1) {
            for (int64_t x = 0; x < box->width; x++)
                to[3 * x] = to[3 * x + 1] = to[3 * x + 2] = luma[x];
            continue;
        }
        const uint8_t *cb = chroma_row(decoder, 0, y, left, box->width);
        const uint8_t *cr = chroma_row(decoder, 1, y, left, box->width);
        decoder->kernels->colours(to, luma, cb, cr, box->width);
    }
    return DONE;
}

/* Gets ready to decode all segments of a JPEG file whose headers were read. */
int prepare_scan(struct decoder *decoder, const uint8_t *file, int64_t nbytes)
{
    const struct headers *headers = &decoder->headers;
    struct box whole = {0, 0, headers->height, headers->width};
    choose_mcus(decoder, &whole);
    return make_segments(decoder, file, nbytes);
}

/* The pixels of a box of a JPEG file whose headers were read: (height, width, 3), RGB, and nothing behind them. */
int decode_box(struct decoder *decoder, const uint8_t *file, int64_t nbytes, const struct box *box, uint8_t *to)
{
    choose_mcus(decoder, box);
    decoder->use_stretch = decoder->kernels->samples;
    decoder->lane_count = LANES;
    decoder->place = natural_place;
    if (make_tables(decoder) || make_planes(decoder) || make_segments(decoder, file, nbytes) || decode_segments(decoder))
        return REFUSED;
    return write_pixels(decoder, box, to);
}

const struct kernels plain_kernels = {.one_lane = one_lane_plain,
                                      .two_lanes = two_lanes_plain,
                                      .segment_tokens = segment_tokens_plain,
                                      .write_bits = write_bits_plain,
                                      .samples = samples_plain,
                                      .colours = colours_plain,
                                      .blend = blend_plain,
                                      .widen = widen_plain,
                                      .heighten = heighten_plain,
                                      .rows = rows_plain,
                                      .columns = columns_plain,
                                      .mirror = mirror_plain,
                                      .normalize = normalize_plain,
                                      .split = split_plain,
                                      .to_floats = to_floats_plain,
                                      .from_floats = from_floats_plain,
                                      .sum_rows = sum_rows_plain,
                                      .sum_pixels = sum_pixels_plain};
#ifdef HAS_AVX2
const struct kernels avx2_kernels = {.one_lane = one_lane_avx2,
                                     .two_lanes = two_lanes_avx2,
                                     .segment_tokens = segment_tokens_avx2,
                                     .write_bits = write_bits_avx2,
                                     .samples = samples_avx2,
                                     .colours = colours_avx2,
                                     .blend = blend_avx2,
                                     .widen = widen_avx2,
                                     .heighten = heighten_avx2,
                                     .rows = rows_avx2,
                                     .columns = columns_avx2,
                                     .mirror = mirror_avx2,
                                     .normalize = normalize_avx2,
                                     .split = split_avx2,
                                     .to_floats = to_floats_avx2,
                                     .from_floats = from_floats_avx2,
                                     .sum_rows = sum_rows_avx2,
                                     .sum_pixels = sum_pixels_avx2};
#endif
