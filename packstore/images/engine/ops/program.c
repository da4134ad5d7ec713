/* Runs the steps of a program on an image. */
#include "augment.h"

#define KERNELS(suffix)                                                                                                \
    {.table = table_##suffix,                                                                                          \
     .join = join_##suffix,                                                                                            \
     .blend = blend_bytes_##suffix,                                                                                    \
     .gray = gray_##suffix,                                                                                            \
     .sum_gray = sum_gray_##suffix,                                                                                    \
     .saturate = saturate_##suffix,                                                                                    \
     .turn_hue = turn_hue_##suffix,                                                                                    \
     .luma = luma_##suffix,                                                                                            \
     .blend_plane = blend_plane_##suffix,                                                                              \
     .turn_byte_hue = turn_byte_hue_##suffix,                                                                          \
     .extremes = extremes_##suffix,                                                                                    \
     .sharpen = sharpen_##suffix,                                                                                      \
     .to_floats = bytes_to_floats_##suffix,                                                                            \
     .round = round_##suffix,                                                                                          \
     .weigh = weigh_##suffix,                                                                                          \
     .locate = locate_##suffix,                                                                                        \
     .places = places_##suffix,                                                                                        \
     .bilinear = bilinear_##suffix,                                                                                    \
     .bicubic = bicubic_##suffix,                                                                                      \
     .sum_lines = sum_lines_##suffix,                                                                                  \
     .cut = cut_off_##suffix,                                                                                          \
     .add = add_share_##suffix,                                                                                        \
     .noise = noise_##suffix}

const struct augment_kernels plain_augment = KERNELS(plain);
#ifdef HAS_VECTORS
const struct augment_kernels vector_augment = KERNELS(vector);
#endif

/* True if the parameters are not floats, and all values are valid. */
static bool places_pixels(const struct step *step)
{
    return step->code == STEP_AFFINE && step->flags & (PILLOW_FIXED | PILLOW_SCALE);
}

/* True if all parameters are finite numbers that fit 32 bits, and the parameters of the step are in their ranges. */
static bool is_valid(const struct step *step)
{
    const float *p = step->p;
    if (places_pixels(step))
        return true;
    for (int i = 0; i < 8; i++)
        if (!(p[i] > -2e9f && p[i] < 2e9f))
            return false;
    switch (step->code) {
    case STEP_BRIGHTNESS:
    case STEP_CONTRAST:
    case STEP_SATURATION:
    case STEP_SHARPNESS: return p[0] >= -MOST_FACTOR && p[0] <= MOST_FACTOR;
    case STEP_KEEP:
    case STEP_ADD: return p[0] >= -MOST_SHARE && p[0] <= MOST_SHARE;
    case STEP_HUE: return p[0] >= -0.5f && p[0] <= 0.5f && p[1] >= 0 && p[1] <= 255;
    case STEP_POSTERIZE: return p[0] >= 0 && p[0] <= 8;
    case STEP_BLUR:
        for (int i = 0; i < 2; i++)
            if (!(p[i] >= 1 && p[i] <= MOST_KERNEL && (int)p[i] % 2 == 1 && p[2 + i] > 0))
                return false;
        return true;
    case STEP_NOISE: return p[2] >= 0 && p[2] <= 65535 && p[3] >= 0 && p[3] <= 65535;
    case STEP_PERMUTE: return p[0] >= 0 && p[0] < 3 && p[1] >= 0 && p[1] < 3 && p[2] >= 0 && p[2] < 3;
    case STEP_AFFINE:
    case STEP_PERSPECTIVE: return (step->flags & 3) <= BICUBIC && (step->flags >> 2 & 3) <= FILL_EDGE;
    case STEP_ERASE:
        return step->flags >= 0 && step->flags <= 2 &&
               (step->flags != 1 || (p[4] >= 0 && p[4] <= 65535 && p[5] >= 0 && p[5] <= 65535));
    default: return step->code >= STEP_IDENTITY && step->code <= STEP_LAST;
    }
}

/* Runs `steps` one after the other, in place. REFUSED if a step is not valid or memory is missing; the pixels are then
 * undefined. */
enum outcome run_program(struct decoder *decoder, const struct image *image, const struct step *steps, int64_t count)
{
    bool kept = false; /* there was a STEP_KEEP, which STEP_ADD and STEP_MIX need */
    for (int64_t i = 0; i < count; i++) {
        int32_t code = steps[i].code;
        if (!is_valid(&steps[i]) || ((code == STEP_ADD || code == STEP_MIX) && !kept))
            return REFUSED;
        kept = kept || code == STEP_KEEP;
    }
    enum outcome outcome = DONE;
    for (int64_t i = 0; i < count && outcome == DONE;) {
        const struct step *step = &steps[i];
        int64_t done = 1;
        switch (step->code) {
        case STEP_SHARPNESS: outcome = sharpen(decoder, image, step); break;
        case STEP_BLUR: outcome = blur(decoder, image, step); break;
        case STEP_NOISE: outcome = add_noise(decoder, image, step); break;
        case STEP_AFFINE:
        case STEP_PERSPECTIVE:
            outcome = places_pixels(step) ? place_pixels(decoder, image, step) : warp(decoder, image, step);
            break;
        case STEP_ERASE: outcome = erase(decoder, image, step); break;
        case STEP_MIRROR: outcome = mirror_image(decoder, image); break;
        case STEP_FLIP: outcome = flip_image(decoder, image); break;
        case STEP_KEEP: outcome = keep_image(decoder, image, step); break;
        case STEP_ADD: add_image(decoder, image, step); break;
        case STEP_MIX: mix_images(decoder, image); break;
        default: outcome = run_points(decoder, image, step, count - i, &done);
        }
        i += done;
    }
    return outcome;
}
