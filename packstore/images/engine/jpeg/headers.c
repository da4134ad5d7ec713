/* Reads the segments of a JPEG file up to its scan: ITU-T T.81, B.2. Decides on colours as libjpeg does. */
#include "jpeg.h"

/* State while the segments are read. */
struct reading {
    bool has_frame, has_jfif, has_adobe;
    uint8_t adobe_transform;
    uint8_t has_quantisation; /* one bit per table */
};

static int sixteen_bits(const uint8_t *at)
{
    return at[0] << 8 | at[1];
}

/* B.2.4.1. Refuses tables with 16 bits an entry. */
static enum outcome read_quantisation(struct headers *headers, struct reading *reading, const uint8_t *at,
                                      const uint8_t *end)
{
    for (; end - at >= 65; at += 65) {
        if (at[0] >= TABLES)
            return REFUSED;
        for (int k = 0; k < 64; k++)
            headers->quantisation[at[0]][natural_place[1 + k]] = at[1 + k];
        reading->has_quantisation |= (uint8_t)(1 << at[0]);
    }
    return at == end ? DONE : REFUSED;
}

/* B.2.4.2 */
static enum outcome read_huffman(struct headers *headers, const uint8_t *at, const uint8_t *end)
{
    while (end - at >= 17) {
        int kind = at[0] >> 4, number = at[0] & 15, total = 0;
        if (kind > 1 || number >= TABLES)
            return REFUSED;
        for (int length = 1; length <= 16; length++)
            total += at[length];
        if (total > 256 || total > end - at - 17)
            return REFUSED;
        struct huffman_spec *spec = &(kind ? headers->ac : headers->dc)[number];
        *spec = (struct huffman_spec){.counts = at + 1, .values = at + 17, .total = total};
        at += 17 + total;
    }
    return at == end ? DONE : REFUSED;
}

/* B.2.2 */
static enum outcome read_frame(struct headers *headers, struct reading *reading, const uint8_t *at, const uint8_t *end)
{
    if (reading->has_frame || end - at < 6 || at[0] != 8)
        return REFUSED;
    headers->height = sixteen_bits(at + 1);
    headers->width = sixteen_bits(at + 3);
    headers->components = at[5];
    if (headers->height < 1 || headers->width < 1 || headers->height > MOST_SIDE || headers->width > MOST_SIDE ||
        (headers->components != 1 && headers->components != 3) || end - at != 6 + 3 * headers->components)
        return REFUSED;
    for (int i = 0; i < headers->components; i++) {
        const uint8_t *from = at + 6 + 3 * i;
        struct component *component = &headers->component[i];
        *component = (struct component){.id = from[0], .h = from[1] >> 4, .v = from[1] & 15, .quantisation = from[2]};
        if (component->h < 1 || component->h > 4 || component->v < 1 || component->v > 4 || from[2] >= TABLES)
            return REFUSED;
        for (int other = 0; other < i; other++)
            if (headers->component[other].id == component->id)
                return REFUSED;
    }
    reading->has_frame = true;
    return DONE;
}

/* B.2.3. Refuses files of several scans. */
static enum outcome read_scan(struct headers *headers, const struct reading *reading, const uint8_t *at,
                              const uint8_t *end)
{
    if (!reading->has_frame || end - at != 4 + 2 * headers->components || at[0] != headers->components ||
        end[-3] != 0 || end[-2] != 63 || end[-1] != 0)
        return REFUSED;
    for (int i = 0; i < headers->components; i++) {
        struct component *component = &headers->component[i];
        component->dc = at[2 + 2 * i] >> 4;
        component->ac = at[2 + 2 * i] & 15;
        if (at[1 + 2 * i] != component->id || component->dc >= TABLES || component->ac >= TABLES ||
            !headers->dc[component->dc].counts || !headers->ac[component->ac].counts ||
            !(reading->has_quantisation & 1 << component->quantisation))
            return REFUSED;
    }
    return DONE;
}

/* Checks that the components are Y, Cb and Cr, by the rules of libjpeg's default_decompress_parms(). */
static enum outcome check_colours(const struct headers *headers, const struct reading *reading)
{
    if (headers->components == 1 || reading->has_jfif)
        return DONE;
    if (reading->has_adobe)
        return reading->adobe_transform == 1 ? DONE : REFUSED;
    for (int i = 0; i < 3; i++)
        if (headers->component[i].id != i + 1)
            return REFUSED;
    return DONE;
}

/* Reads the segments that determine colours. Refuses JFIF of another version than 1, of which libjpeg warns. */
static enum outcome read_application(struct reading *reading, int marker, const uint8_t *at, const uint8_t *end)
{
    if (marker == APP0 && end - at >= 5 && !memcmp(at, "JFIF", 5)) {
        if (end - at < 14 || at[5] != 1)
            return REFUSED;
        reading->has_jfif = true;
    } else if (marker == APP14 && end - at >= 5 && !memcmp(at, "Adobe", 5)) {
        if (end - at < 12)
            return REFUSED;
        reading->has_adobe = true;
        reading->adobe_transform = at[11];
    }
    return DONE;
}

/* Figure A.2 and A.2.3: computes the blocks of an MCU and the number of MCUs. */
static enum outcome lay_out(struct headers *headers)
{
    struct component *luma = &headers->component[0];
    if (headers->components == 1)
        luma->h = luma->v = 1; /* a scan of one component is not interleaved: A.2.2 */
    for (int i = 0; i < headers->components; i++) {
        int most = i ? 1 : 2;
        if (headers->component[i].h > most || headers->component[i].v > most)
            return REFUSED;
    }
    headers->mcu_height = 8 * luma->v;
    headers->mcu_width = 8 * luma->h;
    headers->rows = (headers->height + headers->mcu_height - 1) / headers->mcu_height;
    headers->across = (headers->width + headers->mcu_width - 1) / headers->mcu_width;
    for (int i = 0; i < headers->components; i++) {
        struct component *component = &headers->component[i];
        component->block = headers->blocks;
        component->rows = (headers->height * component->v + headers->mcu_height - 1) / headers->mcu_height;
        component->columns = (headers->width * component->h + headers->mcu_width - 1) / headers->mcu_width;
        for (int y = 0; y < component->v; y++)
            for (int x = 0; x < component->h; x++) {
                headers->component_of[headers->blocks] = (uint8_t)i;
                headers->block_y[headers->blocks] = (uint8_t)y;
                headers->block_x[headers->blocks++] = (uint8_t)x;
            }
    }
    return DONE;
}

/* Reads all segments up to the scan. Refuses all files that libjpeg-turbo refuses or warns of, and others. */
enum outcome read_headers(struct headers *headers, const uint8_t *file, int64_t nbytes)
{
    struct reading reading = {0};
    memset(headers, 0, sizeof *headers);
    if (nbytes < 4 || file[0] != 0xFF || file[1] != SOI)
        return REFUSED;
    for (int64_t at = 2; nbytes - at >= 4;) {
        int marker = file[at + 1];
        int64_t length = sixteen_bits(file + at + 2);
        if (file[at] != 0xFF || length < 2 || length > nbytes - at - 2)
            return REFUSED;
        const uint8_t *from = file + at + 4, *end = file + at + 2 + length;
        enum outcome outcome = DONE;
        at += 2 + length;
        if (marker == DQT) {
            outcome = read_quantisation(headers, &reading, from, end);
        } else if (marker == DHT) {
            outcome = read_huffman(headers, from, end);
        } else if (marker == SOF0 || marker == SOF1) {
            outcome = read_frame(headers, &reading, from, end);
        } else if (marker == DRI) { /* B.2.4.4 */
            outcome = length == 4 ? DONE : REFUSED;
            headers->interval = length == 4 ? sixteen_bits(from) : 0;
        } else if (marker >= APP0 && marker <= APP15) {
            outcome = read_application(&reading, marker, from, end);
        } else if (marker == SOS) {
            headers->scan_at = at;
            bool known = read_scan(headers, &reading, from, end) == DONE && check_colours(headers, &reading) == DONE;
            return known ? lay_out(headers) : REFUSED;
        } else if (marker != COM) {
            return REFUSED;
        }
        if (outcome != DONE)
            return REFUSED;
    }
    return REFUSED;
}

/* Tells if a file is certainly a whole JPEG of three components of 8 bits, with at most `max_pixels`, and without APP1,
 * which may hold EXIF, and an index of further pictures. Looks at its segments and its end, as jpeg_header.py does;
 * decoding may refuse the file. */
EXPORT int packstore_engine_is_plain(const uint8_t *file, int64_t nbytes, int64_t max_pixels)
{
    bool has_frame = false;
    if (nbytes < 4 || file[0] != 0xFF || file[1] != SOI || file[nbytes - 2] != 0xFF || file[nbytes - 1] != EOI)
        return false;
    for (int64_t at = 2; nbytes - at >= 4;) {
        int marker = file[at + 1], length = sixteen_bits(file + at + 2);
        if (file[at] != 0xFF || length < 2 || length > nbytes - 2 - at)
            return false;
        if (marker == SOS)
            return has_frame;
        if (marker >= SOF0 && marker <= SOF2) {
            if (has_frame || length < 8 + 3 * 3 || file[at + 4] != 8 || file[at + 9] != 3)
                return false;
            int64_t pixels = (int64_t)sixteen_bits(file + at + 5) * sixteen_bits(file + at + 7);
            if (!pixels || pixels > max_pixels)
                return false;
            has_frame = true;
        } else if (marker != DHT && marker != DQT && marker != DRI && marker != COM &&
                   (marker < APP0 || marker > APP15 || marker == APP1 ||
                    (marker == APP2 && length >= 6 && !memcmp(file + at + 4, "MPF", 4)))) {
            return false;
        }
        at += 2 + length;
    }
    return false;
}
