/* Chooses between the loops with vector instructions, and those for any processor. */
#include "kernels.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif

static const struct kernels plain_kernels = {
#define KERNEL(result, name, parameters) .name = name##_plain,
#include "kernels.def"
    .place = natural_place,
};

#ifdef HAS_VECTORS
static const struct kernels vector_kernels = {
#define KERNEL(result, name, parameters) .name = name##_vector,
#include "kernels.def"
#if defined(__x86_64__)
    .place = paired_place,
#else
    .place = natural_place,
#endif
};

static bool has_vectors(void)
{
#ifdef __x86_64__
    unsigned eax, ebx, ecx = 0, edx;
    /* Not every compiler knows the name of the third feature. */
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &eax, &ebx, &ecx, &edx) && ecx & bit_F16C;
#else
    return true;
#endif
}
#endif

/* Returns the fastest loops for this processor, or those without vector instructions if `plain`. */
const struct kernels *choose_kernels(bool plain)
{
#ifdef HAS_VECTORS
    if (!plain && has_vectors())
        return &vector_kernels;
#else
    (void)plain;
#endif
    return &plain_kernels;
}
