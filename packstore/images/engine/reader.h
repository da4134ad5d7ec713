/* Bits of coded data without stuffing, from the highest of each byte on: ITU-T T.81, F.2.2.5. */
#ifndef PACKSTORE_READER_H
#define PACKSTORE_READER_H

#include "engine.h"

#include <stdlib.h>
#include <string.h>

enum { ESCAPE = 128, END_OF_BLOCK = 128, NO_CODE = 192, K = 8 }; /* see struct huffman */

/* `count` bits at the high end of `bits`; those below are right as well, or zero. `at` is what follows. */
struct reader {
    uint64_t bits;
    const uint8_t *at;
    int count;
};

/* Afterwards 56 bits are there at least. Looks at 8 bytes. */
INLINE void fill_reader(struct reader *reader)
{
    uint64_t next;
    memcpy(&next, reader->at, 8);
    reader->bits |= __builtin_bswap64(next) >> reader->count;
    reader->at += (63 - reader->count) >> 3;
    reader->count |= 56;
}

/* How many bits were read of those from `from` on. */
INLINE int64_t bits_read(const struct reader *reader, const uint8_t *from)
{
    return 8 * (reader->at - from) - reader->count;
}

/* F.2.2.1, EXTEND: the value of `size` bits; 0 for none. */
INLINE int extend(uint32_t bits, int size)
{
    return (int)bits - (bits < 1u << size >> 1 ? (1 << size) - 1 : 0);
}

/* F.1.2.1 and F.1.2.2: how many bits a value has, and these bits: the low ones, of it less one where it is negative. */
INLINE int bits_of(int value)
{
    return value ? 32 - __builtin_clz((unsigned)abs(value)) : 0;
}

INLINE uint32_t low_bits(int value, int bits)
{
    return (uint32_t)(value < 0 ? value - 1 : value) & ((1u << bits) - 1);
}

/* How far k moves by a symbol: F.2.2.1 and F.2.2.2. */
INLINE uint32_t advance_of(int kind, int symbol)
{
    return kind == DC_TABLE ? 1 : symbol ? (uint32_t)(symbol >> 4) + 1 : END_OF_BLOCK;
}

/* tables.c */
uint32_t long_symbol(const struct huffman *table, uint64_t bits, uint32_t entry);

/* tokens.c: see fill_symbols() there */
void fill_symbols(uint32_t *to, const struct huffman *table);
uint32_t long_code(const struct huffman *table, uint64_t bits);

/* A symbol's entry; 0 for none. `*value` gets the bits behind it. Takes 27 bits at most, which have to be there. */
INLINE uint32_t read_symbol(struct reader *reader, const uint32_t *look, const struct huffman *table, uint32_t *value)
{
    uint32_t entry = look[reader->bits >> (64 - LOOKUP_BITS)];
    if (UNLIKELY(!entry) && !(entry = long_code(table, reader->bits)))
        return 0;
    *value = (uint32_t)(reader->bits << (entry >> 8 & 255) >> 1 >> (63 - (entry >> 16 & 15)));
    reader->bits <<= entry & 63;
    reader->count -= entry & 63;
    return entry;
}

#endif
