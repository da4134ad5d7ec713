/* Antialiased bilinear resizing of one or three planes of floating point, in float32, with torch's weights (ATen,
 * UpSampleKernel.cpp). The order of sums differs, columns first, so the last bits may differ. */
#include "../simd/arithmetic.h"
#include "shape.h"

/* Makes taps like make_taps() in taps.c. The weights are those of _compute_indices_min_size_weights_aa(), which mixes
 * float32 and float64. Each pixel has equally many, some of them zeros, all for existing source pixels. */
static enum outcome make_float_taps(struct float_taps *taps, struct buffer *buffer, int64_t source, int64_t target,
                                    int64_t from, int64_t count, bool mirrored)
{
    float scale = (float)source / (float)target, support = scale >= 1 ? scale : 1;
    float inverse = scale >= 1 ? (float)(1.0 / (double)scale) : 1;
    int64_t most = ((int64_t)support + (support > (float)(int64_t)support)) * 2 + 1, width = smaller(most, source);
    if (grow_buffer(buffer, (size_t)count * ((size_t)width * sizeof(float) + sizeof(int32_t))) != DONE)
        return REFUSED;
    taps->taps = (int)width;
    taps->at = buffer->at;
    taps->weights = (float *)(taps->at + count);
    memset(taps->weights, 0, (size_t)(count * width) * sizeof(float));
    taps->first = source, taps->stop = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t to = mirrored ? count - 1 - i : i;
        float centre = (float)((double)scale * ((double)(from + i) + 0.5)), total = 0;
        int64_t begin = (int64_t)((double)(centre - support) + 0.5), end = (int64_t)((double)(centre + support) + 0.5);
        begin = begin < 0 ? 0 : smaller(begin, source - 1);
        int64_t number = smaller(smaller(end, source) - begin, width), start = smaller(begin, source - width);
        float *weights = taps->weights + to * width + (begin - start);
        for (int64_t j = 0; j < number; j++) {
            float distance = (float)(((double)((float)(j + begin) - centre) + 0.5) * (double)inverse);
            distance = distance < 0 ? -distance : distance;
            weights[j] = distance < 1 ? 1 - distance : 0;
            total += weights[j];
        }
        for (int64_t j = 0; j < number && total != 0; j++)
            weights[j] /= total;
        taps->at[to] = (int32_t)start;
        taps->first = smaller(taps->first, start);
        taps->stop = taps->stop > start + width ? taps->stop : start + width;
    }
    for (int64_t i = 0; i < count; i++)
        taps->at[i] -= (int32_t)taps->first;
    return DONE;
}

/* Computes one row of `count` elements as the weighted sum of rows `stride` bytes apart. */
INLINE void sum_rows_one_by_one(float *to, int kind, const uint8_t *from, int64_t stride, const float *weights,
                                int taps, int64_t count)
{
    for (int64_t x = 0; x < count; x++) {
        float sum = 0;
        for (int j = 0; j < taps; j++)
            if (weights[j] != 0)
                sum += weights[j] * to_float(kind, from + j * stride, x);
        to[x] = sum;
    }
}

PLAIN_LOOP(void, sum_rows,
           (float *to, int kind, const uint8_t *from, int64_t stride, const float *weights, int taps, int64_t count),
           sum_rows_one_by_one(to, kind, from, stride, weights, taps, count))

/* Computes `count` pixels of a row in three planes. */
void sum_pixels_plain(float *const to[3], float *pixels, const float *const from[3], const struct float_taps *taps,
                      int64_t pixel_count, int64_t count)
{
    (void)pixels, (void)pixel_count;
    for (int c = 0; c < 3; c++)
        for (int64_t x = 0; x < count; x++) {
            const float *weights = taps->weights + x * taps->taps, *at = from[c] + taps->at[x];
            float sum = 0;
            for (int j = 0; j < taps->taps; j++)
                sum += weights[j] * at[j];
            to[c][x] = sum;
        }
}

#ifdef HAS_VECTORS
VECTORS INLINE void sum_rows_of(float *to, const int kind, const uint8_t *from, int64_t stride, const float *weights,
                                int taps, int64_t count)
{
    int64_t x = 0, size = size_of(kind);
    for (; x + 16 <= count; x += 16) {
        __m256 low = _mm256_setzero_ps(), high = _mm256_setzero_ps();
        const uint8_t *at = from + x * size;
        for (int j = 0; j < taps; j++, at += stride) {
            if (weights[j] == 0)
                continue;
            __m256 weight = _mm256_set1_ps(weights[j]);
            low = _mm256_add_ps(low, _mm256_mul_ps(weight, load_eight(kind, at, 0)));
            high = _mm256_add_ps(high, _mm256_mul_ps(weight, load_eight(kind, at, 8)));
        }
        _mm256_storeu_ps(to + x, low);
        _mm256_storeu_ps(to + x + 8, high);
    }
    sum_rows_one_by_one(to + x, kind, from + x * size, stride, weights, taps, count - x);
}

VECTORS void sum_rows_vector(float *to, int kind, const uint8_t *from, int64_t stride, const float *weights, int taps,
                             int64_t count)
{
    WITH_FLOATS(sum_rows_of, to, kind, from, stride, weights, taps, count);
}

VECTORS INLINE __m128 sum_pixel(const float *pixels, const struct float_taps *taps, const int count, int64_t x)
{
    const float *at = pixels + 4 * (int64_t)taps->at[x], *weights = taps->weights + x * count;
    __m128 sum = _mm_setzero_ps();
    for (int j = 0; j < count; j++)
        sum = _mm_add_ps(sum, _mm_mul_ps(_mm_broadcast_ss(weights + j), _mm_loadu_ps(at + 4 * j)));
    return sum;
}

VECTORS INLINE void sum_pixels_of(float *const to[3], const float *pixels, const struct float_taps *taps,
                                  const int taps_count, int64_t count)
{
    int64_t x = 0;
    for (; x + 4 <= count; x += 4) {
        __m128 a = sum_pixel(pixels, taps, taps_count, x), b = sum_pixel(pixels, taps, taps_count, x + 1);
        __m128 c = sum_pixel(pixels, taps, taps_count, x + 2), d = sum_pixel(pixels, taps, taps_count, x + 3);
        _MM_TRANSPOSE4_PS(a, b, c, d);
        _mm_storeu_ps(to[0] + x, a);
        _mm_storeu_ps(to[1] + x, b);
        _mm_storeu_ps(to[2] + x, c);
    }
    for (; x < count; x++) {
        float sums[4];
        _mm_storeu_ps(sums, sum_pixel(pixels, taps, taps_count, x));
        for (int c = 0; c < 3; c++)
            to[c][x] = sums[c];
    }
}

/* Interleaves the channels in `pixels` first. */
VECTORS void sum_pixels_vector(float *const to[3], float *pixels, const float *const from[3],
                               const struct float_taps *taps, int64_t pixel_count, int64_t count)
{
    int64_t x = 0;
    for (; x + 4 <= pixel_count; x += 4) {
        __m128 a = _mm_loadu_ps(from[0] + x), b = _mm_loadu_ps(from[1] + x), c = _mm_loadu_ps(from[2] + x),
               d = _mm_setzero_ps();
        _MM_TRANSPOSE4_PS(a, b, c, d);
        _mm_storeu_ps(pixels + 4 * x, a);
        _mm_storeu_ps(pixels + 4 * x + 4, b);
        _mm_storeu_ps(pixels + 4 * x + 8, c);
        _mm_storeu_ps(pixels + 4 * x + 12, d);
    }
    for (; x < pixel_count; x++)
        _mm_storeu_ps(pixels + 4 * x, _mm_setr_ps(from[0][x], from[1][x], from[2][x], 0));
    switch (taps->taps) {
    case 3: sum_pixels_of(to, pixels, taps, 3, count); break;
    case 5: sum_pixels_of(to, pixels, taps, 5, count); break;
    default: sum_pixels_of(to, pixels, taps, taps->taps, count);
    }
}
#endif

/* Resizes the planes of the task's request; writes the visible part of its window from `to` on, in planes of float32 of
 * the window's size. */
enum outcome resize_planes(struct worker *worker, const struct task *task, float *to)
{
    const struct request *request = task->request;
    const struct box *box = &request->box, *window = &request->window, *visible = &task->visible;
    const uint8_t *planes = request->source;
    struct scratch *scratch = &worker->scratch;
    struct float_taps across, down;
    if (make_float_taps(&across, &scratch->taps[0], box->width, request->size_width, window->left + visible->left,
                        visible->width, request->mirrored) != DONE ||
        make_float_taps(&down, &scratch->taps[1], box->height, request->size_height, window->top + visible->top,
                        visible->height, false) != DONE)
        return REFUSED;
    int kind = (int)task->form->from;
    int64_t size = size_of(kind), count = across.stop - across.first, height = request->height, width = request->width;
    int64_t to_plane = task->channels == 1 ? 0 : window->height * window->width;
    if (grow_buffer(&scratch->line, (size_t)(7 * count) * sizeof(float)) != DONE)
        return REFUSED;
    float *line = scratch->line.at;
    /* For one plane the loops make the same row three times, which takes no longer. */
    int64_t line_step = task->channels == 1 ? 0 : count;
    const float *const lines[3] = {line, line + line_step, line + 2 * line_step};
    for (int64_t y = 0; y < visible->height; y++) {
        int64_t at = (box->top + down.first + down.at[y]) * width + box->left + across.first;
        for (int c = 0; c < task->channels; c++)
            worker->kernels->sum_rows(line + c * count, kind, planes + (c * height * width + at) * size, width * size,
                                      down.weights + y * down.taps, down.taps, count);
        float *row = to + y * window->width, *const results[3] = {row, row + to_plane, row + 2 * to_plane};
        worker->kernels->sum_pixels(results, line + 3 * count, lines, &across, count, visible->width);
    }
    return DONE;
}
