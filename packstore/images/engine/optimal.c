/* Optimal Huffman tables: ITU-T T.81, K.2, as jpeg_gen_optimal_table() of libjpeg has it. */
#include "engine.h"

enum { LONGEST = 32 };

/* Of equally frequent symbols the last is taken first. And back. */
static int rank_of(int symbol)
{
    return 256 - symbol;
}

/* By what symbols are taken, and those that were joined under one: no two weigh the same. */
static int64_t weigh(int64_t frequency, int symbol)
{
    return frequency << 9 | rank_of(symbol);
}

static int symbol_of(int64_t weight)
{
    return rank_of((int)(weight & 511));
}

/* The least two of at least two weights. */
static void find_two(const int64_t *weights, int count, int64_t *least, int64_t *next)
{
    *least = *next = INT64_MAX;
    for (int i = 0; i < count; i++) {
        int64_t more = weights[i] > *least ? weights[i] : *least;
        *next = more < *next ? more : *next;
        *least = weights[i] < *least ? weights[i] : *least;
    }
}

/* The length of each symbol's code, with one more symbol than there are, so that no code is all ones. */
static void make_lengths(const uint32_t *counts, int *size)
{
    int64_t weights[257];
    int next[257], place[257], left = 0;
    for (int i = 0; i <= 256; i++) {
        uint32_t frequency = i < 256 ? counts[i] : 1;
        next[i] = -1;
        size[i] = 0;
        if (frequency) {
            place[i] = left;
            weights[left++] = weigh(frequency, i);
        }
    }
    while (left > 1) {
        int64_t least, second;
        find_two(weights, left, &least, &second);
        int a = symbol_of(least), b = symbol_of(second), last = symbol_of(weights[--left]);
        weights[place[b]] = weights[left];
        place[last] = place[b];
        weights[place[a]] = weigh((least >> 9) + (second >> 9), a);
        for (size[a]++; next[a] >= 0; size[a]++)
            a = next[a];
        next[a] = b;
        for (size[b]++; next[b] >= 0; size[b]++)
            b = next[b];
    }
}

int optimal_table(const uint32_t *counts, struct optimal *table)
{
    int size[257], lengths[LONGEST + 1] = {0}, found[LONGEST + 1] = {0}, first[LONGEST + 1];
    make_lengths(counts, size);
    for (int i = 0; i <= 256; i++)
        if (size[i] > LONGEST)
            return REFUSED;
        else if (size[i]) {
            lengths[size[i]]++;
            found[size[i]] += i < 256;
        }
    for (int i = LONGEST; i > 16; i--) /* Figure K.3 */
        while (lengths[i] > 0) {
            int j = i - 2;
            while (!lengths[j])
                j--;
            lengths[i] -= 2;
            lengths[i - 1]++;
            lengths[j + 1] += 2;
            lengths[j]--;
        }
    int longest = 16;
    while (!lengths[longest])
        longest--;
    lengths[longest]--; /* that one more */
    for (int length = 1; length <= 16; length++)
        table->counts[length - 1] = (uint8_t)lengths[length];
    table->total = 0;
    for (int length = 1; length <= LONGEST; length++) {
        first[length] = table->total;
        table->total += found[length];
    }
    for (int symbol = 0; symbol < 256; symbol++)
        if (size[symbol])
            table->values[first[size[symbol]]++] = (uint8_t)symbol;
    return DONE;
}
