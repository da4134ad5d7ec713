/* Upsampling and colour conversion, bit for bit as jdsample.c (fancy upsampling) and jdcolor.c of libjpeg-turbo;
 * mirrors rows. */
#include "../simd/arithmetic.h"
#include "jpeg.h"

/* Computes 3 * near + far if `weight` is 3, near alone if it is 1; repeats the outermost values beyond both ends. */
INLINE void blend_of(int16_t *restrict to, const uint8_t *restrict near, const uint8_t *restrict far, int64_t count,
                     int weight)
{
    const uint16_t own = (uint16_t)weight, other = weight != 1;
    for (int64_t i = 0; i < count; i++)
        to[i] = (int16_t)(own * near[i] + other * far[i]);
    to[-1] = to[0];
    to[count] = to[count - 1];
}
BOTH_LOOPS(void, blend, (int16_t *to, const uint8_t *near, const uint8_t *far, int64_t count, int weight),
           blend_of(to, near, far, count, weight))

/* Doubles `count` columns: a new column mixes its own column and the neighbour on its side, 3 to 1. Sums have at most
 * 12 bits, so 16-bit arithmetic is enough. */
INLINE void widen_of(uint8_t *restrict to, const int16_t *restrict from, int64_t count, int even, int odd, int shift)
{
    const uint16_t first = (uint16_t)even, second = (uint16_t)odd;
    for (int64_t i = 0; i < count; i++) {
        uint16_t thrice = (uint16_t)(3 * from[i]);
        uint16_t left = (uint16_t)(thrice + from[i - 1] + first), right = (uint16_t)(thrice + from[i + 1] + second);
        uint16_t both = (uint16_t)(left >> shift | right >> shift << 8);
        memcpy(to + 2 * i, &both, 2);
    }
}
BOTH_LOOPS(void, widen, (uint8_t *to, const int16_t *from, int64_t count, int even, int odd, int shift),
           widen_of(to, from, count, even, odd, shift))

/* Mixes two rows, 3 to 1. */
INLINE void heighten_of(uint8_t *restrict to, const uint8_t *restrict near, const uint8_t *restrict far, int64_t count,
                        int bias)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = (uint8_t)((3 * near[i] + far[i] + bias) >> 2);
}
BOTH_LOOPS(void, heighten, (uint8_t *to, const uint8_t *near, const uint8_t *far, int64_t count, int bias),
           heighten_of(to, near, far, count, bias))

/* Mirrors a row of pixels of one or three channels. */
void mirror_plain(uint8_t *to, const uint8_t *from, int64_t pixels, int64_t channels)
{
    for (int64_t i = 0; channels == 1 && i < pixels; i++)
        to[pixels - 1 - i] = from[i];
    for (int64_t i = 0; channels == 3 && i < pixels; i++)
        memcpy(to + 3 * i, from + 3 * (pixels - 1 - i), 3);
}

/* The factors 1.402, 1.772, 0.34414 and 0.71414 have 16 fractional bits. */
void colours_plain(uint8_t *to, const uint8_t *y, const uint8_t *cb, const uint8_t *cr, int64_t count)
{
    for (int64_t i = 0; i < count; i++, to += 3) {
        int blue = cb[i] - 128, red = cr[i] - 128;
        to[0] = clamp(y[i] + ((91881 * red + 32768) >> 16));
        to[1] = clamp(y[i] + ((-22554 * blue - 46802 * red + 32768) >> 16));
        to[2] = clamp(y[i] + ((116130 * blue + 32768) >> 16));
    }
}

#if defined(__x86_64__)
/* Computes red, green and blue of 16 pixels, as 16-bit numbers, from 8-bit luma and chroma. Factors are split to fit 16
 * bits: 1.402 = 1 + 0.402, 1.772 = 2 - 0.228, 0.71414 = 1 - 0.28586. */
VECTORS INLINE void sixteen_pixels(__m256i *rgb, __m256i y, __m256i cb, __m256i cr)
{
    const __m256i centre = _mm256_set1_epi16(128), one = _mm256_set1_epi16(1);
    __m256i u = _mm256_sub_epi16(cb, centre), v = _mm256_sub_epi16(cr, centre);
    __m256i u2 = _mm256_add_epi16(u, u), v2 = _mm256_add_epi16(v, v);
    __m256i red = _mm256_srai_epi16(_mm256_add_epi16(_mm256_mulhi_epi16(v2, _mm256_set1_epi16(26345)), one), 1);
    __m256i blue = _mm256_srai_epi16(_mm256_add_epi16(_mm256_mulhi_epi16(u2, _mm256_set1_epi16(-14942)), one), 1);
    __m256i half = _mm256_set1_epi32(32768), weights = pairs(-22554, 18734);
    __m256i low = _mm256_add_epi32(_mm256_madd_epi16(_mm256_unpacklo_epi16(u, v), weights), half);
    __m256i high = _mm256_add_epi32(_mm256_madd_epi16(_mm256_unpackhi_epi16(u, v), weights), half);
    __m256i green = _mm256_packs_epi32(_mm256_srai_epi32(low, 16), _mm256_srai_epi32(high, 16));
    rgb[0] = _mm256_add_epi16(_mm256_add_epi16(y, v), red);
    rgb[1] = _mm256_add_epi16(_mm256_sub_epi16(y, v), green);
    rgb[2] = _mm256_add_epi16(_mm256_add_epi16(y, u2), blue);
}

/* Stores 32 pixels. Each third of the 48 result bytes of 16 pixels has bytes of all channels, at fixed places: so one
 * shuffle per channel puts its values there. */
VECTORS INLINE void thirty_two_pixels(uint8_t *to, const uint8_t *luma, const uint8_t *cb, const uint8_t *cr)
{
    const __m256i zero = _mm256_setzero_si256();
    __m256i y = LOAD_32(luma), u = LOAD_32(cb), v = LOAD_32(cr), low[3], high[3];
    sixteen_pixels(low, _mm256_unpacklo_epi8(y, zero), _mm256_unpacklo_epi8(u, zero), _mm256_unpacklo_epi8(v, zero));
    sixteen_pixels(high, _mm256_unpackhi_epi8(y, zero), _mm256_unpackhi_epi8(u, zero), _mm256_unpackhi_epi8(v, zero));
    __m256i r = _mm256_shuffle_epi8(_mm256_packus_epi16(low[0], high[0]),
                                    EACH_HALF(0, 11, 6, 1, 12, 7, 2, 13, 8, 3, 14, 9, 4, 15, 10, 5));
    __m256i g = _mm256_shuffle_epi8(_mm256_packus_epi16(low[1], high[1]),
                                    EACH_HALF(5, 0, 11, 6, 1, 12, 7, 2, 13, 8, 3, 14, 9, 4, 15, 10));
    __m256i b = _mm256_shuffle_epi8(_mm256_packus_epi16(low[2], high[2]),
                                    EACH_HALF(10, 5, 0, 11, 6, 1, 12, 7, 2, 13, 8, 3, 14, 9, 4, 15));
    const __m256i second = EACH_HALF(0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0);
    const __m256i third = EACH_HALF(0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0);
    __m256i parts[3] = {_mm256_blendv_epi8(_mm256_blendv_epi8(r, g, second), b, third),
                        _mm256_blendv_epi8(_mm256_blendv_epi8(g, b, second), r, third),
                        _mm256_blendv_epi8(_mm256_blendv_epi8(b, r, second), g, third)};
#pragma GCC unroll 3
    for (int i = 0; i < 3; i++) {
        STORE_16(to + 16 * i, _mm256_castsi256_si128(parts[i]));
        STORE_16(to + 48 + 16 * i, _mm256_extracti128_si256(parts[i], 1));
    }
}

#elif defined(__aarch64__)
/* Computes red, green and blue of one half of 16 pixels, chosen by `high`, from 8-bit luma and chroma. Factors are
 * split to fit 16 bits: 1.402 = 1 + 0.402, 1.772 = 2 - 0.228, 0.71414 = 1 - 0.28586. */
INLINE void eight_pixels(uint8x8_t *rgb, u8 y, u8 cb, u8 cr, const bool high)
{
    const u8 centre = vdupq_n_u8(128);
    uint8x8_t luma = high ? vget_high_u8(y) : vget_low_u8(y);
    s16 u = (s16)(high ? vsubl_high_u8(cb, centre) : vsubl_u8(vget_low_u8(cb), vget_low_u8(centre)));
    s16 v = (s16)(high ? vsubl_high_u8(cr, centre) : vsubl_u8(vget_low_u8(cr), vget_low_u8(centre)));
    s32 first = vmlal_n_s16(vmull_n_s16(vget_low_s16(u), -22554), vget_low_s16(v), 18734);
    s32 second = vmlal_high_n_s16(vmull_high_n_s16(u, -22554), v, 18734);
    s16 red = vaddq_s16(v, vqrdmulhq_n_s16(v, 13173)); /* half of 26345, with equal results for all inputs */
    s16 green = vsubq_s16(vrshrn_high_n_s32(vrshrn_n_s32(first, 16), second, 16), v);
    s16 blue = vaddq_s16(vaddq_s16(u, u), vqrdmulhq_n_s16(u, -14942 / 2));
    rgb[0] = vqmovun_s16((s16)vaddw_u8((u16)red, luma));
    rgb[1] = vqmovun_s16((s16)vaddw_u8((u16)green, luma));
    rgb[2] = vqmovun_s16((s16)vaddw_u8((u16)blue, luma));
}

INLINE void thirty_two_pixels(uint8_t *to, const uint8_t *luma, const uint8_t *cb, const uint8_t *cr)
{
#pragma GCC unroll 2
    for (int at = 0; at < 32; at += 16) {
        u8 y = vld1q_u8(luma + at), u = vld1q_u8(cb + at), v = vld1q_u8(cr + at);
        uint8x8_t low[3], high[3];
        eight_pixels(low, y, u, v, false);
        eight_pixels(high, y, u, v, true);
        uint8x16x3_t rgb = {{vcombine_u8(low[0], high[0]), vcombine_u8(low[1], high[1]), vcombine_u8(low[2], high[2])}};
        vst3q_u8(to + 3 * at, rgb);
    }
}
#endif

#ifdef HAS_VECTORS
/* Reads up to 31 samples after the last, since rows have PADDING; writes none there. */
VECTORS void colours_vector(uint8_t *to, const uint8_t *y, const uint8_t *cb, const uint8_t *cr, int64_t count)
{
    int64_t i = 0;
    for (; i + 32 <= count; i += 32)
        thirty_two_pixels(to + 3 * i, y + i, cb + i, cr + i);
    if (i < count) {
        uint8_t last[96];
        thirty_two_pixels(last, y + i, cb + i, cr + i);
        memcpy(to + 3 * i, last, (size_t)(3 * (count - i)));
    }
}

/* Mirrors five pixels, of 16 bytes, at a time; the first byte is overwritten by the next five. Reads forwards, as
 * processors fetch ahead best. Of gray, sixteen pixels. */
VECTORS void mirror_vector(uint8_t *to, const uint8_t *from, int64_t pixels, int64_t channels)
{
    int64_t i = 0;
    if (channels == 1) {
        const __m128i order = _mm_setr_epi8(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        for (; i + 16 <= pixels; i += 16) {
            __m128i sixteen = LOAD_16(from + i);
            STORE_16(to + pixels - 16 - i, _mm_shuffle_epi8(sixteen, order));
        }
    } else {
        const __m128i order = _mm_setr_epi8(15, 12, 13, 14, 9, 10, 11, 6, 7, 8, 3, 4, 5, 0, 1, 2);
        for (; i + 6 <= pixels; i += 5) {
            __m128i five = LOAD_16(from + 3 * i);
            STORE_16(to + 3 * (pixels - 5 - i) - 1, _mm_shuffle_epi8(five, order));
        }
    }
    mirror_plain(to, from + channels * i, pixels - i, channels);
}
#endif
