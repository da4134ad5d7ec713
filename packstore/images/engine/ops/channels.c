/* Loops of operations on single pixels: table lookups, and operations that mix channels. */
#include "../simd/arithmetic.h"
#include "program.h"

void table_plain(uint8_t *at, int64_t count, const uint8_t *table)
{
    for (int64_t i = 0; i < count; i++)
        at[i] = table[at[i]];
}

/* Interleaves planes to pixels. */
void join_plain(uint8_t *to, const uint8_t *const planes[3], int64_t pixels)
{
    for (int64_t i = 0; i < pixels; i++)
        for (int c = 0; c < 3; c++)
            to[3 * i + c] = planes[c][i];
}

/* Does _blend(): `factor` of each value plus `rest` of `other`. */
INLINE void blend_with(uint8_t *at, int64_t count, float factor, float other, float rest, const bool fuses)
{
    for (int64_t i = 0; i < count; i++)
        at[i] = to_byte(fused(other, rest, (float)at[i] * factor, fuses));
}

/* Does _rgb_to_grayscale_image(): torch's add_() with a factor rounds once. */
INLINE int gray_of(uint8_t r, uint8_t g, uint8_t b, const bool fuses)
{
    return (int)fused((float)b, 0.114f, fused((float)g, 0.587f, (float)r * 0.2989f, fuses), fuses);
}

INLINE void gray_with(uint8_t *const planes[3], int64_t count, const bool fuses)
{
    uint8_t *restrict r = planes[0], *restrict g = planes[1], *restrict b = planes[2];
    for (int64_t i = 0; i < count; i++)
        r[i] = g[i] = b[i] = (uint8_t)gray_of(r[i], g[i], b[i], fuses);
}

INLINE int64_t sum_gray_with(uint8_t *const planes[3], int64_t count, const bool fuses)
{
    const uint8_t *r = planes[0], *g = planes[1], *b = planes[2];
    int32_t sum = 0; /* of at most STRIP values */
    for (int64_t i = 0; i < count; i++)
        sum += gray_of(r[i], g[i], b[i], fuses);
    return sum;
}

/* Does _blend() with gray. */
INLINE void saturate_with(uint8_t *const planes[3], int64_t count, float factor, const bool fuses)
{
    uint8_t *restrict r = planes[0], *restrict g = planes[1], *restrict b = planes[2];
    float rest = (float)(1.0 - (double)factor);
    for (int64_t i = 0; i < count; i++) {
        float gray = (float)gray_of(r[i], g[i], b[i], fuses);
        r[i] = to_byte(fused(gray, rest, (float)r[i] * factor, fuses));
        g[i] = to_byte(fused(gray, rest, (float)g[i] * factor, fuses));
        b[i] = to_byte(fused(gray, rest, (float)b[i] * factor, fuses));
    }
}

INLINE float between(float value, float most)
{
    value = value > 0 ? value : 0;
    return value < most ? value : most;
}

/* Does adjust_hue_image() without divisions. The position of a hue is counted in multiples of `spread`, not in sixths
 * of the circle. So a channel is the lowest channel plus a part of the spread, as in HSV to RGB. */
void turn_hue_plain(uint8_t *const planes[3], int64_t count, float shift)
{
    const float turn = shift * 6, back = (float)((255 + 1.0 - 1e-3) / 255);
    for (int64_t i = 0; i < count; i++) {
        float r = (float)planes[0][i], g = (float)planes[1][i], b = (float)planes[2][i];
        float high = r > g ? r : g, low = r < g ? r : g;
        high = high > b ? high : b;
        low = low < b ? low : b;
        float spread = high - low, circle = spread * 6;
        float at = high == r ? g - b : high == g ? b - r + spread * 2 : r - g + spread * 4;
        at = at + turn * spread;
        at = at + (at < 0 ? circle : 0);
        at = at - (at >= circle ? circle : 0);
        planes[0][i] = to_byte((low + between(__builtin_fabsf(at - spread * 3) - spread, spread)) * back);
        planes[1][i] = to_byte((low + between(spread * 2 - __builtin_fabsf(at - spread * 2), spread)) * back);
        planes[2][i] = to_byte((low + between(spread * 2 - __builtin_fabsf(at - spread * 4), spread)) * back);
    }
}

/* Updates `low` and `high` to the smallest and largest value. */
INLINE void extremes_of(const uint8_t *at, int64_t count, uint8_t *low, uint8_t *high)
{
    uint8_t least = *low, most = *high;
    for (int64_t i = 0; i < count; i++) {
        least = at[i] < least ? at[i] : least;
        most = at[i] > most ? at[i] : most;
    }
    *low = least;
    *high = most;
}
BOTH_LOOPS(void, extremes, (const uint8_t *at, int64_t count, uint8_t *low, uint8_t *high),
           extremes_of(at, count, low, high))

PLAIN_LOOP(void, blend_bytes, (uint8_t *at, int64_t count, float factor, float other, float rest),
           blend_with(at, count, factor, other, rest, false))
PLAIN_LOOP(void, gray, (uint8_t *const planes[3], int64_t count), gray_with(planes, count, false))
PLAIN_LOOP(int64_t, sum_gray, (uint8_t *const planes[3], int64_t count), sum_gray_with(planes, count, false))
PLAIN_LOOP(void, saturate, (uint8_t *const planes[3], int64_t count, float factor),
           saturate_with(planes, count, factor, false))

#ifdef HAS_VECTORS
#define AFTER(planes, i) {(planes)[0] + (i), (planes)[1] + (i), (planes)[2] + (i)}

/* A shuffle looks up 16 entries, and returns 0 for negative indices. So the lookup of each 16 entries adds, by
 * exclusive or, the difference to the 16 entries before, for all values that are not below these. */
VECTORS void table_vector(uint8_t *at, int64_t count, const uint8_t *table)
{
    __m256i steps[16], sixteen = _mm256_set1_epi8(16), top = _mm256_set1_epi8((char)0x80);
    for (int k = 0; k < 16; k++) {
        __m128i own = LOAD_16(table + 16 * k);
        if (k % 8)
            own = _mm_xor_si128(own, LOAD_16(table + 16 * (k - 1)));
        steps[k] = _mm256_broadcastsi128_si256(own);
    }
    int64_t i = 0;
    for (; i + 64 <= count; i += 64) {
        __m256i a = LOAD_32(at + i), b = LOAD_32(at + i + 32);
        __m256i high_a = _mm256_xor_si256(a, top), high_b = _mm256_xor_si256(b, top);
        __m256i to_a = _mm256_xor_si256(_mm256_shuffle_epi8(steps[0], a), _mm256_shuffle_epi8(steps[8], high_a));
        __m256i to_b = _mm256_xor_si256(_mm256_shuffle_epi8(steps[0], b), _mm256_shuffle_epi8(steps[8], high_b));
#pragma GCC unroll 7
        for (int k = 1; k < 8; k++) {
            a = _mm256_subs_epi8(a, sixteen), b = _mm256_subs_epi8(b, sixteen);
            high_a = _mm256_subs_epi8(high_a, sixteen), high_b = _mm256_subs_epi8(high_b, sixteen);
            to_a = _mm256_xor_si256(to_a, _mm256_shuffle_epi8(steps[k], a));
            to_b = _mm256_xor_si256(to_b, _mm256_shuffle_epi8(steps[k], b));
            to_a = _mm256_xor_si256(to_a, _mm256_shuffle_epi8(steps[8 + k], high_a));
            to_b = _mm256_xor_si256(to_b, _mm256_shuffle_epi8(steps[8 + k], high_b));
        }
        STORE_32(at + i, to_a);
        STORE_32(at + i + 32, to_b);
    }
    table_plain(at + i, count - i, table);
}

/* Interleaves sixteen pixels at a time: each register of the result has bytes of every plane. */
VECTORS void join_vector(uint8_t *to, const uint8_t *const planes[3], int64_t pixels)
{
    int8_t places[3][3][16];
    for (int part = 0; part < 3; part++)
        for (int c = 0; c < 3; c++)
            for (int i = 0; i < 16; i++)
                places[part][c][i] = (int8_t)((16 * part + i) % 3 == c ? (16 * part + i) / 3 : -1);
    int64_t at = 0;
    for (; at + 16 <= pixels; at += 16) {
        __m128i own[3];
        for (int c = 0; c < 3; c++)
            own[c] = LOAD_16(planes[c] + at);
#pragma GCC unroll 3
        for (int part = 0; part < 3; part++) {
            const __m128i *place = (const __m128i *)places[part];
            __m128i bytes = _mm_or_si128(
                _mm_or_si128(_mm_shuffle_epi8(own[0], LOAD_16(place)), _mm_shuffle_epi8(own[1], LOAD_16(place + 1))),
                _mm_shuffle_epi8(own[2], LOAD_16(place + 2)));
            STORE_16(to + 3 * at + 16 * part, bytes);
        }
    }
    join_plain(to + 3 * at, (const uint8_t *const[3])AFTER(planes, at), pixels - at);
}

VECTORS INLINE __m256 gray_eight(__m256 r, __m256 g, __m256 b)
{
    __m256 sum = _mm256_mul_ps(r, _mm256_set1_ps(0.2989f));
    sum = _mm256_fmadd_ps(g, _mm256_set1_ps(0.587f), sum);
    return _mm256_fmadd_ps(b, _mm256_set1_ps(0.114f), sum);
}

VECTORS void blend_bytes_vector(uint8_t *at, int64_t count, float factor, float other, float rest)
{
    __m256 factors = _mm256_set1_ps(factor), others = _mm256_set1_ps(other), rests = _mm256_set1_ps(rest);
    int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
        __m256 values[4];
#pragma GCC unroll 4
        for (int n = 0; n < 4; n++)
            values[n] = _mm256_fmadd_ps(others, rests, _mm256_mul_ps(load_bytes(at + i + 8 * n), factors));
        store_bytes(at + i, values);
    }
    blend_with(at + i, count - i, factor, other, rest, true);
}

VECTORS void gray_vector(uint8_t *const planes[3], int64_t count)
{
    int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
        __m256 values[4];
#pragma GCC unroll 4
        for (int n = 0; n < 4; n++) {
            int64_t at = i + 8 * n;
            values[n] = gray_eight(load_bytes(planes[0] + at), load_bytes(planes[1] + at), load_bytes(planes[2] + at));
        }
        for (int c = 0; c < 3; c++)
            store_bytes(planes[c] + i, values);
    }
    gray_with((uint8_t *const[3])AFTER(planes, i), count - i, true);
}

VECTORS int64_t sum_gray_vector(uint8_t *const planes[3], int64_t count)
{
    __m256i sums = _mm256_setzero_si256();
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        __m256 gray = gray_eight(load_bytes(planes[0] + i), load_bytes(planes[1] + i), load_bytes(planes[2] + i));
        sums = _mm256_add_epi32(sums, _mm256_cvttps_epi32(gray));
    }
    int32_t parts[8];
    STORE_32(parts, sums);
    int64_t sum = sum_gray_with((uint8_t *const[3])AFTER(planes, i), count - i, true);
    for (int n = 0; n < 8; n++)
        sum += parts[n];
    return sum;
}

VECTORS void saturate_vector(uint8_t *const planes[3], int64_t count, float factor)
{
    __m256 factors = _mm256_set1_ps(factor), rests = _mm256_set1_ps((float)(1.0 - (double)factor));
    int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
        __m256 values[3][4];
#pragma GCC unroll 4
        for (int n = 0; n < 4; n++) {
            int64_t at = i + 8 * n;
            __m256 r = load_bytes(planes[0] + at), g = load_bytes(planes[1] + at), b = load_bytes(planes[2] + at);
            __m256 gray = _mm256_round_ps(gray_eight(r, g, b), _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
            values[0][n] = _mm256_fmadd_ps(gray, rests, _mm256_mul_ps(r, factors));
            values[1][n] = _mm256_fmadd_ps(gray, rests, _mm256_mul_ps(g, factors));
            values[2][n] = _mm256_fmadd_ps(gray, rests, _mm256_mul_ps(b, factors));
        }
        for (int c = 0; c < 3; c++)
            store_bytes(planes[c] + i, values[c]);
    }
    saturate_with((uint8_t *const[3])AFTER(planes, i), count - i, factor, true);
}

VECTORS INLINE __m256 between_eight(__m256 values, __m256 most)
{
    return _mm256_min_ps(_mm256_max_ps(values, _mm256_setzero_ps()), most);
}

VECTORS INLINE __m256 distance_of(__m256 a, __m256 b)
{
    return _mm256_and_ps(_mm256_sub_ps(a, b), _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff)));
}

/* Does turn_hue_plain() for eight pixels. */
VECTORS INLINE void turn_eight(__m256 *red, __m256 *green, __m256 *blue, __m256 turn)
{
    const __m256 zero = _mm256_setzero_ps(), back = _mm256_set1_ps((float)((255 + 1.0 - 1e-3) / 255));
    __m256 r = *red, g = *green, b = *blue;
    __m256 high = _mm256_max_ps(_mm256_max_ps(r, g), b), low = _mm256_min_ps(_mm256_min_ps(r, g), b);
    __m256 spread = _mm256_sub_ps(high, low), circle = _mm256_mul_ps(spread, _mm256_set1_ps(6));
    __m256 two = _mm256_add_ps(spread, spread), four = _mm256_add_ps(two, two), three = _mm256_add_ps(two, spread);
    __m256 at = _mm256_add_ps(_mm256_sub_ps(r, g), four);
    at = _mm256_blendv_ps(at, _mm256_add_ps(_mm256_sub_ps(b, r), two), _mm256_cmp_ps(high, g, _CMP_EQ_OQ));
    at = _mm256_blendv_ps(at, _mm256_sub_ps(g, b), _mm256_cmp_ps(high, r, _CMP_EQ_OQ));
    at = _mm256_add_ps(at, _mm256_mul_ps(turn, spread));
    at = _mm256_add_ps(at, _mm256_and_ps(_mm256_cmp_ps(at, zero, _CMP_LT_OQ), circle));
    at = _mm256_sub_ps(at, _mm256_and_ps(_mm256_cmp_ps(at, circle, _CMP_GE_OQ), circle));
    __m256 of_red = between_eight(_mm256_sub_ps(distance_of(at, three), spread), spread);
    __m256 of_green = between_eight(_mm256_sub_ps(two, distance_of(at, two)), spread);
    __m256 of_blue = between_eight(_mm256_sub_ps(two, distance_of(at, four)), spread);
    *red = _mm256_mul_ps(_mm256_add_ps(low, of_red), back);
    *green = _mm256_mul_ps(_mm256_add_ps(low, of_green), back);
    *blue = _mm256_mul_ps(_mm256_add_ps(low, of_blue), back);
}

VECTORS void turn_hue_vector(uint8_t *const planes[3], int64_t count, float shift)
{
    int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
        __m256 values[3][4];
        for (int n = 0; n < 4; n++) {
            for (int c = 0; c < 3; c++)
                values[c][n] = load_bytes(planes[c] + i + 8 * n);
            turn_eight(&values[0][n], &values[1][n], &values[2][n], _mm256_set1_ps(shift * 6));
        }
        for (int c = 0; c < 3; c++)
            store_bytes(planes[c] + i, values[c]);
    }
    turn_hue_plain((uint8_t *const[3])AFTER(planes, i), count - i, shift);
}

#endif
