/* The inverse DCT: ITU-T T.81, A.3.3, bit for bit as jidctint.c of libjpeg-turbo: the algorithm of Loeffler, Ligtenberg
 * and Moschytz with 13 fractional bits. */
#include "../simd/arithmetic.h"
#include "jpeg.h"

enum {
    /* Limit after one pass. Beyond it, as beyond MOST_COEFFICIENT, the 16-bit arithmetic of libjpeg-turbo's vector
       instructions differs from its C. */
    MOST_BETWEEN = 16383,
    MOST_PREDICTED = 1 << 15
};
/* Does one pass over 8 values `step` apart; rounds by `shift` bits. */
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

/* Computes the samples of a block whose only coefficient is the first. */
INLINE enum outcome flat_block(int dc, int quantisation, int limit, uint8_t *to, int64_t stride)
{
    if (dc > limit || -dc > limit)
        return REFUSED;
    uint8_t value = clamp(((dc * quantisation * 4 + 16) >> 5) + 128);
    for (int y = 0; y < 8; y++)
        memset(to + y * stride, value, 8);
    return DONE;
}

/* Computes a block's samples. REFUSED for a coefficient that is too large. `dc` replaces the first of `coefficients`.
 */
INLINE enum outcome block_plain(const int16_t *coefficients, int dc, const int16_t *quantisation, const int16_t *limit,
                                uint8_t *to, int64_t stride)
{
    int values[64], wrong = 0, any = 0;
    for (int k = 1; k < 64; k++)
        any |= coefficients[k];
    if (!any)
        return flat_block(dc, quantisation[0], limit[0], to, stride);
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

INLINE bool is_far(int dc)
{
    return dc >= MOST_PREDICTED || dc <= -MOST_PREDICTED;
}

typedef enum outcome block_function(const int16_t *coefficients, int dc, const int16_t *quantisation,
                                    const int16_t *limit, uint8_t *to, int64_t stride);

/* Writes the needed samples of a stretch into the planes. */
INLINE enum outcome stretch_samples(struct decoder *decoder, const struct lane *lane, int *predicted,
                                    block_function *block)
{
    struct output *output = &decoder->output;
    const struct headers *headers = &decoder->input.headers;
    const int16_t *coefficients = lane->coefficients;
    int64_t row = lane->mcu / headers->across - output->row0, column = lane->mcu % headers->across;
    bool lengths = decoder->input.lengths.at, in_row = row >= 0 && row < output->row1 - output->row0;
    uint8_t *corner[MCU_BLOCKS] = {0}; /* corner of the block in the first needed MCU */
    int64_t step[MCU_BLOCKS] = {0};
    for (int b = 0; in_row && b < output->blocks; b++) {
        int i = headers->component_of[b];
        const struct component *component = &headers->component[i];
        corner[b] = (uint8_t *)decoder->worker.scratch.plane[i].at +
                    8 * ((row & (output->kept - 1)) * component->v + headers->block_y[b]) * output->stride[i] +
                    8 * headers->block_x[b];
        step[b] = 8 * component->h;
    }
    for (int64_t m = 0; m < lane->count; m++, column++) {
        bool wanted = in_row && column >= output->column0 && column < output->column1;
        for (int b = 0; b < output->blocks; b++, coefficients += 64) {
            int i = headers->component_of[b], dc = predicted[i] += coefficients[0];
            if (UNLIKELY(is_far(dc)))
                return REFUSED;
            if (wanted && UNLIKELY(block(coefficients, dc, decoder->tables.quantisation[i], decoder->tables.limit[i],
                                         corner[b] + (column - output->column0) * step[b], output->stride[i]) != DONE))
                return REFUSED;
        }
        for (int b = output->blocks; b < headers->blocks; b++, coefficients += 64)
            if (!lengths && UNLIKELY(is_far(predicted[headers->component_of[b]] += coefficients[0])))
                return REFUSED;
    }
    return DONE;
}

enum outcome samples_plain(struct decoder *decoder, const struct lane *lane, int *predicted)
{
    return stretch_samples(decoder, lane, predicted, block_plain);
}

#if defined(__x86_64__)
/* Order of coefficients for the same inverse DCT by products of pairs: a register has rows 0 and 4, 2 and 6, 1 and 7,
 * or 3 and 5, interleaved. Columns are in the order 0, 4, 2, 6, 1, 7, 3, 5, so that they are pairs in the second pass.
 */
const uint8_t paired_place[256] = {
    43, 0,  8,  32, 16, 40, 4,  12, 36, 24, 48, 1,  56, 20, 44, 2,  14, 34, 28, 52, 9,  49,
    17, 57, 5,  60, 18, 46, 6,  10, 38, 30, 50, 13, 53, 25, 33, 41, 21, 61, 3,  62, 22, 42,
    26, 54, 15, 51, 29, 37, 45, 19, 63, 7,  58, 11, 55, 31, 35, 47, 23, 59, 27, 39, 43, [65 ... 255] = 43};

/* `packed` receives 8 numbers of 16 bits for each of the outputs 0 to 7, two outputs in a register. */
VECTORS INLINE void pass_vector(const __m256i *in, __m256i *packed, const int shift)
{
    const __m256i round = _mm256_set1_epi32(1 << (shift - 1));
    __m256i v04 = in[0], v26 = in[1], v17 = in[2], v35 = in[3];
    __m256i t0 = _mm256_add_epi32(_mm256_madd_epi16(v04, pairs(8192, 8192)), round);
    __m256i t1 = _mm256_add_epi32(_mm256_madd_epi16(v04, pairs(8192, -8192)), round);
    __m256i t2 = _mm256_madd_epi16(v26, pairs(4433, 4433 - 15137)),
            t3 = _mm256_madd_epi16(v26, pairs(4433 + 6270, 4433));
    const __m256i even[4] = {_mm256_add_epi32(t0, t3), _mm256_add_epi32(t1, t2), _mm256_sub_epi32(t1, t2),
                             _mm256_sub_epi32(t0, t3)};
    const __m256i odd[4] = {_mm256_add_epi32(_mm256_madd_epi16(v17, pairs(12299 - 7373 - 3196 + 9633, 9633 - 7373)),
                                             _mm256_madd_epi16(v35, pairs(9633, 9633 - 3196))),
                            _mm256_add_epi32(_mm256_madd_epi16(v17, pairs(9633, 9633 - 16069)),
                                             _mm256_madd_epi16(v35, pairs(25172 - 20995 - 16069 + 9633, 9633 - 20995))),
                            _mm256_add_epi32(_mm256_madd_epi16(v17, pairs(9633 - 3196, 9633)),
                                             _mm256_madd_epi16(v35, pairs(9633 - 20995, 16819 - 20995 - 3196 + 9633))),
                            _mm256_add_epi32(_mm256_madd_epi16(v17, pairs(9633 - 7373, 2446 - 7373 - 16069 + 9633)),
                                             _mm256_madd_epi16(v35, pairs(9633 - 16069, 9633)))};
    __m256i sums[8];
#pragma GCC unroll 4
    for (int n = 0; n < 4; n++) {
        sums[n] = _mm256_srai_epi32(_mm256_add_epi32(even[n], odd[n]), shift);
        sums[7 - n] = _mm256_srai_epi32(_mm256_sub_epi32(even[n], odd[n]), shift);
    }
#pragma GCC unroll 4
    for (int n = 0; n < 4; n++)
        packed[n] = _mm256_packs_epi32(sums[2 * n], sums[2 * n + 1]);
}

/* Pairs of 16-bit numbers: selects the even ones, or the odd ones, of `a` and of `b` in each half. */
VECTORS INLINE __m256i even_pairs(__m256i a, __m256i b)
{
    return _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0x88));
}

VECTORS INLINE __m256i odd_pairs(__m256i a, __m256i b)
{
    return _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0xDD));
}

VECTORS INLINE enum outcome block_vector(const int16_t *coefficients, int dc, const int16_t *quantisation,
                                         const int16_t *limit, uint8_t *to, int64_t stride)
{
    __m256i rows[4], packed[4], wrong = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        rows[i] = _mm256_load_si256((const __m256i *)coefficients + i);
    __m256i first = _mm256_setr_epi16(-1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    __m256i any = _mm256_or_si256(_mm256_or_si256(_mm256_andnot_si256(first, rows[0]), rows[1]),
                                  _mm256_or_si256(rows[2], rows[3]));
    if (_mm256_testz_si256(any, any))
        return flat_block(dc, quantisation[0], limit[0], to, stride);
    rows[0] = _mm256_insert_epi16(rows[0], (int16_t)dc, 0);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m256i most = _mm256_load_si256((const __m256i *)limit + i);
        wrong = _mm256_or_si256(wrong, _mm256_cmpgt_epi16(_mm256_abs_epi16(rows[i]), most));
        rows[i] = _mm256_mullo_epi16(rows[i], _mm256_load_si256((const __m256i *)quantisation + i));
    }
    pass_vector(rows, packed, 11);
    __m256i half = _mm256_set1_epi16(MOST_BETWEEN + 1);
    __m256i beyond =
        _mm256_or_si256(_mm256_or_si256(_mm256_add_epi16(packed[0], half), _mm256_add_epi16(packed[1], half)),
                        _mm256_or_si256(_mm256_add_epi16(packed[2], half), _mm256_add_epi16(packed[3], half)));
    wrong = _mm256_or_si256(wrong, _mm256_srai_epi16(beyond, 15));
    if (UNLIKELY(!_mm256_testz_si256(wrong, wrong)))
        return REFUSED;
    /* The halves have columns 0 and 4, and 1 and 7 (or 2 and 6, and 3 and 5) of four rows. */
    __m256i upper = even_pairs(packed[0], packed[1]), lower = even_pairs(packed[2], packed[3]);
    rows[0] = _mm256_permute2x128_si256(upper, lower, 0x20);
    rows[2] = _mm256_permute2x128_si256(upper, lower, 0x31);
    upper = odd_pairs(packed[0], packed[1]);
    lower = odd_pairs(packed[2], packed[3]);
    rows[1] = _mm256_permute2x128_si256(upper, lower, 0x20);
    rows[3] = _mm256_permute2x128_si256(upper, lower, 0x31);
    pass_vector(rows, packed, 18);
    /* Each half has four columns of four rows, column by column. */
    const __m256i order = EACH_HALF(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m256i left = _mm256_shuffle_epi8(_mm256_packs_epi16(packed[0], packed[1]), order);
    __m256i right = _mm256_shuffle_epi8(_mm256_packs_epi16(packed[2], packed[3]), order);
    const __m256i middle = _mm256_set1_epi8(-128);
    left = _mm256_xor_si256(left, middle);
    right = _mm256_xor_si256(right, middle);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++, to += 2 * stride) {
        __m256i four = i ? _mm256_unpackhi_epi32(left, right) : _mm256_unpacklo_epi32(left, right);
        __m128i low = _mm256_castsi256_si128(four), high = _mm256_extracti128_si256(four, 1);
        _mm_storel_epi64((__m128i *)to, low);
        _mm_storeh_pd((double *)(to + stride), _mm_castsi128_pd(low));
        _mm_storel_epi64((__m128i *)(to + 4 * stride), high);
        _mm_storeh_pd((double *)(to + 5 * stride), _mm_castsi128_pd(high));
    }
    return DONE;
}

#elif defined(__aarch64__)
/* Sets `sum` to a 16-bit number times a factor, or adds that to it; in two registers of 32 bits. */
#define MULTIPLY(sum, value, factors, n)                                                                               \
    (sum[0] = vmull_laneq_s16(vget_low_s16(value), factors, n), sum[1] = vmull_high_laneq_s16(value, factors, n))
#define ADD_PRODUCT(sum, value, factors, n)                                                                            \
    (sum[0] = vmlal_laneq_s16(sum[0], vget_low_s16(value), factors, n),                                                \
     sum[1] = vmlal_high_laneq_s16(sum[1], value, factors, n))

/* Does one pass over eight rows of eight. Returns even and odd parts: the sums are the first four outputs, the
 * differences the others. */
INLINE void pass_vector(const s16 *rows, s32 even[4][2], s32 odd[4][2])
{
    static const int16_t numbers[16] = {[0] = 4433,
                                        [1] = 4433 - 15137,
                                        [2] = 4433 + 6270,
                                        [3] = 9633,
                                        [4] = 9633 - 7373,
                                        [5] = 2446 - 7373 - 16069 + 9633,
                                        [6] = 9633 - 16069,
                                        [7] = 9633 - 3196,
                                        [8] = 9633 - 20995,
                                        [9] = 16819 - 20995 - 3196 + 9633,
                                        [10] = 25172 - 20995 - 16069 + 9633,
                                        [11] = 12299 - 7373 - 3196 + 9633};
    const s16 first = vld1q_s16(numbers), second = vld1q_s16(numbers + 8);
    s16 sum = vaddq_s16(rows[0], rows[4]), difference = vsubq_s16(rows[0], rows[4]);
    s32 t0[2] = {vshll_n_s16(vget_low_s16(sum), 13), vshll_high_n_s16(sum, 13)};
    s32 t1[2] = {vshll_n_s16(vget_low_s16(difference), 13), vshll_high_n_s16(difference, 13)}, t2[2], t3[2];
    MULTIPLY(t2, rows[2], first, 0), ADD_PRODUCT(t2, rows[6], first, 1);
    MULTIPLY(t3, rows[2], first, 2), ADD_PRODUCT(t3, rows[6], first, 0);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        even[0][i] = vaddq_s32(t0[i], t3[i]), even[3][i] = vsubq_s32(t0[i], t3[i]);
        even[1][i] = vaddq_s32(t1[i], t2[i]), even[2][i] = vsubq_s32(t1[i], t2[i]);
    }
    MULTIPLY(odd[3], rows[1], first, 4), ADD_PRODUCT(odd[3], rows[7], first, 5);
    ADD_PRODUCT(odd[3], rows[3], first, 6), ADD_PRODUCT(odd[3], rows[5], first, 3);
    MULTIPLY(odd[2], rows[1], first, 7), ADD_PRODUCT(odd[2], rows[7], first, 3);
    ADD_PRODUCT(odd[2], rows[3], second, 0), ADD_PRODUCT(odd[2], rows[5], second, 1);
    MULTIPLY(odd[1], rows[1], first, 3), ADD_PRODUCT(odd[1], rows[7], first, 6);
    ADD_PRODUCT(odd[1], rows[3], second, 2), ADD_PRODUCT(odd[1], rows[5], second, 0);
    MULTIPLY(odd[0], rows[1], second, 3), ADD_PRODUCT(odd[0], rows[7], first, 4);
    ADD_PRODUCT(odd[0], rows[3], first, 3), ADD_PRODUCT(odd[0], rows[5], first, 7);
}

/* Transposes eight rows of eight numbers. */
INLINE void transpose(s16 *rows)
{
    s32 pairs[8];
    __m128d fours[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = (s32)vtrn1q_s16(rows[i], rows[i + 1]);
        pairs[i + 1] = (s32)vtrn2q_s16(rows[i], rows[i + 1]);
    }
#pragma GCC unroll 4
    for (int n = 0; n < 4; n++) {
        int i = n / 2 * 4 + n % 2;
        fours[i] = (__m128d)vtrn1q_s32(pairs[i], pairs[i + 2]);
        fours[i + 2] = (__m128d)vtrn2q_s32(pairs[i], pairs[i + 2]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        rows[i] = (s16)vtrn1q_f64(fours[i], fours[i + 4]);
        rows[i + 4] = (s16)vtrn2q_f64(fours[i], fours[i + 4]);
    }
}

/* Stores columns of eight bytes, with columns n and n + 4 in a register, as rows. */
INLINE void store_columns(const u8 *columns, uint8_t *to, int64_t stride)
{
    u16 first = (u16)vtrn1q_u8(columns[0], columns[1]), second = (u16)vtrn2q_u8(columns[0], columns[1]);
    u16 third = (u16)vtrn1q_u8(columns[2], columns[3]), fourth = (u16)vtrn2q_u8(columns[2], columns[3]);
    u32 rows04 = (u32)vtrn1q_u16(first, third), rows26 = (u32)vtrn2q_u16(first, third);
    u32 rows15 = (u32)vtrn1q_u16(second, fourth), rows37 = (u32)vtrn2q_u16(second, fourth);
    const u8 pairs[4] = {(u8)vuzp1q_u32(rows04, rows15), (u8)vuzp1q_u32(rows26, rows37), (u8)vuzp2q_u32(rows04, rows15),
                         (u8)vuzp2q_u32(rows26, rows37)};
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++, to += 2 * stride) {
        vst1_u8(to, vget_low_u8(pairs[i]));
        vst1_u8(to + stride, vget_high_u8(pairs[i]));
    }
}

INLINE enum outcome block_vector(const int16_t *coefficients, int dc, const int16_t *quantisation, const int16_t *limit,
                                 uint8_t *to, int64_t stride)
{
    s16 rows[8];
    s32 even[4][2], odd[4][2];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        rows[i] = vld1q_s16(coefficients + 8 * i);
    s16 any = vsetq_lane_s16(0, rows[0], 0);
#pragma GCC unroll 7
    for (int i = 1; i < 8; i++)
        any |= rows[i];
    if (!vmaxvq_u32((u32)any))
        return flat_block(dc, quantisation[0], limit[0], to, stride);
    rows[0] = vsetq_lane_s16((int16_t)dc, rows[0], 0);
    s16 wrong = vdupq_n_s16(0); /* a negative number: something is too large */
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        wrong |= (s16)vcgtq_s16(vabsq_s16(rows[i]), vld1q_s16(limit + 8 * i));
        rows[i] = vmulq_s16(rows[i], vld1q_s16(quantisation + 8 * i));
    }
    pass_vector(rows, even, odd);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        rows[i] = vqrshrn_high_n_s32(vqrshrn_n_s32(vaddq_s32(even[i][0], odd[i][0]), 11),
                                     vaddq_s32(even[i][1], odd[i][1]), 11);
        rows[7 - i] = vqrshrn_high_n_s32(vqrshrn_n_s32(vsubq_s32(even[i][0], odd[i][0]), 11),
                                         vsubq_s32(even[i][1], odd[i][1]), 11);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        wrong |= vaddq_s16(rows[i], vdupq_n_s16(MOST_BETWEEN + 1));
    if (UNLIKELY(vminvq_s16(wrong) < 0))
        return REFUSED;
    transpose(rows);
    pass_vector(rows, even, odd);
    /* Takes the upper 16 bits of a sum, and rounds by two more bits. */
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        rows[i] = vaddhn_high_s32(vaddhn_s32(even[i][0], odd[i][0]), even[i][1], odd[i][1]);
        rows[7 - i] = vsubhn_high_s32(vsubhn_s32(even[i][0], odd[i][0]), even[i][1], odd[i][1]);
    }
    u8 columns[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        columns[i] = (u8)vqrshrn_high_n_s16(vqrshrn_n_s16(rows[i], 2), rows[i + 4], 2) ^ vdupq_n_u8(128);
    store_columns(columns, to, stride);
    return DONE;
}
#endif

#ifdef HAS_VECTORS
VECTORS enum outcome samples_vector(struct decoder *decoder, const struct lane *lane, int *predicted)
{
    return stretch_samples(decoder, lane, predicted, block_vector);
}
#endif
