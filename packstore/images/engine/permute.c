/* The Feistel network of packstore/training/permutation.py, whose names these are. */
#include "simd/kernels.h"

#define ROUNDS 6

INLINE uint32_t hash_digit(uint32_t digit, uint32_t key)
{
    uint32_t value = (digit ^ key) * 0x21F0AAADu;
    value = (value ^ value >> 15) * 0x735A2D97u;
    return value >> 16;
}

INLINE uint32_t encrypt(uint32_t value, int shift, uint32_t radix, const uint32_t *keys)
{
    const uint32_t mask = (1u << shift) - 1;
    uint32_t high = value >> shift, low = value & mask;
    for (int i = 0; i < ROUNDS; i += 2) {
        low ^= hash_digit(high, keys[i]) & mask;
        high += hash_digit(low, keys[i + 1]) * radix >> 16;
        high = high < high - radix ? high : high - radix; /* high modulo radix: below it, the difference wraps */
    }
    return high << shift | low;
}

INLINE void permute_of(int64_t *values, int64_t count, uint32_t length, int shift, uint32_t radix, const uint32_t *keys)
{
    for (int64_t i = 0; i < count; i++)
        values[i] = encrypt((uint32_t)values[i], shift, radix, keys);
    for (int64_t i = 0; i < count; i++)
        while (values[i] >= length)
            values[i] = encrypt((uint32_t)values[i], shift, radix, keys);
}
BOTH_LOOPS(void, permute,
           (int64_t *values, int64_t count, uint32_t length, int shift, uint32_t radix, const uint32_t *keys),
           permute_of(values, count, length, shift, radix, keys))

/* Replaces each of `count` values by its place in a permutation of 0 to length - 1. */
EXPORT void packstore_engine_permute(int64_t *values, int64_t count, uint32_t length, int shift, uint32_t radix,
                                     const uint32_t *keys)
{
    choose_kernels(false)->permute(values, count, length, shift, radix, keys);
}
