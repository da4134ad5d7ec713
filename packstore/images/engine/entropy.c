/* Huffman decoding of restart segments, two at a time: ITU-T T.81, F.2.2, C.2 and B.1.1.5. */
#include "reader.h"

enum { ESCAPE = 128, END_OF_BLOCK = 128, NO_CODE = 192, K = 8 };

/*
 * Where the symbol puts its value after which the next coefficient is `k`: in natural order, after Figure A.6, or in
 * that of the scan. Beyond 64 are ends of blocks, of which the value is 0 and the last coefficient is 0, and errors.
 */
const uint8_t natural_place[256] = {
    63, 0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40,
    48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15,
    23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63, [65 ... 255] = 63};
const uint8_t scan_place[256] = {
    63, 0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20,
    21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42,
    43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63, [65 ... 255] = 63};

/* How far k moves by a symbol: F.2.2.1 and F.2.2.2. */
static uint32_t advance_of(int kind, int symbol)
{
    return kind == DC_TABLE ? 1 : symbol ? (uint32_t)(symbol >> 4) + 1 : END_OF_BLOCK;
}

/* Whether 8-bit samples can make the symbols: F.1.2.1, F.1.2.2 and G.1.2.2. Of others libjpeg's implementations differ.
 */
static int check_symbols(const struct huffman *table)
{
    for (int i = 0; i < table->total; i++) {
        int symbol = table->values[i], size = symbol & 15;
        bool ends = !size && symbol < 0xF0 && (table->kind == BAND_TABLE || !symbol);
        if (table->kind == DC_TABLE ? symbol > DC_BITS : size > AC_BITS || !(size || ends || symbol == 0xF0))
            return REFUSED;
    }
    return DONE;
}

/* C.2 and F.2.2.3, with a lookup of LOOKUP_BITS bits that finds most codes and the values behind them at once. */
static int fill_table(struct huffman *table)
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
            if (!size || length + size > LOOKUP_BITS) {
                uint32_t entry =
                    size ? ESCAPE | (uint32_t)length | advance | (uint32_t)size << 16 : (uint32_t)length | advance;
                for (int n = 0; n < span; n++)
                    *at++ = entry;
                continue;
            }
            int each = span >> size;
            for (int bits = 0; bits < 1 << size; bits++) {
                uint32_t entry = (uint32_t)(length + size) | advance | (uint32_t)extend((uint32_t)bits, size) << 16;
                for (int n = 0; n < each; n++)
                    *at++ = entry;
            }
        }
        table->largest[length] = table->counts[length - 1] ? code - 1 : -1;
    }
    while (at < end) /* longer codes, or none */
        *at++ = ESCAPE;
    return DONE;
}

int make_table(struct huffman *table, const struct huffman_spec *spec, int kind)
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
    if (check_symbols(table) || fill_table(table))
        return REFUSED;
    table->known = true;
    return DONE;
}

/* The tables that the scan uses, and their sequence over the blocks of a stretch. */
int make_tables(struct decoder *decoder)
{
    const struct headers *headers = &decoder->headers;
    for (int i = 0; i < headers->components; i++) {
        int dc = headers->component[i].dc, ac = headers->component[i].ac;
        if (make_table(&decoder->dc[dc], &headers->dc[dc], DC_TABLE) ||
            make_table(&decoder->ac[ac], &headers->ac[ac], AC_TABLE))
            return REFUSED;
    }
    for (int i = 0; i < STRETCH; i++) {
        const struct component *component = &headers->component[headers->component_of[i % headers->blocks]];
        decoder->sequence[i] = (struct block_tables){&decoder->dc[component->dc], &decoder->ac[component->ac]};
    }
    return DONE;
}

/* The symbol at the top of `bits` that the lookup does not hold; `entry` is what that says. */
static NOT_INLINE uint32_t long_symbol(const struct huffman *table, uint64_t bits, uint32_t entry)
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

/* Copies coded data without the zero bytes behind 0xFF (B.1.1.5) up to the next marker; its place, or NULL for none. */
const uint8_t *unstuff(uint8_t **to, const uint8_t *from, const uint8_t *end)
{
    uint8_t *out = *to;
    while (from < end) {
        const uint8_t *ff = memchr(from, 0xFF, (size_t)(end - from));
        if (!ff || end - ff < 2)
            return NULL;
        memcpy(out, from, (size_t)(ff - from));
        out += ff - from;
        if (ff[1]) {
            *to = out;
            return ff;
        }
        *out++ = 0xFF;
        from = ff + 2;
    }
    return NULL;
}

/* Gives the lane the next segment of those that were located. */
static int take_located(struct decoder *decoder, struct lane *lane)
{
    if (decoder->next_segment >= decoder->segments)
        return NO_MORE;
    const struct located *located = (const struct located *)decoder->located.at + decoder->next_segment++;
    uint8_t *end = lane->room;
    const uint8_t *marker = decoder->file + located->marker;
    if (unstuff(&end, decoder->file + located->start, marker + 2) != marker)
        return REFUSED;
    lane->end = end;
    lane->mcu = located->mcu;
    lane->left = located->count;
    return DONE;
}

/* The same of a file whose segments are found on the way: all of them, to the end of the image, in their order. */
static int take_following(struct decoder *decoder, struct lane *lane)
{
    const struct headers *headers = &decoder->headers;
    int64_t total = (int64_t)headers->rows * headers->across, each = headers->interval ? headers->interval : total;
    int64_t first = decoder->row0 * headers->across, stop = decoder->row1 * headers->across;
    while (decoder->next_segment < decoder->segments) {
        int64_t n = decoder->next_segment++, mcu = n * each, count = total - mcu < each ? total - mcu : each;
        uint8_t *end = lane->room;
        const uint8_t *marker = unstuff(&end, decoder->scan, decoder->file_end);
        int expected = n == decoder->segments - 1 ? EOI : RST0 | (int)(n & 7);
        if (!marker || marker[1] != expected)
            return REFUSED;
        decoder->scan = marker + 2;
        if (mcu + count <= first || mcu >= stop)
            continue;
        lane->end = end;
        lane->mcu = mcu;
        lane->cut_short = mcu + count > stop;
        lane->left = lane->cut_short ? stop - mcu : count;
        return DONE;
    }
    return NO_MORE;
}

/* Finishes the lane's segment: exactly its bytes have to have been read. */
int close_segment(struct lane *lane)
{
    const uint8_t *at = lane->at + ((lane->taken & 255) + 7) / 8;
    lane->open = false;
    return (lane->cut_short ? at <= lane->end : at == lane->end) ? DONE : REFUSED;
}

/* Gives the lane its next segment: DONE, REFUSED or NO_MORE. */
int open_segment(struct decoder *decoder, struct lane *lane)
{
    lane->cut_short = false;
    int outcome = decoder->scan ? take_following(decoder, lane) : take_located(decoder, lane);
    if (outcome != DONE)
        return outcome;
    memset((uint8_t *)lane->end, 0, PADDING);
    lane->open = true;
    lane->at = lane->room;
    lane->taken = 0;
    memset(lane->predicted, 0, sizeof lane->predicted);
    return DONE;
}

/* Finishes what the lane has decoded and gives it more: DONE, REFUSED or NO_MORE. */
static NOT_INLINE int next_stretch(struct decoder *decoder, struct lane *lane)
{
    const struct headers *headers = &decoder->headers;
    if (lane->count) {
        if (decoder->use_stretch(decoder, lane, lane->predicted) != DONE)
            return REFUSED;
        memset(lane->coefficients, 0, (size_t)(lane->count * headers->blocks) * 64 * sizeof(int16_t));
        lane->mcu += lane->count;
        lane->left -= lane->count;
        lane->count = 0;
    }
    if (!lane->left) {
        if (lane->open && close_segment(lane) != DONE)
            return REFUSED;
        int outcome = open_segment(decoder, lane);
        if (outcome != DONE)
            return outcome;
    }
    int64_t most = STRETCH / headers->blocks, in_row = headers->across - lane->mcu % headers->across;
    lane->count = lane->left < in_row ? lane->left : in_row;
    if (lane->count > most)
        lane->count = most;
    lane->out = lane->coefficients;
    lane->block = decoder->sequence;
    lane->block_end = decoder->sequence + lane->count * headers->blocks;
    return DONE;
}

/* What the loop keeps in registers of a lane. `bits` has what follows at its high end: `held` bits, less those of
 * `taken` that were read since; `at` is what follows them. */
struct hot {
    uint64_t bits, taken;
    int held;
    const uint8_t *at;
    const struct huffman *table;
    int16_t *out;
    const struct block_tables *block;
};

/* Afterwards 56 bits are there at least, and none was read. What is looked up next depends on the load in time only. */
INLINE void refill(struct hot *hot)
{
    uint64_t next;
    memcpy(&next, hot->at, 8);
    hot->held -= (int)(hot->taken & 255);
    hot->taken &= ~(uint64_t)255;
    hot->bits |= __builtin_bswap64(next) >> hot->held;
    hot->at += (63 - hot->held) >> 3;
    hot->held |= 56;
}

INLINE void take(struct hot *hot, uint32_t count)
{
    hot->bits <<= count & 63;
    hot->taken += count;
}

INLINE struct hot begin_lane(const struct lane *lane)
{
    struct hot hot = {0, lane->taken & ~(uint64_t)255, 0, lane->at, lane->table, lane->out, lane->block};
    refill(&hot);
    take(&hot, lane->taken & 255);
    return hot;
}

INLINE void end_lane(struct lane *lane, const struct hot *hot)
{
    int left = hot->held - (int)(hot->taken & 255); /* bits that were not read of those before `at` */
    lane->at = hot->at - (left + 7) / 8;
    lane->taken = (hot->taken & ~(uint64_t)255) | (uint64_t)(-left & 7);
    lane->table = hot->table;
    lane->out = hot->out;
    lane->block = hot->block;
}

/* The first coefficient of a block: F.2.2.1. */
INLINE int decode_dc(struct hot *hot)
{
    refill(hot);
    uint32_t entry = hot->block->dc->look[hot->bits >> (64 - LOOKUP_BITS)];
    if (UNLIKELY(entry & ESCAPE))
        entry = long_symbol(hot->block->dc, hot->bits, entry);
    take(hot, entry & 63);
    hot->taken += entry & 0xFF00;
    hot->out[0] = (int16_t)(entry >> 16);
    hot->table = hot->block->ac;
    refill(hot);
    return hot->taken >> K == 1 ? DONE : REFUSED;
}

/*
 * Decodes with `lanes`, `count` of them, a symbol of each in turn, so that their chains of lookups overlap (F.2.2.2),
 * until there is no more to do for one. That one is its answer; or -1 where something is not flawless.
 *
 * Each symbol that is not looked up takes 27 bits at most, after a refill; 5 that are take 55, of the 57 at least that
 * a refill brings. Within a block 64 symbols are read before it shows that the data have ended: AHEAD bytes.
 */
INLINE int run(struct decoder *decoder, struct lane *lanes, const int count)
{
    struct hot hot[LANES];
    const uint8_t *place = decoder->place;
#pragma GCC unroll 2
    for (int i = 0; i < count; i++) {
        hot[i] = begin_lane(&lanes[i]);
    }
    for (;;) {
#pragma GCC unroll 2
        for (int i = 0; i < count; i++)
            refill(&hot[i]);
#pragma GCC unroll 8
        for (int step = 0; step < 57 / LOOKUP_BITS; step++)
#pragma GCC unroll 2
            for (int i = 0; i < count; i++) {
                uint32_t entry = hot[i].table->look[hot[i].bits >> (64 - LOOKUP_BITS)];
                if (UNLIKELY(entry & ESCAPE)) {
                    refill(&hot[i]);
                    entry = long_symbol(hot[i].table, hot[i].bits, entry);
                    take(&hot[i], entry & 63);
                    refill(&hot[i]);
                    entry &= ~255u;
                }
                hot[i].bits <<= entry & 63;
                hot[i].taken += (uint16_t)entry;
                hot[i].out[place[hot[i].taken >> K]] = (int16_t)(entry >> 16);
                if (UNLIKELY(hot[i].taken >= 64 << K)) { /* the end of a block */
                    unsigned k = (unsigned)(hot[i].taken >> K);
                    if (UNLIKELY((k > 64 && k <= END_OF_BLOCK) || k >= NO_CODE))
                        return -1;
                    hot[i].taken &= 255;
                    hot[i].out += 64;
                    if (UNLIKELY(++hot[i].block == lanes[i].block_end || hot[i].at > lanes[i].end + 8)) {
                        struct lane *lane = &lanes[i];
                        if (hot[i].at > lane->end + 8)
                            return -1;
                        end_lane(lane, &hot[i]);
                        int outcome = next_stretch(decoder, lane);
                        if (outcome != DONE) {
#pragma GCC unroll 2
                            for (int j = 0; j < count; j++)
                                if (j != i)
                                    end_lane(&lanes[j], &hot[j]);
                            return outcome == NO_MORE ? i : -1;
                        }
                        hot[i] = begin_lane(lane);
                    }
                    if (UNLIKELY(decode_dc(&hot[i]) != DONE))
                        return -1;
                }
            }
    }
}

int one_lane_plain(struct decoder *decoder, struct lane *lanes)
{
    return run(decoder, lanes, 1);
}

int two_lanes_plain(struct decoder *decoder, struct lane *lanes)
{
    return run(decoder, lanes, 2);
}

#ifdef HAS_AVX2
AVX2 int one_lane_avx2(struct decoder *decoder, struct lane *lanes)
{
    return run(decoder, lanes, 1);
}

AVX2 int two_lanes_avx2(struct decoder *decoder, struct lane *lanes)
{
    return run(decoder, lanes, 2);
}
#endif

/* A lane's first block begins: NO_MORE where there is nothing for it. */
static int begin(struct decoder *decoder, struct lane *lane)
{
    int outcome = next_stretch(decoder, lane);
    if (outcome != DONE)
        return outcome;
    struct hot hot = begin_lane(lane);
    outcome = decode_dc(&hot);
    end_lane(lane, &hot);
    return outcome;
}

static int decode_with_lanes(struct decoder *decoder)
{
    struct lane *lanes = decoder->lanes;
    int begun = 0, outcome = DONE;
    while (begun < decoder->lane_count && (outcome = begin(decoder, &lanes[begun])) == DONE)
        begun++;
    if (outcome == REFUSED || !begun)
        return REFUSED;
    int ended = begun == LANES ? decoder->kernels->two_lanes(decoder, lanes) : LANES;
    for (int i = 0; i < begun; i++) /* what is left */
        if (ended < 0 || (i != ended && decoder->kernels->one_lane(decoder, &lanes[i]) < 0))
            return REFUSED;
    return DONE;
}

/* Decodes the segments that are needed; `use_stretch` gets all coefficients. */
int decode_segments(struct decoder *decoder)
{
    for (int i = 0; i < LANES; i++) {
        decoder->lanes[i] = (struct lane){.room = decoder->unstuffed[i].at, .coefficients = decoder->coefficients[i]};
    }
    if (decode_with_lanes(decoder) != DONE) {
        memset(decoder->coefficients, 0, sizeof decoder->coefficients); /* zeros for the next image */
        return REFUSED;
    }
    return DONE;
}
