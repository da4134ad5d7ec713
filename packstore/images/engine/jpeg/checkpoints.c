/* Checkpoints of a scan in an unchanged file: offsets at which its pieces begin, and the DC predictions there. A piece
 * has `piece` MCUs, or fewer if a row of MCUs or a restart interval ends. The index begins with HEAD bytes,
 * little-endian: version; `piece`; bits of each of the four fields; the smallest value of the first field (4 bytes) and
 * of the others (2 bytes each); CRC-32 of the rest of the index and of facts about its file, see checkpoints_crc(). The
 * fields of each piece follow, from the lowest bit on: its length in bits of the file, with stuffing, padding and
 * marker; and the change of the prediction of each component, which is unused before a marker.
 *
 * For luma alone an index may also have the length of each MCU's chroma, which is coded after its luma. Then `version`
 * is WITH_LENGTHS, and the index ends with: the lengths in bits, less the smallest, in the same number of bits each;
 * this number (1 byte), 0 (1 byte), the smallest length (2 bytes). A length of ones alone is unknown. */
#include "jpeg.h"

enum {
    WITHOUT_LENGTHS = 1,
    WITH_LENGTHS,
    TAIL = 4,
    MOST_WIDTH = 12,     /* bits of a length */
    UNKNOWN_SHARE = 256, /* at most every 256th MCU has an unknown length */
    HEAD = 20,
    CRC_AT = 16,
    FIELDS = 1 + COMPONENTS,
    MOST_BITS = 57, /* bits of a piece's fields: they fit a load of 8 bytes, at any bit offset in the first */
    MOST_LENGTH_BITS = 30,
    MOST_CHANGE_BITS = 15,
    MOST_PIECE = 255,
    PIECE_BYTES = 800, /* coded bytes of a piece: smaller pieces are 1% faster, and take a third more bytes */
    LEAST_BYTES = 2 * PIECE_BYTES, /* coded bytes: in a smaller file an index saves too little */
    MOST_BYTES = 1 << 26
};

struct fields {
    int64_t piece, least[FIELDS], end; /* `end`: bits of all fields of the index */
    int bits[FIELDS], width;
};

static int64_t count_mcus(const struct headers *headers)
{
    return (int64_t)headers->rows * headers->across;
}

void make_crc_table(uint32_t table[8][256])
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
        table[0][i] = crc;
    }
    for (int n = 1; n < 8; n++)
        for (int i = 0; i < 256; i++)
            table[n][i] = table[n - 1][i] >> 8 ^ table[0][table[n - 1][i] & 255];
}

/* Continues a CRC-32 with more bytes, eight at a time. */
static uint32_t add_crc(const uint32_t table[8][256], uint32_t crc, const uint8_t *at, int64_t count)
{
    crc = ~crc;
    for (; count >= 8; at += 8, count -= 8) {
        uint32_t low = read_4(at) ^ crc, high = read_4(at + 4);
        crc = table[7][low & 255] ^ table[6][low >> 8 & 255] ^ table[5][low >> 16 & 255] ^ table[4][low >> 24] ^
              table[3][high & 255] ^ table[2][high >> 8 & 255] ^ table[1][high >> 16 & 255] ^ table[0][high >> 24];
    }
    for (; count; at++, count--)
        crc = crc >> 8 ^ table[0][(crc ^ *at) & 255];
    return ~crc;
}

/* Returns the number of MCUs of the piece that begins with `mcu`. */
int64_t piece_at(const struct headers *headers, int64_t piece, int64_t mcu)
{
    int64_t column = mcu % headers->across, count = piece - column % piece, in_row = headers->across - column;
    int64_t left = headers->interval ? headers->interval - mcu % headers->interval : count;
    count = count < in_row ? count : in_row;
    return count < left ? count : left;
}

static bool ends_with_marker(const struct headers *headers, int64_t next)
{
    return next == count_mcus(headers) || (headers->interval && next % headers->interval == 0);
}

/* Computes the CRC of the index and of everything in its file that determines the pieces: sizes, sampling, restart
 * interval, Huffman tables. */
static uint32_t checkpoints_crc(const struct decoder *decoder, const uint8_t *at, int64_t size, int64_t nbytes)
{
    const struct headers *headers = &decoder->input.headers;
    const int64_t facts[] = {nbytes,
                             headers->scan_at,
                             headers->height,
                             headers->width,
                             headers->interval,
                             headers->components,
                             headers->mcu_height,
                             headers->mcu_width};
    uint32_t crc = add_crc(decoder->crc, 0, (const uint8_t *)facts, sizeof facts);
    for (int i = 0; i < headers->components; i++) {
        const struct huffman_spec *specs[] = {&headers->dc[headers->component[i].dc],
                                              &headers->ac[headers->component[i].ac]};
        for (int kind = 0; kind < 2; kind++) {
            crc = add_crc(decoder->crc, crc, specs[kind]->counts, 16);
            crc = add_crc(decoder->crc, crc, specs[kind]->values, specs[kind]->total);
        }
    }
    crc = add_crc(decoder->crc, crc, at, CRC_AT);
    return add_crc(decoder->crc, crc, at + HEAD, size - HEAD);
}

/* ---- using them ---- */

/* Finds the lengths of chroma at the end of an index. Returns how many bytes they take; 0 if they cannot be there. */
static int64_t read_lengths(const struct headers *headers, const uint8_t *at, int64_t size, struct lengths *lengths)
{
    const uint8_t *tail = at + size - TAIL;
    int64_t bytes = TAIL + ((count_mcus(headers) * tail[0] + 7) >> 3);
    if (!tail[0] || tail[0] > MOST_WIDTH || bytes >= size - HEAD)
        return 0;
    *lengths = (struct lengths){at + size - bytes, tail[0], read_2(tail + 2), (1u << tail[0]) - 1};
    return bytes;
}

/* Reads the head, and the lengths if luma alone is decoded. REFUSED if the index belongs to another file. */
static enum outcome read_head(struct decoder *decoder, int64_t nbytes, struct fields *fields)
{
    const uint8_t *at = decoder->input.checkpoints;
    int64_t size = decoder->input.checkpoint_bytes, lengths_bytes = 0;
    struct lengths *lengths = &decoder->input.lengths;
    lengths->at = NULL;
    if (size <= HEAD || size > MOST_BYTES || at[0] < WITHOUT_LENGTHS || at[0] > WITH_LENGTHS || !at[1])
        return REFUSED;
    if (at[0] == WITH_LENGTHS) {
        lengths_bytes = read_lengths(&decoder->input.headers, at, size, lengths);
        if (!lengths_bytes)
            return REFUSED;
        if (decoder->output.blocks == decoder->input.headers.blocks)
            lengths->at = NULL;
    }
    fields->end = 8 * (size - HEAD - lengths_bytes);
    fields->piece = at[1];
    fields->width = 0;
    for (int f = 0; f < FIELDS; f++) {
        fields->bits[f] = at[2 + f];
        fields->least[f] = f ? (int16_t)read_2(at + 8 + 2 * f) : (int64_t)read_4(at + 6);
        fields->width += fields->bits[f];
        if (fields->bits[f] > (f ? MOST_CHANGE_BITS : MOST_LENGTH_BITS))
            return REFUSED;
    }
    bool possible = fields->bits[0] && fields->width <= MOST_BITS;
    return possible && read_4(at + CRC_AT) == checkpoints_crc(decoder, at, size, nbytes) ? DONE : REFUSED;
}

/* Returns the fields that begin with bit `bit` of the body. A load of 8 bytes that ends with the body stays in the
 * index, since HEAD has more. */
INLINE uint64_t read_fields(const struct decoder *decoder, int64_t bit)
{
    int64_t byte = HEAD + (bit >> 3), last = decoder->input.checkpoint_bytes - 8;
    byte = byte < last ? byte : last;
    return read_8(decoder->input.checkpoints + byte) >> (8 * (HEAD - byte) + bit);
}

static bool is_wide(const int *predicted)
{
    bool wide = false;
    for (int i = 0; i < COMPONENTS; i++)
        wide |= predicted[i] >= MOST_DC || predicted[i] <= -MOST_DC;
    return wide;
}

/* Ends a part before MCU `last`, in a piece that ends before MCU `next` and at bit `position` of the file. REFUSED if
 * an expected marker is missing. */
static enum outcome end_part(const struct decoder *decoder, struct located *part, int64_t last, int64_t next,
                             int64_t position, const int *predicted)
{
    const struct headers *headers = &decoder->input.headers;
    part->count = last - part->mcu;
    part->cut_short = last < next;
    part->at_marker = ends_with_marker(headers, next);
    part->marker = position >> 3;
    part->end_bit = (int)(position & 7);
    memcpy(part->next, predicted, sizeof part->next);
    if (part->at_marker) {
        bool ended = next == count_mcus(headers);
        part->marker -= ended ? 0 : 2;
        int expected = ended ? EOI : RST0 | (int)((next / headers->interval - 1) & 7);
        const uint8_t *marker = decoder->input.file + part->marker;
        if (part->end_bit || part->marker < part->start || marker[0] != 0xFF || marker[1] != expected)
            return REFUSED;
    }
    return DONE;
}

/* Lists the parts that contain the needed MCUs: in each row, consecutive pieces up to the last needed column or a
 * marker. */
enum outcome locate_checkpoints(struct decoder *decoder, int64_t nbytes)
{
    struct output *output = &decoder->output;
    struct input *input = &decoder->input;
    const struct headers *headers = &input->headers;
    struct fields fields;
    if (read_head(decoder, nbytes, &fields) != DONE)
        return REFUSED;
    int64_t across = headers->across, interval = headers->interval, found = 0;
    int64_t in_row = 1 + (interval ? across / interval + 1 : 0), most = (output->row1 - output->row0) * in_row;
    if (most > MOST_SEGMENTS ||
        grow_buffer(&decoder->worker.scratch.located, (size_t)most * sizeof(struct located)) != DONE)
        return REFUSED;
    struct located *located = decoder->worker.scratch.located.at, *part = NULL;
    int64_t position = 8 * headers->scan_at, end = 8 * (nbytes - 2), bit = 0;
    int64_t stop = output->row1 * across;
    int predicted[COMPONENTS] = {0};
    for (int64_t mcu = 0, next; mcu < stop; mcu = next, bit += fields.width) {
        next = mcu + piece_at(headers, fields.piece, mcu);
        if (UNLIKELY(bit + fields.width > fields.end))
            return REFUSED;
        int64_t row = mcu / across, last = row * across + output->column1;
        if (row >= output->row0 && !part && mcu < last && next > row * across + output->column0) {
            part = &located[found++];
            *part = (struct located){.start = position >> 3, .bit = (int)(position & 7), .mcu = mcu};
            memcpy(part->predicted, predicted, sizeof predicted);
        }
        uint64_t entry = read_fields(decoder, bit);
        position += fields.least[0] + (int64_t)(entry & (((uint64_t)1 << fields.bits[0]) - 1));
        entry >>= fields.bits[0];
        for (int i = 0; i < COMPONENTS; entry >>= fields.bits[1 + i++])
            predicted[i] += (int)fields.least[1 + i] + (int)(entry & (((uint64_t)1 << fields.bits[1 + i]) - 1));
        bool marker = ends_with_marker(headers, next);
        if (marker)
            memset(predicted, 0, sizeof predicted);
        if (UNLIKELY(position > end || is_wide(predicted)))
            return REFUSED;
        if (part && (next >= last || marker)) {
            if (end_part(decoder, part, next < last ? next : last, next, position, predicted) != DONE)
                return REFUSED;
            part = NULL;
        }
    }
    input->segments = found;
    return DONE;
}

/* ---- making them ---- */

/* Converts the points of a skipped segment, up to MCU `stop`, to bit offsets in the file: they were counted from its
 * first byte, `base`, without stuffing. The last point is after the marker, `length` bytes after `base`. */
void place_points(struct decoder *decoder, int64_t base, int64_t first, int64_t stop, int64_t length)
{
    struct input *input = &decoder->input;
    const struct headers *headers = &input->headers;
    struct point *points = decoder->worker.scratch.points.at;
    const uint8_t *file = input->file, *at = file + base;
    bool ended = stop == count_mcus(headers);
    int64_t done = 0;                                                     /* bytes without stuffing before `at` */
    const uint8_t *ff = memchr(at, 0xFF, (size_t)(input->file_end - at)); /* there is at least a marker */
    for (int64_t mcu = first; mcu < stop;) {
        mcu += piece_at(headers, input->piece, mcu);
        int64_t byte = mcu == stop ? length : points[mcu].bit >> 3;
        while (byte > done) {
            int64_t step = ff - at + 1;
            if (byte - done < step) {
                at += byte - done;
                done = byte;
            } else {
                done += step;
                at = ff + 2;
                ff = memchr(at, 0xFF, (size_t)(input->file_end - at));
            }
        }
        if (mcu == stop)
            points[mcu] = (struct point){.bit = 8 * (at - file + (ended ? 0 : 2))};
        else
            points[mcu].bit = 8 * (at - file) + (points[mcu].bit & 7);
    }
}

static int bits_for(int64_t value)
{
    return value ? 64 - __builtin_clzll((uint64_t)value) : 0;
}

/* Computes the fields of the piece from `mcu` to `next`. Returns how many are used. */
static int values_of(const struct decoder *decoder, int64_t mcu, int64_t next, int64_t *values)
{
    const struct point *points = decoder->worker.scratch.points.at;
    values[0] = points[next].bit - points[mcu].bit;
    for (int i = 0; i < COMPONENTS; i++)
        values[1 + i] = points[next].predicted[i] - points[mcu].predicted[i];
    return ends_with_marker(&decoder->input.headers, next) ? 1 : FIELDS;
}

/* Writes a number into zeros, from bit `bit` on: 57 bits at most. `to` has 8 spare bytes. */
INLINE void put_bits(uint8_t *to, int64_t bit, uint64_t number)
{
    uint64_t there = read_8(to + (bit >> 3)) | number << (bit & 7);
    memcpy(to + (bit >> 3), &there, 8);
}

/* Adds the lengths of the chroma of all MCUs to an index of `size` bytes. Returns its size then; `size` as it is if
 * they do not fit. */
static int64_t pack_lengths(struct decoder *decoder, uint8_t *to, int64_t size, int64_t capacity)
{
    const uint16_t *lengths = decoder->worker.scratch.lengths.at;
    int64_t total = count_mcus(&decoder->input.headers), counts[(1 << MOST_WIDTH) + 1] = {0};
    uint16_t least = UINT16_MAX;
    for (int64_t i = 0; i < total; i++)
        least = lengths[i] < least ? lengths[i] : least;
    for (int64_t i = 0; i < total; i++)
        counts[lengths[i] - least < 1 << MOST_WIDTH ? lengths[i] - least : 1 << MOST_WIDTH]++;
    int width = 1;
    int64_t known = counts[0];
    for (int64_t i = 1; width < MOST_WIDTH && (total - known) * UNKNOWN_SHARE > total; width++)
        for (; i < (1 << (width + 1)) - 1; i++)
            known += counts[i];
    int64_t end = size + ((total * width + 7) >> 3);
    if (end + TAIL + 8 > capacity || end + TAIL > MOST_BYTES)
        return size;
    memset(to + size, 0, (size_t)(end - size) + TAIL + 8);
    uint32_t unknown = (1u << width) - 1;
    for (int64_t i = 0; i < total; i++) {
        uint32_t length = (uint32_t)(lengths[i] - least);
        put_bits(to + size, i * width, length < unknown ? length : unknown);
    }
    to[0] = WITH_LENGTHS;
    to[end] = (uint8_t)width;
    memcpy(to + end + 2, &least, sizeof least);
    return end + TAIL;
}

/* Writes the index of a file from its points; `gray`: with lengths of chroma. Returns its size in bytes; 0 if an index
 * would be of no use or does not fit. */
int64_t pack_checkpoints(struct decoder *decoder, uint8_t *to, int64_t capacity, bool gray)
{
    struct input *input = &decoder->input;
    const struct headers *headers = &input->headers;
    int64_t total = count_mcus(headers), pieces = 0, values[FIELDS], least[FIELDS], most[FIELDS];
    ((struct point *)decoder->worker.scratch.points.at)[0] = (struct point){.bit = 8 * headers->scan_at};
    for (int f = 0; f < FIELDS; f++)
        least[f] = INT64_MAX, most[f] = INT64_MIN;
    for (int64_t mcu = 0, next; mcu < total; mcu = next, pieces++) {
        next = mcu + piece_at(headers, input->piece, mcu);
        for (int f = 0, count = values_of(decoder, mcu, next, values); f < count; f++) {
            least[f] = values[f] < least[f] ? values[f] : least[f];
            most[f] = values[f] > most[f] ? values[f] : most[f];
        }
    }
    int bits[FIELDS], width = 0;
    for (int f = 0; f < FIELDS; f++) {
        if (least[f] > most[f])
            least[f] = most[f] = 0;
        bits[f] = bits_for(most[f] - least[f]);
        if (!f && !bits[f])
            bits[f] = 1; /* the body must not be empty */
        width += bits[f];
        if (bits[f] > (f ? MOST_CHANGE_BITS : MOST_LENGTH_BITS))
            return 0;
    }
    int64_t size = HEAD + ((pieces * width + 7) >> 3);
    if (pieces < 2 || width > MOST_BITS || size > MOST_BYTES || size + 8 > capacity)
        return 0;
    uint32_t first = (uint32_t)least[0];
    int16_t changes[COMPONENTS] = {(int16_t)least[1], (int16_t)least[2], (int16_t)least[3]};
    memset(to, 0, (size_t)size + 8);
    to[0] = WITHOUT_LENGTHS;
    to[1] = (uint8_t)input->piece;
    for (int f = 0; f < FIELDS; f++)
        to[2 + f] = (uint8_t)bits[f];
    memcpy(to + 6, &first, sizeof first);
    memcpy(to + 10, changes, sizeof changes);
    int64_t bit = 0;
    for (int64_t mcu = 0, next; mcu < total; mcu = next, bit += width) {
        next = mcu + piece_at(headers, input->piece, mcu);
        uint64_t entry = 0;
        for (int f = 0, shift = 0, count = values_of(decoder, mcu, next, values); f < count; shift += bits[f++])
            entry |= (uint64_t)(values[f] - least[f]) << shift;
        put_bits(to + HEAD, bit, entry);
    }
    if (gray && headers->components > 1)
        size = pack_lengths(decoder, to, size, capacity);
    uint32_t crc = checkpoints_crc(decoder, to, size, input->file_end - input->file);
    memcpy(to + CRC_AT, &crc, sizeof crc);
    return size;
}

/* Reads the headers of a file to index, and chooses the length of its pieces. REFUSED if an index is impossible or
 * saves too little. */
enum outcome begin_checkpoints(struct decoder *decoder, const uint8_t *file, int64_t nbytes, bool gray)
{
    struct headers *headers = &decoder->input.headers;
    if (read_headers(headers, file, nbytes) != DONE || nbytes > MOST_BYTES)
        return REFUSED;
    int64_t total = count_mcus(headers), coded = nbytes - headers->scan_at;
    if (coded * 4 < total * headers->blocks || coded < LEAST_BYTES ||
        grow_buffer(&decoder->worker.scratch.points, (size_t)(total + 1) * sizeof(struct point)) != DONE ||
        (gray && grow_buffer(&decoder->worker.scratch.lengths, (size_t)total * sizeof(uint16_t)) != DONE))
        return REFUSED;
    int64_t piece = (PIECE_BYTES * total + coded / 2) / (coded ? coded : 1);
    decoder->input.piece = piece < 1 ? 1 : piece > MOST_PIECE ? MOST_PIECE : piece;
    return DONE;
}
