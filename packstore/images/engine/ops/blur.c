/* Blurring and sharpening. */
#include "../simd/arithmetic.h"
#include "program.h"

enum { COLUMNS = 64 }; /* columns blurred at a time: their rows stay in the first cache */

/* ---- loops ---- */

/* Computes a row of adjust_sharpness_image() from three rows of `count` values; neighbours are 3 values apart. */
INLINE void sharpen_with(uint8_t *restrict to, const uint8_t *restrict above, const uint8_t *restrict row,
                         const uint8_t *restrict below, int64_t count, float factor, const bool fuses)
{
    float rest = (float)(1.0 - (double)factor);
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *a = above + i, *b = row + i, *c = below + i;
        uint16_t sum = (uint16_t)(a[-3] + a[0] + a[3] + b[-3] + 5 * b[0] + b[3] + c[-3] + c[0] + c[3]);
        uint16_t twice = (uint16_t)(2 * sum + 13);
        uint16_t smooth = (uint16_t)((uint32_t)twice * 20165u >> 16) >> 3; /* divided by 26 */
        float value = (float)b[0];
        to[i] = to_byte(fused((float)smooth - value, rest, value, fuses));
    }
}

/* Writes bytes: values rounded to the nearest number, or cut off. */
void to_bytes_plain(uint8_t *to, const float *from, bool rounds, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = to_byte(rounds ? round_even(from[i]) : from[i]);
}

typedef float eight __attribute__((vector_size(32), aligned(4), may_alias));

/* Computes the weighted sum of 2 * reach + 1 rows; `weights` has the first reach + 1 weights, the others are symmetric.
 * Reads and writes up to 31 values more. */
INLINE void weigh_of(float *to, const float *const *rows, const float *weights, int reach, int64_t count)
{
    for (int64_t i = 0; i < count; i += 32) {
        eight sums[4];
#pragma GCC unroll 4
        for (int n = 0; n < 4; n++)
            sums[n] = *(const eight *)(rows[reach] + i + 8 * n) * weights[reach];
        for (int j = 0; j < reach; j++) {
            const float *near = rows[j] + i, *far = rows[2 * reach - j] + i;
#pragma GCC unroll 4
            for (int n = 0; n < 4; n++)
                sums[n] += (*(const eight *)(near + 8 * n) + *(const eight *)(far + 8 * n)) * weights[j];
        }
#pragma GCC unroll 4
        for (int n = 0; n < 4; n++)
            *(eight *)(to + i + 8 * n) = sums[n];
    }
}
BOTH_LOOPS(void, weigh, (float *to, const float *const *rows, const float *weights, int reach, int64_t count),
           weigh_of(to, rows, weights, reach, count))

PLAIN_LOOP(void, sharpen,
           (uint8_t *to, const uint8_t *above, const uint8_t *row, const uint8_t *below, int64_t count, float factor),
           sharpen_with(to, above, row, below, count, factor, false))

#ifdef HAS_VECTORS
/* Loads sixteen bytes as 16-bit numbers. */
VECTORS INLINE __m256i sixteen_of(const uint8_t *at)
{
    return _mm256_cvtepu8_epi16(LOAD_16(at));
}

VECTORS INLINE __m256i sum_three(const uint8_t *at)
{
    return _mm256_add_epi16(_mm256_add_epi16(sixteen_of(at - 3), sixteen_of(at)), sixteen_of(at + 3));
}

VECTORS void sharpen_vector(uint8_t *to, const uint8_t *above, const uint8_t *row, const uint8_t *below, int64_t count,
                            float factor)
{
    const __m256 rests = _mm256_set1_ps((float)(1.0 - (double)factor));
    int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
        __m256 values[4];
#pragma GCC unroll 2
        for (int n = 0; n < 2; n++) {
            int64_t at = i + 16 * n;
            __m256i own = sixteen_of(row + at), sum = _mm256_add_epi16(sum_three(above + at), sum_three(below + at));
            sum = _mm256_add_epi16(_mm256_add_epi16(sum, sum_three(row + at)), _mm256_slli_epi16(own, 2));
            sum = _mm256_add_epi16(_mm256_add_epi16(sum, sum), _mm256_set1_epi16(13));
            __m256i smooth = _mm256_srli_epi16(_mm256_mulhi_epu16(sum, _mm256_set1_epi16(20165)), 3);
            __m256i change = _mm256_sub_epi16(smooth, own);
            __m256 low = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(change)));
            __m256 high = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm256_extracti128_si256(change, 1)));
            values[2 * n] = _mm256_fmadd_ps(low, rests, load_bytes(row + at));
            values[2 * n + 1] = _mm256_fmadd_ps(high, rests, load_bytes(row + at + 8));
        }
        store_bytes(to + i, values);
    }
    sharpen_with(to + i, above + i, row + i, below + i, count - i, factor, true);
}

VECTORS void to_bytes_vector(uint8_t *to, const float *from, bool rounds, int64_t count)
{
    int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
        __m256i numbers[4];
#pragma GCC unroll 4
        for (int n = 0; n < 4; n++) {
            __m256 values = _mm256_loadu_ps(from + i + 8 * n);
            numbers[n] = rounds ? _mm256_cvtps_epi32(values) : _mm256_cvttps_epi32(values);
        }
        store_numbers(to + i, numbers);
    }
    to_bytes_plain(to + i, from + i, rounds, count - i);
}
#endif

/* ---- passes ---- */

/* Does adjust_sharpness_image(), or Pillow's enhancer: pixels at the edges are unchanged. */
enum outcome sharpen(struct worker *worker, const struct image *image, const struct step *step)
{
    const struct kernels *kernels = worker->kernels;
    bool as_pillow = step->flags & AS_PILLOW;
    int64_t row_bytes = 3 * image->width, inner = row_bytes - 6;
    if (image->height <= 2 || image->width <= 2)
        return DONE;
    if (grow_buffer(&worker->scratch.copied, (size_t)(3 * row_bytes)) != DONE)
        return REFUSED;
    uint8_t *above = worker->scratch.copied.at, *row = above + row_bytes, *smooth = row + row_bytes;
    memcpy(above, image->at, (size_t)row_bytes);
    for (int64_t y = 1; y < image->height - 1; y++) {
        uint8_t *at = image->at + y * row_bytes, *next = above;
        memcpy(row, at, (size_t)row_bytes);
        kernels->sharpen(as_pillow ? smooth : at + 3, above + 3, row + 3, at + row_bytes + 3, inner,
                         as_pillow ? 0 : step->p[0]);
        if (as_pillow)
            kernels->blend_plane(at + 3, smooth, inner, step->p[0]);
        above = row;
        row = next;
    }
    return DONE;
}

/* Computes exp(-x) for x >= 0. */
static double exponential(double x)
{
    if (x > 700)
        return 0;
    double y = -x / 1024, power = 1 + y * (1 + y / 2 * (1 + y / 3 * (1 + y / 4 * (1 + y / 5 * (1 + y / 6)))));
    for (int i = 0; i < 10; i++)
        power *= power;
    return power;
}

/* Computes the weights of _get_gaussian_kernel1d(): the first half and the middle; the rest is symmetric. Leaves out
 * outer weights that are too small to have an effect. Returns the number of weights in the half. */
static int make_weights(float *weights, int size, float sigma)
{
    int reach = size / 2;
    double exact[MOST_KERNEL / 2 + 1], total = 0;
    for (int j = 0; j <= reach; j++) {
        double x = (reach - j) / 1.4142135623730951 / (double)sigma; /* linspace() to (size - 1) / (2 * sqrt(2)) */
        exact[j] = exponential(x * x);
        total += j < reach ? 2 * exact[j] : exact[j];
    }
    int skipped = 0;
    while (skipped < reach && exact[skipped] / total < 1e-7)
        skipped++;
    for (int j = skipped; j <= reach; j++)
        weights[j - skipped] = (float)(exact[j] / total);
    return reach - skipped;
}

/* Returns the index within `length` that reflection shows at `at`, reflected as often as necessary. */
static int64_t reflected(int64_t at, int64_t length)
{
    int64_t period = 2 * length - 2;
    if (length == 1)
        return 0;
    at = (at % period + period) % period;
    return at < length ? at : period - at;
}

/* Memory of a strip: the line being blurred, the ring of blurred rows, and a row of the result. */
struct strip {
    float *line, *ring, *sum;
    int64_t first, count, row_floats;
};

/* Blurs row `y` of the source horizontally into its place in the ring. */
static void blur_row(const struct worker *worker, const struct strip *strip, const struct image *source, int64_t y,
                     int reach, const float *weights, float *to)
{
    const struct kernels *kernels = worker->kernels;
    const uint8_t *row = source->at + 3 * y * source->width;
    const float *shifted[MOST_KERNEL];
    int64_t first = strip->first - reach, stop = strip->first + strip->count + reach;
    int64_t inner = first < 0 ? 0 : first, inner_stop = stop > source->width ? source->width : stop;
    kernels->to_floats(strip->line + 3 * (inner - first), UINT8, row + 3 * inner, 3 * (inner_stop - inner));
    for (int64_t x = first; x < stop; x++) {
        if (x == inner)
            x = inner_stop;
        if (x == stop)
            break;
        for (int c = 0; c < 3; c++)
            strip->line[3 * (x - first) + c] = (float)row[3 * reflected(x, source->width) + c];
    }
    for (int j = 0; j <= 2 * reach; j++)
        shifted[j] = strip->line + 3 * j;
    kernels->weigh(to, shifted, weights, reach, 3 * strip->count);
}

/* Does gaussian_blur_image(). The kernel is separable: rows first, then columns. */
enum outcome blur(struct worker *worker, const struct image *image, const struct step *step)
{
    struct scratch *scratch = &worker->scratch;
    const struct kernels *kernels = worker->kernels;
    float weights_across[MOST_KERNEL / 2 + 1], weights_down[MOST_KERNEL / 2 + 1];
    int across = make_weights(weights_across, (int)step->p[0], step->p[2]);
    int down = make_weights(weights_down, (int)step->p[1], step->p[3]);
    int64_t size = 3 * image->height * image->width, rows = 2 * down + 1;
    struct strip strip = {.row_floats = 3 * COLUMNS + 32};
    if (grow_buffer(&scratch->copied, (size_t)size + PADDING) != DONE ||
        grow_buffer(&scratch->floats,
                    (size_t)(strip.row_floats * (rows + 1) + strip.row_floats + 6 * across) * sizeof(float)) != DONE)
        return REFUSED;
    memcpy(scratch->copied.at, image->at, (size_t)size);
    struct image source = {scratch->copied.at, image->height, image->width};
    strip.ring = scratch->floats.at;
    strip.sum = strip.ring + strip.row_floats * rows;
    strip.line = strip.sum + strip.row_floats;
    memset(scratch->floats.at, 0, (size_t)(strip.row_floats * (rows + 2) + 6 * across) * sizeof(float));
    for (; strip.first < image->width; strip.first += COLUMNS) {
        strip.count = image->width - strip.first < COLUMNS ? image->width - strip.first : COLUMNS;
        int64_t made = 0;
        for (int64_t y = 0; y < image->height; y++) {
            const float *shown[MOST_KERNEL];
            for (; made <= y + down && made < image->height; made++)
                blur_row(worker, &strip, &source, made, across, weights_across,
                         strip.ring + made % rows * strip.row_floats);
            for (int j = 0; j < rows; j++)
                shown[j] = strip.ring + reflected(y - down + j, image->height) % rows * strip.row_floats;
            kernels->weigh(strip.sum, shown, weights_down, down, 3 * strip.count);
            kernels->to_bytes(image->at + 3 * (y * image->width + strip.first), strip.sum, true, 3 * strip.count);
        }
    }
    return DONE;
}
