/* Affine maps and perspective, as in torchvision's _apply_grid_transform() and torch's grid_sample(). */
#include "../simd/arithmetic.h"
#include "program.h"

/* Map from pixels of a result row to positions in the source: a matrix or a perspective. */
struct map {
    float m[8]; /* scaled so that the image reaches from -1 to 1 */
    bool perspective;
};

/* ---- loops ---- */

/* Computes the positions of a row's pixels, in pixels of the source. */
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
BOTH_LOOPS(void, locate,
           (float *x, float *y, uint8_t *outside, const struct map *map, int64_t row, int64_t height, int64_t width),
           locate_of(x, y, outside, map, row, height, width))

INLINE bool is_in(float value, int64_t length)
{
    return value > -1 && value < (float)length;
}

INLINE float at_most(float value, int64_t last)
{
    value = value > 0 ? value : 0;
    return value < (float)last ? value : (float)last;
}

/* Sums one channel of four neighbours, in the order of grid_sample(). */
INLINE float sum_four(const float *values, const float *weights)
{
    return ((values[0] * weights[0] + values[1] * weights[1]) + values[2] * weights[2]) + values[3] * weights[3];
}

/* Interpolates one pixel, whose neighbours may be outside. */
INLINE void bilinear_pixel(uint8_t *to, const struct taps_of_warp *taps, float x, float y)
{
    if (taps->way == FILL_EDGE) {
        x = at_most(x, taps->width - 1);
        y = at_most(y, taps->height - 1);
    }
    if (!is_in(x, taps->width) || !is_in(y, taps->height)) {
        show_fill(to, taps);
        return;
    }
    int64_t left = floor_of(x), top = floor_of(y);
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

/* ---- other interpolations ---- */

/* For nearest: computes the index of each pixel in the source. `fill`: index of the fill's pixel, after the source. */
INLINE void places_of(uint32_t *restrict places, const struct taps_of_warp *taps, uint32_t fill, int64_t count)
{
    const float *restrict x = taps->x, *restrict y = taps->y;
    const uint8_t *restrict outside = taps->outside;
    float width = (float)taps->width, height = (float)taps->height;
    int32_t last_column = (int32_t)taps->width - 1, last_row = (int32_t)taps->height - 1;
    bool edge = taps->way == FILL_EDGE;
    for (int64_t i = 0; i < count; i++) {
        /* Clip first: converting numbers that do not fit is undefined. */
        float to_x = x[i] > -1 ? x[i] : -1, to_y = y[i] > -1 ? y[i] : -1;
        to_x = to_x < width ? to_x : width;
        to_y = to_y < height ? to_y : height;
        int32_t column = (int32_t)round_even(to_x), row = (int32_t)round_even(to_y);
        bool inside = (column >= 0) & (row >= 0) & (column <= last_column) & (row <= last_row);
        int32_t nearest_column = column < 0 ? 0 : column > last_column ? last_column : column;
        int32_t nearest_row = row < 0 ? 0 : row > last_row ? last_row : row;
        bool shown = edge ? !outside[i] : inside;
        uint32_t place = (uint32_t)nearest_row * (uint32_t)taps->width + (uint32_t)nearest_column;
        places[i] = shown ? place : fill;
    }
}
BOTH_LOOPS(void, places, (uint32_t *places, const struct taps_of_warp *taps, uint32_t fill, int64_t count),
           places_of(places, taps, fill, count))

/* Writes the pixels of a row, whose indices in the source are known. */
void show_places(uint8_t *to, const uint8_t *source, const uint32_t *places, int64_t count)
{
    for (int64_t i = 0; i < count - 1; i++) /* and a byte that the next pixel overwrites */
        memcpy(to + 3 * i, source + 3 * (int64_t)places[i], 4);
    memcpy(to + 3 * (count - 1), source + 3 * (int64_t)places[count - 1], 3);
}

INLINE void bicubic_pixel(uint8_t *to, const struct taps_of_warp *taps, float x, float y)
{
    float sums[4] = {0}, across[4], down[4];
    bool edge = taps->way == FILL_EDGE;
    if (!(x > -3 && x < (float)taps->width + 3 && y > -3 && y < (float)taps->height + 3)) {
        show_fill(to, taps);
        return;
    }
    int64_t left = floor_of(x), top = floor_of(y);
    cubic_weights(across, x - (float)left);
    cubic_weights(down, y - (float)top);
    for (int n = 0; n < 4; n++) {
        float line[4] = {0};
        int64_t row = top - 1 + n;
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

/* Interpolates pixels `first` to `stop - 1` of a row. Never inlined into vector code, which would then run other
 * instructions while the upper halves of its registers are in use: three times as slow. */
NOT_INLINE static void interpolate_from(uint8_t *to, const struct taps_of_warp *taps, bool bicubic, int64_t first,
                                        int64_t stop)
{
    for (int64_t i = first; i < stop; i++) {
        if (taps->way == FILL_EDGE && taps->outside[i])
            show_fill(to + 3 * i, taps);
        else if (bicubic)
            bicubic_pixel(to + 3 * i, taps, taps->x[i], taps->y[i]);
        else
            bilinear_pixel(to + 3 * i, taps, taps->x[i], taps->y[i]);
    }
}

PLAIN_LOOP(void, interpolate, (uint8_t *to, const struct taps_of_warp *taps, bool bicubic, int64_t count),
           interpolate_from(to, taps, bicubic, 0, count))

#ifdef HAS_VECTORS
/* Loads the same neighbour of two pixels. */
VECTORS INLINE __m256 two_pixels(const uint8_t *a, const uint8_t *b)
{
    __m128i both = _mm_insert_epi32(_mm_cvtsi32_si128((int)read_4(a)), (int)read_4(b), 1);
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(both));
}

VECTORS INLINE __m256 two_weights(const float *a, const float *b)
{
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_broadcast_ss(a)), _mm_broadcast_ss(b), 1);
}

/* The fill as two pixels. */
VECTORS INLINE __m256 two_fills(const float *fill)
{
    return _mm256_setr_ps(fill[0], fill[1], fill[2], 0, fill[0], fill[1], fill[2], 0);
}

/* Writes two pixels, blended with the fill if the source has only a part of `share`; `clips` values to bytes. */
VECTORS INLINE void show_two(uint8_t *to, __m256 sum, bool blends, __m256 share, __m256 fill, const bool clips)
{
    const __m256i dense = EACH_HALF(0, 4, 8, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    if (blends)
        sum = _mm256_add_ps(_mm256_mul_ps(_mm256_sub_ps(sum, fill), share), fill);
    __m256i whole = _mm256_cvtps_epi32(sum);
    if (clips)
        whole = _mm256_min_epi32(_mm256_max_epi32(whole, _mm256_setzero_si256()), _mm256_set1_epi32(255));
    whole = _mm256_shuffle_epi8(whole, dense);
    int32_t first = _mm_cvtsi128_si32(_mm256_castsi256_si128(whole));
    int32_t second = _mm_cvtsi128_si32(_mm256_extracti128_si256(whole, 1));
    memcpy(to, &first, 4);
    memcpy(to + 3, &second, 3);
}

/* Interpolates eight pixels whose neighbours are all inside the source. */
VECTORS INLINE void eight_bilinear(uint8_t *to, const struct taps_of_warp *taps, __m256 x, __m256 y)
{
    const __m256 one = _mm256_set1_ps(1), fill = two_fills(taps->fill);
    float weights[5][8];
    int32_t columns[8], rows[8];
    __m256i left = _mm256_cvttps_epi32(x), top = _mm256_cvttps_epi32(y);
    __m256 right_part = _mm256_sub_ps(x, _mm256_cvtepi32_ps(left)), left_part = _mm256_sub_ps(one, right_part);
    __m256 lower_part = _mm256_sub_ps(y, _mm256_cvtepi32_ps(top)), upper_part = _mm256_sub_ps(one, lower_part);
    __m256 w0 = _mm256_mul_ps(upper_part, left_part), w1 = _mm256_mul_ps(upper_part, right_part),
           w2 = _mm256_mul_ps(lower_part, left_part), w3 = _mm256_mul_ps(lower_part, right_part);
    _mm256_storeu_ps(weights[0], w0);
    _mm256_storeu_ps(weights[1], w1);
    _mm256_storeu_ps(weights[2], w2);
    _mm256_storeu_ps(weights[3], w3);
    _mm256_storeu_ps(weights[4], _mm256_add_ps(_mm256_add_ps(_mm256_add_ps(w0, w1), w2), w3));
    STORE_32(columns, left);
    STORE_32(rows, top);
    for (int i = 0; i < 8; i += 2, to += 6) {
        const uint8_t *a = taps->at + 3 * (rows[i] * taps->width + columns[i]), *below_a = a + 3 * taps->width;
        const uint8_t *b = taps->at + 3 * (rows[i + 1] * taps->width + columns[i + 1]), *below_b = b + 3 * taps->width;
        const uint8_t *const pixels[4][2] = {{a, b}, {a + 3, b + 3}, {below_a, below_b}, {below_a + 3, below_b + 3}};
        __m256 sum = _mm256_mul_ps(two_pixels(a, b), two_weights(&weights[0][i], &weights[0][i + 1]));
#pragma GCC unroll 3
        for (int n = 1; n < 4; n++)
            sum = _mm256_add_ps(sum, _mm256_mul_ps(two_pixels(pixels[n][0], pixels[n][1]),
                                                   two_weights(&weights[n][i], &weights[n][i + 1])));
        /* sums are below 255.5 */
        show_two(to, sum, taps->way == FILL_BLEND, two_weights(&weights[4][i], &weights[4][i + 1]), fill, false);
    }
}

/* Computes four weights for each of eight pixels. */
VECTORS INLINE void eight_cubic_weights(float weights[4][8], __m256 part)
{
    const __m256 one = _mm256_set1_ps(1), two = _mm256_set1_ps(2), a = _mm256_set1_ps(-0.75f);
    const __m256 a2 = _mm256_set1_ps(-0.75f + 2), a3 = _mm256_set1_ps(-0.75f + 3), a4 = _mm256_set1_ps(4 * -0.75f),
                 a5 = _mm256_set1_ps(5 * -0.75f), a8 = _mm256_set1_ps(8 * -0.75f);
    const __m256 distances[4] = {_mm256_add_ps(part, one), part, _mm256_sub_ps(one, part), _mm256_sub_ps(two, part)};
    for (int n = 0; n < 4; n++) {
        __m256 d = distances[n], found;
        if (n == 1 || n == 2) {
            found = _mm256_sub_ps(_mm256_mul_ps(a2, d), a3);
            found = _mm256_add_ps(_mm256_mul_ps(_mm256_mul_ps(found, d), d), one);
        } else {
            found = _mm256_add_ps(_mm256_mul_ps(_mm256_sub_ps(_mm256_mul_ps(a, d), a5), d), a8);
            found = _mm256_sub_ps(_mm256_mul_ps(found, d), a4);
        }
        _mm256_storeu_ps(weights[n], found);
    }
}

/* Interpolates eight pixels whose neighbours are all inside the source. */
VECTORS INLINE void eight_bicubic(uint8_t *to, const struct taps_of_warp *taps, __m256 x, __m256 y)
{
    const __m256 fill = two_fills(taps->fill);
    float across[4][8], down[4][8], shares[8];
    int32_t columns[8], rows[8];
    __m256i left = _mm256_cvttps_epi32(x), top = _mm256_cvttps_epi32(y);
    eight_cubic_weights(across, _mm256_sub_ps(x, _mm256_cvtepi32_ps(left)));
    eight_cubic_weights(down, _mm256_sub_ps(y, _mm256_cvtepi32_ps(top)));
    STORE_32(columns, left);
    STORE_32(rows, top);
    __m256 line = _mm256_loadu_ps(across[0]), share = _mm256_setzero_ps();
    for (int k = 1; k < 4; k++)
        line = _mm256_add_ps(line, _mm256_loadu_ps(across[k]));
    for (int n = 0; n < 4; n++)
        share = _mm256_add_ps(share, _mm256_mul_ps(line, _mm256_loadu_ps(down[n])));
    _mm256_storeu_ps(shares, share);
    for (int i = 0; i < 8; i += 2, to += 6) {
        const uint8_t *a = taps->at + 3 * ((rows[i] - 1) * taps->width + columns[i] - 1);
        const uint8_t *b = taps->at + 3 * ((rows[i + 1] - 1) * taps->width + columns[i + 1] - 1);
        __m256 weights[4], sum = _mm256_setzero_ps();
        for (int k = 0; k < 4; k++)
            weights[k] = two_weights(&across[k][i], &across[k][i + 1]);
        for (int n = 0; n < 4; n++, a += 3 * taps->width, b += 3 * taps->width) {
            __m256 own = _mm256_mul_ps(two_pixels(a, b), weights[0]);
#pragma GCC unroll 3
            for (int k = 1; k < 4; k++)
                own = _mm256_add_ps(own, _mm256_mul_ps(two_pixels(a + 3 * k, b + 3 * k), weights[k]));
            sum = _mm256_add_ps(sum, _mm256_mul_ps(own, two_weights(&down[n][i], &down[n][i + 1])));
        }
        show_two(to, sum, taps->way == FILL_BLEND, two_weights(&shares[i], &shares[i + 1]), fill, true);
    }
}

/* True if all eight are at least `low` and less than `high`. */
VECTORS INLINE bool are_within(__m256 values, __m256 low, __m256 high)
{
    __m256 within = _mm256_and_ps(_mm256_cmp_ps(values, low, _CMP_GE_OQ), _mm256_cmp_ps(values, high, _CMP_LT_OQ));
    return _mm256_movemask_ps(within) == 255;
}

/* `bicubic` pixels have neighbours one pixel further away. */
VECTORS INLINE void interpolate_of(uint8_t *to, const struct taps_of_warp *taps, const bool bicubic, int64_t count)
{
    const __m256 least = _mm256_set1_ps(bicubic), last_column = _mm256_set1_ps((float)(taps->width - 1 - bicubic)),
                 last_row = _mm256_set1_ps((float)(taps->height - 1 - bicubic));
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        __m256 x = _mm256_loadu_ps(taps->x + i), y = _mm256_loadu_ps(taps->y + i);
        if (!are_within(x, least, last_column) || !are_within(y, least, last_row))
            interpolate_from(to, taps, bicubic, i, i + 8);
        else if (bicubic)
            eight_bicubic(to + 3 * i, taps, x, y);
        else
            eight_bilinear(to + 3 * i, taps, x, y);
    }
    interpolate_from(to, taps, bicubic, i, count);
}

VECTORS void interpolate_vector(uint8_t *to, const struct taps_of_warp *taps, bool bicubic, int64_t count)
{
    bicubic ? interpolate_of(to, taps, true, count) : interpolate_of(to, taps, false, count);
}
#endif

/* ---- the pass ---- */

enum outcome warp(struct worker *worker, const struct image *image, const struct step *step)
{
    struct scratch *scratch = &worker->scratch;
    const struct kernels *kernels = worker->kernels;
    int64_t size = 3 * image->height * image->width, width = image->width;
    if (grow_buffer(&scratch->copied, (size_t)size + PADDING) != DONE)
        return REFUSED;
    memcpy(scratch->copied.at, image->at, (size_t)size);
    struct taps_of_warp taps = {
        .at = scratch->copied.at, .height = image->height, .width = width, .way = step->flags >> 2 & 3};
    for (int c = 0; c < 3; c++)
        taps.fill[c] = taps.way == FILL_ZEROS ? 0 : (float)((uint32_t)step->flags >> 8 * (c + 1) & 255);
    show_fill((uint8_t *)scratch->copied.at + size, &taps);
    if (moves_one_axis(step))
        return warp_one_axis(worker, image, step, &taps);
    if (grow_buffer(&scratch->floats, (size_t)(3 * width) * sizeof(float) + (size_t)width) != DONE)
        return REFUSED;
    float *x = scratch->floats.at, *y = x + width;
    uint32_t *places = (uint32_t *)(y + width);
    uint8_t *outside = (uint8_t *)(places + width);
    taps.x = x;
    taps.y = y;
    taps.outside = outside;
    struct map map = {.perspective = step->code == STEP_PERSPECTIVE};
    for (int i = 0; i < 8; i++)
        map.m[i] = i < 3   ? step->p[i] / ((float)width * 0.5f)
                   : i < 6 ? step->p[i] / ((float)image->height * 0.5f)
                           : step->p[i];
    for (int64_t row = 0; row < image->height; row++) {
        uint8_t *to = image->at + 3 * row * width;
        kernels->locate(x, y, outside, &map, row, image->height, width);
        if ((step->flags & 3) == NEAREST) {
            kernels->places(places, &taps, (uint32_t)(image->height * width), width);
            show_places(to, taps.at, places, width);
        } else {
            kernels->interpolate(to, &taps, (step->flags & 3) == BICUBIC, width);
        }
    }
    return DONE;
}
