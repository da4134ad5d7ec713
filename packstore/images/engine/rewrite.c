/*
 * A scan coded anew, with a restart marker after every so many MCUs and with optimal Huffman tables: ITU-T T.81, F.1.2 and
 * K.2, as jchuff.c of libjpeg has it, so that the bytes are those of `jpegtran -optimize -restart`.
 *
 * A scan is decoded once, to tokens: which table, the symbol, and the bits behind it. When all are counted, tables are
 * made and tokens written.
 */
#include "engine.h"

#include <stdlib.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { RESTART = -1, RST0 = 0xD0, EOI = 0xD9, NO_RUN = 0xF0, LONGEST = 32, DC_BITS = 11 };

static int bits_of(int value)
{
    return value ? 32 - __builtin_clz((unsigned)abs(value)) : 0;
}

/* F.1.2.1 and F.1.2.2: a symbol of `table`, and the low bits of a value, less one where that is negative. */
INLINE void add_token(struct rewriting *rewriting, int table, int symbol, int value, int bits)
{
    uint32_t which = (uint32_t)(table << 8 | symbol), low = (uint32_t)(value < 0 ? value - 1 : value) & ((1u << bits) - 1);
    rewriting->counts[which]++;
    ((uint32_t *)rewriting->tokens.at)[rewriting->count++] = which << 16 | low;
}

/* Which of a block's coefficients are not zero: a bit each. */
static uint64_t present(const int16_t *coefficients)
{
    uint64_t found = 0;
#if defined(__SSE2__)
    for (int k = 0; k < 64; k += 16) {
        __m128i low = _mm_loadu_si128((const __m128i *)(coefficients + k));
        __m128i high = _mm_loadu_si128((const __m128i *)(coefficients + k + 8)), zero = _mm_setzero_si128();
        __m128i zeros = _mm_packs_epi16(_mm_cmpeq_epi16(low, zero), _mm_cmpeq_epi16(high, zero));
        found |= (uint64_t)(~_mm_movemask_epi8(zeros) & 0xFFFF) << k;
    }
#else
    for (int k = 0; k < 64; k++)
        found |= (uint64_t)(coefficients[k] != 0) << k;
#endif
    return found;
}

static void add_coefficients(struct rewriting *rewriting, int table, const int16_t *coefficients)
{
    int next = 1;
    for (uint64_t left = present(coefficients) & ~(uint64_t)1; left; left &= left - 1) {
        int k = __builtin_ctzll(left), run = k - next, value = coefficients[k], bits = bits_of(value);
        for (; run > 15; run -= 16)
            add_token(rewriting, table, NO_RUN, 0, 0);
        add_token(rewriting, table, run << 4 | bits, value, bits);
        next = k + 1;
    }
    if (next < 64)
        add_token(rewriting, table, 0, 0, 0);
}

/* Room for all tokens of some more MCUs: of a block 64, and one of a restart. */
static int reserve(struct rewriting *rewriting, int64_t mcus, int blocks)
{
    size_t needed = (size_t)(rewriting->count + mcus * (64 * blocks + 1)) * sizeof(uint32_t);
    if (needed <= rewriting->tokens.size)
        return DONE;
    void *larger = realloc(rewriting->tokens.at, 2 * needed);
    if (!larger)
        return REFUSED;
    rewriting->tokens = (struct room){larger, 2 * needed};
    return DONE;
}

/* The tokens of a stretch; these come in the order of the scan. Blocks that lie beyond a component's own have the first
 * coefficient of the block before, and no others, as in compress_output() of jctrans.c. */
static int add_stretch(struct decoder *decoder, const struct lane *lane, int *predicted)
{
    const struct headers *headers = &decoder->headers;
    struct rewriting *rewriting = &decoder->rewriting;
    const int16_t *coefficients = lane->coefficients;
    int64_t row = lane->mcu / headers->across, column = lane->mcu % headers->across;
    if (reserve(rewriting, lane->count, headers->blocks) != DONE)
        return REFUSED;
    for (int64_t m = lane->mcu; m < lane->mcu + lane->count; m++, column++) {
        int latest = 0;
        if (m % rewriting->interval == 0) {
            if (m)
                ((uint32_t *)rewriting->tokens.at)[rewriting->count++] = (uint32_t)RESTART;
            memset(rewriting->predicted, 0, sizeof rewriting->predicted);
        }
        for (int b = 0; b < headers->blocks; b++, coefficients += 64) {
            int i = headers->component_of[b];
            const struct component *component = &headers->component[i];
            int64_t columns = ((int64_t)headers->width * component->h + headers->mcu_width - 1) / headers->mcu_width;
            int64_t rows = ((int64_t)headers->height * component->v + headers->mcu_height - 1) / headers->mcu_height;
            bool real = column * component->h + headers->block_x[b] < columns && row * component->v + headers->block_y[b] < rows;
            int dc = predicted[i] += coefficients[0], table = i ? 2 : 0;
            if (dc >= 1 << 15 || dc < -(1 << 15))
                return REFUSED;
            latest = real ? dc : latest;
            int difference = latest - rewriting->predicted[i], bits = bits_of(difference);
            rewriting->predicted[i] = latest;
            if (bits > DC_BITS)
                return REFUSED;
            add_token(rewriting, table, bits, difference, bits);
            if (real)
                add_coefficients(rewriting, table + 1, coefficients);
            else
                add_token(rewriting, table + 1, 0, 0, 0);
        }
    }
    return DONE;
}

/* The least frequent of all symbols but `other`; of equal ones the last. -1 for none. */
static int least(const int64_t *frequencies, int other)
{
    int found = -1;
    for (int i = 0; i <= 256; i++)
        if (frequencies[i] && i != other && (found < 0 || frequencies[i] <= frequencies[found]))
            found = i;
    return found;
}

/* K.2, with one more symbol than there are, so that no code is all ones; jpeg_gen_optimal_table(). */
static int optimal_table(const int64_t *counts, struct optimal *table)
{
    int64_t frequencies[257];
    int size[257] = {0}, next[257], lengths[LONGEST + 1] = {0};
    memcpy(frequencies, counts, 256 * sizeof *counts);
    frequencies[256] = 1;
    for (int i = 0; i <= 256; i++)
        next[i] = -1;
    for (int a = least(frequencies, -1), b; (b = least(frequencies, a)) >= 0; a = least(frequencies, -1)) {
        frequencies[a] += frequencies[b];
        frequencies[b] = 0;
        for (size[a]++; next[a] >= 0; size[a]++)
            a = next[a];
        next[a] = b;
        for (size[b]++; next[b] >= 0; size[b]++)
            b = next[b];
    }
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

/* A code for each symbol of a table: C.2. */
static void make_codes(const struct optimal *table, struct code *codes)
{
    uint32_t bits = 0;
    for (int length = 1, p = 0; length <= 16; length++, bits <<= 1)
        for (int i = 0; i < table->counts[length - 1]; i++, bits++, p++)
            codes[table->values[p]] = (struct code){bits, length};
}

/* Bits on their way: `count` of them, 31 at most, at the low end of `bits`. */
struct writer {
    uint64_t bits;
    int count;
    uint8_t *to;
};

static void write_byte(struct writer *writer, uint8_t byte)
{
    *writer->to++ = byte;
    if (byte == 0xFF)
        *writer->to++ = 0; /* B.1.1.5 */
}

INLINE void put(struct writer *writer, uint32_t bits, int count)
{
    writer->bits = writer->bits << count | bits;
    writer->count += count;
    if (writer->count < 32)
        return;
    uint32_t four = (uint32_t)(writer->bits >> (writer->count - 32)), none = ~four;
    writer->count -= 32;
    if (UNLIKELY((none - 0x01010101u) & ~none & 0x80808080u)) {
        for (int shift = 24; shift >= 0; shift -= 8)
            write_byte(writer, (uint8_t)(four >> shift));
        return;
    }
    four = __builtin_bswap32(four);
    memcpy(writer->to, &four, 4);
    writer->to += 4;
}

/* F.1.2.3: ones up to a whole byte; then a marker. */
static void put_marker(struct writer *writer, int marker)
{
    int missing = -writer->count & 7;
    put(writer, (1u << missing) - 1, missing);
    for (; writer->count; writer->count -= 8)
        write_byte(writer, (uint8_t)(writer->bits >> (writer->count - 8)));
    *writer->to++ = 0xFF;
    *writer->to++ = (uint8_t)marker;
}

static int64_t write_scan(struct rewriting *rewriting)
{
    const uint32_t *tokens = rewriting->tokens.at;
    /* Of a token 27 bits, all of which may be stuffed; of a restart 2 bytes and one to fill. */
    if (make_room(&rewriting->scan, (size_t)rewriting->count * 8 + 64) != DONE)
        return 0;
    struct writer writer = {0, 0, rewriting->scan.at};
    int restarts = 0;
    for (int64_t i = 0; i < rewriting->count; i++) {
        uint32_t token = tokens[i];
        if (UNLIKELY(token == (uint32_t)RESTART)) {
            put_marker(&writer, RST0 | (restarts++ & 7));
            continue;
        }
        struct code code = rewriting->codes[token >> 16];
        int bits = token >> 16 & 15;
        put(&writer, code.bits << bits | (token & 0xFFFF), code.length + bits);
    }
    put_marker(&writer, EOI);
    return writer.to - (uint8_t *)rewriting->scan.at;
}

/*
 * The scan of a JPEG file coded anew, restart markers and end included, in `decoder->rewriting.scan`, and its tables
 * there: of the first component DC and AC, and of the others. Returns the number of its bytes; 0 where it is refused.
 */
int64_t rewrite(struct decoder *decoder, const uint8_t *file, int64_t nbytes, int64_t interval)
{
    struct headers *headers = &decoder->headers;
    struct rewriting *rewriting = &decoder->rewriting;
    if (interval < 1 || interval > 65535 || read_headers(headers, file, nbytes) != DONE)
        return 0;
    rewriting->interval = interval;
    rewriting->count = 0;
    memset(rewriting->counts, 0, sizeof rewriting->counts);
    if (decode_scan(decoder, file, nbytes, add_stretch) != DONE)
        return 0;
    for (int i = 0; i < (headers->components > 1 ? 4 : 2); i++) {
        if (optimal_table(rewriting->counts + 256 * i, &rewriting->tables[i]) != DONE)
            return 0;
        make_codes(&rewriting->tables[i], rewriting->codes + 256 * i);
    }
    return write_scan(rewriting);
}
