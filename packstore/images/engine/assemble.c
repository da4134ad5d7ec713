/*
 * The file around a scan that was coded anew, its seek index included: ITU-T T.81, B.2, and seekable/index.py.
 *
 * libjpeg writes JFIF first, then the metadata, then quantisation, frame, Huffman tables, restart interval and scan
 * header (jcmarker.c, jctrans.c and transupp.c of libjpeg-turbo). With an index, what decides on colours comes first,
 * then EXIF where that is the first of the rest, then the index: there readers of each look for it.
 */
#include "engine.h"

#include <string.h>

enum {
    MOST_TABLES = 2048, /* bytes: 3 of quantisation, 4 of codes, and three short segments */
    MOST_PARTS = 255,
    PART_BYTES = 65533 - (INDEX_OPENING - 4),
    MOST_COLOURS = 2, /* segments that decide on them, before the index */
};

/* A file that is put together. */
struct file {
    uint8_t *at;
    int colours; /* how many of its segments decide on them */
};

/* Its segments from quantisation to the scan's header. */
struct tables {
    uint8_t bytes[MOST_TABLES];
    int64_t count, frame_at;
};

static void put(struct file *file, const void *from, int64_t count)
{
    memcpy(file->at, from, (size_t)count);
    file->at += count;
}

static void put_number(struct file *file, int64_t value, int bytes)
{
    for (int i = bytes - 1; i >= 0; i--)
        *file->at++ = (uint8_t)(value >> (8 * i));
}

/* The beginning of a segment with `count` bytes behind its length. */
static void begin_segment(struct file *file, int marker, int64_t count)
{
    put_number(file, 0xFF00 | marker, 2);
    put_number(file, count + 2, 2);
}

static int64_t size_of_segment(const uint8_t *segment)
{
    return 2 + (segment[2] << 8 | segment[3]);
}

static bool is_metadata(const uint8_t *segment)
{
    return segment[1] == COM || (segment[1] >= APP0 && segment[1] <= APP15);
}

/* Whether a segment's bytes begin with a name. */
static bool is_named(const uint8_t *segment, int marker, const char *name, int64_t count)
{
    return segment[1] == marker && size_of_segment(segment) >= 4 + count && !memcmp(segment + 4, name, (size_t)count);
}

static bool is_jfif(const uint8_t *segment)
{
    return is_named(segment, APP0, "JFIF", 5);
}

static bool is_exif(const uint8_t *segment)
{
    return is_named(segment, APP0 + 1, "Exif\0", 6);
}

static bool decides_on_colours(const uint8_t *segment)
{
    return segment[1] == APP0 || segment[1] == APP14;
}

/* The JFIF segment that libjpeg writes: that of the file without thumbnail, or a new one; none where EXIF comes first.
 * Refuses what depends on more. `first` is the file's first segment, of one that read_any_headers() accepts. */
static int put_jfif(struct file *file, const uint8_t *first)
{
    static const uint8_t new[14] = {'J', 'F', 'I', 'F', 0, 1, 1, 0, 0, 1, 0, 1, 0, 0};
    const uint8_t *metadata = NULL;
    bool own = is_jfif(first);
    for (const uint8_t *at = first; at[1] != SOS; at += size_of_segment(at)) {
        metadata = metadata || !is_metadata(at) ? metadata : at;
        if (is_jfif(at) && at != first)
            return REFUSED;
    }
    if (!own && metadata && is_exif(metadata))
        return DONE;
    begin_segment(file, APP0, sizeof new);
    put(file, own ? first + 4 : new, 12);
    put_number(file, 0, 2);
    file->colours++;
    return DONE;
}

static void write_tables(struct tables *tables, const struct decoder *decoder, const uint8_t *first)
{
    struct file made = {tables->bytes, 0}, *file = &made;
    const struct rewriting *rewriting = &decoder->rewriting;
    const struct headers *headers = &rewriting->headers;
    const uint8_t *quantisation[TABLES] = {NULL}, *frame = first;
    bool written[TABLES] = {false};
    for (const uint8_t *at = first; at[1] != SOS; at += size_of_segment(at)) {
        if (at[1] >= SOF0 && at[1] <= SOF2)
            frame = at;
        for (const uint8_t *table = at + 4; at[1] == DQT && table < at + size_of_segment(at); table += 65)
            quantisation[table[0]] = table;
    }
    for (int i = 0; i < headers->components; i++) {
        int number = headers->component[i].quantisation;
        if (written[number])
            continue;
        written[number] = true;
        begin_segment(file, DQT, 65);
        put(file, quantisation[number], 65);
    }
    tables->frame_at = file->at - tables->bytes;
    put_number(file, 0xFF00 | SOF0, 2);
    put(file, frame + 2, size_of_segment(frame) - 2);
    for (int i = 0; i < (headers->components > 1 ? 4 : 2); i++) {
        const struct optimal *table = &rewriting->tables[i];
        begin_segment(file, DHT, 17 + table->total);
        put_number(file, (i & 1) << 4 | i >> 1, 1); /* Tc and Th, B.2.4.2 */
        put(file, table->counts, 16);
        put(file, table->values, table->total);
    }
    if (rewriting->restarts) {
        begin_segment(file, DRI, 2);
        put_number(file, rewriting->interval, 2);
    }
    begin_segment(file, SOS, 4 + 2 * headers->components);
    put_number(file, headers->components, 1);
    for (int i = 0; i < headers->components; i++) {
        put_number(file, headers->component[i].id, 1);
        put_number(file, i ? 0x11 : 0, 1);
    }
    put_number(file, 0x003F00, 3);
    tables->count = file->at - tables->bytes;
}

/* The lengths of the segments: the low byte of each, then the other bits, `bits` of each. */
static void put_lengths(struct file *file, const int64_t *ends, int64_t count, int bits)
{
    for (int64_t i = 0; i < count; i++)
        *file->at++ = (uint8_t)(ends[i] - (i ? ends[i - 1] : 0));
    int64_t nbytes = (count * bits + 7) >> 3;
    memset(file->at, 0, (size_t)nbytes);
    for (int64_t i = 0; i < count && bits; i++) {
        int64_t high = (ends[i] - (i ? ends[i - 1] : 0)) >> 8, bit = i * bits;
        if (bits == 16)
            file->at[2 * i] = (uint8_t)(high >> 8), file->at[2 * i + 1] = (uint8_t)high;
        else
            file->at[bit >> 3] |= (uint8_t)(high << (8 - bits - (bit & 7)));
    }
    file->at += nbytes;
}

/* How many bits the lengths have beyond 8, as index.py knows them; -1 for too many. */
static int high_bits(const int64_t *ends, int64_t count)
{
    static const int known[] = {0, 1, 2, 4, 8, 16};
    int64_t longest = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t length = ends[i] - (i ? ends[i - 1] : 0);
        longest = length > longest ? length : longest;
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (longest < (int64_t)256 << known[i])
            return known[i];
    return -1;
}

/* The seek index, in its segments: see index.py. `before` are the bytes of the file before it, `behind` those of what
 * lies between it and the tables. */
static int put_index(struct file *file, struct decoder *decoder, int64_t colours_bytes, int64_t before, int64_t behind,
                     const struct tables *tables)
{
    const struct rewriting *rewriting = &decoder->rewriting;
    const struct headers *headers = &rewriting->headers;
    const int64_t *ends = rewriting->ends.at;
    int64_t count = rewriting->segments;
    int bits = high_bits(ends, count);
    int64_t size = INDEX_HEAD + count + ((count * bits + 7) >> 3), parts = (size + PART_BYTES - 1) / PART_BYTES;
    int64_t tables_at = before + size + parts * INDEX_OPENING + behind;
    if (bits < 0 || parts > MOST_PARTS || file->colours > MOST_COLOURS || colours_bytes > 65535 ||
        !rewriting->restarts || headers->across % rewriting->interval ||
        make_room(&decoder->joined, (size_t)size) != DONE)
        return REFUSED;
    uint8_t *joined = decoder->joined.at;
    struct file body = {joined, 0};
    put_number(&body, 0, 4);
    put_number(&body, tables_at, 4);
    put_number(&body, tables_at + tables->count, 4);
    put_number(&body, ends[count - 1], 4);
    put_number(&body, tables->frame_at, 2);
    put_number(&body, colours_bytes, 2);
    put_number(&body, headers->width, 2);
    put_number(&body, headers->height, 2);
    put_number(&body, rewriting->interval, 2);
    put_number(&body, headers->across / rewriting->interval, 2);
    put_number(&body, headers->rows, 2);
    put_number(&body, headers->mcu_height, 1);
    put_number(&body, headers->mcu_width, 1);
    put_number(&body, (headers->mcu_height > 8) << 4 | (headers->mcu_width > 8), 1);
    put_number(&body, bits, 1);
    put_lengths(&body, ends, count, bits);
    uint32_t crc = add_crc(decoder->crc, 0, joined + 4, size - 4);
    body.at = joined;
    put_number(&body, add_crc(decoder->crc, crc, tables->bytes, tables->count), 4);
    for (int64_t part = 0; part < parts; part++) {
        int64_t from = part * PART_BYTES, piece = size - from < PART_BYTES ? size - from : PART_BYTES;
        begin_segment(file, APP11, INDEX_OPENING - 4 + piece);
        put(file, "packstore\0\1", 11);
        put_number(file, part, 1);
        put_number(file, parts, 1);
        put(file, joined + from, piece);
    }
    return DONE;
}

/* Metadata that lies behind the index: what does not decide on colours, but for an index. */
static bool is_other(const uint8_t *segment)
{
    return is_metadata(segment) && !decides_on_colours(segment) && !is_named(segment, APP11, "packstore", 10);
}

/* All segments up to the tables, and an index among them. */
static int put_sorted(struct file *file, struct decoder *decoder, const uint8_t *start, const uint8_t *first,
                      const struct tables *tables)
{
    const uint8_t *exif = NULL;
    int64_t others = 0;
    bool has_others = false;
    for (const uint8_t *at = first; at[1] != SOS; at += size_of_segment(at)) {
        if (decides_on_colours(at) && !(at == first && is_jfif(at))) {
            put(file, at, size_of_segment(at));
            file->colours++;
        } else if (is_other(at)) {
            exif = !has_others && is_exif(at) ? at : exif;
            others += at == exif ? 0 : size_of_segment(at);
            has_others = true;
        }
    }
    int64_t colours_bytes = file->at - start;
    if (exif)
        put(file, exif, size_of_segment(exif));
    if (put_index(file, decoder, colours_bytes, file->at - start, others, tables) != DONE)
        return REFUSED;
    for (const uint8_t *at = first; at[1] != SOS; at += size_of_segment(at))
        if (is_other(at) && at != exif)
            put(file, at, size_of_segment(at));
    return DONE;
}

/*
 * Puts together, in `rewriting.made`, the file whose scan rewrite() has coded anew, of `scan_bytes`. With an index,
 * also what follows the end of the image is kept. Returns the number of its bytes; 0 where it is refused.
 */
int64_t assemble(struct decoder *decoder, const uint8_t *data, int64_t nbytes, int64_t scan_bytes, bool index)
{
    struct rewriting *rewriting = &decoder->rewriting;
    const uint8_t *first = data + 2, *behind = data + nbytes;
    while (index && behind > first &&
           (behind[-2] != 0xFF || behind[-1] != EOI)) /* there is one: the scan has ended with it */
        behind--;
    int64_t kept = data + nbytes - behind, count = rewriting->segments;
    int64_t index_bytes = INDEX_HEAD + 3 * count + (3 * count / PART_BYTES + 2) * INDEX_OPENING;
    struct tables tables;
    /* Metadata lie before the scan of the file. */
    if (make_room(&rewriting->made,
                  (size_t)(rewriting->headers.scan_at + MOST_TABLES + index_bytes + scan_bytes + kept)) != DONE)
        return 0;
    uint8_t *start = rewriting->made.at;
    struct file file = {start, 0};
    write_tables(&tables, decoder, first);
    /* Of a single component jpegtran writes other factors than it has read. */
    if (rewriting->headers.components == 1 && tables.bytes[tables.frame_at + 11] != 0x11)
        return 0;
    put_number(&file, 0xFF00 | SOI, 2);
    if (put_jfif(&file, first) != DONE)
        return 0;
    if (index) {
        if (put_sorted(&file, decoder, start, first, &tables) != DONE)
            return 0;
    } else {
        for (const uint8_t *at = first; at[1] != SOS; at += size_of_segment(at))
            if (is_metadata(at) && !(at == first && is_jfif(at)))
                put(&file, at, size_of_segment(at));
    }
    put(&file, tables.bytes, tables.count);
    put(&file, rewriting->scan.at, scan_bytes);
    put(&file, behind, kept);
    return file.at - start;
}
