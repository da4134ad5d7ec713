/* Affine maps that move pixels along one axis only, such as shears and translations: sums of four pixels, not sixteen.
 */
#include "../simd/arithmetic.h"
#include "program.h"

/* Offset along an axis: a result pixel lies in the source between the pixels `first + 1` and `first + 2` after its own
 * position. Pixels `from` to `to - 1` show the source, which extends half a pixel beyond its outermost centres. */
struct shift {
    float by, weights[4];
    int64_t first, from, to;
};

/* Clips a place to 0 … `length`. */
static int64_t clip(int64_t place, int64_t length)
{
    return place < 0 ? 0 : smaller(place, length);
}

static struct shift shift_of(float by, int64_t length, bool bicubic)
{
    float limit = (float)(length + 4); /* beyond it all pixels are outside */
    struct shift shift = {.by = by <= -limit ? -limit : by < limit ? by : limit};
    int64_t whole = floor_of(shift.by);
    float part = shift.by - (float)whole;
    shift.first = whole - 1;
    shift.from = clip(-floor_of(shift.by + 0.5f), length);
    shift.to = clip(floor_of((float)length - 0.5f - shift.by) + 1, length);
    if (bicubic) {
        cubic_weights(shift.weights, part);
    } else {
        shift.weights[1] = 1 - part;
        shift.weights[2] = part;
    }
    return shift;
}

/* ---- loops ---- */

/* Adds bytes `first` to `count - 1` of four lines, with weights; those of byte `i` are at `step * i`. */
static void sum_from(uint8_t *to, const uint8_t *const lines[4], const float *const weights[4], int64_t step,
                     int64_t first, int64_t count)
{
    for (int64_t i = first; i < count; i++) {
        float sum = 0;
        for (int n = 0; n < 4; n++)
            sum += (float)lines[n][i] * weights[n][step * i];
        to[i] = to_byte(round_even(sum));
    }
}

PLAIN_LOOP(void, sum_lines,
           (uint8_t *to, const uint8_t *const lines[4], const float *const weights[4], bool each, int64_t count),
           sum_from(to, lines, weights, each, 0, count))

#ifdef HAS_VECTORS
VECTORS INLINE int64_t sum_vectors(uint8_t *to, const uint8_t *const lines[4], const float *const weights[4],
                                   const bool each, int64_t count)
{
    __m256 all[4];
    int64_t i = 0;
    for (int n = 0; n < 4; n++)
        all[n] = _mm256_set1_ps(*weights[n]);
    for (; i + 32 <= count; i += 32) {
        __m256i sums[4];
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) {
            int64_t at = i + 8 * k;
            __m256 sum = _mm256_mul_ps(load_bytes(lines[0] + at), each ? _mm256_loadu_ps(weights[0] + at) : all[0]);
#pragma GCC unroll 3
            for (int n = 1; n < 4; n++)
                sum = _mm256_add_ps(
                    sum, _mm256_mul_ps(load_bytes(lines[n] + at), each ? _mm256_loadu_ps(weights[n] + at) : all[n]));
            sums[k] = _mm256_cvtps_epi32(sum);
        }
        store_numbers(to + i, sums);
    }
    return i;
}

VECTORS void sum_lines_vector(uint8_t *to, const uint8_t *const lines[4], const float *const weights[4], bool each,
                              int64_t count)
{
    int64_t done = each ? sum_vectors(to, lines, weights, true, count) : sum_vectors(to, lines, weights, false, count);
    sum_from(to, lines, weights, each, done, count);
}
#endif

/* ---- rows ---- */

/* Copies `count` pixels of a line of `length`, from pixel `first` on; repeats the outermost pixels outside. */
static void copy_line(uint8_t *to, const uint8_t *from, int64_t first, int64_t count, int64_t length)
{
    int64_t inner = clip(-first, count), stop = clip(length - first, count);
    for (int64_t i = 0; i < inner; i++)
        memcpy(to + 3 * i, from, 3);
    if (stop > inner)
        memcpy(to + 3 * inner, from + 3 * (first + inner), (size_t)(3 * (stop - inner)));
    for (int64_t i = stop; i < count; i++)
        memcpy(to + 3 * i, from + 3 * (length - 1), 3);
}

static void show_fills(uint8_t *at, const struct taps_of_warp *taps, int64_t first, int64_t stop)
{
    for (int64_t i = first; i < stop; i++)
        show_fill(at + 3 * i, taps);
}

/* Moves each row by `slope` more than the row above. */
static enum outcome shift_rows(struct worker *worker, const struct image *image, const struct taps_of_warp *taps,
                               float slope, float by, bool bicubic)
{
    int64_t width = image->width;
    if (grow_buffer(&worker->scratch.floats, (size_t)(3 * (width + 3) + PADDING)) != DONE)
        return REFUSED;
    uint8_t *line = (uint8_t *)worker->scratch.floats.at;
    const uint8_t *const lines[4] = {line, line + 3, line + 6, line + 9};
    for (int64_t row = 0; row < image->height; row++) {
        uint8_t *to = image->at + 3 * row * width;
        float down = (float)row - (float)(image->height - 1) * 0.5f;
        struct shift shift = shift_of(down * slope + by, width, bicubic);
        const float *const weights[4] = {shift.weights, shift.weights + 1, shift.weights + 2, shift.weights + 3};
        copy_line(line, taps->at + 3 * row * width, shift.first, width + 3, width);
        worker->kernels->sum_lines(to, lines, weights, false, 3 * width);
        show_fills(to, taps, 0, shift.from);
        show_fills(to, taps, shift.to, width);
    }
    return DONE;
}

/* ---- columns ---- */

/* The four lines that are summed, and the offset of each column. */
struct columns {
    float *weights[4]; /* weights of each byte of a row */
    int32_t *first;    /* offset of each column */
    int32_t *inside;   /* first row that shows the source, and the row after the last, for each column */
    uint8_t *lines[4];
    int64_t all_from, all_to; /* rows without fill in any column */
};

/* Collects the line of pixels that are `columns->first` below row `row`. */
static void collect_line(const struct columns *columns, const struct taps_of_warp *taps, int64_t row)
{
    uint8_t *to = columns->lines[row & 3];
    int64_t height = taps->height, width = taps->width;
    for (int64_t i = 0; i < width; i++) {
        int64_t from = clip(row + columns->first[i], height - 1);
        memcpy(to + 3 * i, taps->at + 3 * (from * width + i), 4); /* and a byte that the next pixel overwrites */
    }
}

/* Moves each column by `slope` more than the column to its left. */
static enum outcome shift_columns(struct worker *worker, const struct image *image, const struct taps_of_warp *taps,
                                  float slope, float by, bool bicubic)
{
    int64_t width = image->width, height = image->height;
    size_t line = (size_t)(3 * width + PADDING);
    if (grow_buffer(&worker->scratch.floats,
                    (size_t)(12 * width) * sizeof(float) + (size_t)(3 * width) * 4 + 4 * line) != DONE)
        return REFUSED;
    struct columns columns = {.all_to = height};
    float *floats = worker->scratch.floats.at;
    for (int n = 0; n < 4; n++)
        columns.weights[n] = floats + 3 * width * n;
    columns.first = (int32_t *)(floats + 12 * width);
    columns.inside = columns.first + width;
    for (int n = 0; n < 4; n++)
        columns.lines[n] = (uint8_t *)(columns.inside + 2 * width) + line * (size_t)n;
    for (int64_t i = 0; i < width; i++) {
        struct shift shift = shift_of(((float)i - (float)(width - 1) * 0.5f) * slope + by, height, bicubic);
        columns.first[i] = (int32_t)shift.first;
        columns.inside[2 * i] = (int32_t)shift.from;
        columns.inside[2 * i + 1] = (int32_t)shift.to;
        columns.all_from = shift.from > columns.all_from ? shift.from : columns.all_from;
        columns.all_to = smaller(columns.all_to, shift.to);
        for (int n = 0; n < 4; n++)
            for (int c = 0; c < 3; c++)
                columns.weights[n][3 * i + c] = shift.weights[n];
    }
    for (int64_t row = 0; row < 3; row++)
        collect_line(&columns, taps, row);
    for (int64_t row = 0; row < height; row++) {
        uint8_t *to = image->at + 3 * row * width;
        const uint8_t *lines[4];
        collect_line(&columns, taps, row + 3);
        for (int n = 0; n < 4; n++)
            lines[n] = columns.lines[(row + n) & 3];
        worker->kernels->sum_lines(to, lines, (const float *const *)columns.weights, true, 3 * width);
        if (row < columns.all_from || row >= columns.all_to)
            for (int64_t i = 0; i < width; i++)
                if (row < columns.inside[2 * i] || row >= columns.inside[2 * i + 1])
                    show_fills(to, taps, i, i + 1);
    }
    return DONE;
}

bool moves_one_axis(const struct step *step)
{
    const float *p = step->p;
    bool edge = (step->flags >> 2 & 3) == FILL_EDGE;
    if (step->code != STEP_AFFINE || (step->flags & 3) == NEAREST || !edge || p[0] != 1 || p[4] != 1)
        return false;
    return (p[3] == 0 && p[5] == 0) || (p[1] == 0 && p[2] == 0);
}

enum outcome warp_one_axis(struct worker *worker, const struct image *image, const struct step *step,
                           const struct taps_of_warp *taps)
{
    const float *p = step->p;
    bool bicubic = (step->flags & 3) == BICUBIC;
    return p[3] == 0 && p[5] == 0 ? shift_rows(worker, image, taps, p[1], p[2], bicubic)
                                  : shift_columns(worker, image, taps, p[3], p[5], bicubic);
}
