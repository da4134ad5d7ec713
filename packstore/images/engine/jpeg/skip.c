/* Skips through scans to find the beginnings of pieces (checkpoints.c): several symbols of a block by one lookup, two
 * images in turn. */
#include "jpeg.h"

enum { SKIP_BITS = 11, PER_FILL = 4 };

/* State that the loop keeps in registers: the next `count` bits, at the high end of `bits`; `at` is the byte after
 * them. */
struct passing {
    uint64_t bits;
    int count;
    uint32_t k; /* index of the next coefficient */
    const uint8_t *at;
    const uint16_t *look;
};

/* A segment that is skipped. */
struct skipper {
    struct decoder *decoder;
    struct passing hot;
    const uint8_t *unstuffed, *end;
    int64_t mcu, left, piece, until; /* next MCU; MCUs left in the segment and in the piece; MCUs of the piece */
    int64_t first, bits;             /* its first MCU; bits read, after it has ended */
    int block, luma, blocks; /* next block of the MCU; blocks before chroma, 0 if lengths are not noted; all blocks */
    int64_t chroma;          /* bit at which the MCU's chroma begins */
    int predicted[COMPONENTS];
    uint8_t component[MCU_BLOCKS];
    const struct huffman *dc[MCU_BLOCKS], *ac[MCU_BLOCKS];
    const uint16_t *looks[MCU_BLOCKS];
};

/* Bits 0-3: total bits of as many symbols as fit; from bit 4 on: advance of k. 0: decode a single symbol. */
static void fill_skips(uint16_t *to, const struct huffman *table)
{
    for (uint32_t bits = 0; bits < 1 << SKIP_BITS; bits++) {
        uint32_t taken = 0, k = 0;
        while (k < END_OF_BLOCK) {
            uint32_t rest = bits << taken & ((1 << SKIP_BITS) - 1);
            uint32_t entry = table->look[rest >> (SKIP_BITS - LOOKUP_BITS)], length = entry & 63;
            if (entry & ESCAPE || taken + length > SKIP_BITS)
                break;
            taken += length;
            k += entry >> K & 255;
        }
        to[bits] = (uint16_t)(taken | k << 4);
    }
}

/* Makes the tables of the scan, and the lookups that skip AC symbols; keeps lookups of tables that have not changed. */
static enum outcome make_skips(struct decoder *decoder)
{
    struct scratch *scratch = &decoder->worker.scratch;
    struct tables *tables = &decoder->tables;
    const struct headers *headers = &decoder->input.headers;
    if (!scratch->skips.at)
        tables->skips_known = 0;
    if (make_tables(decoder) != DONE || grow_buffer(&scratch->skips, TABLES * sizeof(uint16_t) << SKIP_BITS) != DONE)
        return REFUSED;
    for (int i = 0; i < headers->components; i++) {
        int n = headers->component[i].ac;
        const struct huffman *table = &tables->ac[n];
        uint8_t *seen = tables->skip_counts[n];
        /* Compare counts and values: other work may have called make_table() since. */
        if (tables->skips_known >> n & 1 && !memcmp(seen, table->counts, 16) && !memcmp(seen + 16, table->values, 256))
            continue;
        fill_skips((uint16_t *)scratch->skips.at + (n << SKIP_BITS), table);
        memcpy(seen, table->counts, 16);
        memcpy(seen + 16, table->values, 256);
        tables->skips_known |= 1 << n;
    }
    return DONE;
}

INLINE void fill(struct passing *hot)
{
    hot->bits |= __builtin_bswap64(read_8(hot->at)) >> hot->count;
    hot->at += (63 - hot->count) >> 3;
    hot->count |= 56;
}

INLINE void take(struct passing *hot, uint32_t count)
{
    hot->bits <<= count & 63;
    hot->count -= (int)(count & 63);
}

/* The first coefficient of a block: F.2.2.1. */
INLINE enum outcome begin_block(struct skipper *skipper, struct passing *hot)
{
    const struct huffman *table = skipper->dc[skipper->block];
    fill(hot);
    uint32_t entry = table->look[hot->bits >> (64 - LOOKUP_BITS)];
    if (UNLIKELY(entry & ESCAPE))
        entry = long_symbol(table, hot->bits, entry);
    take(hot, entry);
    hot->k = entry >> K & 255;
    int dc = skipper->predicted[skipper->component[skipper->block]] += (int16_t)(entry >> 16);
    hot->look = skipper->looks[skipper->block];
    fill(hot);
    return hot->k == 1 && dc < MOST_DC && dc > -MOST_DC ? DONE : REFUSED;
}

/* Returns the number of bits of the segment that were read. */
INLINE int64_t bits_read(const struct skipper *skipper, const struct passing *hot)
{
    return 8 * (hot->at - skipper->unstuffed) - hot->count;
}

/* Notes the end of a piece at bit `bit` of the segment. NO_MORE if the segment ends too. */
static NOT_INLINE enum outcome end_piece(struct skipper *skipper, int64_t bit)
{
    struct decoder *decoder = skipper->decoder;
    struct point *point = (struct point *)decoder->worker.scratch.points.at + skipper->mcu;
    point->bit = bit;
    memcpy(point->predicted, skipper->predicted, sizeof point->predicted);
    skipper->left -= skipper->piece;
    skipper->bits = bit;
    if (!skipper->left)
        return NO_MORE;
    skipper->until = skipper->piece = piece_at(&decoder->input.headers, decoder->input.piece, skipper->mcu);
    return DONE;
}

INLINE enum outcome end_block(struct skipper *skipper, struct passing *hot)
{
    if (UNLIKELY(hot->at > skipper->end + 8))
        return REFUSED;
    if (++skipper->block == skipper->luma)
        skipper->chroma = bits_read(skipper, hot);
    if (skipper->block == skipper->blocks) {
        uint16_t *lengths = skipper->decoder->worker.scratch.lengths.at;
        if (skipper->luma)
            lengths[skipper->mcu] = (uint16_t)(bits_read(skipper, hot) - skipper->chroma);
        skipper->block = 0;
        skipper->mcu++;
        if (UNLIKELY(!--skipper->until)) {
            enum outcome outcome = end_piece(skipper, bits_read(skipper, hot));
            if (outcome != DONE)
                return outcome;
        }
    }
    return begin_block(skipper, hot);
}

/* Skips a symbol without a lookup entry, or the last symbols of a block. REFUSED if the bits are not a code. */
INLINE enum outcome pass_symbol(const struct skipper *skipper, struct passing *hot)
{
    const struct huffman *table = skipper->ac[skipper->block];
    fill(hot);
    uint32_t entry = table->look[hot->bits >> (64 - LOOKUP_BITS)];
    if (entry & ESCAPE)
        entry = long_symbol(table, hot->bits, entry);
    take(hot, entry);
    fill(hot);
    hot->k += entry >> K & 255;
    return (hot->k > 64 && hot->k <= END_OF_BLOCK) || hot->k >= NO_CODE ? REFUSED : DONE;
}

/* Skips through `count` segments in turn until one has ended (NO_MORE) or is refused. Returns its index; `outcome`
 * receives the reason. A lookup takes at most SKIP_BITS of the 56 or more bits that fill() provides. */
INLINE int pass(struct skipper *const *skippers, const int count, enum outcome *outcome)
{
    struct passing hot[LANES];
    int stopped = 0;
#pragma GCC unroll 2
    for (int i = 0; i < count; i++)
        hot[i] = skippers[i]->hot;
    for (;;) {
#pragma GCC unroll 2
        for (int i = 0; i < count; i++)
            fill(&hot[i]);
#pragma GCC unroll 4
        for (int step = 0; step < PER_FILL; step++)
#pragma GCC unroll 2
            for (int i = 0; i < count; i++) {
                uint32_t entry = hot[i].look[hot[i].bits >> (64 - SKIP_BITS)], k = hot[i].k + (entry >> 4);
                if (UNLIKELY(k >= 64 || !entry)) {
                    *outcome = DONE;
                    if (UNLIKELY(!entry || (k > 64 && k <= END_OF_BLOCK) || k >= NO_CODE)) {
                        *outcome = pass_symbol(skippers[i], &hot[i]);
                        if (*outcome == DONE && hot[i].k < 64)
                            continue;
                    } else {
                        take(&hot[i], entry & 15);
                    }
                    if (*outcome == DONE)
                        *outcome = end_block(skippers[i], &hot[i]);
                    if (UNLIKELY(*outcome != DONE)) {
                        stopped = i;
                        goto stop;
                    }
                    continue;
                }
                take(&hot[i], entry & 15);
                hot[i].k = k;
            }
    }
stop:
#pragma GCC unroll 2
    for (int i = 0; i < count; i++)
        skippers[i]->hot = hot[i];
    return stopped;
}

BOTH_LOOPS(int, pass_segments, (struct skipper *const *skippers, int count, enum outcome *outcome),
           count == 1 ? pass(skippers, 1, outcome) : pass(skippers, 2, outcome))

/* Begins the next segment of an image. NO_MORE if there is none. */
static enum outcome begin_segment(struct skipper *skipper, bool gray)
{
    struct decoder *decoder = skipper->decoder;
    struct input *input = &decoder->input;
    const struct headers *headers = &input->headers;
    struct lane *lane = &input->lanes[0];
    *lane = (struct lane){.decoder = decoder, .unstuffed = decoder->worker.scratch.unstuffed[0].at};
    enum outcome outcome = open_segment(decoder, lane);
    if (outcome != DONE)
        return outcome;
    *skipper = (struct skipper){
        .decoder = decoder,
        .hot = {.at = lane->unstuffed},
        .unstuffed = lane->unstuffed,
        .end = lane->end,
        .mcu = lane->mcu,
        .first = lane->mcu,
        .left = lane->left,
        .luma = gray && headers->components > 1 ? headers->component[0].h * headers->component[0].v : 0,
        .blocks = headers->blocks};
    for (int b = 0; b < headers->blocks; b++) {
        const struct component *component = &headers->component[headers->component_of[b]];
        skipper->component[b] = headers->component_of[b];
        skipper->dc[b] = &decoder->tables.dc[component->dc];
        skipper->ac[b] = &decoder->tables.ac[component->ac];
        skipper->looks[b] = (const uint16_t *)decoder->worker.scratch.skips.at + (component->ac << SKIP_BITS);
    }
    skipper->until = skipper->piece = piece_at(headers, input->piece, skipper->mcu);
    return begin_block(skipper, &skipper->hot);
}

/* Ends a segment. REFUSED unless all of its bytes were read. */
static enum outcome end_segment(struct skipper *skipper, bool gray)
{
    struct lane *lane = &skipper->decoder->input.lanes[0];
    lane->hot.at = skipper->unstuffed + (skipper->bits >> 3);
    lane->hot.taken = (uint64_t)skipper->bits & 7;
    if (close_segment(lane) != DONE)
        return REFUSED;
    place_points(skipper->decoder, lane->base, skipper->first, skipper->mcu, skipper->end - skipper->unstuffed);
    return begin_segment(skipper, gray);
}

/* Writes the index of each file to `to`, which has room for that many bytes, including 8 spare bytes. `sizes` receives
 * the size of each index: 0 if the engine refuses the file, or if an index would be of no use. */
EXPORT void packstore_engine_checkpoints(struct decoder *decoder, const uint8_t *const *files, const int64_t *nbytes,
                                         int64_t count, int gray, uint8_t *const *to, const int64_t *capacities,
                                         int64_t *sizes)
{
    struct skipper skippers[LANES] = {{.decoder = decoder}, {.decoder = decoder->second}}, *active[LANES];
    int64_t number[LANES], next = 0;
    int busy = 0;
    while (busy || next < count) {
        if (busy < LANES && next < count) {
            struct skipper *idle = &skippers[busy && active[0] == skippers];
            sizes[next] = 0;
            if (begin_checkpoints(idle->decoder, files[next], nbytes[next], gray) == DONE &&
                prepare_scan(idle->decoder, files[next], nbytes[next]) == DONE && make_skips(idle->decoder) == DONE &&
                begin_segment(idle, gray) == DONE) {
                number[idle - skippers] = next;
                active[busy++] = idle;
            }
            next++;
            continue;
        }
        enum outcome outcome;
        int n = decoder->worker.kernels->pass_segments(active, busy, &outcome);
        struct skipper *ended = active[n];
        if (outcome == NO_MORE && (outcome = end_segment(ended, gray)) == DONE)
            continue;
        int64_t file = number[ended - skippers];
        if (outcome == NO_MORE)
            sizes[file] = pack_checkpoints(ended->decoder, to[file], capacities[file], gray);
        active[n] = active[--busy];
        trim_buffers(&ended->decoder->worker.scratch);
    }
}
