/* Bits of coded data without stuffing, from the highest of each byte on: ITU-T T.81, F.2.2.5. */
#ifndef PACKSTORE_READER_H
#define PACKSTORE_READER_H

#include "engine.h"

#include <string.h>

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

#endif
