/* Huffman decoding of restart segments, two at a time: ITU-T T.81, F.2.2 and B.1.1.5. */
#include "jpeg.h"

/* Copies coded data before `stop` without the zero bytes after 0xFF (B.1.1.5), up to the next marker; more of the file
 * follows `stop`. Returns the marker's address; NULL if there is none. */
static const uint8_t *unstuff(uint8_t **to, const uint8_t *from, const uint8_t *stop)
{
    const uint8_t *marker = NULL;
    uint8_t *out = *to;
    while (from < stop && !marker) {
        const uint8_t *ff = memchr(from, 0xFF, (size_t)(stop - from)), *end = ff ? ff : stop;
        memcpy(out, from, (size_t)(end - from));
        out += end - from;
        if (ff && ff[1])
            marker = ff;
        else if (ff)
            *out++ = 0xFF;
        from = ff ? ff + 2 : stop;
    }
    *to = out;
    return marker;
}

/* Gives the lane the next located part. Its first byte must not be a stuffed zero. */
static enum outcome take_located(struct decoder *decoder, struct lane *lane)
{
    struct output *output = &decoder->output;
    struct input *input = &decoder->input;
    if (input->next_segment >= input->segments)
        return NO_MORE;
    const struct located *part = (const struct located *)decoder->worker.scratch.located.at + input->next_segment;
    /* Pixels of the last complete row are made only when the next row is complete, too. */
    if (part->mcu / input->headers.across - output->row0 >= output->whole + output->kept - 1) {
        output->held = true;
        return HELD;
    }
    input->next_segment++;
    const uint8_t *from = input->file + part->start, *stop = input->file + part->marker + (part->end_bit > 0);
    uint8_t *end = lane->unstuffed;
    if (from[-1] == 0xFF || unstuff(&end, from, stop))
        return REFUSED;
    lane->end = end;
    lane->mcu = part->mcu;
    lane->left = part->count;
    lane->cut_short = part->cut_short;
    lane->hot.taken = (uint64_t)part->bit;
    lane->part = part;
    memcpy(lane->predicted, part->predicted, sizeof lane->predicted);
    return DONE;
}

/* Gives the lane the next restart segment of a file whose segments are found while decoding: all segments in order, to
 * the end of the image. */
static enum outcome take_following(struct decoder *decoder, struct lane *lane)
{
    struct input *input = &decoder->input;
    const struct headers *headers = &input->headers;
    int64_t total = (int64_t)headers->rows * headers->across, each = headers->interval ? headers->interval : total;
    int64_t first = decoder->output.row0 * headers->across, stop = decoder->output.row1 * headers->across;
    while (input->next_segment < input->segments) {
        int64_t n = input->next_segment++, mcu = n * each, count = total - mcu < each ? total - mcu : each;
        uint8_t *end = lane->unstuffed;
        lane->base = input->scan - input->file;
        const uint8_t *marker = unstuff(&end, input->scan, input->file_end - 1);
        int expected = n == input->segments - 1 ? EOI : RST0 | (int)(n & 7);
        if (!marker || marker[1] != expected)
            return REFUSED;
        input->scan = marker + 2;
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

/* Finishes the lane's segment. REFUSED unless exactly its bytes were read; for a part that ends at a checkpoint,
 * exactly its bits, with the predictions of that checkpoint. */
enum outcome close_segment(struct lane *lane)
{
    const uint8_t *at = lane->hot.at + ((lane->hot.taken & 255) + 7) / 8;
    const struct located *part = lane->part;
    lane->open = false;
    if (part && !part->cut_short && !part->at_marker) {
        int64_t read = 8 * (lane->hot.at - lane->unstuffed) + (int64_t)(lane->hot.taken & 255);
        size_t known = lane->decoder->input.lengths.at ? sizeof part->next[0] : sizeof part->next;
        bool same = !memcmp(lane->predicted, part->next, known);
        return same && read == 8 * (lane->end - lane->unstuffed) - (-part->end_bit & 7) ? DONE : REFUSED;
    }
    return (lane->cut_short ? at <= lane->end : at == lane->end) ? DONE : REFUSED;
}

/* Gives the lane its next segment. Returns DONE, REFUSED, NO_MORE, or HELD if other lanes must finish first. */
enum outcome open_segment(struct decoder *decoder, struct lane *lane)
{
    lane->cut_short = false;
    lane->hot.taken = 0;
    lane->part = NULL;
    memset(lane->predicted, 0, sizeof lane->predicted);
    enum outcome outcome = decoder->input.way == LOCATED ? take_located(decoder, lane) : take_following(decoder, lane);
    if (outcome != DONE)
        return outcome;
    memset((uint8_t *)lane->end, 0, PADDING);
    lane->open = true;
    lane->hot.at = lane->unstuffed;
    return DONE;
}

/* Clears the coefficients for the next stretch, except those of blocks without samples, which are never read. */
static void clear_coefficients(struct lane *lane)
{
    const size_t block = 64 * sizeof(int16_t);
    int blocks = lane->decoder->input.headers.blocks, used = lane->decoder->output.blocks;
    if (used == blocks)
        memset(lane->coefficients, 0, (size_t)(lane->count * blocks) * block);
    else
        for (int64_t m = 0; m < lane->count; m++)
            memset(lane->coefficients + m * blocks * 64, 0, (size_t)used * block);
}

/* Finishes the lane's stretch and gives it the next: DONE, REFUSED, NO_MORE or HELD. */
static NOT_INLINE enum outcome next_stretch(struct lane *lane)
{
    struct decoder *decoder = lane->decoder;
    const struct headers *headers = &decoder->input.headers;
    if (lane->count) {
        if (decoder->worker.kernels->samples(decoder, lane, lane->predicted) != DONE)
            return REFUSED;
        clear_coefficients(lane);
        int64_t bottom = note_samples(decoder, lane->mcu, lane->count);
        if (bottom)
            use_rows(decoder, bottom);
        lane->mcu += lane->count;
        lane->left -= lane->count;
        lane->count = 0;
    }
    if (!lane->left) {
        if (lane->open && close_segment(lane) != DONE)
            return REFUSED;
        if (decoder->output.held) /* both lanes continue */
            return HELD;
        enum outcome outcome = open_segment(decoder, lane);
        if (outcome != DONE)
            return outcome;
    }
    int64_t most = STRETCH / headers->blocks, in_row = headers->across - lane->mcu % headers->across;
    lane->count = smaller(smaller(lane->left, in_row), most);
    lane->hot.out = lane->coefficients;
    lane->hot.block = decoder->tables.sequence;
    lane->chroma_left = decoder->input.lengths.at ? lane->count : 0;
    lane->block_end = lane->hot.block + (lane->chroma_left ? decoder->output.blocks : lane->count * headers->blocks);
    return DONE;
}

/* Provides at least 57 unread bits. */
INLINE void refill(struct hot *hot)
{
    hot->at += (hot->taken & 255) >> 3;
    hot->taken &= ~(uint32_t)0xF8;
    hot->bits = __builtin_bswap64(read_8(hot->at)) << (hot->taken & 7);
}

/* Index of the next coefficient. */
INLINE uint32_t next_index(const struct hot *hot)
{
    return hot->taken >> K & 255;
}

INLINE struct hot begin_lane(const struct lane *lane)
{
    struct hot hot = lane->hot;
    refill(&hot);
    return hot;
}

INLINE void end_lane(struct lane *lane, const struct hot *hot)
{
    lane->hot = *hot;
    lane->hot.at += (hot->taken & 255) >> 3;
    lane->hot.taken = hot->taken & 0xFF07;
}

/* Passes over the chroma of an MCU by its length, and continues with the next. If the length is unknown, continues
 * with the chroma. NO_MORE if the stretch ends. */
INLINE enum outcome pass_chroma(struct lane *lane, struct hot *hot)
{
    const struct decoder *decoder = lane->decoder;
    const struct lengths *lengths = &decoder->input.lengths;
    const struct block_tables *first = decoder->tables.sequence;
    int luma = decoder->output.blocks, blocks = decoder->input.headers.blocks;
    if (hot->block == first + luma) {
        int64_t bit = (lane->mcu + lane->count - lane->chroma_left) * lengths->bits;
        uint32_t length = read_4(lengths->at + (bit >> 3)) >> (bit & 7) & lengths->unknown;
        if (UNLIKELY(length == lengths->unknown)) {
            lane->block_end = first + blocks;
            return DONE;
        }
        length += lengths->least + (hot->taken & 255);
        hot->at += length >> 3;
        hot->taken = length & 7;
        hot->out += 64 * (blocks - luma);
        if (UNLIKELY(hot->at > lane->end))
            return REFUSED;
    }
    hot->block = first;
    lane->block_end = first + luma;
    return --lane->chroma_left ? DONE : NO_MORE;
}

/* The first coefficient of a block: F.2.2.1. Leaves 45 bits at least, enough for the 4 lookups before the next refill.
 */
INLINE enum outcome decode_dc(struct hot *hot)
{
    refill(hot);
    uint32_t entry = hot->block->dc->look[hot->bits >> (64 - LOOKUP_BITS)];
    if (UNLIKELY(entry & ESCAPE)) {
        entry = long_symbol(hot->block->dc, hot->bits, entry);
        hot->taken += entry & 63;
        refill(hot);
        entry &= ~63u;
    }
    hot->bits <<= entry & 63;
    hot->taken += entry;
    hot->out[0] = (int16_t)(entry >> 16);
    hot->table = hot->block->ac;
    return next_index(hot) == 1 ? DONE : REFUSED;
}

/* Saves the state of all lanes. Returns the index of the lane that stops, and notes the reason. */
INLINE int stop(struct lane *const *lanes, const struct hot *hot, const int count, int stopped, enum outcome outcome)
{
#pragma GCC unroll 2
    for (int i = 0; i < count; i++)
        end_lane(lanes[i], &hot[i]);
    lanes[stopped]->outcome = outcome;
    return stopped;
}

/* Decodes with `lanes`, `count` of them, a symbol of each in turn, so that their chains of lookups overlap (F.2.2.2),
 * until one has no more to do (NO_MORE), or finds what is not flawless (REFUSED): its number; its `outcome` says which.
 *
 * Each symbol that is not looked up takes 27 bits at most, after a refill; 5 that are take 55, of the 57 at least that
 * a refill brings. Within a block 64 symbols are read before it shows that the data have ended: AHEAD bytes. */
INLINE int run(struct lane *const *lanes, const int count)
{
    struct hot hot[LANES];
    const uint8_t *place = lanes[0]->decoder->worker.kernels->place; /* that of all */
#pragma GCC unroll 2
    for (int i = 0; i < count; i++)
        hot[i] = begin_lane(lanes[i]);
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
                    hot[i].taken += entry & 63;
                    refill(&hot[i]);
                    entry &= ~63u;
                }
                hot[i].bits <<= entry & 63;
                hot[i].taken += entry;
                hot[i].out[place[next_index(&hot[i])]] = (int16_t)(entry >> 16);
                if (UNLIKELY(hot[i].taken & 0xC0 << K)) { /* the end of a block */
                    uint32_t k = next_index(&hot[i]);
                    if (UNLIKELY((k > 64 && k <= END_OF_BLOCK) || k >= NO_CODE))
                        return stop(lanes, hot, count, i, REFUSED);
                    hot[i].taken &= 255;
                    hot[i].out += 64;
                    if (UNLIKELY(++hot[i].block == lanes[i]->block_end || hot[i].at > lanes[i]->end)) {
                        if (hot[i].at > lanes[i]->end)
                            return stop(lanes, hot, count, i, REFUSED);
                        enum outcome outcome = lanes[i]->chroma_left ? pass_chroma(lanes[i], &hot[i]) : NO_MORE;
                        if (outcome == NO_MORE) {
                            end_lane(lanes[i], &hot[i]);
                            outcome = next_stretch(lanes[i]);
                            if (outcome == DONE)
                                hot[i] = begin_lane(lanes[i]);
                        }
                        if (outcome != DONE)
                            return stop(lanes, hot, count, i, outcome);
                    }
                    if (UNLIKELY(decode_dc(&hot[i]) != DONE))
                        return stop(lanes, hot, count, i, REFUSED);
                }
            }
    }
}

BOTH_LOOPS(int, run_lanes, (struct lane *const *lanes, int count), count == 1 ? run(lanes, 1) : run(lanes, 2))

/* Opens the first segment of a lane, decodes its first coefficient, and adds the lane to the team. NO_MORE if it has
 * nothing to do. */
static enum outcome begin(struct team *team, struct lane *lane)
{
    enum outcome outcome = next_stretch(lane);
    if (outcome != DONE)
        return outcome;
    struct hot hot = begin_lane(lane);
    outcome = decode_dc(&hot);
    end_lane(lane, &hot);
    if (outcome == DONE)
        team->lanes[team->count++] = lane;
    return outcome;
}

/* Clears all coefficients for the next image. */
static void clear_all(struct input *input)
{
    memset(input->coefficients, 0, sizeof input->coefficients);
    input->unread = 0;
}

/* Removes the lanes of the decoder from the team; clears its coefficients unless it is DONE. */
static enum outcome leave(struct team *team, struct decoder *decoder, enum outcome outcome)
{
    int left = 0;
    for (int i = 0; i < team->count; i++)
        if (team->lanes[i]->decoder != decoder)
            team->lanes[left++] = team->lanes[i];
    team->count = left;
    if (outcome != DONE)
        clear_all(&decoder->input);
    return outcome;
}

/* Begins to decode the needed segments, together with the other lanes of the team. */
enum outcome join(struct team *team, struct decoder *decoder)
{
    struct input *input = &decoder->input;
    int unread = decoder->output.blocks == input->headers.blocks ? 0 : input->headers.blocks;
    if (input->unread != unread && input->unread) /* other blocks are read now */
        clear_all(input);
    input->unread = unread;
    for (int i = 0; i < LANES; i++)
        input->lanes[i] = (struct lane){.decoder = decoder,
                                        .unstuffed = decoder->worker.scratch.unstuffed[i].at,
                                        .coefficients = input->coefficients[i]};
    return begin(team, &input->lanes[0]) == DONE ? DONE : leave(team, decoder, REFUSED);
}

/* Decodes until an image of the team has ended. Returns its decoder; `outcome` receives DONE or REFUSED. A single image
 * uses both lanes. */
struct decoder *decode_together(struct team *team, enum outcome *outcome)
{
    for (;;) {
        struct lane *alone = team->count == 1 ? team->lanes[0] : NULL;
        struct decoder *decoder = team->lanes[0]->decoder;
        if (alone && begin(team, &decoder->input.lanes[alone == decoder->input.lanes]) == REFUSED) {
            *outcome = leave(team, decoder, REFUSED);
            return decoder;
        }
        int ended = decoder->worker.kernels->run_lanes(team->lanes, team->count);
        struct lane *lane = team->lanes[ended];
        decoder = lane->decoder;
        team->lanes[ended] = team->lanes[--team->count];
        bool more = team->count && team->lanes[0]->decoder == decoder;
        if (lane->outcome == HELD && !more) {
            decoder->output.held = false;
            lane->outcome = begin(team, lane);
            more = lane->outcome == DONE;
        }
        if (lane->outcome == REFUSED || !more) {
            *outcome = leave(team, decoder, lane->outcome == NO_MORE ? DONE : REFUSED);
            return decoder;
        }
    }
}
