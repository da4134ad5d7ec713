/*
 * The coefficients of a progressive JPEG: ITU-T T.81, G.1.2 and G.2, as jdphuff.c of libjpeg has it. Refused is what
 * that warns of, an image that lacks bits of a coefficient, and markers between scans that are not needed to decode
 * them.
 */
#include "reader.h"

enum { MOST_SCANS = 100, SCANS_OF_LARGE = 24, MOST_SHIFT = 13 };
static const int64_t SCANNED_PIXELS = (int64_t)1 << 31; /* of all scans together */

/* A scan: its components, its band of coefficients, and the bits of them that were there before and are afterwards. */
struct scan {
    int components, component[COMPONENTS];
    int first, last, high, low;
};

/* What is known of each coefficient, and what of the scan is being decoded. */
struct progress {
    int lowest[COMPONENTS][64]; /* bit that is there; -1 for none */
    struct reader reader;
    int64_t end_of_bands; /* blocks from here on that have no more in this band */
    int predicted[COMPONENTS];
    const uint8_t *at, *end; /* the scan's bytes that follow; those of the segment end */
    int restarts;
};

INLINE uint32_t take_bits(struct reader *reader, int count)
{
    uint32_t bits = (uint32_t)(reader->bits >> 1 >> (63 - count));
    reader->bits <<= count;
    reader->count -= count;
    return bits;
}

INLINE uint32_t next_bit(struct reader *reader)
{
    fill_reader(reader);
    return take_bits(reader, 1);
}

/* G.1.2.2: blocks, this one included, of which the band ends here. */
INLINE int64_t run_of_ends(struct reader *reader, uint32_t symbol)
{
    int bits = (int)(symbol >> 4);
    return ((int64_t)1 << bits) + take_bits(reader, bits);
}

static int read_first(struct decoder *decoder, struct progress *progress, const struct scan *scan, int i,
                      int16_t *block)
{
    struct reader *reader = &progress->reader;
    int table = decoder->headers.component[i].dc;
    uint32_t value, entry;
    fill_reader(reader);
    if (scan->high) {
        block[0] = (int16_t)(block[0] | (int)take_bits(reader, 1) << scan->low);
        return DONE;
    }
    if (!(entry = read_symbol(reader, decoder->rewriting.look[0][table], &decoder->dc[table], &value)))
        return REFUSED;
    int dc = (progress->predicted[i] += extend(value, (int)(entry >> 16))) * (1 << scan->low);
    block[0] = (int16_t)dc;
    return dc == block[0] ? DONE : REFUSED;
}

static int read_band(struct decoder *decoder, struct progress *progress, const struct scan *scan, int i, int16_t *block)
{
    struct reader *reader = &progress->reader;
    int table = decoder->headers.component[i].ac;
    for (int k = scan->first; k <= scan->last; k++) {
        uint32_t value, entry, symbol;
        fill_reader(reader);
        if (!(entry = read_symbol(reader, decoder->rewriting.look[1][table], &decoder->ac[table], &value)))
            return REFUSED;
        symbol = entry >> 16;
        if (!(symbol & 15) && symbol < 0xF0) {
            progress->end_of_bands = run_of_ends(reader, symbol);
            break;
        }
        k += (int)(symbol >> 4);
        if (k > scan->last)
            return REFUSED;
        block[k] = (int16_t)(extend(value, (int)(symbol & 15)) * (1 << scan->low));
    }
    return DONE;
}

/* G.1.2.3: from `k` on, a bit more of each coefficient that is not zero, up to the one behind `zeros` that are. */
static int refine_band(struct reader *reader, const struct scan *scan, int16_t *block, int k, int zeros)
{
    for (; k <= scan->last; k++) {
        if (!block[k]) {
            if (!zeros--)
                break;
        } else if (next_bit(reader)) {
            block[k] = (int16_t)(block[k] + (block[k] > 0 ? 1 << scan->low : -(1 << scan->low)));
        }
    }
    return k;
}

static int read_refinement(struct decoder *decoder, struct progress *progress, const struct scan *scan, int i,
                           int16_t *block)
{
    struct reader *reader = &progress->reader;
    int table = decoder->headers.component[i].ac, k = scan->first;
    for (; k <= scan->last; k++) {
        uint32_t value, entry, symbol;
        fill_reader(reader);
        if (!(entry = read_symbol(reader, decoder->rewriting.look[1][table], &decoder->ac[table], &value)))
            return REFUSED;
        symbol = entry >> 16;
        if (!(symbol & 15) && symbol < 0xF0) {
            progress->end_of_bands = run_of_ends(reader, symbol);
            break;
        }
        if ((symbol & 15) > 1)
            return REFUSED;
        k = refine_band(reader, scan, block, k, (int)(symbol >> 4));
        if (k > scan->last)
            return REFUSED;
        if (symbol & 15)
            block[k] = (int16_t)(value ? 1 << scan->low : -(1 << scan->low));
    }
    if (progress->end_of_bands)
        refine_band(reader, scan, block, k, 64);
    return DONE;
}

static int read_any(struct decoder *decoder, struct progress *progress, const struct scan *scan, int i, int16_t *block)
{
    int outcome = DONE;
    if (!scan->first) {
        outcome = read_first(decoder, progress, scan, i, block);
    } else if (progress->end_of_bands) {
        if (scan->high)
            refine_band(&progress->reader, scan, block, scan->first, 64);
    } else {
        outcome = (scan->high ? read_refinement : read_band)(decoder, progress, scan, i, block);
    }
    progress->end_of_bands -= progress->end_of_bands > 0;
    return outcome == DONE && progress->reader.at <= progress->end + 8 ? DONE : REFUSED;
}

/* The next restart segment of the scan; `is_last`: behind it there is another marker than a restart. */
static int begin_segment(struct decoder *decoder, struct progress *progress, bool is_last)
{
    uint8_t *start = decoder->unstuffed[0].at, *end = start;
    const uint8_t *marker = unstuff(&end, progress->at, decoder->file_end);
    if (!marker ||
        (is_last ? marker[1] >= RST0 && marker[1] < RST0 + 8 : marker[1] != (RST0 | (progress->restarts++ & 7))))
        return REFUSED;
    memset(end, 0, PADDING);
    progress->at = is_last ? marker : marker + 2;
    progress->end = end;
    progress->reader = (struct reader){0, start, 0};
    progress->end_of_bands = 0;
    memset(progress->predicted, 0, sizeof progress->predicted);
    return DONE;
}

static int end_segment(const struct decoder *decoder, const struct progress *progress)
{
    const uint8_t *start = decoder->unstuffed[0].at;
    bool exact = (bits_read(&progress->reader, start) + 7) / 8 == progress->end - start;
    return exact && !progress->end_of_bands ? DONE : REFUSED;
}

/* The block of a component at a row and column of its own, in the order of a baseline scan. */
static int16_t *block_at(const struct decoder *decoder, int i, int64_t row, int64_t column)
{
    const struct headers *headers = &decoder->headers;
    const struct component *component = &headers->component[i];
    int64_t mcu = row / component->v * headers->across + column / component->h;
    int64_t block = component->block + row % component->v * component->h + column % component->h;
    return (int16_t *)decoder->rewriting.coefficients.at + (mcu * headers->blocks + block) * 64;
}

/* A.2: of one component its own blocks, of several the MCUs. */
static int read_blocks(struct decoder *decoder, struct progress *progress, const struct scan *scan)
{
    const struct headers *headers = &decoder->headers;
    const struct component *only = &headers->component[scan->component[0]];
    bool single = scan->components == 1;
    int64_t across = single ? only->columns : headers->across, total = across * (single ? only->rows : headers->rows);
    int64_t interval = headers->interval ? headers->interval : total;
    for (int64_t n = 0; n < total; n++) {
        int64_t row = n / across, column = n % across;
        if (n % interval == 0 && ((n && end_segment(decoder, progress) != DONE) ||
                                  begin_segment(decoder, progress, n + interval >= total) != DONE))
            return REFUSED;
        for (int s = 0; s < scan->components; s++) {
            int i = scan->component[s], h = single ? 1 : headers->component[i].h,
                v = single ? 1 : headers->component[i].v;
            for (int y = 0; y < v; y++)
                for (int x = 0; x < h; x++)
                    if (read_any(decoder, progress, scan, i, block_at(decoder, i, row * v + y, column * h + x)) != DONE)
                        return REFUSED;
        }
    }
    return end_segment(decoder, progress);
}

/* Tables of the scan's components, as far as it uses them. */
static int make_scan_tables(struct decoder *decoder, const struct scan *scan)
{
    const struct headers *headers = &decoder->headers;
    for (int s = 0; s < scan->components; s++) {
        const struct component *component = &headers->component[scan->component[s]];
        int which = scan->first ? component->ac : component->dc;
        struct huffman *table = scan->first ? &decoder->ac[which] : &decoder->dc[which];
        const struct huffman_spec *spec = scan->first ? &headers->ac[which] : &headers->dc[which];
        if (!scan->first && scan->high)
            continue;
        if (!spec->counts || make_table(table, spec, scan->first ? BAND_TABLE : DC_TABLE) != DONE)
            return REFUSED;
        fill_symbols(decoder->rewriting.look[scan->first > 0][which], table);
    }
    return DONE;
}

/* B.2.3 and table G.1: each scan follows those before it. */
static int read_scan_header(struct headers *headers, struct progress *progress, struct scan *scan, const uint8_t *at,
                            int64_t nbytes)
{
    if (nbytes < 6 || nbytes != 4 + 2 * at[0] || at[0] < 1 || at[0] > headers->components)
        return REFUSED;
    const uint8_t *band = at + nbytes - 3;
    *scan = (struct scan){
        .components = at[0], .first = band[0], .last = band[1], .high = band[2] >> 4, .low = band[2] & 15};
    if (scan->first ? scan->last < scan->first || scan->last > 63 || scan->components > 1 : scan->last)
        return REFUSED;
    if (scan->low > MOST_SHIFT || (scan->high && scan->low != scan->high - 1))
        return REFUSED;
    for (int s = 0, i = 0; s < scan->components; s++, i++) {
        while (i < headers->components && headers->component[i].id != at[1 + 2 * s])
            i++;
        if (i == headers->components)
            return REFUSED;
        struct component *component = &headers->component[i];
        scan->component[s] = i;
        component->dc = at[2 + 2 * s] >> 4;
        component->ac = at[2 + 2 * s] & 15;
        if (component->dc >= TABLES || component->ac >= TABLES || (scan->first && progress->lowest[i][0] < 0))
            return REFUSED;
        for (int k = scan->first; k <= scan->last; k++) {
            if (progress->lowest[i][k] != (scan->high ? scan->high : -1))
                return REFUSED;
            progress->lowest[i][k] = scan->low;
        }
    }
    return DONE;
}

static int read_scan(struct decoder *decoder, struct progress *progress, const uint8_t *at, int64_t nbytes)
{
    struct scan scan;
    progress->at = at + nbytes;
    progress->restarts = 0;
    return read_scan_header(&decoder->headers, progress, &scan, at, nbytes) || make_scan_tables(decoder, &scan) ||
                   read_blocks(decoder, progress, &scan)
               ? REFUSED
               : DONE;
}

static bool is_complete(const struct headers *headers, const struct progress *progress)
{
    for (int i = 0; i < headers->components; i++)
        for (int k = 0; k < 64; k++)
            if (progress->lowest[i][k])
                return false;
    return true;
}

/* All coefficients of a progressive JPEG whose headers were read, into `decoder->rewriting.coefficients`. */
int read_progressive(struct decoder *decoder, const uint8_t *file, int64_t nbytes)
{
    struct headers *headers = &decoder->headers;
    struct progress progress;
    int64_t scans = 0, most = SCANNED_PIXELS / ((int64_t)headers->height * headers->width);
    most = most > MOST_SCANS ? MOST_SCANS : most < SCANS_OF_LARGE ? SCANS_OF_LARGE : most;
    memset(&progress, 0, sizeof progress);
    memset(progress.lowest, -1, sizeof progress.lowest);
    decoder->file_end = file + nbytes;
    if (make_room(&decoder->unstuffed[0], (size_t)nbytes + AHEAD) != DONE)
        return REFUSED;
    for (const uint8_t *at = file + headers->scan_at, *end = file + nbytes; end - at >= 2 && at[0] == 0xFF;) {
        if (at[1] == EOI)
            return is_complete(headers, &progress) ? DONE : REFUSED;
        int64_t length = end - at >= 4 ? at[2] << 8 | at[3] : 0;
        if (length < 2 || length > end - at - 2)
            return REFUSED;
        const uint8_t *from = at + 4;
        int marker = at[1];
        at += 2 + length;
        if (marker == SOS && scans++ < most) {
            if (read_scan(decoder, &progress, from, length - 2) != DONE)
                return REFUSED;
            at = progress.at;
        } else if (marker == DHT) {
            if (read_huffman(headers, from, at) != DONE)
                return REFUSED;
        } else if (marker == DRI && length == 4) {
            headers->interval = from[0] << 8 | from[1];
        } else {
            return REFUSED;
        }
    }
    return REFUSED;
}
