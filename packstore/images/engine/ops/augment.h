/*
 * Programs: operations with drawn parameters, on the pixels of an image, (height, width, 3), in place.
 *
 * augment.c  runs the steps of a program
 * points.c   colours: steps become tables and passes
 * channels.c the loops of these
 * pillow.c   likewise, with Pillow's arithmetic
 * blur.c     blurring and sharpening
 * warp.c     affine and perspective maps
 * shift.c    affine maps that move pixels along one axis
 * erase.c    erasing, noise, mirroring, sums of images
 *
 * packstore/images/programs.py says what the steps and their parameters mean. The arithmetic is torchvision's for uint8
 * (transforms/v2/functional), or with AS_PILLOW that of Pillow.
 */
#ifndef PACKSTORE_AUGMENT_H
#define PACKSTORE_AUGMENT_H

#include "../simd/vectors.h"

/* Same numbers as Code in packstore/images/programs.py. */
enum step_code {
    STEP_IDENTITY,
    STEP_BRIGHTNESS,
    STEP_CONTRAST,
    STEP_SATURATION,
    STEP_HUE,
    STEP_GRAY,
    STEP_INVERT,
    STEP_POSTERIZE,
    STEP_SOLARIZE,
    STEP_SOLARIZE_ADD,
    STEP_AUTOCONTRAST,
    STEP_EQUALIZE,
    STEP_SHARPNESS,
    STEP_BLUR,
    STEP_NOISE,
    STEP_PERMUTE,
    STEP_AFFINE,
    STEP_PERSPECTIVE,
    STEP_ERASE,
    STEP_MIRROR,
    STEP_FLIP,
    STEP_KEEP,
    STEP_ADD,
    STEP_MIX,
    STEP_LAST = STEP_MIX
};

enum { NEAREST, BILINEAR, BICUBIC };        /* flags of a warp, bits 0 and 1 */
enum { FILL_ZEROS, FILL_BLEND, FILL_EDGE }; /* bits 2 and 3 */
enum { STRIP = 1024 };                      /* pixels processed at a time, few enough to stay in the cache */
enum { MOST_KERNEL = 255 };                 /* pixels of a blur's kernel */
enum { MOST_SHARE = 1000 };                 /* same limit for the share of an image in a sum */
enum { MOST_FACTOR = 1000000 };             /* of colour operations: products with bytes fit 32 bits */

enum { AS_PILLOW = 1 };                        /* flag of colours */
enum { AS_FIRST = 2 };                         /* of autocontrast: as torchvision's first version */
enum { PILLOW_FIXED = 16, PILLOW_SCALE = 32 }; /* of STEP_AFFINE: nearest pixels as Pillow finds them */

struct step {
    int32_t code, flags;
    float p[8];
};

struct image {
    uint8_t *at;
    int64_t height, width;
};

/* Map from pixels of a result row to positions in the source: a matrix or a perspective. */
struct map {
    float m[8]; /* scaled so that the image reaches from -1 to 1 */
    bool perspective;
};

struct taps_of_warp {
    const uint8_t *at; /* pixels of the source, with PADDING behind them */
    int64_t height, width;
    const float *x, *y;     /* position of each pixel of a row, in pixels of the source */
    const uint8_t *outside; /* FILL_EDGE: which pixels show the fill */
    int way;
    float fill[3];
};

/* Loops with two implementations that give equal results. Planes have `count` values each. */
struct augment_kernels {
    void (*table)(uint8_t *at, int64_t count, const uint8_t *table);
    void (*join)(uint8_t *to, const uint8_t *const planes[3], int64_t pixels);
    void (*blend)(uint8_t *at, int64_t count, float factor, float other, float rest);
    void (*gray)(uint8_t *const planes[3], int64_t count);
    int64_t (*sum_gray)(uint8_t *const planes[3], int64_t count);
    void (*saturate)(uint8_t *const planes[3], int64_t count, float factor);
    void (*turn_hue)(uint8_t *const planes[3], int64_t count, float shift);
    void (*luma)(uint8_t *to, const uint8_t *const planes[3], int64_t count);
    void (*blend_plane)(uint8_t *at, const uint8_t *from, int64_t count, float factor);
    void (*turn_byte_hue)(uint8_t *const planes[3], int64_t count, int shift);
    void (*extremes)(const uint8_t *at, int64_t count, uint8_t *low, uint8_t *high);
    void (*sharpen)(uint8_t *to, const uint8_t *above, const uint8_t *row, const uint8_t *below, int64_t count,
                    float factor);
    void (*to_floats)(float *to, const uint8_t *from, int64_t count);
    void (*round)(uint8_t *to, const float *from, int64_t count);
    void (*weigh)(float *to, const float *const *rows, const float *weights, int reach, int64_t count);
    void (*locate)(float *x, float *y, uint8_t *outside, const struct map *, int64_t row, int64_t height,
                   int64_t width);
    void (*places)(uint32_t *to, const struct taps_of_warp *, uint32_t fill, int64_t count);
    void (*bilinear)(uint8_t *to, const struct taps_of_warp *, int64_t count);
    void (*bicubic)(uint8_t *to, const struct taps_of_warp *, int64_t count);
    void (*sum_lines)(uint8_t *to, const uint8_t *const lines[4], const float *const weights[4], bool each,
                      int64_t count);
    void (*cut)(uint8_t *to, const float *from, int64_t count);
    void (*add)(float *to, const uint8_t *from, float share, int64_t count);
    void (*noise)(float *to, uint32_t seed, int64_t first, int64_t count);
};
extern const struct augment_kernels plain_augment;
#ifdef HAS_VECTORS
extern const struct augment_kernels vector_augment;
#endif

/* a * b + c, rounded once, as in torch. Without a fused instruction the sum is computed in double, which is exact for
 * numbers of so few bits. */
INLINE float fused(float a, float b, float c, const bool fuses)
{
    return fuses ? __builtin_fmaf(a, b, c) : (float)((double)a * (double)b + (double)c);
}

/* Truncates to a whole number from 0 to 255; NaN becomes 0. */
INLINE uint8_t to_byte(float value)
{
    value = value > 0 ? value : 0;
    value = value < 255 ? value : 255;
    return (uint8_t)(int)value;
}

/* Image.blend() of a value of each of two images. */
INLINE uint8_t pillow_blend(uint8_t first, uint8_t second, float factor)
{
    return to_byte((float)first + factor * (float)((int)second - (int)first));
}

/* Rounds to the nearest whole number, ties to even; for values below 2^22. */
INLINE float round_even(float value)
{
    return (value + 0x1.8p23f) - 0x1.8p23f;
}

/* Computes the weights of four pixels, as get_cubic_upsample_coefficients() with A = -0.75. */
INLINE void cubic_weights(float *weights, float part)
{
    const float a = -0.75f;
    for (int n = 0; n < 4; n++) {
        float d = n == 0 ? part + 1 : n == 1 ? part : n == 2 ? 1 - part : 2 - part;
        weights[n] = n == 1 || n == 2 ? ((a + 2) * d - (a + 3)) * d * d + 1 : ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
    }
}

/* Rounded down. */
INLINE int64_t floor_of(float value)
{
    int64_t whole = (int64_t)value;
    return whole - ((float)whole > value);
}

#ifdef HAS_VECTORS
VECTORS_FMA INLINE __m256 load_bytes(const uint8_t *at)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)at)));
}

/* Stores 32 whole numbers as bytes, clipped to 0 and 255. */
VECTORS_FMA INLINE void store_numbers(uint8_t *to, const __m256i numbers[4])
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i low = _mm256_packs_epi32(numbers[0], numbers[1]), high = _mm256_packs_epi32(numbers[2], numbers[3]);
    __m256i all = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order);
    _mm256_storeu_si256((__m256i *)to, all);
}

/* Stores 32 values as bytes: truncated to whole numbers, clipped to 0 and 255. */
VECTORS_FMA INLINE void store_bytes(uint8_t *to, const __m256 values[4])
{
    const __m256i numbers[4] = {_mm256_cvttps_epi32(values[0]), _mm256_cvttps_epi32(values[1]),
                                _mm256_cvttps_epi32(values[2]), _mm256_cvttps_epi32(values[3])};
    store_numbers(to, numbers);
}
#endif

/* augment.c */
enum outcome run_program(struct decoder *, const struct image *, const struct step *, int64_t count);
/* points.c */
enum outcome run_points(struct decoder *, const struct image *, const struct step *, int64_t count, int64_t *done);
/* blur.c */
enum outcome sharpen(struct decoder *, const struct image *, const struct step *);
enum outcome blur(struct decoder *, const struct image *, const struct step *);
/* warp.c */
enum outcome warp(struct decoder *, const struct image *, const struct step *);
/* pillow.c */
enum outcome place_pixels(struct decoder *, const struct image *, const struct step *);
/* shift.c */
bool moves_one_axis(const struct step *);
enum outcome warp_one_axis(struct decoder *, const struct image *, const struct step *, const struct taps_of_warp *);
/* erase.c */
enum outcome erase(struct decoder *, const struct image *, const struct step *);
enum outcome add_noise(struct decoder *, const struct image *, const struct step *);
enum outcome mirror_image(struct decoder *, const struct image *);
enum outcome flip_image(struct decoder *, const struct image *);
enum outcome keep_image(struct decoder *, const struct image *, const struct step *);
void add_image(struct decoder *, const struct image *, const struct step *);
void mix_images(struct decoder *, const struct image *);

#define DECLARE_KERNELS(suffix)                                                                                        \
    void table_##suffix(uint8_t *, int64_t, const uint8_t *);                                                          \
    void join_##suffix(uint8_t *, const uint8_t *const planes[3], int64_t);                                            \
    void blend_bytes_##suffix(uint8_t *, int64_t, float, float, float);                                                \
    void gray_##suffix(uint8_t *const planes[3], int64_t);                                                             \
    int64_t sum_gray_##suffix(uint8_t *const planes[3], int64_t);                                                      \
    void saturate_##suffix(uint8_t *const planes[3], int64_t, float);                                                  \
    void turn_hue_##suffix(uint8_t *const planes[3], int64_t, float);                                                  \
    void luma_##suffix(uint8_t *, const uint8_t *const planes[3], int64_t);                                            \
    void blend_plane_##suffix(uint8_t *, const uint8_t *, int64_t, float);                                             \
    void turn_byte_hue_##suffix(uint8_t *const planes[3], int64_t, int);                                               \
    void extremes_##suffix(const uint8_t *, int64_t, uint8_t *, uint8_t *);                                            \
    void sharpen_##suffix(uint8_t *, const uint8_t *, const uint8_t *, const uint8_t *, int64_t, float);               \
    void bytes_to_floats_##suffix(float *, const uint8_t *, int64_t);                                                  \
    void round_##suffix(uint8_t *, const float *, int64_t);                                                            \
    void weigh_##suffix(float *, const float *const *, const float *, int, int64_t);                                   \
    void locate_##suffix(float *, float *, uint8_t *, const struct map *, int64_t, int64_t, int64_t);                  \
    void places_##suffix(uint32_t *, const struct taps_of_warp *, uint32_t, int64_t);                                  \
    void bilinear_##suffix(uint8_t *, const struct taps_of_warp *, int64_t);                                           \
    void bicubic_##suffix(uint8_t *, const struct taps_of_warp *, int64_t);                                            \
    void sum_lines_##suffix(uint8_t *, const uint8_t *const lines[4], const float *const weights[4], bool, int64_t);   \
    void cut_off_##suffix(uint8_t *, const float *, int64_t);                                                          \
    void add_share_##suffix(float *, const uint8_t *, float, int64_t);                                                 \
    void noise_##suffix(float *, uint32_t, int64_t, int64_t);
DECLARE_KERNELS(plain)
#ifdef HAS_VECTORS
DECLARE_KERNELS(vector)
#endif

#endif
