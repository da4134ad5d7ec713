/* The restart segments of a scan: from the seek index, where the file has one that is right (seekable/index.py). */
#include "engine.h"

#include <string.h>

static int64_t number(const uint8_t *at, int bytes)
{
    int64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value = value << 8 | at[i];
    return value;
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

/* CRC-32 of more bytes, eight at a time. */
uint32_t add_crc(const uint32_t table[8][256], uint32_t crc, const uint8_t *at, int64_t count)
{
    crc = ~crc;
    for (; count >= 8; at += 8, count -= 8) {
        uint32_t low, high;
        memcpy(&low, at, 4);
        memcpy(&high, at + 4, 4);
        low ^= crc;
        crc = table[7][low & 255] ^ table[6][low >> 8 & 255] ^ table[5][low >> 16 & 255] ^ table[4][low >> 24] ^
              table[3][high & 255] ^ table[2][high >> 8 & 255] ^ table[1][high >> 16 & 255] ^ table[0][high >> 24];
    }
    for (; count; at++, count--)
        crc = crc >> 8 ^ table[0][(crc ^ *at) & 255];
    return ~crc;
}

/* The index's parts joined; sets *body and returns its size, or 0 where they do not follow each other. */
static int64_t join_parts(struct decoder *decoder, const uint8_t *file, const uint8_t **body)
{
    int64_t at = decoder->headers.index_at, total = 0;
    int parts = 1;
    for (int part = 0; part < parts; part++) {
        /* `at` is where a segment begins, for read_headers() came by there; the last is not of this kind. */
        if (file[at + 1] != APP11)
            return 0;
        int64_t length = number(file + at + 2, 2), size = length - (INDEX_OPENING - 2);
        if (size < 0 || memcmp(file + at + 4, "packstore", 10) || file[at + 14] != 1 || file[at + 15] != part ||
            (part && file[at + 16] != parts))
            return 0;
        if (!part) {
            parts = file[at + 16];
            *body = file + at + INDEX_OPENING;
            if (parts == 1)
                return size;
            if (!parts || make_room(&decoder->joined, (size_t)parts << 16) != DONE)
                return 0;
        }
        memcpy((uint8_t *)decoder->joined.at + total, file + at + INDEX_OPENING, (size_t)size);
        total += size;
        at += 2 + length;
    }
    *body = decoder->joined.at;
    return total;
}

/* Bytes of segment `i`, of `count`: its low byte, and above that its high part of `bits` bits. */
static int64_t length_of(const uint8_t *lengths, int64_t count, int64_t i, int bits)
{
    const uint8_t *high = lengths + count;
    if (bits == 16)
        return lengths[i] | (int64_t)high[2 * i] << 16 | (int64_t)high[2 * i + 1] << 8;
    if (bits == 8)
        return lengths[i] | (int64_t)high[i] << 8;
    if (!bits)
        return lengths[i];
    int64_t bit = i * bits;
    return lengths[i] | (int64_t)(high[bit >> 3] >> (8 - bits - (bit & 7)) & ((1 << bits) - 1)) << 8;
}

/* Whether the index is that of this file, as read_index() in index.py; then `count` segments have their lengths at
 * `lengths`, with `bits` more bits each. */
static int read_index(struct decoder *decoder, const uint8_t *file, int64_t nbytes, const uint8_t **lengths, int *bits)
{
    const struct headers *headers = &decoder->headers;
    const uint8_t *body = NULL;
    int64_t size = headers->index_at ? join_parts(decoder, file, &body) : 0;
    if (size < INDEX_HEAD || !headers->interval || headers->across % headers->interval)
        return REFUSED;
    int64_t tables_at = number(body + 4, 4), across = headers->across / headers->interval;
    int64_t count = across * headers->rows, end = headers->scan_at + number(body + 12, 4);
    *bits = body[33];
    *lengths = body + INDEX_HEAD;
    bool known_bits = !*bits || *bits == 1 || *bits == 2 || *bits == 4 || *bits == 8 || *bits == 16;
    if (!known_bits || count > MOST_SEGMENTS || size != INDEX_HEAD + count + ((count * *bits + 7) >> 3) ||
        number(body + 8, 4) != headers->scan_at || tables_at > headers->scan_at ||
        number(body + 20, 2) != headers->width || number(body + 22, 2) != headers->height ||
        number(body + 24, 2) != headers->interval || number(body + 26, 2) != across ||
        number(body + 28, 2) != headers->rows || end < headers->scan_at + 2 || end > nbytes || file[end - 2] != 0xFF ||
        file[end - 1] != EOI)
        return REFUSED;
    uint32_t crc = add_crc(decoder->crc, 0, body + 4, size - 4);
    crc = add_crc(decoder->crc, crc, file + tables_at, headers->scan_at - tables_at);
    return crc == (uint32_t)number(body, 4) ? DONE : REFUSED;
}

/*
 * Notes the segments that hold the MCUs that are needed. Markers are looked at as plan_crops() in splice.py says:
 * around the segments that are needed, and every eighth, so that an index cannot pass over eight of them unseen.
 */
int locate_segments(struct decoder *decoder, const uint8_t *file, int64_t nbytes)
{
    const struct headers *headers = &decoder->headers;
    const uint8_t *lengths;
    int bits;
    if (read_index(decoder, file, nbytes, &lengths, &bits) != DONE)
        return REFUSED;
    int64_t interval = headers->interval, across = headers->across / interval, count = across * headers->rows;
    int64_t first = decoder->column0 / interval, stop = (decoder->column1 + interval - 1) / interval;
    int64_t needed = (decoder->row1 - decoder->row0) * (stop - first), found = 0;
    if (make_room(&decoder->located, (size_t)needed * sizeof(struct located)) != DONE)
        return REFUSED;
    struct located *located = decoder->located.at;
    int64_t at = headers->scan_at, i = 0;
    for (int64_t row = 0; row < headers->rows; row++)
        for (int64_t column = 0; column < across; column++, i++) {
            int64_t length = length_of(lengths, count, i, bits), marker = at + length - 2;
            bool in_row = row >= decoder->row0 && row < decoder->row1;
            bool wanted = in_row && column >= first && column < stop;
            /* A segment has a byte and a marker at least. */
            if (length < 3 || length > nbytes - at)
                return REFUSED;
            /* The one before a run of those that are needed: in its row, or the last of the row above. */
            bool before = (in_row && column == first - 1) ||
                          (!first && column == across - 1 && row >= decoder->row0 - 1 && row < decoder->row1 - 1);
            if (wanted || before || (i & 7) == 7) {
                int expected = i == count - 1 ? EOI : RST0 | (int)(i & 7);
                if (file[marker] != 0xFF || file[marker + 1] != expected)
                    return REFUSED;
            }
            if (wanted)
                located[found++] =
                    (struct located){.start = at, .marker = marker, .mcu = i * interval, .count = interval};
            at += length;
        }
    decoder->segments = found;
    return at == headers->scan_at + number(lengths - INDEX_HEAD + 12, 4) ? DONE : REFUSED;
}
