/* Optimal Huffman tables: ITU-T T.81, K.2, as jpeg_gen_optimal_table() of libjpeg has it. */
#include "engine.h"

#include <string.h>

enum { LONGEST = 32 };

/* The two least frequent of the symbols that are left, as places in `order`; of equal ones the last. */
static void find_two(const int64_t *frequencies, const int *order, int count, int *least, int *next)
{
    int a = -1, b = -1;
    for (int i = 0; i < count; i++)
        if (a < 0 || frequencies[order[i]] <= frequencies[order[a]]) {
            b = a;
            a = i;
        } else if (b < 0 || frequencies[order[i]] <= frequencies[order[b]]) {
            b = i;
        }
    *least = a;
    *next = b;
}

/* The length of each symbol's code, with one more symbol than there are, so that no code is all ones. */
static void make_lengths(const uint32_t *counts, int *size)
{
    int64_t frequencies[257];
    int next[257], order[257], left = 0;
    for (int i = 0; i <= 256; i++) {
        frequencies[i] = i < 256 ? counts[i] : 1;
        next[i] = -1;
        size[i] = 0;
        if (frequencies[i])
            order[left++] = i;
    }
    for (; left > 1; left--) {
        int at, gone;
        find_two(frequencies, order, left, &at, &gone);
        int a = order[at], b = order[gone];
        frequencies[a] += frequencies[b];
        memmove(order + gone, order + gone + 1, (size_t)(left - gone - 1) * sizeof *order);
        for (size[a]++; next[a] >= 0; size[a]++)
            a = next[a];
        next[a] = b;
        for (size[b]++; next[b] >= 0; size[b]++)
            b = next[b];
    }
}

int optimal_table(const uint32_t *counts, struct optimal *table)
{
    int size[257], lengths[LONGEST + 1] = {0};
    make_lengths(counts, size);
    for (int i = 0; i <= 256; i++)
        if (size[i] > LONGEST)
            return REFUSED;
        else if (size[i])
            lengths[size[i]]++;
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
    table->total = 0;
    for (int length = 1; length <= 16; length++)
        table->counts[length - 1] = (uint8_t)lengths[length];
    for (int length = 1; length <= LONGEST; length++)
        for (int symbol = 0; symbol < 256; symbol++)
            if (size[symbol] == length)
                table->values[table->total++] = (uint8_t)symbol;
    return DONE;
}
