/* Pixels of a box of a JPEG file: which MCUs it needs, their samples, and from these rows of RGB. */
#include "engine.h"

/* The MCUs that a box needs: upsampling looks at the samples around it where chroma has fewer. */
static void choose_mcus(struct decoder *decoder, const struct box *box)
{
    const struct headers *headers = &decoder->headers;
    int64_t above = headers->mcu_height > 8, beside = headers->mcu_width > 8;
    int64_t top = box->top - above, bottom = box->top + box->height + above;
    int64_t left = box->left - beside, right = box->left + box->width + beside;
    decoder->row0 = top > 0 ? top / headers->mcu_height : 0;
    decoder->column0 = left > 0 ? left / headers->mcu_width : 0;
    decoder->row1 = (bottom + headers->mcu_height - 1) / headers->mcu_height;
    decoder->column1 = (right + headers->mcu_width - 1) / headers->mcu_width;
    if (decoder->row1 > headers->rows)
        decoder->row1 = headers->rows;
    if (decoder->column1 > headers->across)
        decoder->column1 = headers->across;
}

static int make_planes(struct decoder *decoder)
{
    const struct headers *headers = &decoder->headers;
    int64_t rows = decoder->row1 - decoder->row0;
    /* Restart segments may have several rows, and lanes decode two of them at a time. */
    bool in_order = decoder->checkpoints || decoder->segments == 1;
    for (decoder->kept = ROWS_KEPT; !in_order && decoder->kept < rows + 1;)
        decoder->kept *= 2;
    if (rows > decoder->kept)
        rows = decoder->kept;
    decoder->held = false;
    for (int i = 0; i < headers->components; i++) {
        const struct component *component = &headers->component[i];
        const uint8_t *quantisation = headers->quantisation[component->quantisation];
        decoder->stride[i] = (decoder->column1 - decoder->column0) * component->h * 8;
        size_t samples = (size_t)(decoder->stride[i] * rows * component->v * 8);
        if (make_room(&decoder->plane[i], samples + PADDING) != DONE)
            return REFUSED;
        for (int k = 1; k <= 64; k++) {
            int value = quantisation[natural_place[k]], at = decoder->kernels->place[k];
            decoder->quantisation[i][at] = (int16_t)value;
            decoder->limit[i][at] = (int16_t)(MOST_COEFFICIENT / (value ? value : 1));
        }
    }
    return DONE;
}

/* Where the segments of the scan are, or that they are to be found on the way; and room for them. */
static int make_segments(struct decoder *decoder, const uint8_t *file, int64_t nbytes)
{
    const struct headers *headers = &decoder->headers;
    int64_t mcus = (int64_t)headers->rows * headers->across, most = nbytes - headers->scan_at;
    decoder->file = file;
    decoder->file_end = file + nbytes;
    decoder->next_segment = 0;
    decoder->scan = NULL;
    bool by_checkpoints = decoder->checkpoints && locate_checkpoints(decoder, nbytes) == DONE;
    if (decoder->checkpoints && !by_checkpoints) {
        decoder->unindexed++;
        decoder->checkpoints = NULL;
    }
    if (by_checkpoints) {
        const struct located *located = decoder->located.at;
        most = 0;
        for (int64_t i = 0; i < decoder->segments; i++)
            if (located[i].marker - located[i].start > most)
                most = located[i].marker - located[i].start;
    } else {
        decoder->scan = file + headers->scan_at;
        decoder->segments = headers->interval ? (mcus + headers->interval - 1) / headers->interval : 1;
    }
    for (int i = 0; i < LANES; i++)
        if (make_room(&decoder->unstuffed[i], (size_t)most + 1 + AHEAD) != DONE)
            return REFUSED;
    return DONE;
}

/* Row `y` of a component's samples. */
static const uint8_t *plane_row(const struct decoder *decoder, int i, int64_t y)
{
    int shift = decoder->headers.component[i].v == 2 ? 4 : 3;
    int64_t row = ((y >> shift) - decoder->row0) & (decoder->kept - 1);
    return (const uint8_t *)decoder->plane[i].at + ((row << shift) + (y & ((1 << shift) - 1))) * decoder->stride[i];
}

/* A row of chroma samples of an image whose chroma has fewer rows, or columns, or both. `y` is a row of the image;
 * `left` and `count` say which columns, in pixels from the first MCU that is there. Returns where they are. */
static const uint8_t *chroma_row(struct decoder *decoder, int which, int64_t y, int64_t left, int64_t count)
{
    const struct headers *headers = &decoder->headers;
    const struct kernels *kernels = decoder->kernels;
    int64_t v = headers->mcu_height / 8, h = headers->mcu_width / 8;
    int64_t rows = (headers->height + v - 1) / v, columns = (headers->width + h - 1) / h; /* A.1.1 */
    int64_t near = y / v, far = near;
    if (v == 2) {
        far = y & 1 ? near + 1 : near - 1;
        far = far < 0 ? 0 : far >= rows ? rows - 1 : far;
    }
    const uint8_t *near_row = plane_row(decoder, 1 + which, near), *far_row = plane_row(decoder, 1 + which, far);
    uint8_t *wide = decoder->wide[which].at;
    if (h == 1) {
        if (v == 1)
            return near_row + left;
        kernels->heighten(wide, near_row + left, far_row + left, count, y & 1 ? 2 : 1);
        return wide;
    }
    int64_t first = left >> 1, stop = (left + count + 1) >> 1;
    if (columns <= 2) { /* libjpeg repeats samples of such: jinit_upsampler() */
        for (int64_t x = left; x < left + count; x++)
            wide[x - 2 * first] = near_row[x >> 1];
        return wide + (left & 1);
    }
    /* The columns beside are those that the image has; at its edges the last one counts twice. */
    int64_t here = columns - decoder->column0 * 8, from = first > 0 ? first - 1 : 0, to = stop < here ? stop + 1 : here;
    int16_t *sums = (int16_t *)decoder->sums[which].at + PADDING / 2;
    kernels->blend(sums + 1, near_row + from, far_row + from, to - from, v == 2 ? 3 : 1);
    sums += 1 + first - from;
    if (v == 2)
        kernels->widen(wide, sums, stop - first, 8, 7, 4);
    else
        kernels->widen(wide, sums, stop - first, 1, 2, 2);
    return wide + (left & 1);
}

/* MCUs of a row have samples. Returns up to which row of the image pixels can be made now; 0 if that was known. */
int64_t note_samples(struct decoder *decoder, int64_t mcu, int64_t count)
{
    const struct headers *headers = &decoder->headers;
    int64_t row = mcu / headers->across - decoder->row0, rows = decoder->row1 - decoder->row0;
    int64_t first = mcu % headers->across, stop = first + count, before = decoder->whole;
    int32_t *missing = decoder->missing.at;
    first = first > decoder->column0 ? first : decoder->column0;
    stop = stop < decoder->column1 ? stop : decoder->column1;
    if (row < 0 || row >= rows || stop <= first)
        return 0;
    missing[row] -= (int32_t)(stop - first);
    while (decoder->whole < rows && !missing[decoder->whole])
        decoder->whole++;
    if (decoder->whole == before)
        return 0;
    /* Chroma of two rows is mixed with that of the row below. */
    bool last = decoder->row0 + decoder->whole == headers->rows;
    return last ? headers->height : (decoder->row0 + decoder->whole) * headers->mcu_height - (headers->mcu_height > 8);
}

/* The pixels of the box, from the planes: (height, width, 3), RGB, and nothing behind them. */
void write_pixels(struct decoder *decoder, const struct box *box, uint8_t *to)
{
    const struct headers *headers = &decoder->headers;
    int64_t left = box->left - decoder->column0 * headers->mcu_width;
    for (int64_t y = box->top; y < box->top + box->height; y++, to += 3 * box->width) {
        const uint8_t *luma = plane_row(decoder, 0, y) + left;
        if (headers->components == 1) {
            for (int64_t x = 0; x < box->width; x++)
                to[3 * x] = to[3 * x + 1] = to[3 * x + 2] = luma[x];
            continue;
        }
        const uint8_t *cb = chroma_row(decoder, 0, y, left, box->width);
        const uint8_t *cr = chroma_row(decoder, 1, y, left, box->width);
        decoder->kernels->colours(to, luma, cb, cr, box->width);
    }
}

/* Gets ready to decode all segments of a JPEG file whose headers were read. */
int prepare_scan(struct decoder *decoder, const uint8_t *file, int64_t nbytes)
{
    const struct headers *headers = &decoder->headers;
    struct box whole = {0, 0, headers->height, headers->width};
    choose_mcus(decoder, &whole);
    return make_segments(decoder, file, nbytes);
}

/* Gets ready to decode a box of a JPEG file whose headers were read; use_rows() is called as its rows are there. */
int begin_box(struct decoder *decoder, const uint8_t *file, int64_t nbytes, const struct box *box)
{
    choose_mcus(decoder, box);
    if (make_tables(decoder) || make_segments(decoder, file, nbytes) || make_planes(decoder))
        return REFUSED;
    bool subsampled = decoder->headers.blocks > 3;
    for (int i = 0; subsampled && i < 2; i++)
        if (make_room(&decoder->wide[i], (size_t)box->width + 2 * PADDING) != DONE ||
            make_room(&decoder->sums[i], (size_t)(box->width + 4 * PADDING) * sizeof(int16_t)) != DONE)
            return REFUSED;
    int64_t rows = decoder->row1 - decoder->row0;
    if (make_room(&decoder->missing, (size_t)rows * sizeof(int32_t)) != DONE)
        return REFUSED;
    decoder->whole = 0;
    for (int64_t row = 0; row < rows; row++)
        ((int32_t *)decoder->missing.at)[row] = (int32_t)(decoder->column1 - decoder->column0);
    return DONE;
}
