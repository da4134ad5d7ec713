/* Runs the steps of a program on an image. */
#include "program.h"

static bool is_within(float value, float least, float most)
{
    return value >= least && value <= most;
}

/* True if the halves of a seed, from `p` on, have 16 bits each. */
static bool is_seed(const float *p)
{
    return is_within(p[0], 0, 65535) && is_within(p[1], 0, 65535);
}

static bool is_kernel(float size, float sigma)
{
    return is_within(size, 1, MOST_KERNEL) && (int)size % 2 == 1 && sigma > 0;
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

/* What runs an operation; NULL for those of points.c, which runs several together. */
static operation *const operations[STEPS] = {
    [STEP_SHARPNESS] = sharpen, [STEP_BLUR] = blur,     [STEP_NOISE] = add_noise,     [STEP_AFFINE] = map_affine,
    [STEP_PERSPECTIVE] = warp,  [STEP_ERASE] = erase,   [STEP_MIRROR] = mirror_image, [STEP_FLIP] = flip_image,
    [STEP_KEEP] = keep_image,   [STEP_ADD] = add_image, [STEP_MIX] = mix_images,
};

/* True if all parameters are finite numbers that fit 32 bits, and the parameters of the step are in their ranges. */
static bool is_valid(const struct step *step)
{
    if (step->code < 0 || step->code >= STEPS)
        return false;
    if (places_pixels(step))
        return true;
    for (int i = 0; i < 8; i++)
        if (!(step->p[i] > -2e9f && step->p[i] < 2e9f))
            return false;
    const float *p = step->p;
    switch (step->code) {
    case STEP_BRIGHTNESS:
    case STEP_CONTRAST:
    case STEP_SATURATION:
    case STEP_SHARPNESS: return is_within(p[0], -MOST_FACTOR, MOST_FACTOR);
    case STEP_HUE: return is_within(p[0], -0.5f, 0.5f) && is_within(p[1], 0, 255);
    case STEP_POSTERIZE: return is_within(p[0], 0, 8);
    case STEP_BLUR: return is_kernel(p[0], p[2]) && is_kernel(p[1], p[3]);
    case STEP_NOISE: return is_seed(p + 2);
    case STEP_PERMUTE: return p[0] >= 0 && p[0] < 3 && p[1] >= 0 && p[1] < 3 && p[2] >= 0 && p[2] < 3;
    case STEP_AFFINE:
    case STEP_PERSPECTIVE: return (step->flags & 3) <= BICUBIC && (step->flags >> 2 & 3) <= FILL_EDGE;
    case STEP_ERASE: return step->flags >= 0 && step->flags <= 2 && (step->flags != 1 || is_seed(p + 4));
    case STEP_KEEP:
    case STEP_ADD: return is_within(p[0], -MOST_SHARE, MOST_SHARE);
    default: return true;
    }
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
        operation *run = operations[steps[i].code];
        done = 1;
        outcome = run ? run(worker, image, &steps[i]) : run_points(worker, image, &steps[i], count - i, &done);
    }
    return outcome;
}
