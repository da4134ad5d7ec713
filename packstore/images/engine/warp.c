/* Affine maps and perspective: as torchvision's _apply_grid_transform() and torch's grid_sample(). */
#include "augment.h"

#include <string.h>

/* ---- loops ---- */

/* Where pixels of a row lie, in pixels of the source. */
INLINE void locate_of(float *restrict x, float *restrict y, uint8_t *restrict outside, const struct map *map,
                      int64_t row, int64_t height, int64_t width)
{
    const float *m = map->m;
    float half_width = (float)width * 0.5f, half_height = (float)height * 0.5f;
    if (map->perspective) {
        float down = (float)row + 0.5f;
        for (int64_t i = 0; i < width; i++) {
            float across = (float)(int32_t)i + 0.5f, below = across * m[6] + down * m[7] + 1;
            x[i] = (across * m[0] + down * m[1] + m[2]) / below - 1;
            y[i] = (across * m[3] + down * m[4] + m[5]) / below - 1;
        }
    } else {
        float down = (float)row - (float)(height - 1) * 0.5f, left = (float)(width - 1) * 0.5f;
        for (int64_t i = 0; i < width; i++) {
            float across = (float)(int32_t)i - left;
            x[i] = across * m[0] + down * m[1] + m[2];
            y[i] = across * m[3] + down * m[4] + m[5];
        }
    }
    for (int64_t i = 0; i < width; i++) {
        float to_x = x[i], to_y = y[i];
        outside[i] = !((to_x >= -1) & (to_x <= 1) & (to_y >= -1) & (to_y <= 1));
        x[i] = (to_x + 1) * half_width - 0.5f;
        y[i] = (to_y + 1) * half_height - 0.5f;
    }
}

INLINE bool is_in(float value, int64_t length)
{
    return value > -1 && value < (float)length;
}

INLINE float at_most(float value, int64_t last)
{
    value = value > 0 ? value : 0;
    return value < (float)last ? value : (float)last;
}

/* A channel of the sum of four neighbours, as grid_sample() adds them. */
INLINE float sum_four(const float *values, const float *weights)
{
    return ((values[0] * weights[0] + values[1] * weights[1]) + values[2] * weights[2]) + values[3] * weights[3];
}

/* One pixel whose neighbours may lie outside. */
static void bilinear_at_edge(uint8_t *to, const struct taps_of_warp *taps, float x, float y)
{
    if (taps->way == FILL_EDGE) {
        x = at_most(x, taps->width - 1);
        y = at_most(y, taps->height - 1);
    }
    if (!is_in(x, taps->width) || !is_in(y, taps->height)) {
        for (int c = 0; c < 3; c++)
            to[c] = taps->way == FILL_BLEND ? (uint8_t)taps->fill[c] : 0;
        return;
    }
    int64_t left = (int64_t)(x + 1) - 1, top = (int64_t)(y + 1) - 1;
    float right_part = x - (float)left, lower_part = y - (float)top, left_part = 1 - right_part,
          upper_part = 1 - lower_part;
    float weights[4] = {upper_part * left_part, upper_part * right_part, lower_part * left_part,
                        lower_part * right_part};
    float ones[4];
    for (int n = 0; n < 4; n++) {
        int64_t column = left + n % 2, row = top + n / 2;
        ones[n] = column >= 0 && column < taps->width && row >= 0 && row < taps->height;
    }
    float share = sum_four(ones, weights);
    for (int c = 0; c < 3; c++) {
        float values[4];
        for (int n = 0; n < 4; n++)
            values[n] = ones[n] != 0 ? (float)taps->at[3 * ((top + n / 2) * taps->width + left + n % 2) + c] : 0;
        float sum = sum_four(values, weights);
        if (taps->way == FILL_BLEND)
            sum = (sum - taps->fill[c]) * share + taps->fill[c];
        to[c] = to_byte(round_even(sum));
    }
}

INLINE bool is_inner(const struct taps_of_warp *taps, float x, float y)
{
    return x >= 0 && y >= 0 && x < (float)(taps->width - 1) && y < (float)(taps->height - 1);
}

static void show_fill(uint8_t *to, const struct taps_of_warp *taps)
{
    for (int c = 0; c < 3; c++)
        to[c] = (uint8_t)taps->fill[c];
}

/* `count` pixels of a row. */
void bilinear_plain(uint8_t *to, const struct taps_of_warp *taps, int64_t count)
{
    for (int64_t i = 0; i < count; i++, to += 3) {
        if (taps->way == FILL_EDGE && taps->outside[i])
            show_fill(to, taps);
        else
            bilinear_at_edge(to, taps, taps->x[i], taps->y[i]);
    }
}

void locate_plain(float *x, float *y, uint8_t *outside, const struct map *map, int64_t row, int64_t height,
                  int64_t width)
{
    locate_of(x, y, outside, map, row, height, width);
}

#ifdef HAS_AVX2
#include <immintrin.h>

AVX2_FMA void locate_avx2(float *x, float *y, uint8_t *outside, const struct map *map, int64_t row, int64_t height,
                          int64_t width)
{
    locate_of(x, y, outside, map, row, height, width);
}

AVX2_FMA INLINE __m128 pixel_at(const uint8_t *at)
{
    int32_t bytes;
    memcpy(&bytes, at, 4);
    return _mm_cvtepi32_ps(_mm_cvtepu8_epi32(_mm_cvtsi32_si128(bytes)));
}

AVX2_FMA void bilinear_avx2(uint8_t *to, const struct taps_of_warp *taps, int64_t count)
{
    const __m128i dense = _mm_setr_epi8(0, 4, 8, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m128 fill = _mm_setr_ps(taps->fill[0], taps->fill[1], taps->fill[2], 0);
    for (int64_t i = 0; i < count; i++, to += 3) {
        float x = taps->x[i], y = taps->y[i];
        if (!is_inner(taps, x, y)) {
            if (taps->way == FILL_EDGE && taps->outside[i])
                show_fill(to, taps);
            else
                bilinear_at_edge(to, taps, x, y);
            continue;
        }
        int64_t left = (int32_t)x, top = (int32_t)y;
        float right_part = x - (float)(int32_t)left, lower_part = y - (float)(int32_t)top, left_part = 1 - right_part,
              upper_part = 1 - lower_part;
        float w0 = upper_part * left_part, w1 = upper_part * right_part, w2 = lower_part * left_part,
              w3 = lower_part * right_part;
        const uint8_t *upper = taps->at + 3 * (top * taps->width + left), *lower = upper + 3 * taps->width;
        __m128 sum = _mm_mul_ps(pixel_at(upper), _mm_set1_ps(w0));
        sum = _mm_add_ps(sum, _mm_mul_ps(pixel_at(upper + 3), _mm_set1_ps(w1)));
        sum = _mm_add_ps(sum, _mm_mul_ps(pixel_at(lower), _mm_set1_ps(w2)));
        sum = _mm_add_ps(sum, _mm_mul_ps(pixel_at(lower + 3), _mm_set1_ps(w3)));
        if (taps->way == FILL_BLEND) {
            float share = ((w0 + w1) + w2) + w3;
            sum = _mm_add_ps(_mm_mul_ps(_mm_sub_ps(sum, fill), _mm_set1_ps(share)), fill);
        }
        __m128i rounded = _mm_shuffle_epi8(_mm_cvtps_epi32(sum), dense); /* weights make less than 255.5 */
        int32_t bytes = _mm_cvtsi128_si32(rounded);
        memcpy(to, &bytes, 3);
    }
}
#endif

/* ---- other interpolations ---- */

static void nearest(uint8_t *to, const struct taps_of_warp *taps, int64_t count)
{
    const uint8_t fill[3] = {taps->way == FILL_ZEROS ? 0 : (uint8_t)taps->fill[0],
                             taps->way == FILL_ZEROS ? 0 : (uint8_t)taps->fill[1],
                             taps->way == FILL_ZEROS ? 0 : (uint8_t)taps->fill[2]};
    for (int64_t i = 0; i < count; i++, to += 3) {
        float x = taps->x[i], y = taps->y[i];
        if (taps->way == FILL_EDGE) {
            x = at_most(x, taps->width - 1);
            y = at_most(y, taps->height - 1);
        }
        bool shown = is_in(x, taps->width) && is_in(y, taps->height) && !(taps->way == FILL_EDGE && taps->outside[i]);
        int32_t column = shown ? (int32_t)round_even(x) : -1, row = shown ? (int32_t)round_even(y) : -1;
        shown = column >= 0 && row >= 0 && column < taps->width && row < taps->height;
        const uint8_t *from = shown ? taps->at + 3 * (row * taps->width + column) : fill;
        to[0] = from[0], to[1] = from[1], to[2] = from[2];
    }
}

/* Weights of four pixels, as get_cubic_upsample_coefficients() with A = -0.75. */
static void cubic_weights(float *weights, float part)
{
    const float a = -0.75f;
    for (int n = 0; n < 4; n++) {
        float d = n == 0 ? part + 1 : n == 1 ? part : n == 2 ? 1 - part : 2 - part;
        weights[n] = n == 1 || n == 2 ? ((a + 2) * d - (a + 3)) * d * d + 1
                                      : ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
    }
}

static void bicubic(uint8_t *to, const struct taps_of_warp *taps, int64_t count)
{
    for (int64_t i = 0; i < count; i++, to += 3) {
        float x = taps->x[i], y = taps->y[i], sums[4] = {0}, across[4], down[4];
        bool beyond = !(x > -3 && x < (float)taps->width + 3 && y > -3 && y < (float)taps->height + 3);
        if (beyond || (taps->way == FILL_EDGE && taps->outside[i])) {
            for (int c = 0; c < 3; c++)
                to[c] = taps->way == FILL_ZEROS ? 0 : (uint8_t)taps->fill[c];
            continue;
        }
        int64_t left = (int64_t)(x + 3) - 3, top = (int64_t)(y + 3) - 3;
        cubic_weights(across, x - (float)left);
        cubic_weights(down, y - (float)top);
        for (int n = 0; n < 4; n++) {
            float line[4] = {0};
            int64_t row = top - 1 + n;
            bool edge = taps->way == FILL_EDGE;
            if (edge)
                row = row < 0 ? 0 : row >= taps->height ? taps->height - 1 : row;
            for (int k = 0; k < 4; k++) {
                int64_t column = left - 1 + k;
                if (edge)
                    column = column < 0 ? 0 : column >= taps->width ? taps->width - 1 : column;
                if (row < 0 || row >= taps->height || column < 0 || column >= taps->width)
                    continue;
                const uint8_t *from = taps->at + 3 * (row * taps->width + column);
                for (int c = 0; c < 3; c++)
                    line[c] += (float)from[c] * across[k];
                line[3] += across[k];
            }
            for (int c = 0; c < 4; c++)
                sums[c] += line[c] * down[n];
        }
        for (int c = 0; c < 3; c++) {
            float sum = taps->way == FILL_BLEND ? (sums[c] - taps->fill[c]) * sums[3] + taps->fill[c] : sums[c];
            to[c] = to_byte(round_even(sum));
        }
    }
}

/* ---- the pass ---- */

int warp(struct decoder *decoder, const struct image *image, const struct step *step)
{
    const struct augment_kernels *kernels = decoder->kernels->augment;
    int64_t size = 3 * image->height * image->width, width = image->width;
    if (make_room(&decoder->copied, (size_t)size + PADDING) != DONE ||
        make_room(&decoder->floats, (size_t)(2 * width) * sizeof(float) + (size_t)width) != DONE)
        return REFUSED;
    memcpy(decoder->copied.at, image->at, (size_t)size);
    float *x = decoder->floats.at, *y = x + width;
    uint8_t *outside = (uint8_t *)(y + width);
    struct map map = {.perspective = step->code == STEP_PERSPECTIVE};
    for (int i = 0; i < 8; i++)
        map.m[i] = i < 3   ? step->p[i] / ((float)width * 0.5f)
                   : i < 6 ? step->p[i] / ((float)image->height * 0.5f)
                           : step->p[i];
    uint32_t colour = (uint32_t)step->flags >> 8;
    struct taps_of_warp taps = {.at = decoder->copied.at,
                                .height = image->height,
                                .width = width,
                                .x = x,
                                .y = y,
                                .outside = outside,
                                .way = step->flags >> 2 & 3,
                                .fill = {(float)(colour & 255), (float)(colour >> 8 & 255), (float)(colour >> 16)}};
    for (int64_t row = 0; row < image->height; row++) {
        uint8_t *to = image->at + 3 * row * width;
        kernels->locate(x, y, outside, &map, row, image->height, width);
        if ((step->flags & 3) == NEAREST)
            nearest(to, &taps, width);
        else if ((step->flags & 3) == BILINEAR)
            kernels->bilinear(to, &taps, width);
        else
            bicubic(to, &taps, width);
    }
    return DONE;
}
