/* Tables of the loops with two implementations, see engine.h: with vector instructions, and for any processor. */
#include "../ops/augment.h"

const struct kernels plain_kernels = {.one_lane = one_lane_plain,
                                      .two_lanes = two_lanes_plain,
                                      .samples = samples_plain,
                                      .place = natural_place,
                                      .pass_one = pass_one_plain,
                                      .pass_two = pass_two_plain,
                                      .colours = colours_plain,
                                      .blend = blend_plain,
                                      .widen = widen_plain,
                                      .heighten = heighten_plain,
                                      .rows = rows_plain,
                                      .columns = columns_plain,
                                      .mirror = mirror_plain,
                                      .gray_rows = gray_rows_plain,
                                      .gray_mirror = gray_mirror_plain,
                                      .normalize = normalize_plain,
                                      .split = split_plain,
                                      .to_floats = to_floats_plain,
                                      .from_floats = from_floats_plain,
                                      .sum_rows = sum_rows_plain,
                                      .sum_pixels = sum_pixels_plain,
                                      .augment = &plain_augment};
#if defined(__x86_64__)
#define VECTOR_PLACE paired_place
#else
#define VECTOR_PLACE natural_place
#endif
#ifdef HAS_VECTORS
const struct kernels vector_kernels = {.one_lane = one_lane_vector,
                                       .two_lanes = two_lanes_vector,
                                       .samples = samples_vector,
                                       .place = VECTOR_PLACE,
                                       .pass_one = pass_one_vector,
                                       .pass_two = pass_two_vector,
                                       .colours = colours_vector,
                                       .blend = blend_vector,
                                       .widen = widen_vector,
                                       .heighten = heighten_vector,
                                       .rows = rows_vector,
                                       .columns = columns_vector,
                                       .mirror = mirror_vector,
                                       .gray_rows = gray_rows_vector,
                                       .gray_mirror = gray_mirror_vector,
                                       .normalize = normalize_vector,
                                       .split = split_vector,
                                       .to_floats = to_floats_vector,
                                       .from_floats = from_floats_vector,
                                       .sum_rows = sum_rows_vector,
                                       .sum_pixels = sum_pixels_vector,
                                       .augment = &vector_augment};
#endif
