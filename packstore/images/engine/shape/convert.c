/* Converts types and layouts. Bytes become floating point by a factor and a summand; each step is rounded in float32,
 * as in torch. */
#include "../simd/arithmetic.h"
#include "shape.h"

enum { LINE = 256 }; /* pixels interleaved at a time */

/* Rounds to float16, to nearest, ties to even. */
static uint16_t to_half(float value)
{
    uint32_t bits, sign;
    memcpy(&bits, &value, 4);
    sign = bits >> 16 & 0x8000;
    bits &= 0x7FFFFFFF;
    if (bits >= 0x47800000) /* 65536 and more, infinity, NaN */
        return (uint16_t)(sign | (bits > 0x7F800000 ? 0x7E00 | (bits >> 13 & 0x1FF) : 0x7C00));
    if (bits < 0x38800000) { /* below 2^-14: adding 0.5 rounds to the last place of a subnormal */
        float magnitude;
        memcpy(&magnitude, &bits, 4);
        magnitude += 0.5f;
        memcpy(&bits, &magnitude, 4);
        return (uint16_t)(sign | (bits - 0x3F000000));
    }
    bits += 0xC8000FFF + (bits >> 13 & 1); /* bias 127 to 15, plus half of the last place */
    return (uint16_t)(sign | bits >> 13);
}

/* Converts float16 to float32; NaN becomes a quiet NaN, as in processors. */
static float from_half(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, bits = (uint32_t)(half & 0x7FFF) << 13;
    float value;
    if (bits >= 0x0F800000) { /* infinity, NaN */
        bits += 0x70000000;
        bits |= bits > 0x7F800000 ? 0x00400000 : 0;
    } else if (bits >= 0x00800000) {
        bits += 0x38000000; /* changes the exponent's bias from 15 to 127 */
    } else {
        value = (float)(half & 0x3FF) * 0x1p-24f;
        memcpy(&bits, &value, 4);
    }
    bits |= sign;
    memcpy(&value, &bits, 4);
    return value;
}

/* Rounds to bfloat16, the upper half of a float32, to nearest, ties to even. */
static uint16_t to_bfloat(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return (uint16_t)(bits > 0x7F800000 && bits << 1 > 0xFF000000 ? 0x7FC0 : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/* Returns element `i` as float32; it may be unaligned. */
float to_float(int kind, const void *from, int64_t i)
{
    const uint8_t *at = (const uint8_t *)from + i * size_of(kind);
    if (kind == UINT8)
        return *at;
    if (kind == FLOAT16)
        return from_half(read_2(at));
    uint32_t bits = kind == FLOAT32 ? read_4(at) : (uint32_t)read_2(at) << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static void from_float(void *to, int kind, int64_t i, float value)
{
    if (kind == FLOAT32)
        ((float *)to)[i] = value;
    else
        ((uint16_t *)to)[i] = kind == FLOAT16 ? to_half(value) : to_bfloat(value);
}

void to_floats_plain(float *to, int kind, const void *from, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = to_float(kind, from, i);
}

void from_floats_plain(void *to, int kind, const float *from, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        from_float(to, kind, i, from[i]);
}

/* Normalises `count` interleaved values. */
void normalize_plain(void *to, int kind, const uint8_t *from, int64_t count, const float *factors)
{
    for (int64_t i = 0; i < count; i++) {
        float scaled = (float)from[i] * factors[i % 3];
        from_float(to, kind, i, scaled + factors[3 + i % 3]);
    }
}

/* Normalises interleaved pixels into planes; copies UINT8 unchanged. */
void split_plain(void *to, int kind, const uint8_t *from, int64_t pixels, const float *factors)
{
    for (int c = 0; c < 3; c++)
        for (int64_t i = 0; i < pixels; i++) {
            float scaled = (float)from[3 * i + c] * factors[c];
            if (kind == UINT8)
                ((uint8_t *)to)[c * pixels + i] = from[3 * i + c];
            else
                from_float(to, kind, c * pixels + i, scaled + factors[3 + c]);
        }
}

#ifdef HAS_VECTORS
VECTORS INLINE void store_eight(void *to, int64_t i, const int kind, __m256 values)
{
    if (kind == FLOAT32) {
        _mm256_storeu_ps((float *)to + i, values);
    } else if (kind == FLOAT16) {
        STORE_16((uint16_t *)to + i, _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
    } else {
        __m256i bits = _mm256_castps_si256(values),
                odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        __m256i no_number = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
        bits = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF))), 16);
        bits = _mm256_blendv_epi8(bits, _mm256_set1_epi32(0x7FC0), no_number);
        bits = _mm256_permute4x64_epi64(_mm256_packus_epi32(bits, bits), 0xD8);
        STORE_16((uint16_t *)to + i, _mm256_castsi256_si128(bits));
    }
}

VECTORS INLINE void to_floats_of(float *to, const int kind, const void *from, int64_t count)
{
    int64_t at = 0;
    for (; at + 8 <= count; at += 8)
        _mm256_storeu_ps(to + at, load_eight(kind, from, at));
    to_floats_plain(to + at, kind, (const uint8_t *)from + at * size_of(kind), count - at);
}

VECTORS void to_floats_vector(float *to, int kind, const void *from, int64_t count)
{
    WITH_TYPES(to_floats_of, to, kind, from, count);
}

VECTORS INLINE void from_floats_of(void *to, const int kind, const float *from, int64_t count)
{
    int64_t at = 0;
    for (; at + 8 <= count; at += 8)
        store_eight(to, at, kind, _mm256_loadu_ps(from + at));
    from_floats_plain((uint8_t *)to + at * size_of(kind), kind, from + at, count - at);
}

VECTORS void from_floats_vector(void *to, int kind, const float *from, int64_t count)
{
    WITH_FLOATS(from_floats_of, to, kind, from, count);
}

/* Normalises 24 values at a time: eight pixels, with factors in three registers. */
VECTORS INLINE void normalize_of(void *to, const int kind, const uint8_t *from, int64_t count, const float *factors)
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
            __m256i bytes = _mm256_cvtepu8_epi32(LOAD_8(from + at + part));
            __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(bytes), _mm256_loadu_ps(scales + part));
            store_eight(to, at + part, kind, _mm256_add_ps(scaled, _mm256_loadu_ps(shifts + part)));
        }
    }
    normalize_plain((uint8_t *)to + at * size_of(kind), kind, from + at, count - at, factors);
}

VECTORS void normalize_vector(void *to, int kind, const uint8_t *from, int64_t count, const float *factors)
{
    WITH_FLOATS(normalize_of, to, kind, from, count, factors);
}

/* Splits 32 pixels at a time into planes, sixteen in each half of a register. The last 32 may overlap those before. */
VECTORS INLINE void split_of(void *to, const int kind, const uint8_t *from, int64_t pixels, const float *factors)
{
    /* In three registers, a channel's bytes have different remainders by 3: none covers another, and one shuffle then
     * puts them in order. */
    static const int8_t orders[3][16] = {{0, 3, 6, 9, 12, 15, 2, 5, 8, 11, 14, 1, 4, 7, 10, 13},
                                         {1, 4, 7, 10, 13, 0, 3, 6, 9, 12, 15, 2, 5, 8, 11, 14},
                                         {2, 5, 8, 11, 14, 1, 4, 7, 10, 13, 0, 3, 6, 9, 12, 15}},
                        remainders[3][16] = {{-1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1},
                                             {0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0},
                                             {0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0}};
    __m256i order[3], remainder[3];
    uint8_t bytes[32];
    for (int c = 0; c < 3; c++) {
        order[c] = _mm256_broadcastsi128_si256(LOAD_16(orders[c]));
        remainder[c] = _mm256_broadcastsi128_si256(LOAD_16(remainders[c]));
    }
    for (int64_t at = 0; at < pixels && pixels >= 32; at += 32) {
        at = at + 32 <= pixels ? at : pixels - 32;
        __m256i part[3];
        for (int i = 0; i < 3; i++) {
            const uint8_t *source = from + 3 * at + 16 * i;
            part[i] = BOTH_HALVES(LOAD_16(source), LOAD_16(source + 48));
        }
#pragma GCC unroll 3
        for (int c = 0; c < 3; c++) {
            __m256i mixed = _mm256_blendv_epi8(part[0], part[1], remainder[(c + 2) % 3]);
            mixed = _mm256_shuffle_epi8(_mm256_blendv_epi8(mixed, part[2], remainder[(c + 1) % 3]), order[c]);
            if (kind == UINT8) {
                STORE_32((uint8_t *)to + c * pixels + at, mixed);
                continue;
            }
            STORE_32(bytes, mixed);
            __m256 scale = _mm256_set1_ps(factors[c]), shift = _mm256_set1_ps(factors[3 + c]);
#pragma GCC unroll 4
            for (int i = 0; i < 32; i += 8) {
                __m256i values = _mm256_cvtepu8_epi32(LOAD_8(bytes + i));
                __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(values), scale);
                store_eight(to, c * pixels + at + i, kind, _mm256_add_ps(scaled, shift));
            }
        }
    }
    if (pixels < 32)
        split_plain(to, kind, from, pixels, factors);
}

VECTORS void split_vector(void *to, int kind, const uint8_t *from, int64_t pixels, const float *factors)
{
    WITH_TYPES(split_of, to, kind, from, pixels, factors);
}
#endif

/* Looks the output of each byte up in the table, for an output type of a given size. */
INLINE void look_up_of(uint8_t *to, const size_t size, const uint8_t *from, int64_t pixels, const int channels,
                       bool planes, const uint8_t *table)
{
    for (int64_t i = 0; i < pixels; i++)
        for (int c = 0; c < channels; c++)
            memcpy(to + size * (size_t)(planes ? c * pixels + i : channels * i + c),
                   table + size * (256 * (size_t)c + from[channels * i + c]), size);
}

static void look_up(void *to, size_t size, const uint8_t *from, int64_t pixels, int64_t channels, bool planes,
                    const void *table)
{
    if (size == 4 && channels == 3)
        look_up_of(to, 4, from, pixels, 3, planes, table);
    else if (size == 4)
        look_up_of(to, 4, from, pixels, 1, true, table);
    else if (channels == 3)
        look_up_of(to, 2, from, pixels, 3, planes, table);
    else
        look_up_of(to, 2, from, pixels, 1, true, table);
}

/* Converts bytes, of one channel or of three interleaved. */
static void convert_pixels(const struct kernels *kernels, const struct task *task, const void *from, void *to,
                           int64_t pixels)
{
    const struct form *form = task->form;
    int64_t channels = task->channels;
    if (form->table)
        look_up(to, (size_t)size_of(form->to), from, pixels, channels, form->planes != 0, form->table);
    else if (form->planes && channels == 3)
        kernels->split(to, (int)form->to, from, pixels, form->factors);
    else if (form->to == UINT8)
        memcpy(to, from, (size_t)(channels * pixels));
    else
        kernels->normalize(to, (int)form->to, from, channels * pixels, form->factors);
}

/* Converts planes of floating point. */
static void convert_planes(const struct kernels *kernels, const struct task *task, const void *from, void *to,
                           int64_t pixels)
{
    const struct form *form = task->form;
    const int kind = task->kind;
    const bool planes = form->planes || task->channels == 1;
    const int64_t values = task->channels * pixels;
    const uint8_t *source = from;
    int64_t from_size = size_of(kind), to_size = size_of(form->to);
    float line[LINE], joined[3 * LINE];
    if (planes && form->to == kind) {
        memcpy(to, from, (size_t)(values * to_size));
        return;
    }
    for (int64_t at = 0; planes && at < values; at += LINE) {
        int64_t count = values - at < LINE ? values - at : LINE;
        kernels->to_floats(line, kind, source + at * from_size, count);
        kernels->from_floats((uint8_t *)to + at * to_size, (int)form->to, line, count);
    }
    for (int64_t at = 0; !planes && at < pixels; at += LINE) {
        int64_t count = pixels - at < LINE ? pixels - at : LINE;
        for (int c = 0; c < 3; c++) {
            kernels->to_floats(line, kind, source + (c * pixels + at) * from_size, count);
            for (int64_t i = 0; i < count; i++)
                joined[3 * i + c] = line[i];
        }
        kernels->from_floats((uint8_t *)to + 3 * at * to_size, (int)form->to, joined, 3 * count);
    }
}

/* Converts an image of the task's type and layout, and of the window's size, to the requested type and layout. */
void convert_image(const struct kernels *kernels, const struct task *task, const void *from)
{
    const struct request *request = task->request;
    int64_t pixels = request->window.height * request->window.width;
    (task->kind == UINT8 ? convert_pixels : convert_planes)(kernels, task, from, request->to, pixels);
}
