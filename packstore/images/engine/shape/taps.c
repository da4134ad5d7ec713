/* Weights of antialiased resizing of uint8. Bilinear and bicubic are bit for bit torch's (ATen, UpSampleKernel.cpp).
 * Box, Lanczos, and the filters named after it are Pillow's (Resample.c), whose weights have 22 fractional bits. */
#include "shape.h"

#include <math.h>

enum { WEIGHT_BITS = 22 };

INLINE bool is_wide(int64_t sampling)
{
    return sampling >= SAMPLE_BOX;
}

/* Returns the weight of a pixel at a distance, in units of the scale: aa_filter() of HelperInterpLinear or
 * HelperInterpCubic, which equal Pillow's, or Pillow's box_filter(). */
INLINE double filter_weight(int64_t sampling, double distance)
{
    const double a = -0.5;
    if (sampling == SAMPLE_BOX)
        return distance > -0.5 && distance <= 0.5;
    distance = distance < 0 ? -distance : distance;
    if (sampling == SAMPLE_BILINEAR || sampling == SAMPLE_PILLOW_BILINEAR)
        return distance < 1 ? 1 - distance : 0;
    if (distance < 1)
        return ((a + 2) * distance - (a + 3)) * distance * distance + 1;
    return distance < 2 ? ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a : 0;
}

/* Returns the support of the filter, in pixels of the source. */
INLINE double support_of(int64_t sampling, double scale)
{
    const double reach = sampling == SAMPLE_LANCZOS                                        ? 3
                         : sampling == SAMPLE_BICUBIC || sampling == SAMPLE_PILLOW_BICUBIC ? 2
                         : sampling == SAMPLE_BOX                                          ? 0.5
                                                                                           : 1;
    return (scale >= 1 ? scale : 1) * reach;
}

/* Computes Pillow's lanczos_filter(), sinc(x) sinc(x / 3), for `count` distances `step` apart from `first` on. The sine
 * of a third of the angle is updated by the addition theorem, and gives the sine of the whole angle: sin() for each
 * would take longer than the rest of an image. */
static void lanczos_weights(double *weights, int64_t count, double first, double step)
{
    const double third = 3.14159265358979323846 / 3;
    double sine = sin(first * third), cosine = cos(first * third), turn = sin(step * third), rest = cos(step * third);
    for (int64_t i = 0; i < count; i++) {
        double distance = first + (double)i * step, angle = distance * third, square = angle * angle;
        if (square < 1e-8) /* Taylor series where rounding errors would matter */
            weights[i] = 1 - square * (10.0 / 6);
        else
            weights[i] = distance >= -3 && distance < 3 ? sine * sine * (3 - 4 * sine * sine) / (3 * square) : 0;
        double next = sine * rest + cosine * turn;
        cosine = cosine * rest - sine * turn;
        sine = next;
    }
}

/* Computes the exact weights of pixel `i`, as _compute_indices_min_size_weights_aa(). Returns their number; `first`
 * receives the first source pixel. For nearest, the one pixel of nearest_idx(). */
static int64_t exact_weights(int64_t sampling, double scale, int64_t source, int64_t i, int64_t most, double *weights,
                             int64_t *first)
{
    if (sampling == SAMPLE_NEAREST) {
        int64_t nearest = (int64_t)((float)i * (float)scale);
        *first = nearest < source ? nearest : source - 1;
        *weights = 1;
        return 1;
    }
    double support = support_of(sampling, scale), inverse = scale >= 1 ? 1 / scale : 1,
           centre = scale * ((double)i + 0.5);
    int64_t begin = (int64_t)(centre - support + 0.5), end = (int64_t)(centre + support + 0.5);
    begin = begin < 0 ? 0 : begin;
    end = end > source ? source : end;
    int64_t count = end - begin < 0 ? 0 : end - begin > most ? most : end - begin;
    double total = 0;
    if (sampling == SAMPLE_LANCZOS)
        lanczos_weights(weights, count, ((double)begin - centre + 0.5) * inverse, inverse);
    for (int64_t j = 0; j < count; j++) {
        if (sampling != SAMPLE_LANCZOS)
            weights[j] = filter_weight(sampling, ((double)(j + begin) - centre + 0.5) * inverse);
        total += weights[j];
    }
    for (int64_t j = 0; j < count && total != 0; j++)
        weights[j] /= total;
    *first = begin;
    return count;
}

/* Returns the number of fractional bits with which the largest weight fits 16 bits. */
static int precision_of(double largest)
{
    int precision = 0;
    while (precision < WEIGHT_BITS && (int)(0.5 + largest * (1 << (precision + 1))) < 1 << 15)
        precision++;
    return precision;
}

/* Makes taps for pixels `from` to `from + count - 1` when `source` pixels are resized to `target`; in reverse order if
 * `mirrored`. Places count from `first`; weights are padded with zeros to a `multiple`. */
enum outcome make_taps(struct taps *taps, struct buffer *buffer, int64_t source, int64_t target, int64_t from,
                       int64_t count, bool mirrored, int multiple)
{
    double scale = (double)source / (double)target, support = support_of(taps->sampling, scale), largest = 0;
    int64_t most = ((int64_t)support + (support > (double)(int64_t)support)) * 2 + 1;
    int64_t width = (most + multiple - 1) / multiple * multiple, widest = 1;
    const bool wide = is_wide(taps->sampling);
    /* Exact weights, places and numbers of all pixels; then the places and rounded weights of the wanted ones. */
    size_t exact_bytes = (size_t)(width * target) * sizeof(double),
           places_bytes = (size_t)(2 * target) * sizeof(int64_t);
    size_t weight_bytes = (size_t)width * sizeof(int16_t) * (wide ? 2 : 1);
    if (grow_buffer(buffer, exact_bytes + places_bytes + (size_t)count * (weight_bytes + sizeof(int32_t))) != DONE)
        return REFUSED;
    double *exact = buffer->at;
    int64_t *first = (int64_t *)(exact + width * target), *counts = first + target;
    for (int64_t i = 0; i < target; i++) {
        counts[i] = exact_weights(taps->sampling, scale, source, i, most, exact + i * width, &first[i]);
        for (int64_t j = 0; j < counts[i]; j++)
            largest = exact[i * width + j] > largest ? exact[i * width + j] : largest;
        widest = counts[i] > widest ? counts[i] : widest;
    }
    taps->precision = wide ? WEIGHT_BITS : precision_of(largest);
    taps->taps = (int)((widest + multiple - 1) / multiple * multiple);
    taps->first = first[from];
    taps->stop = first[from + count - 1] + counts[from + count - 1];
    taps->at = (int32_t *)(counts + target);
    taps->weights = (int16_t *)(taps->at + count);
    taps->low_at = wide ? count * taps->taps : 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t to = mirrored ? count - 1 - i : i;
        taps->at[to] = (int32_t)(first[from + i] - taps->first);
        for (int64_t j = 0; j < taps->taps; j++) {
            double weight = j < counts[from + i] ? exact[(from + i) * width + j] * (1 << taps->precision) : 0;
            int32_t rounded = (int32_t)(weight < 0 ? weight - 0.5 : weight + 0.5);
            int16_t *at = taps->weights + to * taps->taps + j;
            *at = (int16_t)(wide ? rounded >> LOW_BITS : rounded);
            if (wide)
                at[taps->low_at] = (int16_t)(rounded & ((1 << LOW_BITS) - 1));
        }
    }
    return DONE;
}
