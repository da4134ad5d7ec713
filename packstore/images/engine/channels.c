/* The loops of operations on single pixels: tables, and what mixes channels. */
#include "augment.h"

void table_plain(uint8_t *at, int64_t count, const uint8_t *table)
{
    for (int64_t i = 0; i < count; i++)
        at[i] = table[at[i]];
}

static void join_from(uint8_t *to, const uint8_t *const planes[3], int64_t first, int64_t pixels)
{
    for (int64_t i = first; i < pixels; i++)
        for (int c = 0; c < 3; c++)
            to[3 * i + c] = planes[c][i];
}

/* Planes to pixels whose channels take turns. */
void join_plain(uint8_t *to, const uint8_t *const planes[3], int64_t pixels)
{
    join_from(to, planes, 0, pixels);
}

/* As _blend(): of each value `factor`, and of `other` the rest. */
INLINE void blend_with(uint8_t *at, int64_t count, float factor, float other, float rest, const bool fuses)
{
    for (int64_t i = 0; i < count; i++)
        at[i] = to_byte(fused(other, rest, (float)at[i] * factor, fuses));
}

/* As _rgb_to_grayscale_image(): torch's add_() with a factor rounds once. */
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
    int32_t sum = 0; /* of STRIP values at most */
    for (int64_t i = 0; i < count; i++)
        sum += gray_of(r[i], g[i], b[i], fuses);
    return sum;
}

/* As _blend() with gray. */
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

INLINE float within_one(float value)
{
    value = value > 0 ? value : 0;
    return value < 1 ? value : 1;
}

/* As adjust_hue_image(): to HSV and back. */
static void turn_hue_from(uint8_t *const planes[3], int64_t first, int64_t count, float shift)
{
    const float scale = (float)(1.0 / 255), sixth = (float)(1.0 / 6.0), back = (float)(255 + 1.0 - 1e-3);
    for (int64_t i = first; i < count; i++) {
        float r = (float)planes[0][i] * scale, g = (float)planes[1][i] * scale, b = (float)planes[2][i] * scale;
        float high = r > g ? r : g, low = r < g ? r : g;
        high = high > b ? high : b;
        low = low < b ? low : b;
        float spread = high - low;
        float s = spread / (spread == 0 ? 1 : high), divisor = spread == 0 ? 1 : spread;
        float rc = (high - r) / divisor, gc = (high - g) / divisor, bc = (high - b) / divisor;
        float h = high == r ? bc - gc : high == g ? (rc + 2) - bc : (gc + 4) - rc;
        h = h * sixth + 1;
        h = h - (float)(int)h;
        h = h + shift;
        h = h - (float)(int)h;
        h = h < 0 ? h + 1 : h;
        float six = h * 6;
        int sector = (int)six;
        float part = six - (float)sector, product = s * part, rest = 1 - s;
        float q = within_one((1 - product) * high), t = within_one((product + rest) * high),
              p = within_one(rest * high);
        /* In each sector a channel is the highest, another the lowest: by halves of the sector's number. */
        sector = sector == 6 ? 0 : sector;
        float middle = sector & 1 ? q : t;
        int highest = (sector + 1) / 2 % 3, lowest = (sector / 2 + 2) % 3;
        for (int c = 0; c < 3; c++)
            planes[c][i] = (uint8_t)(int)((c == highest ? high : c == lowest ? p : middle) * back);
    }
}

/* Lowers `low` and raises `high` to the least and the largest value. */
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

void blend_bytes_plain(uint8_t *at, int64_t count, float factor, float other, float rest)
{
    blend_with(at, count, factor, other, rest, false);
}

void gray_plain(uint8_t *const planes[3], int64_t count)
{
    gray_with(planes, count, false);
}

int64_t sum_gray_plain(uint8_t *const planes[3], int64_t count)
{
    return sum_gray_with(planes, count, false);
}

void saturate_plain(uint8_t *const planes[3], int64_t count, float factor)
{
    saturate_with(planes, count, factor, false);
}

void turn_hue_plain(uint8_t *const planes[3], int64_t count, float shift)
{
    turn_hue_from(planes, 0, count, shift);
}

void extremes_plain(const uint8_t *at, int64_t count, uint8_t *low, uint8_t *high)
{
    extremes_of(at, count, low, high);
}

#ifdef HAS_VECTORS
/* A shuffle looks up 16 entries, and gives 0 for negative numbers. The difference of each 16 to those before is added,
 * by exclusive or, to all values that are not below them. */
VECTORS_FMA void table_vector(uint8_t *at, int64_t count, const uint8_t *table)
{
    __m256i steps[16], sixteen = _mm256_set1_epi8(16), top = _mm256_set1_epi8((char)0x80);
    for (int k = 0; k < 16; k++) {
        __m128i own = _mm_loadu_si128((const __m128i *)(table + 16 * k));
        if (k % 8)
            own = _mm_xor_si128(own, _mm_loadu_si128((const __m128i *)(table + 16 * (k - 1))));
        steps[k] = _mm256_broadcastsi128_si256(own);
    }
    int64_t i = 0;
    for (; i + 64 <= count; i += 64) {
        __m256i a = _mm256_loadu_si256((const __m256i *)(at + i)),
                b = _mm256_loadu_si256((const __m256i *)(at + i + 32));
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
        _mm256_storeu_si256((__m256i *)(at + i), to_a);
        _mm256_storeu_si256((__m256i *)(at + i + 32), to_b);
    }
    table_plain(at + i, count - i, table);
}

/* Sixteen pixels at a time: each register of the result has bytes of every plane. */
VECTORS_FMA void join_vector(uint8_t *to, const uint8_t *const planes[3], int64_t pixels)
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
            own[c] = _mm_loadu_si128((const __m128i *)(planes[c] + at));
#pragma GCC unroll 3
        for (int part = 0; part < 3; part++) {
            const __m128i *place = (const __m128i *)places[part];
            __m128i bytes = _mm_or_si128(_mm_or_si128(_mm_shuffle_epi8(own[0], _mm_loadu_si128(place)),
                                                      _mm_shuffle_epi8(own[1], _mm_loadu_si128(place + 1))),
                                         _mm_shuffle_epi8(own[2], _mm_loadu_si128(place + 2)));
            _mm_storeu_si128((__m128i *)(to + 3 * at + 16 * part), bytes);
        }
    }
    join_from(to, planes, at, pixels);
}

VECTORS_FMA INLINE __m256 gray_eight(__m256 r, __m256 g, __m256 b)
{
    __m256 sum = _mm256_mul_ps(r, _mm256_set1_ps(0.2989f));
    sum = _mm256_fmadd_ps(g, _mm256_set1_ps(0.587f), sum);
    return _mm256_fmadd_ps(b, _mm256_set1_ps(0.114f), sum);
}

VECTORS_FMA void blend_bytes_vector(uint8_t *at, int64_t count, float factor, float other, float rest)
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

VECTORS_FMA void gray_vector(uint8_t *const planes[3], int64_t count)
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
    gray_with((uint8_t *const[3]){planes[0] + i, planes[1] + i, planes[2] + i}, count - i, true);
}

VECTORS_FMA int64_t sum_gray_vector(uint8_t *const planes[3], int64_t count)
{
    __m256i sums = _mm256_setzero_si256();
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        __m256 gray = gray_eight(load_bytes(planes[0] + i), load_bytes(planes[1] + i), load_bytes(planes[2] + i));
        sums = _mm256_add_epi32(sums, _mm256_cvttps_epi32(gray));
    }
    int32_t parts[8];
    _mm256_storeu_si256((__m256i *)parts, sums);
    int64_t sum = sum_gray_with((uint8_t *const[3]){planes[0] + i, planes[1] + i, planes[2] + i}, count - i, true);
    for (int n = 0; n < 8; n++)
        sum += parts[n];
    return sum;
}

VECTORS_FMA void saturate_vector(uint8_t *const planes[3], int64_t count, float factor)
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
    saturate_with((uint8_t *const[3]){planes[0] + i, planes[1] + i, planes[2] + i}, count - i, factor, true);
}

VECTORS_FMA INLINE __m256 choose(__m256 otherwise, __m256 chosen, __m256i where)
{
    return _mm256_blendv_ps(otherwise, chosen, _mm256_castsi256_ps(where));
}

VECTORS_FMA INLINE __m256 clip_to_one(__m256 values)
{
    return _mm256_min_ps(_mm256_max_ps(values, _mm256_setzero_ps()), _mm256_set1_ps(1));
}

/* turn_hue_from() of eight pixels. */
VECTORS_FMA INLINE void turn_eight(__m256 *red, __m256 *green, __m256 *blue, __m256 shift)
{
    const __m256 one = _mm256_set1_ps(1), zero = _mm256_setzero_ps(), scale = _mm256_set1_ps((float)(1.0 / 255));
    const __m256 back = _mm256_set1_ps((float)(255 + 1.0 - 1e-3));
    __m256 r = _mm256_mul_ps(*red, scale), g = _mm256_mul_ps(*green, scale), b = _mm256_mul_ps(*blue, scale);
    __m256 high = _mm256_max_ps(_mm256_max_ps(r, g), b), low = _mm256_min_ps(_mm256_min_ps(r, g), b);
    __m256 spread = _mm256_sub_ps(high, low), flat = _mm256_cmp_ps(spread, zero, _CMP_EQ_OQ);
    __m256 s = _mm256_div_ps(spread, _mm256_blendv_ps(high, one, flat));
    __m256 divisor = _mm256_blendv_ps(spread, one, flat);
    __m256 rc = _mm256_div_ps(_mm256_sub_ps(high, r), divisor), gc = _mm256_div_ps(_mm256_sub_ps(high, g), divisor),
           bc = _mm256_div_ps(_mm256_sub_ps(high, b), divisor);
    __m256 of_green = _mm256_sub_ps(_mm256_add_ps(rc, _mm256_set1_ps(2)), bc);
    __m256 h = _mm256_sub_ps(_mm256_add_ps(gc, _mm256_set1_ps(4)), rc);
    h = _mm256_blendv_ps(h, of_green, _mm256_cmp_ps(high, g, _CMP_EQ_OQ));
    h = _mm256_blendv_ps(h, _mm256_sub_ps(bc, gc), _mm256_cmp_ps(high, r, _CMP_EQ_OQ));
    h = _mm256_add_ps(_mm256_mul_ps(h, _mm256_set1_ps((float)(1.0 / 6.0))), one);
    h = _mm256_sub_ps(h, _mm256_round_ps(h, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC));
    h = _mm256_add_ps(h, shift);
    h = _mm256_sub_ps(h, _mm256_round_ps(h, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC));
    h = _mm256_blendv_ps(h, _mm256_add_ps(h, one), _mm256_cmp_ps(h, zero, _CMP_LT_OQ));
    __m256 six = _mm256_mul_ps(h, _mm256_set1_ps(6));
    __m256i sector = _mm256_cvttps_epi32(six);
    __m256 product = _mm256_mul_ps(s, _mm256_sub_ps(six, _mm256_cvtepi32_ps(sector))), rest = _mm256_sub_ps(one, s);
    __m256 q = clip_to_one(_mm256_mul_ps(_mm256_sub_ps(one, product), high));
    __m256 t = clip_to_one(_mm256_mul_ps(_mm256_add_ps(product, rest), high));
    __m256 p = clip_to_one(_mm256_mul_ps(rest, high));
    const __m256i one_i = _mm256_set1_epi32(1), two_i = _mm256_set1_epi32(2);
    sector = _mm256_andnot_si256(_mm256_cmpeq_epi32(sector, _mm256_set1_epi32(6)), sector);
    __m256i lower = _mm256_srli_epi32(sector, 1), upper = _mm256_srli_epi32(_mm256_add_epi32(sector, one_i), 1);
    __m256 middle = choose(t, q, _mm256_cmpeq_epi32(_mm256_and_si256(sector, one_i), one_i));
    __m256i highest_g = _mm256_cmpeq_epi32(upper, one_i), highest_b = _mm256_cmpeq_epi32(upper, two_i);
    __m256 to_r = choose(high, middle, _mm256_or_si256(highest_g, highest_b));
    __m256 to_g = choose(middle, p, _mm256_cmpeq_epi32(lower, two_i));
    __m256 to_b = choose(middle, p, _mm256_cmpeq_epi32(lower, _mm256_setzero_si256()));
    *red = _mm256_mul_ps(choose(to_r, p, _mm256_cmpeq_epi32(lower, one_i)), back);
    *green = _mm256_mul_ps(choose(to_g, high, highest_g), back);
    *blue = _mm256_mul_ps(choose(to_b, high, highest_b), back);
}

VECTORS_FMA void turn_hue_vector(uint8_t *const planes[3], int64_t count, float shift)
{
    int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
        __m256 values[3][4];
        for (int n = 0; n < 4; n++) {
            for (int c = 0; c < 3; c++)
                values[c][n] = load_bytes(planes[c] + i + 8 * n);
            turn_eight(&values[0][n], &values[1][n], &values[2][n], _mm256_set1_ps(shift));
        }
        for (int c = 0; c < 3; c++)
            store_bytes(planes[c] + i, values[c]);
    }
    turn_hue_from(planes, i, count, shift);
}

VECTORS_FMA void extremes_vector(const uint8_t *at, int64_t count, uint8_t *low, uint8_t *high)
{
    extremes_of(at, count, low, high);
}
#endif
