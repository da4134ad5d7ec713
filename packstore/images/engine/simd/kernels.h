/* Loops with two implementations of equal results: with vector instructions, and for any processor. */
#pragma once

#include "../core/base.h"

struct decoder;
struct float_taps;
struct lane;
struct map;
struct skipper;
struct taps;
struct taps_of_warp;

struct kernels {
#define KERNEL(result, name, parameters) result(*name) parameters;
#include "kernels.def"
    const uint8_t *place; /* order of the coefficients that `samples` expects: one of the following */
};

extern const uint8_t natural_place[256], paired_place[256];

#define KERNEL(result, name, parameters) result name##_plain parameters;
#include "kernels.def"
#ifdef HAS_VECTORS
#define KERNEL(result, name, parameters) result name##_vector parameters;
#include "kernels.def"
#endif

/* Defines both implementations of a loop by one expression, of inline functions that the compiler turns into vector
 * instructions by itself. */
#define PLAIN_LOOP(result, name, parameters, expression)                                                               \
    result name##_plain parameters                                                                                     \
    {                                                                                                                  \
        return expression;                                                                                             \
    }
#ifdef HAS_VECTORS
#define BOTH_LOOPS(result, name, parameters, expression)                                                               \
    PLAIN_LOOP(result, name, parameters, expression)                                                                   \
    VECTORS result name##_vector parameters                                                                            \
    {                                                                                                                  \
        return expression;                                                                                             \
    }
#else
#define BOTH_LOOPS(result, name, parameters, expression) PLAIN_LOOP(result, name, parameters, expression)
#endif

const struct kernels *choose_kernels(bool plain);
