/* Reads rows of PNG files of one channel: inflates zlib's format (RFC 1950, 1951) and undoes the filters of rows. */
#include "../core/base.h"

enum {
    LONGEST_CODE = 15,
    LITERALS = 288, /* literals, end of block, lengths of matches */
    DISTANCES = 30,
    LENGTHS = 19, /* symbols of the code for the lengths of the other two codes */
    BITS = 10     /* bits of a code that one lookup decodes */
};

/* A Huffman code, 3.2.2. A lookup entry has the symbol, and above it the length of its code; 0 if the code is longer
 * than BITS. */
struct prefix_code {
    uint16_t lookup[1 << BITS];
    uint16_t counts[LONGEST_CODE + 1], symbols[LITERALS];
};

struct stream {
    const uint8_t *at, *end;
    uint64_t bits;
    int held;      /* number of valid bits in `bits` */
    int64_t ahead; /* zero bytes read after the end, which no symbol may use */
};

struct out {
    uint8_t *first, *at, *end;
    bool is_all; /* the stream must end when `out` is full */
};

static const uint16_t LENGTH_BASE[29] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                         31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
static const uint8_t LENGTH_EXTRA[29] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                         2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
static const uint16_t DISTANCE_BASE[DISTANCES] = {1,    2,    3,    4,    5,    7,    9,    13,    17,    25,
                                                  33,   49,   65,   97,   129,  193,  257,  385,   513,   769,
                                                  1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
static const uint8_t DISTANCE_EXTRA[DISTANCES] = {0, 0, 0, 0, 1, 1, 2, 2,  3,  3,  4,  4,  5,  5,  6,
                                                  6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13};

/* Provides at least 56 bits; zeros after the end of the stream. */
INLINE void refill(struct stream *in)
{
    if (in->end - in->at >= 8) {
        in->bits |= read_8(in->at) << in->held;
        in->at += (63 - in->held) >> 3;
        in->held |= 56;
        return;
    }
    for (; in->held <= 56; in->held += 8) {
        if (in->at < in->end)
            in->bits |= (uint64_t)*in->at++ << in->held;
        else
            in->ahead++;
    }
}

/* True if more bits were used than the stream has. */
INLINE bool is_overrun(const struct stream *in)
{
    return in->ahead * 8 > in->held;
}

INLINE unsigned take(struct stream *in, int count)
{
    unsigned value = (unsigned)(in->bits & ((1u << count) - 1));
    in->bits >>= count;
    in->held -= count;
    return value;
}

/* Makes the code whose symbols have these lengths. REFUSED for impossible lengths, and for incomplete codes, except a
 * code without symbols, and, if it `may_be_alone`, a code of one symbol of one bit. */
static enum outcome make_code(struct prefix_code *code, const uint8_t *lengths, int symbols, bool may_be_alone)
{
    unsigned next[LONGEST_CODE + 2] = {0}, place[LONGEST_CODE + 2] = {0};
    memset(code->counts, 0, sizeof code->counts);
    memset(code->lookup, 0, sizeof code->lookup);
    for (int i = 0; i < symbols; i++)
        code->counts[lengths[i]]++;
    int left = 1, used = symbols - code->counts[0];
    code->counts[0] = 0;
    for (int length = 1; length <= LONGEST_CODE; length++) {
        left = 2 * left - code->counts[length];
        if (left < 0)
            return REFUSED;
        next[length + 1] = (next[length] + code->counts[length]) << 1;
        place[length + 1] = place[length] + code->counts[length];
    }
    if (left > 0 && used && !(may_be_alone && used == 1 && code->counts[1] == 1))
        return REFUSED;
    for (int i = 0; i < symbols; i++) {
        int length = lengths[i];
        if (!length)
            continue;
        code->symbols[place[length]++] = (uint16_t)i;
        unsigned word = next[length]++, reversed = 0;
        if (length > BITS)
            continue;
        for (int bit = 0; bit < length; bit++)
            reversed |= (word >> bit & 1) << (length - 1 - bit);
        for (; reversed < 1 << BITS; reversed += 1u << length)
            code->lookup[reversed] = (uint16_t)(length << 9 | i);
    }
    return DONE;
}

/* Decodes a symbol; -1 if the bits are not a code. Takes at most 15 bits. */
INLINE int decode_symbol(struct stream *in, const struct prefix_code *code)
{
    unsigned found = code->lookup[in->bits & ((1 << BITS) - 1)];
    if (found) {
        take(in, (int)(found >> 9));
        return (int)(found & 511);
    }
    int word = 0, first = 0, place = 0;
    for (int length = 1; length <= LONGEST_CODE; length++) {
        word |= (int)(in->bits >> (length - 1) & 1);
        int count = code->counts[length];
        if (word - first < count) {
            take(in, length);
            return code->symbols[place + word - first];
        }
        place += count;
        first = (first + count) << 1;
        word <<= 1;
    }
    return -1;
}

/* Reads the codes of a block with dynamic Huffman codes, 3.2.7. */
static enum outcome read_codes(struct stream *in, struct prefix_code *literals, struct prefix_code *distances)
{
    static const uint8_t ORDER[LENGTHS] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    uint8_t lengths[LITERALS + 32] = {0};
    refill(in);
    int literal_count = (int)take(in, 5) + 257, distance_count = (int)take(in, 5) + 1,
        length_count = (int)take(in, 4) + 4;
    if (literal_count > 286 || distance_count > DISTANCES)
        return REFUSED;
    for (int i = 0; i < length_count; i++) {
        refill(in);
        lengths[ORDER[i]] = (uint8_t)take(in, 3);
    }
    if (make_code(literals, lengths, LENGTHS, false) != DONE)
        return REFUSED;
    memset(lengths, 0, sizeof lengths);
    for (int i = 0, all = literal_count + distance_count; i < all;) {
        refill(in);
        int symbol = decode_symbol(in, literals);
        if (symbol < 0 || is_overrun(in))
            return REFUSED;
        if (symbol < 16) {
            lengths[i++] = (uint8_t)symbol;
            continue;
        }
        if (symbol == 16 && i == 0)
            return REFUSED;
        uint8_t value = symbol == 16 ? lengths[i - 1] : 0;
        int count = symbol == 16 ? 3 + (int)take(in, 2) : symbol == 17 ? 3 + (int)take(in, 3) : 11 + (int)take(in, 7);
        if (count > all - i)
            return REFUSED;
        memset(lengths + i, value, (size_t)count);
        i += count;
    }
    if (!lengths[256] || make_code(distances, lengths + literal_count, distance_count, true) != DONE)
        return REFUSED;
    return make_code(literals, lengths, literal_count, true);
}

static enum outcome fixed_codes(struct prefix_code *literals, struct prefix_code *distances)
{
    uint8_t lengths[LITERALS];
    memset(lengths, 8, 144);
    memset(lengths + 144, 9, 112);
    memset(lengths + 256, 7, 24);
    memset(lengths + 280, 8, 8);
    if (make_code(literals, lengths, LITERALS, false) != DONE)
        return REFUSED;
    memset(lengths, 5, 32);
    return make_code(distances, lengths, 32, false); /* the last two must not be used */
}

/* Copies `length` bytes from `distance` bytes before. The caller has checked both. */
INLINE void copy_match(uint8_t *to, int64_t distance, int64_t length)
{
    if (distance >= length) {
        memcpy(to, to - distance, (size_t)length);
    } else if (distance == 1) {
        memset(to, to[-1], (size_t)length);
    } else {
        for (int64_t i = 0; i < length; i++)
            to[i] = to[i - distance];
    }
}

static enum outcome inflate_coded(struct stream *in, struct out *out, const struct prefix_code *literals,
                                  const struct prefix_code *distances)
{
    while (out->at < out->end) {
        refill(in); /* 15 + 5 + 15 + 13 bits: at most 48 */
        int symbol = decode_symbol(in, literals);
        if (UNLIKELY(symbol < 0 || is_overrun(in)))
            return REFUSED;
        if (symbol < 256) {
            *out->at++ = (uint8_t)symbol;
            continue;
        }
        if (symbol == 256)
            return DONE;
        if (symbol > 285)
            return REFUSED;
        int64_t length = LENGTH_BASE[symbol - 257] + take(in, LENGTH_EXTRA[symbol - 257]);
        symbol = decode_symbol(in, distances);
        if (UNLIKELY(symbol < 0 || symbol >= DISTANCES))
            return REFUSED;
        int64_t distance = DISTANCE_BASE[symbol] + take(in, DISTANCE_EXTRA[symbol]);
        if (UNLIKELY(is_overrun(in) || distance > out->at - out->first))
            return REFUSED;
        if (length > out->end - out->at) {
            if (out->is_all)
                return REFUSED;
            length = out->end - out->at;
        }
        copy_match(out->at, distance, length);
        out->at += length;
    }
    if (!out->is_all)
        return DONE;
    refill(in);
    return decode_symbol(in, literals) == 256 && !is_overrun(in) ? DONE : REFUSED;
}

static enum outcome inflate_stored(struct stream *in, struct out *out)
{
    take(in, in->held & 7);
    refill(in);
    int64_t length = take(in, 16), check = take(in, 16);
    if (is_overrun(in) || (length ^ check) != 0xFFFF)
        return REFUSED;
    in->at -= (in->held - 8 * in->ahead) >> 3; /* unread: whole bytes that were read ahead */
    in->bits = 0;
    in->held = 0;
    in->ahead = 0;
    if (length > out->end - out->at) {
        if (out->is_all)
            return REFUSED;
        length = out->end - out->at;
    }
    if (length > in->end - in->at)
        return REFUSED;
    memcpy(out->at, in->at, (size_t)length);
    in->at += length;
    out->at += length;
    return DONE;
}

/* Fills `out`. Reads the rest of the stream only if it must end here. */
static enum outcome inflate(struct stream *in, struct out *out)
{
    struct prefix_code literals, distances, fixed_literals, fixed_distances;
    bool has_fixed = false;
    for (bool last = false; out->at < out->end || (out->is_all && !last);) {
        if (last)
            return REFUSED;
        refill(in);
        last = take(in, 1);
        int kind = (int)take(in, 2), found = REFUSED;
        if (kind == 0) {
            found = inflate_stored(in, out);
        } else if (kind == 1) {
            if (!has_fixed && fixed_codes(&fixed_literals, &fixed_distances) != DONE)
                return REFUSED;
            has_fixed = true;
            found = inflate_coded(in, out, &fixed_literals, &fixed_distances);
        } else if (kind == 2 && read_codes(in, &literals, &distances) == DONE) {
            found = inflate_coded(in, out, &literals, &distances);
        }
        if (found != DONE)
            return REFUSED;
    }
    return DONE;
}

/* True if the checksum after the last block is that of the inflated bytes: RFC 1950, 8.2. */
static bool has_checksum(struct stream *in, const struct out *out)
{
    enum { TOGETHER = 32, MOST = 5536 }; /* MOST: bytes whose sums fit 32 bits */
    uint32_t sum = 1, sums = 0, stored = 0;
    for (const uint8_t *at = out->first; at < out->end;) {
        const uint8_t *stop = out->end - at > MOST ? at + MOST : out->end;
        for (; stop - at >= TOGETHER; at += TOGETHER) {
            uint32_t plain = 0, weighted = 0;
            for (uint32_t i = 0; i < TOGETHER; i++) {
                plain += at[i];
                weighted += (TOGETHER - i) * at[i];
            }
            sums += TOGETHER * sum + weighted;
            sum += plain;
        }
        for (; at < stop; at++)
            sums += sum += *at;
        sum %= 65521;
        sums %= 65521;
    }
    take(in, in->held & 7);
    for (int i = 0; i < 4; i++) {
        refill(in);
        stored = stored << 8 | take(in, 8);
    }
    return !is_overrun(in) && stored == (sums << 16 | sum);
}

INLINE uint8_t paeth(int left, int above, int corner)
{
    int from_left = above - corner, from_above = left - corner, from_corner = from_left + from_above;
    from_left = from_left < 0 ? -from_left : from_left;
    from_above = from_above < 0 ? -from_above : from_above;
    from_corner = from_corner < 0 ? -from_corner : from_corner;
    return (uint8_t)(from_left <= from_above && from_left <= from_corner ? left
                     : from_above <= from_corner                         ? above
                                                                         : corner);
}

/* Undoes the filter of a row of `nbytes`, PNG (3rd edition) 9.2; `above` is the row before, `step` the bytes of a
 * pixel. */
static enum outcome undo_filter(int filter, uint8_t *row, const uint8_t *above, int64_t nbytes, int64_t step)
{
    switch (filter) {
    case 0: return DONE;
    case 1:
        for (int64_t i = step; i < nbytes; i++)
            row[i] = (uint8_t)(row[i] + row[i - step]);
        return DONE;
    case 2:
        for (int64_t i = 0; i < nbytes; i++)
            row[i] = (uint8_t)(row[i] + above[i]);
        return DONE;
    case 3:
        for (int64_t i = 0; i < nbytes; i++)
            row[i] = (uint8_t)(row[i] + ((i < step ? 0 : row[i - step]) + above[i]) / 2);
        return DONE;
    case 4:
        for (int64_t i = 0; i < step && i < nbytes; i++)
            row[i] = (uint8_t)(row[i] + above[i]);
        for (int64_t i = step; i < nbytes; i++)
            row[i] = (uint8_t)(row[i] + paeth(row[i - step], above[i], above[i - step]));
        return DONE;
    default: return REFUSED;
    }
}

/* Reads the first rows of a PNG file, or all rows, from the content of its IDAT chunks. `is_all`: there are no other
 * rows, so the stream must end after them, with the right checksum. `to`: a row of zeros, for filters that use the row
 * before; then `rows` of 1 + `nbytes` bytes each, the first of which is the filter. REFUSED for any flaw. */
EXPORT int packstore_engine_png(const uint8_t *packed, int64_t packed_bytes, uint8_t *to, int64_t rows, int64_t nbytes,
                                int64_t step, int is_all)
{
    if (packed_bytes < 2 || rows < 1 || nbytes < 1 || step < 1)
        return REFUSED;
    if ((packed[0] & 15) != 8 || packed[0] >> 4 > 7 || (packed[0] << 8 | packed[1]) % 31 || packed[1] & 32)
        return REFUSED;
    int64_t line = 1 + nbytes;
    memset(to, 0, (size_t)line);
    struct stream in = {.at = packed + 2, .end = packed + packed_bytes};
    struct out out = {to + line, to + line, to + line * (rows + 1), is_all != 0};
    if (inflate(&in, &out) != DONE || (is_all && !has_checksum(&in, &out)))
        return REFUSED;
    for (uint8_t *row = to + line; row < out.end; row += line)
        if (undo_filter(row[0], row + 1, row + 1 - line, nbytes, step) != DONE)
            return REFUSED;
    return DONE;
}
