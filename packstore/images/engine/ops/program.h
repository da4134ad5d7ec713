/* Programs: operations with drawn parameters, on the pixels of an image, (height, width, 3), in place.
 *
 * packstore/images/programs.py says what the steps and their parameters mean. The arithmetic is torchvision's for uint8
 * (transforms/v2/functional), or with AS_PILLOW that of Pillow. */
#pragma once

#include "../core/base.h"
#include "../simd/kernels.h"

/* Same numbers as Code in packstore/images/programs.py. */
enum { STEP_IDENTITY, STEP_BRIGHTNESS, STEP_CONTRAST, STEP_SATURATION, STEP_HUE, STEP_GRAY, STEP_INVERT };
enum { STEP_POSTERIZE = STEP_INVERT + 1, STEP_SOLARIZE, STEP_SOLARIZE_ADD, STEP_AUTOCONTRAST, STEP_EQUALIZE };
enum { STEP_SHARPNESS = STEP_EQUALIZE + 1, STEP_BLUR, STEP_NOISE, STEP_PERMUTE, STEP_AFFINE, STEP_PERSPECTIVE };
enum { STEP_ERASE = STEP_PERSPECTIVE + 1, STEP_MIRROR, STEP_FLIP, STEP_KEEP, STEP_ADD, STEP_MIX, STEPS };

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

struct taps_of_warp {
    const uint8_t *at; /* pixels of the source, with PADDING behind them */
    int64_t height, width;
    const float *x, *y;     /* position of each pixel of a row, in pixels of the source */
    const uint8_t *outside; /* FILL_EDGE: which pixels show the fill */
    int way;
    float fill[3];
};

INLINE void show_fill(uint8_t *to, const struct taps_of_warp *taps)
{
    for (int c = 0; c < 3; c++)
        to[c] = (uint8_t)taps->fill[c];
}

/* Changes an image in place. */
typedef enum outcome operation(struct worker *, const struct image *, const struct step *);

operation sharpen, blur;                                                                 /* blur.c */
operation warp;                                                                          /* warp.c */
operation place_pixels;                                                                  /* pillow.c */
operation erase, add_noise, mirror_image, flip_image, keep_image, add_image, mix_images; /* erase.c */

/* program.c */
enum outcome run_program(struct worker *, const struct image *, const struct step *, int64_t count);
/* points.c */
enum outcome run_points(struct worker *, const struct image *, const struct step *, int64_t count, int64_t *done);
/* warp.c */
void show_places(uint8_t *to, const uint8_t *source, const uint32_t *places, int64_t count);
/* shift.c */
bool moves_one_axis(const struct step *);
enum outcome warp_one_axis(struct worker *, const struct image *, const struct step *, const struct taps_of_warp *);
