/* HighwayHash (https://arxiv.org/abs/1612.06257) of 64 bits with the key of Riegeli, for the checksums of ArrayRecord's
 * chunks. */
#include "engine.h"

#include <string.h>

enum { WORDS = 4, PACKET = 32 };

struct state {
    uint64_t v0[WORDS], v1[WORDS], mul0[WORDS], mul1[WORDS];
};

static const uint64_t first0[WORDS] = {0xdbe6d5d5fe4cce2f, 0xa4093822299f31d0, 0x13198a2e03707344, 0x243f6a8885a308d3};
static const uint64_t first1[WORDS] = {0x3bd39e10cb0ef593, 0xc0acf169b5f18a8c, 0xbe5466cf34e90c6c, 0x452821e638d01377};
static const uint64_t key[WORDS] = {0x2f696c6567656952, 0x0a7364726f636572, 0x2f696c6567656952, 0x0a7364726f636572};

static inline uint64_t swapped(uint64_t value)
{
    return value >> 32 | value << 32;
}

/* Moves byte `from` of a value to byte `to`. */
static inline uint64_t byte(uint64_t value, int from, int to)
{
    return (value >> 8 * from & 0xff) << 8 * to;
}

/* Adds the bytes of two values, in another order, to two other values. */
static inline void zip(uint64_t low, uint64_t high, uint64_t *to)
{
    to[0] += byte(low, 3, 0) | byte(high, 4, 1) | byte(low, 2, 2) | byte(low, 5, 3) | byte(high, 6, 4) |
             byte(low, 1, 5) | byte(high, 7, 6) | byte(low, 0, 7);
    to[1] += byte(high, 3, 0) | byte(low, 4, 1) | byte(high, 2, 2) | byte(high, 5, 3) | byte(high, 1, 4) |
             byte(low, 6, 5) | byte(high, 0, 6) | byte(low, 7, 7);
}

static inline void update(struct state *state, const uint64_t *words)
{
    for (int i = 0; i < WORDS; i++) {
        state->v1[i] += state->mul0[i] + words[i];
        state->mul0[i] ^= (state->v1[i] & 0xffffffff) * (state->v0[i] >> 32);
        state->v0[i] += state->mul1[i];
        state->mul1[i] ^= (state->v0[i] & 0xffffffff) * (state->v1[i] >> 32);
    }
    zip(state->v1[0], state->v1[1], state->v0);
    zip(state->v1[2], state->v1[3], state->v0 + 2);
    zip(state->v0[0], state->v0[1], state->v1);
    zip(state->v0[2], state->v0[3], state->v1 + 2);
}

static inline void update_bytes(struct state *state, const uint8_t *packet)
{
    uint64_t words[WORDS];
    memcpy(words, packet, PACKET); /* the engine runs on little-endian processors only */
    update(state, words);
}

static void update_rest(struct state *state, const uint8_t *rest, unsigned size)
{
    uint8_t packet[PACKET] = {0};
    unsigned whole = size & ~3u, left = size & 3;
    for (int i = 0; i < WORDS; i++) {
        uint32_t low = (uint32_t)state->v1[i], high = (uint32_t)(state->v1[i] >> 32);
        low = low << size | low >> (32 - size);
        high = high << size | high >> (32 - size);
        state->v0[i] += (uint64_t)size << 32 | size;
        state->v1[i] = (uint64_t)high << 32 | low;
    }
    memcpy(packet, rest, whole);
    if (size & 16) {
        memcpy(packet + 28, rest + size - 4, 4);
    } else if (left) {
        packet[16] = rest[whole];
        packet[17] = rest[whole + left / 2];
        packet[18] = rest[size - 1];
    }
    update_bytes(state, packet);
}

uint64_t highway_hash(const uint8_t *data, uint64_t size)
{
    struct state state;
    for (int i = 0; i < WORDS; i++) {
        state.mul0[i] = first0[i];
        state.mul1[i] = first1[i];
        state.v0[i] = first0[i] ^ key[i];
        state.v1[i] = first1[i] ^ swapped(key[i]);
    }
    for (; size >= PACKET; size -= PACKET, data += PACKET)
        update_bytes(&state, data);
    if (size)
        update_rest(&state, data, (unsigned)size);
    for (int i = 0; i < 4; i++) {
        const uint64_t words[WORDS] = {swapped(state.v0[2]), swapped(state.v0[3]), swapped(state.v0[0]),
                                       swapped(state.v0[1])};
        update(&state, words);
    }
    return state.v0[0] + state.v1[0] + state.mul0[0] + state.mul1[0];
}
