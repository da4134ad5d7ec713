/* Vector instructions. Each loop is written once, with the intrinsics of AVX2. For ARM this file implements these
 * intrinsics with NEON, which every 64-bit ARM has: two registers of 128 bits for one of 256. The results are equal bit
 * for bit, provided that masks are all ones or all zeros, and that floating point fits the type to which it is
 * converted. */
#pragma once

#include "../core/base.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>

typedef int64x2_t __m128i;
typedef float32x4_t __m128;
typedef float64x2_t __m128d;
typedef struct {
    __m128i low, high;
} __m256i;
typedef struct {
    __m128 low, high;
} __m256;

typedef int8x16_t s8;
typedef uint8x16_t u8;
typedef int16x8_t s16;
typedef uint16x8_t u16;
typedef int32x4_t s32;
typedef uint32x4_t u32;
typedef float32x4_t f32;

enum { _CMP_EQ_OQ, _CMP_LT_OQ, _CMP_GE_OQ, _CMP_UNORD_Q };
enum { _MM_FROUND_TO_NEAREST_INT, _MM_FROUND_TO_ZERO = 3, _MM_FROUND_NO_EXC = 8 };

/* ---- 128 bits ---- */

#define LOAD(name, type, vld)                                                                                          \
    INLINE type name(const void *at)                                                                                   \
    {                                                                                                                  \
        return (type)vld(at);                                                                                          \
    }
#define STORE(name, type, vst, as)                                                                                     \
    INLINE void name(void *at, type a)                                                                                 \
    {                                                                                                                  \
        vst(at, as a);                                                                                                 \
    }
LOAD(_mm_loadu_si128, __m128i, vld1q_u8)
LOAD(_mm_loadu_ps, __m128, vld1q_f32)
LOAD(_mm_broadcast_ss, __m128, vld1q_dup_f32)
STORE(_mm_storeu_si128, __m128i, vst1q_u8, (u8))
STORE(_mm_storeu_ps, __m128, vst1q_f32, )

INLINE __m128i _mm_loadl_epi64(const __m128i *at)
{
    return (__m128i)vcombine_u8(vld1_u8((const uint8_t *)at), vdup_n_u8(0));
}

INLINE __m128i _mm_cvtsi32_si128(int32_t value)
{
    return (__m128i)(s32){value, 0, 0, 0};
}

INLINE int32_t _mm_cvtsi128_si32(__m128i a)
{
    return ((s32)a)[0];
}

#define _mm_setr_epi8(...) ((__m128i)(s8){__VA_ARGS__})
#define _mm_setr_ps(...) ((__m128){__VA_ARGS__})
#define _mm_setzero_ps() vdupq_n_f32(0)
#define _mm_or_si128(a, b) ((a) | (b))
#define _mm_xor_si128(a, b) ((a) ^ (b))
#define _mm_add_ps(a, b) ((a) + (b))
#define _mm_mul_ps(a, b) ((a) * (b))
#define _mm_insert_epi32(a, value, n) ((__m128i)vsetq_lane_s32(value, (s32)(a), n))

/* A negative index gives zero; else its four lowest bits count. */
INLINE __m128i _mm_shuffle_epi8(__m128i a, __m128i places)
{
    return (__m128i)vqtbl1q_u8((u8)a, (u8)places & 0x8F);
}

/* ---- 256 bits: what is done with both halves ---- */

/* A function of `a`, and maybe of `b`, by an expression of their halves. */
#define HALVES_1(to, name, from, expression)                                                                           \
    INLINE __typeof__(((to *)0)->low) name##_half(__typeof__(((from *)0)->low) a)                                      \
    {                                                                                                                  \
        return (__typeof__(((to *)0)->low))(expression);                                                               \
    }                                                                                                                  \
    INLINE to name(from a)                                                                                             \
    {                                                                                                                  \
        return (to){name##_half(a.low), name##_half(a.high)};                                                          \
    }
#define HALVES_2(to, name, expression)                                                                                 \
    INLINE __typeof__(((to *)0)->low) name##_half(__typeof__(((to *)0)->low) a, __typeof__(((to *)0)->low) b)          \
    {                                                                                                                  \
        return (__typeof__(((to *)0)->low))(expression);                                                               \
    }                                                                                                                  \
    INLINE to name(to a, to b)                                                                                         \
    {                                                                                                                  \
        return (to){name##_half(a.low, b.low), name##_half(a.high, b.high)};                                           \
    }
#define SHIFT(name, type, operator)                                                                                    \
    INLINE __m256i name(__m256i a, int bits)                                                                           \
    {                                                                                                                  \
        return (__m256i){(__m128i)((type)a.low operator bits), (__m128i)((type)a.high operator bits)};                 \
    }
#define SET(name, type, value_type, vdup)                                                                              \
    INLINE type name(value_type value)                                                                                 \
    {                                                                                                                  \
        return (type){(__typeof__(((type *)0)->low))vdup(value), (__typeof__(((type *)0)->low))vdup(value)};           \
    }
SET(_mm256_set1_epi8, __m256i, char, vdupq_n_u8)
SET(_mm256_set1_epi16, __m256i, short, vdupq_n_s16)
SET(_mm256_set1_epi32, __m256i, int, vdupq_n_s32)
SET(_mm256_set1_ps, __m256, float, vdupq_n_f32)
#define _mm256_setzero_si256() _mm256_set1_epi32(0)
#define _mm256_setzero_ps() _mm256_set1_ps(0)
#define _mm256_setr_ps(a, b, c, d, e, f, g, h) ((__m256){{a, b, c, d}, {e, f, g, h}})
#define _mm256_setr_epi32(a, b, c, d, e, f, g, h) ((__m256i){(__m128i)(s32){a, b, c, d}, (__m128i)(s32){e, f, g, h}})

INLINE u16 mulhi_unsigned_half(__m128i a, __m128i b)
{
    u32 low = vmull_u16(vget_low_u16((u16)a), vget_low_u16((u16)b)), high = vmull_high_u16((u16)a, (u16)b);
    return vuzp2q_u16((u16)low, (u16)high);
}

HALVES_2(__m256i, _mm256_and_si256, a &b)
HALVES_2(__m256i, _mm256_or_si256, a | b)
HALVES_2(__m256i, _mm256_xor_si256, a ^ b)
HALVES_2(__m256i, _mm256_andnot_si256, ~a &b)
HALVES_2(__m256i, _mm256_add_epi16, (u16)a + (u16)b)
HALVES_2(__m256i, _mm256_add_epi32, (u32)a + (u32)b)
HALVES_2(__m256i, _mm256_sub_epi16, (u16)a - (u16)b)
HALVES_2(__m256i, _mm256_mullo_epi16, (u16)a *(u16)b)
HALVES_2(__m256i, _mm256_mulhi_epu16, mulhi_unsigned_half(a, b))
HALVES_2(__m256i, _mm256_subs_epi8, vqsubq_s8((s8)a, (s8)b))
HALVES_2(__m256i, _mm256_min_epi32, vminq_s32((s32)a, (s32)b))
HALVES_2(__m256i, _mm256_max_epi32, vmaxq_s32((s32)a, (s32)b))
HALVES_2(__m256i, _mm256_packs_epi32, vqmovn_high_s32(vqmovn_s32((s32)a), (s32)b))
HALVES_2(__m256i, _mm256_packus_epi32, vqmovun_high_s32(vqmovun_s32((s32)a), (s32)b))
HALVES_2(__m256i, _mm256_packus_epi16, vqmovun_high_s16(vqmovun_s16((s16)a), (s16)b))
HALVES_2(__m256i, _mm256_shuffle_epi8, _mm_shuffle_epi8(a, b))
HALVES_2(__m256, _mm256_add_ps, a + b)
HALVES_2(__m256, _mm256_sub_ps, a - b)
HALVES_2(__m256, _mm256_mul_ps, a *b)
/* Of NaN and a number, returns the number. */
HALVES_2(__m256, _mm256_min_ps, vminnmq_f32(a, b))
HALVES_2(__m256, _mm256_max_ps, vmaxnmq_f32(a, b))
HALVES_2(__m256, _mm256_and_ps, (u32)a &(u32)b)
SHIFT(_mm256_slli_epi16, u16, <<)
SHIFT(_mm256_slli_epi32, u32, <<)
SHIFT(_mm256_srli_epi16, u16, >>)
SHIFT(_mm256_srli_epi32, u32, >>)
#define _mm256_srl_epi16(a, bits) _mm256_srli_epi16(a, (uint16_t)_mm_cvtsi128_si32(bits))
HALVES_1(__m256, _mm256_castsi256_ps, __m256i, a)
HALVES_1(__m256i, _mm256_castps_si256, __m256, a)
HALVES_1(__m256, _mm256_cvtepi32_ps, __m256i, vcvtq_f32_s32((s32)a))
HALVES_1(__m256i, _mm256_cvttps_epi32, __m256, vcvtq_s32_f32(a))
HALVES_1(__m256i, _mm256_cvtps_epi32, __m256, vcvtnq_s32_f32(a))
#define _mm256_round_ps(a, how) ((__m256){vrndq_f32((a).low), vrndq_f32((a).high)}) /* rounds towards zero only */

INLINE __m256 _mm256_fmadd_ps(__m256 a, __m256 b, __m256 c)
{
    return (__m256){vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)};
}

INLINE __m256i _mm256_blendv_epi8(__m256i a, __m256i b, __m256i chosen)
{
    return (__m256i){(__m128i)vbslq_u8((u8)chosen.low, (u8)b.low, (u8)a.low),
                     (__m128i)vbslq_u8((u8)chosen.high, (u8)b.high, (u8)a.high)};
}

INLINE __m256 _mm256_blendv_ps(__m256 a, __m256 b, __m256 chosen)
{
    return (__m256){vbslq_f32((u32)chosen.low, b.low, a.low), vbslq_f32((u32)chosen.high, b.high, a.high)};
}

INLINE __m128 compare_half(__m128 a, __m128 b, const int how)
{
    return (__m128)(how == _CMP_EQ_OQ   ? vceqq_f32(a, b)
                    : how == _CMP_LT_OQ ? vcltq_f32(a, b)
                    : how == _CMP_GE_OQ ? vcgeq_f32(a, b)
                                        : ~(vceqq_f32(a, a) & vceqq_f32(b, b)));
}

INLINE __m256 _mm256_cmp_ps(__m256 a, __m256 b, const int how)
{
    return (__m256){compare_half(a.low, b.low, how), compare_half(a.high, b.high, how)};
}

#define _MM_TRANSPOSE4_PS(a, b, c, d)                                                                                  \
    do {                                                                                                               \
        f32 ab = vtrn1q_f32(a, b), ba = vtrn2q_f32(a, b), cd = vtrn1q_f32(c, d), dc = vtrn2q_f32(c, d);                \
        a = (f32)vzip1q_f64((__m128d)ab, (__m128d)cd), b = (f32)vzip1q_f64((__m128d)ba, (__m128d)dc);                  \
        c = (f32)vzip2q_f64((__m128d)ab, (__m128d)cd), d = (f32)vzip2q_f64((__m128d)ba, (__m128d)dc);                  \
    } while (0)

INLINE int _mm256_movemask_ps(__m256 a)
{
    u32 low = (u32)a.low & (u32){1, 2, 4, 8}, high = (u32)a.high & (u32){16, 32, 64, 128};
    return (int)vaddvq_u32(low | high);
}

/* ---- 256 bits: halves, and what goes from one to the other ---- */

INLINE __m256i _mm256_loadu_si256(const __m256i *at)
{
    return (__m256i){_mm_loadu_si128(at), _mm_loadu_si128((const uint8_t *)at + 16)};
}

INLINE __m256 _mm256_loadu_ps(const float *at)
{
    return (__m256){vld1q_f32(at), vld1q_f32(at + 4)};
}

INLINE void _mm256_storeu_si256(__m256i *to, __m256i a)
{
    _mm_storeu_si128(to, a.low);
    _mm_storeu_si128((uint8_t *)to + 16, a.high);
}

INLINE void _mm256_storeu_ps(float *to, __m256 a)
{
    vst1q_f32(to, a.low);
    vst1q_f32(to + 4, a.high);
}

#define _mm256_castsi256_si128(a) ((a).low)
#define _mm256_castsi128_si256(a) ((__m256i){(a), (a)})
#define _mm256_castps128_ps256(a) ((__m256){(a), (a)})
#define _mm256_broadcastsi128_si256(a) _mm256_castsi128_si256(a)
#define _mm256_extracti128_si256(a, n) ((n) ? (a).high : (a).low)
#define _mm256_inserti128_si256(a, half, n) ((n) ? (__m256i){(a).low, (half)} : (__m256i){(half), (a).high})

INLINE __m256 _mm256_insertf128_ps(__m256 a, __m128 half, const int n)
{
    return n ? (__m256){a.low, half} : (__m256){half, a.high};
}

INLINE int64_t quarter_of(__m256i a, const int n)
{
    return n < 2 ? a.low[n & 1] : a.high[n & 1];
}

INLINE __m256i _mm256_permute4x64_epi64(__m256i a, const int quarters)
{
    return (__m256i){{quarter_of(a, quarters & 3), quarter_of(a, quarters >> 2 & 3)},
                     {quarter_of(a, quarters >> 4 & 3), quarter_of(a, quarters >> 6 & 3)}};
}

INLINE __m256i _mm256_permutevar8x32_epi32(__m256i a, __m256i places)
{
    uint8x16x2_t table = {{(u8)a.low, (u8)a.high}};
    u8 low = (u8)((u32)places.low * 0x04040404 + 0x03020100), high = (u8)((u32)places.high * 0x04040404 + 0x03020100);
    return (__m256i){(__m128i)vqtbl2q_u8(table, low), (__m128i)vqtbl2q_u8(table, high)};
}

/* ---- 128 bits to 256, and back ---- */

#define WIDEN(to, name, low_half, high_half)                                                                           \
    INLINE to name(__m128i a)                                                                                          \
    {                                                                                                                  \
        return (to){(__typeof__(((to *)0)->low))(low_half), (__typeof__(((to *)0)->low))(high_half)};                  \
    }
WIDEN(__m256i, _mm256_cvtepu8_epi16, vmovl_u8(vget_low_u8((u8)a)), vmovl_high_u8((u8)a))
WIDEN(__m256i, _mm256_cvtepu16_epi32, vmovl_u16(vget_low_u16((u16)a)), vmovl_high_u16((u16)a))
WIDEN(__m256i, _mm256_cvtepi16_epi32, vmovl_s16(vget_low_s16((s16)a)), vmovl_high_s16((s16)a))
WIDEN(__m256, _mm256_cvtph_ps, vcvt_f32_f16(vget_low_f16((float16x8_t)a)), vcvt_high_f32_f16((float16x8_t)a))
#define _mm256_cvtepu8_epi32(a) _mm256_cvtepu16_epi32((__m128i)vmovl_u8(vget_low_u8((u8)(a))))
#define _mm256_cvtps_ph(a, how) ((__m128i)vcvt_high_f16_f32(vcvt_f16_f32((a).low), (a).high)) /* rounds to nearest */
#endif

/* Shorter names: of numbers in memory, which may be unaligned, and of the halves of a register. */
#define LOAD_8(at) _mm_loadl_epi64((const __m128i *)(at))
#define LOAD_16(at) _mm_loadu_si128((const __m128i *)(at))
#define LOAD_32(at) _mm256_loadu_si256((const __m256i *)(at))
#define STORE_16(at, a) _mm_storeu_si128((__m128i *)(at), a)
#define STORE_32(at, a) _mm256_storeu_si256((__m256i *)(at), a)
#define EACH_HALF(...) _mm256_broadcastsi128_si256(_mm_setr_epi8(__VA_ARGS__))
#define BOTH_HALVES(low, high) _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1)
