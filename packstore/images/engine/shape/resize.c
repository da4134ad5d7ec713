/* Antialiased resizing of uint8, RGB or gray, by the weights of taps.c: each source row horizontally, then vertically
 * as soon as an output row has all its source rows, while these are in the caches. */
#include "../simd/arithmetic.h"
#include "shape.h"

enum { SPARE_ROWS = 64 };

/* Returns a rounded weight, with its lower bits if there are any. */
INLINE int whole_weight(const struct taps *taps, const int16_t *weight)
{
    return taps->low_at ? *weight * (1 << LOW_BITS) + weight[taps->low_at] : *weight;
}

INLINE void row_plain(const struct taps *taps, const uint8_t *from, uint8_t *to, int64_t first, int64_t count,
                      const int channels)
{
    for (int64_t x = first; x < count; x++) {
        const uint8_t *at = from + channels * (int64_t)taps->at[x];
        const int16_t *weights = taps->weights + x * taps->taps;
        int sums[3] = {1 << (taps->precision - 1), 1 << (taps->precision - 1), 1 << (taps->precision - 1)};
        for (int j = 0; j < taps->taps; j++)
            for (int c = 0; c < channels; c++)
                sums[c] += whole_weight(taps, weights + j) * at[channels * j + c];
        for (int c = 0; c < channels; c++)
            to[channels * x + c] = clamp(sums[c] >> taps->precision);
    }
}

INLINE void rows_from(const struct taps *taps, const uint8_t *a, const uint8_t *b, uint8_t *to_a, uint8_t *to_b,
                      int64_t first, int64_t count, const int channels)
{
    row_plain(taps, a, to_a, first, count, channels);
    row_plain(taps, b, to_b, first, count, channels);
}

/* Resizes two rows of one or three channels horizontally to `count` pixels. Reads `taps` pixels and 4 bytes from each
 * place; writes up to 15 bytes more. */
void rows_plain(const struct taps *taps, int64_t channels, const uint8_t *a, const uint8_t *b, uint8_t *to_a,
                uint8_t *to_b, int64_t count)
{
    if (channels == 1)
        rows_from(taps, a, b, to_a, to_b, 0, count, 1);
    else
        rows_from(taps, a, b, to_a, to_b, 0, count, 3);
}

/* Computes one row of `bytes` bytes as the weighted sum of several; reads 31 bytes more of each. */
void columns_plain(const uint8_t *from, int64_t stride, const int16_t *weights, const struct taps *taps, uint8_t *to,
                   int64_t bytes)
{
    for (int64_t x = 0; x < bytes; x++) {
        int sum = 1 << (taps->precision - 1);
        for (int j = 0; j < taps->taps; j++)
            sum += whole_weight(taps, weights + j) * from[j * stride + x];
        to[x] = clamp(sum >> taps->precision);
    }
}

#if defined(__x86_64__)
/* Adds the products of two taps of a pixel of two rows. */
VECTORS INLINE __m256i add_taps(__m256i sum, __m256i pair, const int16_t *weights)
{
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pair, _mm256_set1_epi32((int)read_4(weights))));
}

/* Computes a pixel of two rows at once. */
VECTORS INLINE __m256i pixel(const struct taps *taps, const int count, const bool wide, const uint8_t *a,
                             const uint8_t *b, int64_t x)
{
    const __m256i first = EACH_HALF(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1);
    const __m256i second = EACH_HALF(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
    const uint8_t *p = a + 3 * (int64_t)taps->at[x], *q = b + 3 * (int64_t)taps->at[x];
    const int16_t *weights = taps->weights + x * count, *low = weights + taps->low_at;
    __m256i sum = _mm256_set1_epi32(1 << (taps->precision - 1)), high = _mm256_setzero_si256();
    for (int j = 0; j < count; j += 4, p += 12, q += 12) {
        __m256i four = BOTH_HALVES(LOAD_16(p), LOAD_16(q));
        __m256i pair01 = _mm256_shuffle_epi8(four, first), pair23 = _mm256_shuffle_epi8(four, second);
        sum = add_taps(add_taps(sum, pair01, low + j), pair23, low + j + 2);
        if (wide)
            high = add_taps(add_taps(high, pair01, weights + j), pair23, weights + j + 2);
    }
    if (wide)
        sum = _mm256_add_epi32(sum, _mm256_slli_epi32(high, LOW_BITS));
    return _mm256_sra_epi32(sum, _mm_cvtsi32_si128(taps->precision));
}

VECTORS INLINE void rows_of(const struct taps *taps, const int taps_count, const bool wide, const uint8_t *a,
                            const uint8_t *b, uint8_t *to_a, uint8_t *to_b, int64_t count)
{
    const __m256i dense = EACH_HALF(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    for (int64_t x = 0; x < count; x += 4) { /* pixels after the last are copies of it */
        int64_t last = count - 1, x1 = x + 1 < last ? x + 1 : last, x2 = x + 2 < last ? x + 2 : last,
                x3 = x + 3 < last ? x + 3 : last;
        __m256i low =
            _mm256_packs_epi32(pixel(taps, taps_count, wide, a, b, x), pixel(taps, taps_count, wide, a, b, x1));
        __m256i high =
            _mm256_packs_epi32(pixel(taps, taps_count, wide, a, b, x2), pixel(taps, taps_count, wide, a, b, x3));
        low = _mm256_shuffle_epi8(_mm256_packus_epi16(low, high), dense);
        STORE_16(to_a + 3 * x, _mm256_castsi256_si128(low));
        STORE_16(to_b + 3 * x, _mm256_extracti128_si256(low, 1));
    }
}

/* Computes a gray pixel of two rows: sums of every fourth pair of taps, each row in its half. */
VECTORS INLINE __m256i gray_pixel(const int16_t *weights, const int count, const uint8_t *p, const uint8_t *q)
{
    __m256i sum = _mm256_setzero_si256();
    int j = 0;
    for (; j + 8 <= count; j += 8) {
        __m128 eight = _mm_loadh_pi(_mm_castsi128_ps(LOAD_8(p + j)), (const __m64 *)(q + j));
        __m256i own = _mm256_broadcastsi128_si256(LOAD_16(weights + j));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_cvtepu8_epi16(_mm_castps_si128(eight)), own));
    }
    if (j < count) {
        __m128i four = _mm_unpacklo_epi64(_mm_cvtsi32_si128((int)read_4(p + j)), _mm_cvtsi32_si128((int)read_4(q + j)));
        __m256i own = _mm256_broadcastq_epi64(LOAD_8(weights + j));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_cvtepu8_epi16(four), own));
    }
    return sum;
}

/* Multiplies and adds four taps of four pixels. */
VECTORS INLINE __m256i four_by_four(const int16_t *weights, const int32_t *places, const uint8_t *from)
{
    __m128i four = _mm_setr_epi32((int)read_4(from + places[0]), (int)read_4(from + places[1]),
                                  (int)read_4(from + places[2]), (int)read_4(from + places[3]));
    return _mm256_madd_epi16(_mm256_cvtepu8_epi16(four), LOAD_32(weights));
}

/* Computes the sums of four gray pixels of two rows, one row in each half. */
VECTORS INLINE __m256i gray_sums(const struct taps *taps, const int count, const int16_t *weights, const uint8_t *a,
                                 const uint8_t *b, int64_t x)
{
    const int32_t *places = taps->at + x;
    weights += x * count;
    if (count == 4) {
        __m256i sums = _mm256_hadd_epi32(four_by_four(weights, places, a), four_by_four(weights, places, b));
        return _mm256_permute4x64_epi64(sums, 0xD8);
    }
    __m256i sums[4];
#pragma GCC unroll 4
    for (int n = 0; n < 4; n++)
        sums[n] = gray_pixel(weights + n * count, count, a + places[n], b + places[n]);
    return _mm256_hadd_epi32(_mm256_hadd_epi32(sums[0], sums[1]), _mm256_hadd_epi32(sums[2], sums[3]));
}

VECTORS INLINE __m256i four_gray(const struct taps *taps, const int count, const bool wide, const uint8_t *a,
                                 const uint8_t *b, int64_t x)
{
    __m256i sums = gray_sums(taps, count, taps->weights, a, b, x);
    if (wide)
        sums = _mm256_add_epi32(_mm256_slli_epi32(sums, LOW_BITS),
                                gray_sums(taps, count, taps->weights + taps->low_at, a, b, x));
    sums = _mm256_add_epi32(sums, _mm256_set1_epi32(1 << (taps->precision - 1)));
    return _mm256_sra_epi32(sums, _mm_cvtsi32_si128(taps->precision));
}

VECTORS INLINE void gray_rows_of(const struct taps *taps, const int count, const bool wide, const uint8_t *a,
                                 const uint8_t *b, uint8_t *to_a, uint8_t *to_b, int64_t pixels)
{
    int64_t x = 0;
    for (; x + 8 <= pixels; x += 8) {
        __m256i eight =
            _mm256_packs_epi32(four_gray(taps, count, wide, a, b, x), four_gray(taps, count, wide, a, b, x + 4));
        eight = _mm256_packus_epi16(eight, eight);
        _mm_storel_epi64((__m128i *)(to_a + x), _mm256_castsi256_si128(eight));
        _mm_storel_epi64((__m128i *)(to_b + x), _mm256_extracti128_si256(eight, 1));
    }
    rows_from(taps, a, b, to_a, to_b, x, pixels, 1);
}

#elif defined(__aarch64__)
/* Computes a pixel of two rows; the 32-bit sums begin with `first_a` and `first_b`. */
INLINE void pixel(const int16_t *weights, const int count, s32 first_a, s32 first_b, const uint8_t *p, const uint8_t *q,
                  s32 *to_a, s32 *to_b)
{
    const u8 first = {0, 255, 1, 255, 2, 255, 255, 255, 3, 255, 4, 255, 5, 255, 255, 255};
    const u8 second = {6, 255, 7, 255, 8, 255, 255, 255, 9, 255, 10, 255, 11, 255, 255, 255};
    s32 sums[2] = {first_a, first_b};
    for (int j = 0; j < count; j += 4, p += 12, q += 12, weights += 4) {
        const int16x4_t own = vld1_s16(weights);
#pragma GCC unroll 2
        for (int row = 0; row < 2; row++) {
            u8 four = vld1q_u8(row ? q : p);
            s16 two = (s16)vqtbl1q_u8(four, first), more = (s16)vqtbl1q_u8(four, second);
            sums[row] = vmlal_high_lane_s16(vmlal_lane_s16(sums[row], vget_low_s16(two), own, 0), two, own, 1);
            sums[row] = vmlal_high_lane_s16(vmlal_lane_s16(sums[row], vget_low_s16(more), own, 2), more, own, 3);
        }
    }
    *to_a = sums[0];
    *to_b = sums[1];
}

/* Rounds sixteen sums to bytes. */
INLINE u8 round_sums(const s32 *sums, s32 shift)
{
    u16 low = vqmovun_high_s32(vqmovun_s32(vshlq_s32(sums[0], shift)), vshlq_s32(sums[1], shift));
    u16 high = vqmovun_high_s32(vqmovun_s32(vshlq_s32(sums[2], shift)), vshlq_s32(sums[3], shift));
    return vqmovn_high_u16(vqmovn_u16(low), high);
}

INLINE void rows_of(const struct taps *taps, const int taps_count, const bool wide, const uint8_t *a, const uint8_t *b,
                    uint8_t *to_a, uint8_t *to_b, int64_t count)
{
    const u8 dense = {0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 255, 255, 255, 255};
    const s32 round = vdupq_n_s32(1 << (taps->precision - 1)), shift = vdupq_n_s32(-taps->precision);
    const int16_t *weights = taps->weights;
    const int32_t *places = taps->at;
    for (int64_t x = 0; x < count; x += 4) { /* pixels after the last are copies of it */
        s32 sums_a[4], sums_b[4];
#pragma GCC unroll 4
        for (int n = 0; n < 4; n++) {
            int64_t at = x + n < count ? x + n : count - 1;
            int64_t from = 3 * (int64_t)places[at];
            const int16_t *own = weights + at * taps_count;
            s32 first_a = round, first_b = round;
            if (wide) {
                pixel(own, taps_count, vdupq_n_s32(0), vdupq_n_s32(0), a + from, b + from, &first_a, &first_b);
                first_a = vaddq_s32(vshlq_n_s32(first_a, LOW_BITS), round);
                first_b = vaddq_s32(vshlq_n_s32(first_b, LOW_BITS), round);
                own += taps->low_at;
            }
            pixel(own, taps_count, first_a, first_b, a + from, b + from, &sums_a[n], &sums_b[n]);
        }
        vst1q_u8(to_a + 3 * x, vqtbl1q_u8(round_sums(sums_a, shift), dense));
        vst1q_u8(to_b + 3 * x, vqtbl1q_u8(round_sums(sums_b, shift), dense));
    }
}

/* Computes a gray pixel: sums of every fourth tap. */
INLINE s32 gray_pixel(const int16_t *weights, const int count, const uint8_t *p)
{
    s32 sum = vdupq_n_s32(0);
    int j = 0;
    for (; j + 8 <= count; j += 8) {
        s16 eight = (s16)vmovl_u8(vld1_u8(p + j)), own = vld1q_s16(weights + j);
        sum = vmlal_high_s16(vmlal_s16(sum, vget_low_s16(eight), vget_low_s16(own)), eight, own);
    }
    if (j < count) {
        s16 bytes = (s16)vmovl_u8((uint8x8_t)vdup_n_u32(read_4(p + j)));
        sum = vmlal_s16(sum, vget_low_s16(bytes), vld1_s16(weights + j));
    }
    return sum;
}

/* Computes the sums of four gray pixels from `x` on, of `pixels`; pixels after the last are copies of it. */
INLINE s32 gray_sums(const struct taps *taps, const int count, const int16_t *weights, const uint8_t *from, int64_t x,
                     int64_t pixels)
{
    s32 sums[4];
#pragma GCC unroll 4
    for (int n = 0; n < 4; n++) {
        int64_t at = x + n < pixels ? x + n : pixels - 1;
        sums[n] = gray_pixel(weights + at * count, count, from + taps->at[at]);
    }
    return vpaddq_s32(vpaddq_s32(sums[0], sums[1]), vpaddq_s32(sums[2], sums[3]));
}

INLINE void gray_row_of(const struct taps *taps, const int count, const bool wide, const uint8_t *from, uint8_t *to,
                        int64_t pixels)
{
    const s32 round = vdupq_n_s32(1 << (taps->precision - 1)), shift = vdupq_n_s32(-taps->precision);
    for (int64_t x = 0; x < pixels; x += 16) {
        s32 sums[4];
#pragma GCC unroll 4
        for (int n = 0; n < 4; n++) {
            sums[n] = gray_sums(taps, count, taps->weights, from, x + 4 * n, pixels);
            if (wide)
                sums[n] = vaddq_s32(vshlq_n_s32(sums[n], LOW_BITS),
                                    gray_sums(taps, count, taps->weights + taps->low_at, from, x + 4 * n, pixels));
            sums[n] = vaddq_s32(sums[n], round);
        }
        vst1q_u8(to + x, round_sums(sums, shift));
    }
}

INLINE void gray_rows_of(const struct taps *taps, const int count, const bool wide, const uint8_t *a, const uint8_t *b,
                         uint8_t *to_a, uint8_t *to_b, int64_t pixels)
{
    gray_row_of(taps, count, wide, a, to_a, pixels);
    gray_row_of(taps, count, wide, b, to_b, pixels);
}
#endif

#ifdef HAS_VECTORS
/* Calls a function of (taps, count, ...) with their number, as a constant for the numbers that are frequent. */
#define WITH_TAPS(function, taps, ...)                                                                                 \
    ((taps)->taps == 4   ? function(taps, 4, __VA_ARGS__)                                                              \
     : (taps)->taps == 8 ? function(taps, 8, __VA_ARGS__)                                                              \
                         : function(taps, (taps)->taps, __VA_ARGS__))

VECTORS void rows_vector(const struct taps *taps, int64_t channels, const uint8_t *a, const uint8_t *b, uint8_t *to_a,
                         uint8_t *to_b, int64_t count)
{
    if (channels == 1 && taps->low_at)
        gray_rows_of(taps, taps->taps, true, a, b, to_a, to_b, count);
    else if (channels == 1)
        WITH_TAPS(gray_rows_of, taps, false, a, b, to_a, to_b, count);
    else if (taps->low_at)
        WITH_TAPS(rows_of, taps, true, a, b, to_a, to_b, count);
    else
        WITH_TAPS(rows_of, taps, false, a, b, to_a, to_b, count);
}
#endif

#if defined(__x86_64__)
/* Adds the products of 32 bytes of two rows to four sums. */
VECTORS INLINE void add_rows(__m256i sums[4], const __m256i pairs[4], const int16_t *weights)
{
#pragma GCC unroll 4
    for (int n = 0; n < 4; n++)
        sums[n] = add_taps(sums[n], pairs[n], weights);
}

VECTORS INLINE void columns_of(const uint8_t *from, int64_t stride, const int16_t *weights, const struct taps *taps,
                               const bool wide, uint8_t *to, int64_t bytes)
{
    const __m256i zero = _mm256_setzero_si256(), round = _mm256_set1_epi32(1 << (taps->precision - 1));
    const __m128i shift = _mm_cvtsi32_si128(taps->precision);
    const int16_t *low_weights = weights + taps->low_at;
    for (int64_t x = 0; x < bytes; x += 32) {
        __m256i sums[4] = {round, round, round, round}, highs[4] = {zero, zero, zero, zero};
        const uint8_t *at = from + x;
        for (int j = 0; j < taps->taps; j += 2, at += 2 * stride) {
            __m256i a = LOAD_32(at);
            __m256i b = LOAD_32(at + stride);
            __m256i first = _mm256_unpacklo_epi8(a, b), second = _mm256_unpackhi_epi8(a, b);
            const __m256i pairs[4] = {_mm256_unpacklo_epi8(first, zero), _mm256_unpackhi_epi8(first, zero),
                                      _mm256_unpacklo_epi8(second, zero), _mm256_unpackhi_epi8(second, zero)};
            add_rows(sums, pairs, low_weights + j);
            if (wide)
                add_rows(highs, pairs, weights + j);
        }
#pragma GCC unroll 4
        for (int n = 0; n < 4 && wide; n++)
            sums[n] = _mm256_add_epi32(sums[n], _mm256_slli_epi32(highs[n], LOW_BITS));
        __m256i low = _mm256_packs_epi32(_mm256_sra_epi32(sums[0], shift), _mm256_sra_epi32(sums[1], shift));
        __m256i upper = _mm256_packs_epi32(_mm256_sra_epi32(sums[2], shift), _mm256_sra_epi32(sums[3], shift));
        __m256i all = _mm256_packus_epi16(low, upper);
        if (x + 32 <= bytes) {
            STORE_32(to + x, all);
        } else {
            uint8_t last[32];
            memcpy(last, &all, 32);
            memcpy(to + x, last, (size_t)(bytes - x));
        }
    }
}

VECTORS void columns_vector(const uint8_t *from, int64_t stride, const int16_t *weights, const struct taps *taps,
                            uint8_t *to, int64_t bytes)
{
    if (taps->low_at)
        columns_of(from, stride, weights, taps, true, to, bytes);
    else
        columns_of(from, stride, weights, taps, false, to, bytes);
}
#elif defined(__aarch64__)
void columns_vector(const uint8_t *from, int64_t stride, const int16_t *weights, const struct taps *taps, uint8_t *to,
                    int64_t bytes)
{
    const s32 round = vdupq_n_s32(1 << (taps->precision - 1)), shift = vdupq_n_s32(-taps->precision);
    const int count = taps->taps;
    for (int64_t x = 0; x < bytes; x += 32) {
        s32 sums[8];
#pragma GCC unroll 8
        for (int n = 0; n < 8; n++)
            sums[n] = taps->low_at ? vdupq_n_s32(0) : round;
        const uint8_t *at = from + x;
        for (int j = 0; j < (taps->low_at ? 2 * count : count); j++, at += stride) {
            if (j == count) { /* continue with the lower bits of the weights */
                at = from + x;
#pragma GCC unroll 8
                for (int n = 0; n < 8; n++)
                    sums[n] = vaddq_s32(vshlq_n_s32(sums[n], LOW_BITS), round);
            }
            const int16x4_t weight = vdup_n_s16(j < count ? weights[j] : weights[j - count + taps->low_at]);
#pragma GCC unroll 2
            for (int half = 0; half < 2; half++) {
                u8 own = vld1q_u8(at + 16 * half);
                s16 low = (s16)vmovl_u8(vget_low_u8(own)), high = (s16)vmovl_high_u8(own);
                s32 *sum = sums + 4 * half;
                sum[0] = vmlal_lane_s16(sum[0], vget_low_s16(low), weight, 0);
                sum[1] = vmlal_high_lane_s16(sum[1], low, weight, 0);
                sum[2] = vmlal_lane_s16(sum[2], vget_low_s16(high), weight, 0);
                sum[3] = vmlal_high_lane_s16(sum[3], high, weight, 0);
            }
        }
        u8 first = round_sums(sums, shift), second = round_sums(sums + 4, shift);
        if (x + 32 <= bytes) {
            vst1q_u8(to + x, first);
            vst1q_u8(to + x + 16, second);
        } else {
            uint8_t last[32];
            vst1q_u8(last, first);
            vst1q_u8(last + 16, second);
            memcpy(to + x, last, (size_t)(bytes - x));
        }
    }
}
#endif

/* Prepares to resize the rows of a task's box, by the taps that were made. */
enum outcome begin_resizing(struct resizing *resizing, struct worker *worker, const struct task *task)
{
    const struct taps *across = &resizing->across, *down = &resizing->down;
    int64_t channels = task->channels, result_bytes = channels * task->visible.width + PADDING;
    int64_t reach = channels * (across->stop - across->first + across->taps) + 16;
    bool columns_first = task->request->sampling & SAMPLE_COLUMNS_FIRST;
    *resizing = (struct resizing){.kernels = worker->kernels,
                                  .across = *across,
                                  .down = *down,
                                  .channels = channels,
                                  .source_rows = task->box.height,
                                  .rows = task->visible.height,
                                  .columns = task->visible.width,
                                  .to = task->shown,
                                  .stride = channels * task->request->window.width,
                                  .columns_first = columns_first,
                                  .row_bytes = columns_first ? reach + PADDING : result_bytes,
                                  .most = down->taps + SPARE_ROWS,
                                  .reach = reach};
    /* For the last rows, vertical taps have zero weights for rows after the last. One more for finish_row(). */
    size_t rows = (size_t)(resizing->most + down->taps + columns_first);
    struct buffer *kept = &worker->scratch.resized, *line = &worker->scratch.line;
    if (grow_buffer(kept, rows * (size_t)resizing->row_bytes + (size_t)result_bytes) != DONE ||
        grow_buffer(line, (size_t)(2 * reach)) != DONE)
        return REFUSED;
    resizing->kept = kept->at;
    resizing->line = line->at;
    return DONE;
}

/* Writes an output row from the kept rows from `kept` on. */
static void finish_row(const struct resizing *resizing, const uint8_t *kept, int64_t row, uint8_t *to)
{
    const struct taps *down = &resizing->down;
    const int16_t *weights = down->weights + row * down->taps;
    int64_t bytes = resizing->channels * resizing->columns;
    if (!resizing->columns_first) {
        resizing->kernels->columns(kept, resizing->row_bytes, weights, down, to, bytes);
        return;
    }
    uint8_t *line = resizing->kept + (resizing->most + down->taps) * resizing->row_bytes;
    uint8_t *result = line + resizing->row_bytes; /* with space for what the loops write more */
    resizing->kernels->columns(kept, resizing->row_bytes, weights, down, line, resizing->reach);
    resizing->kernels->rows(&resizing->across, resizing->channels, line, line, result, result, resizing->columns);
    memcpy(to, result, (size_t)bytes);
}

/* Takes the next two rows of the source (the last row twice if their number is odd), and writes the output rows that
 * are then complete. May read `reach` bytes of each row. */
void resize_rows(struct resizing *resizing, const uint8_t *a, const uint8_t *b)
{
    const struct taps *down = &resizing->down;
    int64_t row_bytes = resizing->row_bytes, y = resizing->read, more = a == b ? 1 : 2;
    uint8_t *kept = resizing->kept;
    if (y + more - resizing->first > resizing->most) { /* move the rows that are still needed to the front */
        int64_t first = smaller(down->at[resizing->made], y);
        memmove(kept, kept + (first - resizing->first) * row_bytes, (size_t)((y - first) * row_bytes));
        resizing->first = first;
    }
    uint8_t *to = kept + (y - resizing->first) * row_bytes, *next = to + (more - 1) * row_bytes;
    if (resizing->columns_first) {
        memcpy(to, a, (size_t)resizing->reach);
        memcpy(next, b, (size_t)resizing->reach);
    } else {
        resizing->kernels->rows(&resizing->across, resizing->channels, a, b, to, next, resizing->columns);
    }
    resizing->read = y += more;
    for (; resizing->made < resizing->rows; resizing->made++) {
        int64_t at = down->at[resizing->made];
        if (at + down->taps > y && y < resizing->source_rows)
            break;
        finish_row(resizing, kept + (at - resizing->first) * row_bytes, resizing->made,
                   resizing->to + resizing->made * resizing->stride);
    }
}

/* Returns a row of the source from which the loops may read as much as they do: the row, or a copy with space after it.
 * `left`: readable bytes from the row on. */
static const uint8_t *readable(const struct resizing *resizing, int which, const uint8_t *row, int64_t left)
{
    if (left >= resizing->reach)
        return row;
    uint8_t *copy = resizing->line + which * resizing->reach;
    memcpy(copy, row, (size_t)left);
    memset(copy + left, 0, (size_t)(resizing->reach - left));
    return copy;
}

/* Resizes pixels whose rows are `stride` bytes apart; `nbytes` may be read. */
enum outcome resize(struct resizing *resizing, struct worker *worker, const struct task *task, const uint8_t *pixels,
                    int64_t nbytes, int64_t stride)
{
    if (begin_resizing(resizing, worker, task) != DONE)
        return REFUSED;
    for (int64_t y = 0; y < resizing->source_rows; y += 2, pixels += 2 * stride, nbytes -= 2 * stride) {
        const uint8_t *a = readable(resizing, 0, pixels, nbytes);
        bool alone = y + 1 == resizing->source_rows; /* the last row, if the number is odd, is taken twice */
        resize_rows(resizing, a, alone ? a : readable(resizing, 1, pixels + stride, nbytes - stride));
    }
    return DONE;
}
