/*
 * A scan coded anew, with a restart marker after every so many MCUs and with optimal Huffman tables: ITU-T T.81, F.1.2
 * and K.2, as jchuff.c of libjpeg has it, so that the bytes are those of `jpegtran -optimize -restart`.
 *
 * The old scan becomes tokens; when all symbols are counted, tables are made and tokens written. proof.c reads the new
 * file again.
 */
#include "reader.h"

enum { NO_CODE_BITS = 31 }; /* of a symbol without a code: more than there are of any, and none that can be found */

/* A code for each symbol of a table: C.2. */
int make_codes(struct code *codes, const struct huffman_spec *table, int kind)
{
    uint32_t bits = 0;
    for (int symbol = 0; symbol < 256; symbol++)
        codes[symbol] = (struct code){~(uint32_t)0, NO_CODE_BITS, 64};
    for (uint32_t length = 1, p = 0; length <= 16; length++, bits <<= 1)
        for (int i = 0; i < table->counts[length - 1]; i++, bits++, p++) {
            uint32_t symbol = table->values[p], behind = symbol & 15;
            if (bits >= (1u << length) - 1) /* of ones only: there is none */
                return REFUSED;
            codes[symbol] = (struct code){bits << behind, (uint8_t)(length + behind), advance_of(kind, symbol)};
        }
    return DONE;
}

/* Writes the tokens of a segment without stuffing, and ones up to a whole byte (F.1.2.3). Returns its end. */
INLINE uint8_t *write_bits(const struct code *codes, const uint32_t *tokens, const uint32_t *end, uint8_t *to)
{
    uint64_t bits = 0; /* `count` bits at the high end, 7 at most between two rounds */
    int count = 0;
    for (; end - tokens >= 2; tokens += 2) { /* 54 bits at most */
        struct code a = codes[tokens[0] >> 16], b = codes[tokens[1] >> 16];
        uint64_t two = (uint64_t)(a.bits | (tokens[0] & 0xFFFF)) << b.length | b.bits | (tokens[1] & 0xFFFF);
        count += a.length + b.length;
        bits |= two << (64 - count);
        uint64_t whole = __builtin_bswap64(bits);
        memcpy(to, &whole, 8);
        to += count >> 3;
        bits <<= count & 56;
        count &= 7;
    }
    if (tokens < end) {
        struct code code = codes[*tokens >> 16];
        count += code.length;
        bits |= (uint64_t)(code.bits | (*tokens & 0xFFFF)) << (64 - count);
    }
    bits |= ~(uint64_t)0 >> count;
    uint64_t whole = __builtin_bswap64(bits);
    memcpy(to, &whole, 8);
    return to + (count + 7) / 8;
}

uint8_t *write_bits_plain(const struct code *codes, const uint32_t *tokens, const uint32_t *end, uint8_t *to)
{
    return write_bits(codes, tokens, end, to);
}

#ifdef HAS_AVX2
AVX2 uint8_t *write_bits_avx2(const struct code *codes, const uint32_t *tokens, const uint32_t *end, uint8_t *to)
{
    return write_bits(codes, tokens, end, to);
}
#endif

/* Copies a segment with a zero byte behind each 0xFF (B.1.1.5). Returns the end of the copy. */
static uint8_t *stuff(uint8_t *to, const uint8_t *from, const uint8_t *end)
{
    for (const uint8_t *ff; (ff = memchr(from, 0xFF, (size_t)(end - from))); from = ff + 1) {
        memcpy(to, from, (size_t)(ff + 1 - from));
        to += ff + 1 - from;
        *to++ = 0;
    }
    memcpy(to, from, (size_t)(end - from));
    return to + (end - from);
}

/* Of a token 27 bits, all of which may be stuffed; of a segment a byte to fill, which may be, and a marker. */
static int64_t write_scan(struct decoder *decoder)
{
    struct rewriting *rewriting = &decoder->rewriting;
    const uint32_t *tokens = rewriting->tokens.at;
    int64_t *ends = rewriting->ends.at, longest = 0;
    for (int64_t i = 0; i < rewriting->segments; i++) {
        int64_t count = (i + 1 < rewriting->segments ? ends[i + 1] : rewriting->count) - ends[i];
        longest = count > longest ? count : longest;
    }
    if (make_room(&rewriting->packed, (size_t)longest * 4 + 16) != DONE ||
        make_room(&rewriting->scan, (size_t)(rewriting->count * 8 + rewriting->segments * 4)) != DONE)
        return 0;
    uint8_t *start = rewriting->scan.at, *to = start, *packed = rewriting->packed.at;
    for (int64_t i = 0; i < rewriting->segments; i++) {
        bool last = i == rewriting->segments - 1;
        const uint32_t *first = tokens + ends[i], *stop = tokens + (last ? rewriting->count : ends[i + 1]);
        to = stuff(to, packed, decoder->kernels->write_bits(rewriting->codes, first, stop, packed));
        *to++ = 0xFF;
        *to++ = last ? EOI : (uint8_t)(RST0 | (i & 7));
        ends[i] = to - start;
    }
    return to - start;
}

/* Room for the first coefficients of a file whose headers were read, of a progressive one for all of them, which are
 * zeros; and for the new segments. */
static int make_rooms(struct decoder *decoder, int64_t nbytes, int64_t interval)
{
    const struct headers *headers = &decoder->headers;
    struct rewriting *rewriting = &decoder->rewriting;
    int64_t mcus = (int64_t)headers->rows * headers->across, blocks = mcus * headers->blocks;
    int64_t segments = (mcus + interval - 1) / interval;
    size_t size = headers->progressive ? (size_t)blocks * 64 * sizeof(int16_t) : 0;
    if (blocks > MOST_BLOCKS || blocks / 8 > nbytes || /* a first coefficient has a bit at least */
        make_room(&rewriting->coefficients, size) != DONE ||
        make_room(&rewriting->firsts, (size_t)blocks * sizeof(int16_t)) != DONE ||
        make_room(&rewriting->ends, (size_t)segments * sizeof(int64_t)) != DONE)
        return REFUSED;
    if (size)
        memset(rewriting->coefficients.at, 0, size);
    return DONE;
}

/*
 * The scan of a JPEG file coded anew, restart markers and end included, in `decoder->rewriting.scan`, and its tables
 * there: of the first component DC and AC, and of the others. An interval of 0 is the whole scan. Returns the number of
 * its bytes; 0 where it is refused.
 */
int64_t rewrite(struct decoder *decoder, const uint8_t *file, int64_t nbytes, int64_t interval)
{
    struct headers *headers = &decoder->headers;
    struct rewriting *rewriting = &decoder->rewriting;
    rewriting->segments = 0;
    if (interval < 0 || interval > 65535 || read_any_headers(headers, file, nbytes) != DONE)
        return 0;
    rewriting->restarts = interval != 0;
    interval = interval ? interval : (int64_t)headers->rows * headers->across;
    if (make_rooms(decoder, nbytes, interval) != DONE)
        return 0;
    rewriting->interval = interval;
    rewriting->count = rewriting->until_restart = 0;
    rewriting->headers = *headers;
    memset(rewriting->counts, 0, sizeof rewriting->counts);
    if (headers->progressive ? read_progressive(decoder, file, nbytes) || make_tokens(decoder)
                             : read_tokens(decoder, file, nbytes))
        return 0;
    for (int i = 0; i < (headers->components > 1 ? 4 : 2); i++) {
        struct optimal *table = &rewriting->tables[i];
        struct huffman_spec spec = {table->counts, table->values, table->total};
        if (optimal_table(rewriting->counts + 256 * i, table) != DONE ||
            make_codes(rewriting->codes + 256 * i, &spec, i & 1 ? AC_TABLE : DC_TABLE) != DONE)
            return 0;
    }
    return write_scan(decoder);
}
