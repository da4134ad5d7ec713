/* Symbols of coded data without stuffing: ITU-T T.81, F.2.2. */
#ifndef PACKSTORE_READER_H
#define PACKSTORE_READER_H

#include "jpeg.h"

#include <string.h>

enum { ESCAPE = 128, END_OF_BLOCK = 128, NO_CODE = 192, K = 8 }; /* see struct huffman */

/* F.2.2.1, EXTEND: the value of `size` bits; 0 for none. */
INLINE int extend(uint32_t bits, int size)
{
    return (int)bits - (bits < 1u << size >> 1 ? (1 << size) - 1 : 0);
}

/* How far k moves by a symbol: F.2.2.1 and F.2.2.2. */
INLINE uint32_t advance_of(int kind, int symbol)
{
    return kind == DC_TABLE ? 1 : symbol ? (uint32_t)(symbol >> 4) + 1 : END_OF_BLOCK;
}

/* tables.c */
uint32_t long_symbol(const struct huffman *table, uint64_t bits, uint32_t entry);

#endif
