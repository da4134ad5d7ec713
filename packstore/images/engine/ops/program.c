/* Runs the steps of a program on an image. */
#include "program.h"

static bool has_factor(const struct step *step)
{
    return step->p[0] >= -MOST_FACTOR && step->p[0] <= MOST_FACTOR;
}

static bool has_share(const struct step *step)
{
    return step->p[0] >= -MOST_SHARE && step->p[0] <= MOST_SHARE;
}

static bool has_hue(const struct step *step)
{
    return step->p[0] >= -0.5f && step->p[0] <= 0.5f && step->p[1] >= 0 && step->p[1] <= 255;
}

static bool has_bits(const struct step *step)
{
    return step->p[0] >= 0 && step->p[0] <= 8;
}

static bool has_kernels(const struct step *step)
{
    const float *p = step->p;
    for (int i = 0; i < 2; i++)
        if (!(p[i] >= 1 && p[i] <= MOST_KERNEL && (int)p[i] % 2 == 1 && p[2 + i] > 0))
            return false;
    return true;
}

/* True if the halves of a seed, from `p` on, have 16 bits each. */
static bool is_seed(const float *p)
{
    return p[0] >= 0 && p[0] <= 65535 && p[1] >= 0 && p[1] <= 65535;
}

static bool has_seed(const struct step *step)
{
    return is_seed(step->p + 2);
}

static bool has_channels(const struct step *step)
{
    const float *p = step->p;
    return p[0] >= 0 && p[0] < 3 && p[1] >= 0 && p[1] < 3 && p[2] >= 0 && p[2] < 3;
}

static bool has_way(const struct step *step)
{
    return (step->flags & 3) <= BICUBIC && (step->flags >> 2 & 3) <= FILL_EDGE;
}

static bool has_content(const struct step *step)
{
    return step->flags >= 0 && step->flags <= 2 && (step->flags != 1 || is_seed(step->p + 4));
}

/* True if the parameters are not floats, and all values are valid. */
static bool places_pixels(const struct step *step)
{
    return step->code == STEP_AFFINE && step->flags & (PILLOW_FIXED | PILLOW_SCALE);
}

static enum outcome map_affine(struct worker *worker, const struct image *image, const struct step *step)
{
    return (places_pixels(step) ? place_pixels : warp)(worker, image, step);
}

/* An operation: what its parameters must have besides finite numbers, if anything, and what runs it. NULL for those of
 * points.c, which runs several together. */
static const struct op {
    bool (*valid)(const struct step *);
    operation *run;
} ops[STEP_LAST + 1] = {
    [STEP_BRIGHTNESS] = {has_factor, NULL}, [STEP_CONTRAST] = {has_factor, NULL},
    [STEP_SATURATION] = {has_factor, NULL}, [STEP_HUE] = {has_hue, NULL},
    [STEP_POSTERIZE] = {has_bits, NULL},    [STEP_SHARPNESS] = {has_factor, sharpen},
    [STEP_BLUR] = {has_kernels, blur},      [STEP_NOISE] = {has_seed, add_noise},
    [STEP_PERMUTE] = {has_channels, NULL},  [STEP_AFFINE] = {has_way, map_affine},
    [STEP_PERSPECTIVE] = {has_way, warp},   [STEP_ERASE] = {has_content, erase},
    [STEP_MIRROR] = {NULL, mirror_image},   [STEP_FLIP] = {NULL, flip_image},
    [STEP_KEEP] = {has_share, keep_image},  [STEP_ADD] = {has_share, add_image},
    [STEP_MIX] = {NULL, mix_images},
};

/* True if all parameters are finite numbers that fit 32 bits, and the parameters of the step are in their ranges. */
static bool is_valid(const struct step *step)
{
    if (step->code < 0 || step->code > STEP_LAST)
        return false;
    if (places_pixels(step))
        return true;
    for (int i = 0; i < 8; i++)
        if (!(step->p[i] > -2e9f && step->p[i] < 2e9f))
            return false;
    return !ops[step->code].valid || ops[step->code].valid(step);
}

/* Runs `steps` one after the other, in place. REFUSED if a step is not valid or memory is missing; the pixels are then
 * undefined. */
enum outcome run_program(struct worker *worker, const struct image *image, const struct step *steps, int64_t count)
{
    bool kept = false; /* there was a STEP_KEEP, which STEP_ADD and STEP_MIX need */
    for (int64_t i = 0; i < count; i++) {
        int32_t code = steps[i].code;
        if (!is_valid(&steps[i]) || ((code == STEP_ADD || code == STEP_MIX) && !kept))
            return REFUSED;
        kept = kept || code == STEP_KEEP;
    }
    enum outcome outcome = DONE;
    for (int64_t i = 0, done; i < count && outcome == DONE; i += done) {
        const struct op *op = &ops[steps[i].code];
        done = 1;
        outcome = op->run ? op->run(worker, image, &steps[i]) : run_points(worker, image, &steps[i], count - i, &done);
    }
    return outcome;
}
