/* Erases boxes, adds noise, mirrors, and sums images. */
#include "../simd/arithmetic.h"
#include "program.h"

/* ---- loops ---- */

/* Does mix() of packstore/training/random_draws.py. */
INLINE uint32_t mix(uint32_t value)
{
    value ^= value >> 16;
    value *= 0x21F0AAADu;
    value ^= value >> 15;
    value *= 0x735A2D97u;
    return value ^ value >> 15;
}

/* Computes nearly normal numbers `first` to `first + count - 1`: sums of four random bytes. */
INLINE void noise_of(float *restrict to, uint32_t seed, int64_t first, int64_t count)
{
    const float deviation = 0x1.2799ep+7f; /* standard deviation of such a sum: the root of (256^2 - 1) / 3 */
    uint32_t start = (uint32_t)first * 0x9E3779B9u + seed;
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = mix(start + (uint32_t)i * 0x9E3779B9u);
        int total = (int)((bits & 255) + (bits >> 8 & 255) + (bits >> 16 & 255) + (bits >> 24));
        to[i] = (float)(total - 510) / deviation;
    }
}
BOTH_LOOPS(void, noise, (float *to, uint32_t seed, int64_t first, int64_t count), noise_of(to, seed, first, count))

INLINE void add_share_of(float *restrict to, const uint8_t *restrict from, float share, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] += (float)from[i] * share;
}
BOTH_LOOPS(void, add_share, (float *to, const uint8_t *from, float share, int64_t count),
           add_share_of(to, from, share, count))

/* ---- passes ---- */

static int32_t whole(float value)
{
    return value > 32767 ? 32767 : value < -32768 ? -32768 : (int32_t)value;
}

static uint32_t seed_of(const float *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 16;
}

/* Does gaussian_noise_image() with our own random numbers. */
enum outcome add_noise(struct worker *worker, const struct image *image, const struct step *step)
{
    int64_t size = 3 * image->height * image->width;
    float noise[STRIP], mean = step->p[0], sigma = step->p[1];
    for (int64_t at = 0; at < size; at += STRIP) {
        int64_t count = size - at < STRIP ? size - at : STRIP;
        worker->kernels->noise(noise, seed_of(step->p + 2), at, count);
        for (int64_t i = 0; i < count; i++) {
            int32_t value = image->at[at + i] + whole(mean + noise[i] * sigma);
            if (step->flags & 1)
                value = value < 0 ? 0 : value > 255 ? 255 : value;
            image->at[at + i] = (uint8_t)(value & 255);
        }
    }
    return DONE;
}

/* Clips `value` to 0 … `most`. */
static int64_t within(float value, int64_t most)
{
    return value<0 ? 0 : value>(float) most ? most : (int64_t)value;
}

/* Overwrites the part of a box that is inside the image. */
enum outcome erase(struct worker *worker, const struct image *image, const struct step *step)
{
    static const float means[3] = {123.675f, 116.28f, 103.53f}, deviations[3] = {58.395f, 57.12f, 57.375f};
    const float *p = step->p;
    int64_t width = (int64_t)p[3], top = within(p[0], image->height), left = within(p[1], image->width),
            bottom = within(p[0] + p[2], image->height), right = within(p[1] + p[3], image->width);
    int64_t hidden_rows = top - (int64_t)p[0], hidden_columns = left - (int64_t)p[1];
    uint8_t colour[3] = {to_byte(p[4]), to_byte(p[5]), to_byte(p[6])};
    for (int64_t y = top; y < bottom; y++) {
        uint8_t *to = image->at + 3 * (y * image->width + left), *end = to + 3 * (right - left);
        int64_t number = 3 * ((y - top + hidden_rows) * width + hidden_columns);
        float noise[STRIP];
        while (to < end) {
            int64_t count = end - to < STRIP / 3 * 3 ? end - to : STRIP / 3 * 3;
            if (step->flags == 1)
                worker->kernels->noise(noise, seed_of(p + 4), number, count);
            for (int64_t i = 0; i < count; i++)
                to[i] =
                    step->flags == 1 ? to_byte(round_even(noise[i] * deviations[i % 3] + means[i % 3])) : colour[i % 3];
            to += count;
            number += count;
        }
    }
    return DONE;
}

enum outcome mirror_image(struct worker *worker, const struct image *image, const struct step *step)
{
    (void)step;
    int64_t row_bytes = 3 * image->width;
    if (grow_buffer(&worker->scratch.copied, (size_t)row_bytes + PADDING) != DONE)
        return REFUSED;
    for (int64_t y = 0; y < image->height; y++) {
        uint8_t *row = image->at + y * row_bytes, *copy = worker->scratch.copied.at;
        memcpy(copy, row, (size_t)row_bytes);
        worker->kernels->mirror(row, copy, image->width, 3);
    }
    return DONE;
}

enum outcome flip_image(struct worker *worker, const struct image *image, const struct step *step)
{
    (void)step;
    struct scratch *scratch = &worker->scratch;
    int64_t row_bytes = 3 * image->width;
    if (grow_buffer(&scratch->copied, (size_t)row_bytes) != DONE)
        return REFUSED;
    for (int64_t y = 0; y < image->height / 2; y++) {
        uint8_t *row = image->at + y * row_bytes, *other = image->at + (image->height - 1 - y) * row_bytes;
        memcpy(scratch->copied.at, row, (size_t)row_bytes);
        memcpy(row, other, (size_t)row_bytes);
        memcpy(other, scratch->copied.at, (size_t)row_bytes);
    }
    return DONE;
}

/* Remembers the image, and begins a sum with a share of it. */
enum outcome keep_image(struct worker *worker, const struct image *image, const struct step *step)
{
    struct scratch *scratch = &worker->scratch;
    size_t size = (size_t)(3 * image->height * image->width);
    if (grow_buffer(&scratch->remembered, size) != DONE || grow_buffer(&scratch->sum, size * sizeof(float)) != DONE)
        return REFUSED;
    memcpy(scratch->remembered.at, image->at, size);
    memset(scratch->sum.at, 0, size * sizeof(float));
    worker->kernels->add_share(scratch->sum.at, image->at, step->p[0], (int64_t)size);
    return DONE;
}

/* Adds a share of the image to the sum, and restores the remembered image. */
enum outcome add_image(struct worker *worker, const struct image *image, const struct step *step)
{
    int64_t size = 3 * image->height * image->width;
    worker->kernels->add_share(worker->scratch.sum.at, image->at, step->p[0], size);
    memcpy(image->at, worker->scratch.remembered.at, (size_t)size);
    return DONE;
}

/* Replaces the image by the sum. */
enum outcome mix_images(struct worker *worker, const struct image *image, const struct step *step)
{
    (void)step;
    worker->kernels->to_bytes(image->at, worker->scratch.sum.at, false, 3 * image->height * image->width);
    return DONE;
}
