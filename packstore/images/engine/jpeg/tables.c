/* Huffman tables: ITU-T T.81, C.2 and F.2.2.3. */
#include "jpeg.h"

enum { AC_BITS = 10, DC_BITS = 11 }; /* most bits for 8-bit samples: F.1.2 */

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

/* Where the symbol puts its value after which the next coefficient is `k`: in natural order, after Figure A.6. Beyond
 * 64 are ends of blocks, of which the value is 0 and the last coefficient is 0, and errors. */
const uint8_t natural_place[256] = {
    63, 0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40,
    48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15,
    23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63, [65 ... 255] = 63};

/* Refuses symbols that 8-bit samples cannot make: F.1.2.1 and F.1.2.2. libjpeg's implementations differ in these. */
static enum outcome check_symbols(const struct huffman *table)
{
    for (int i = 0; i < table->total; i++) {
        int symbol = table->values[i], size = symbol & 15;
        if (table->kind == DC_TABLE ? symbol > DC_BITS : size > AC_BITS || !(size || !symbol || symbol == 0xF0))
            return REFUSED;
    }
    return DONE;
}

/* C.2 and F.2.2.3, with a lookup of LOOKUP_BITS bits that finds most codes and the values behind them at once. */
static enum outcome fill_table(struct huffman *table)
{
    uint32_t *at = table->look, *end = table->look + (1 << LOOKUP_BITS);
    int code = 0, p = 0;
    for (int length = 1; length <= 16; length++, code <<= 1) {
        table->offset[length] = p - code;
        for (int i = 0; i < table->counts[length - 1]; i++, p++, code++) {
            if (code >= (1 << length) - 1) /* of ones only: there is none, C.2 */
                return REFUSED;
            if (length > LOOKUP_BITS)
                continue;
            int size = table->values[p] & 15, span = 1 << (LOOKUP_BITS - length);
            uint32_t advance = advance_of(table->kind, table->values[p]) << K;
            bool escapes = length + size > LOOKUP_BITS;
            for (int n = 0; escapes && n < span; n++)
                *at++ = ESCAPE | (uint32_t)length | advance | (uint32_t)size << 16;
            for (int bits = 0; !escapes && bits < 1 << size; bits++) {
                uint32_t entry = (uint32_t)(length + size) | advance | (uint32_t)extend((uint32_t)bits, size) << 16;
                for (int n = 0; n < span >> size; n++)
                    *at++ = entry;
            }
        }
        table->largest[length] = table->counts[length - 1] ? code - 1 : -1;
    }
    while (at < end) /* longer codes, or none */
        *at++ = ESCAPE;
    return DONE;
}

static enum outcome make_table(struct huffman *table, const struct huffman_spec *spec, int kind)
{
    if (table->known && table->kind == kind && table->total == spec->total &&
        !memcmp(table->counts, spec->counts, 16) && !memcmp(table->values, spec->values, (size_t)spec->total))
        return DONE;
    table->known = false;
    table->kind = kind;
    table->total = spec->total;
    memcpy(table->counts, spec->counts, 16);
    memset(table->values, 0, sizeof table->values);
    memcpy(table->values, spec->values, (size_t)spec->total);
    if (check_symbols(table) != DONE || fill_table(table) != DONE)
        return REFUSED;
    table->known = true;
    return DONE;
}

/* The tables that the scan uses, and their sequence over the blocks of a stretch. */
enum outcome make_tables(struct decoder *decoder)
{
    struct tables *tables = &decoder->tables;
    const struct headers *headers = &decoder->input.headers;
    for (int i = 0; i < headers->components; i++) {
        int dc = headers->component[i].dc, ac = headers->component[i].ac;
        if (make_table(&tables->dc[dc], &headers->dc[dc], DC_TABLE) != DONE ||
            make_table(&tables->ac[ac], &headers->ac[ac], AC_TABLE) != DONE)
            return REFUSED;
    }
    for (int i = 0; i < STRETCH; i++) {
        const struct component *component = &headers->component[headers->component_of[i % headers->blocks]];
        tables->sequence[i] = (struct block_tables){&tables->dc[component->dc], &tables->ac[component->ac]};
    }
    return DONE;
}

/* The symbol at the top of `bits` that the lookup does not hold; `entry` is what that says. */
uint32_t long_symbol(const struct huffman *table, uint64_t bits, uint32_t entry)
{
    int length = entry & 63, size = entry >> 16;
    uint32_t advance = (entry >> K) & 255;
    if (!length) {
        for (length = LOOKUP_BITS + 1; length <= 16; length++)
            if ((int32_t)(bits >> (64 - length)) <= table->largest[length])
                break;
        if (length > 16)
            return NO_CODE << K;
        uint8_t symbol = table->values[(table->offset[length] + (int)(bits >> (64 - length))) & 255];
        size = symbol & 15;
        advance = advance_of(table->kind, symbol);
        if (!size)
            return (uint32_t)length | advance << K;
    }
    int value = extend((uint32_t)(bits << length >> (64 - size)), size);
    return (uint32_t)(length + size) | advance << K | (uint32_t)value << 16;
}
