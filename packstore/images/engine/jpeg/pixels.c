/* Decodes a box of a JPEG file: chooses the MCUs, and converts their samples to rows of RGB, or of luma alone. */
#include "jpeg.h"

/* Chooses the MCUs that a box needs. If chroma is subsampled, upsampling also needs the samples around the box. */
static void choose_mcus(struct decoder *decoder, const struct box *box)
{
    struct output *output = &decoder->output;
    const struct headers *headers = &decoder->input.headers;
    bool gray = output->task.channels == 1;
    int64_t above = !gray && headers->mcu_height > 8, beside = !gray && headers->mcu_width > 8;
    int64_t top = box->top - above, bottom = box->top + box->height + above;
    int64_t left = box->left - beside, right = box->left + box->width + beside;
    output->row0 = top > 0 ? top / headers->mcu_height : 0;
    output->column0 = left > 0 ? left / headers->mcu_width : 0;
    output->row1 = smaller((bottom + headers->mcu_height - 1) / headers->mcu_height, headers->rows);
    output->column1 = smaller((right + headers->mcu_width - 1) / headers->mcu_width, headers->across);
    output->components = gray ? 1 : headers->components;
    output->blocks = gray ? headers->component[0].h * headers->component[0].v : headers->blocks;
}

static enum outcome make_planes(struct decoder *decoder)
{
    struct output *output = &decoder->output;
    struct input *input = &decoder->input;
    const struct headers *headers = &input->headers;
    /* Restart segments may have several rows, and two lanes decode two of them at a time. */
    bool in_order = input->way == LOCATED || input->segments == 1;
    int64_t rows = output->row1 - output->row0;
    for (output->kept = ROWS_KEPT; !in_order && output->kept < rows + 1;)
        output->kept *= 2;
    rows = smaller(rows, output->kept);
    output->held = false;
    for (int i = 0; i < output->components; i++) {
        const struct component *component = &headers->component[i];
        const uint8_t *quantisation = headers->quantisation[component->quantisation];
        output->stride[i] = (output->column1 - output->column0) * component->h * 8;
        size_t samples = (size_t)(output->stride[i] * rows * component->v * 8);
        if (grow_buffer(&decoder->worker.scratch.plane[i], samples + PADDING + (size_t)output->resizing.reach) != DONE)
            return REFUSED;
        for (int k = 1; k <= 64; k++) {
            int value = quantisation[natural_place[k]], at = decoder->worker.kernels->place[k];
            decoder->tables.quantisation[i][at] = (int16_t)value;
            decoder->tables.limit[i][at] = (int16_t)(MOST_COEFFICIENT / (value ? value : 1));
        }
    }
    return DONE;
}

/* Locates the segments of the scan, or prepares to find them while decoding; allocates memory for them. */
static enum outcome make_segments(struct decoder *decoder, const uint8_t *file, int64_t nbytes)
{
    struct input *input = &decoder->input;
    const struct headers *headers = &input->headers;
    int64_t mcus = (int64_t)headers->rows * headers->across, most = nbytes - headers->scan_at;
    input->file = file;
    input->file_end = file + nbytes;
    input->next_segment = 0;
    if (input->checkpoints && locate_checkpoints(decoder, nbytes) == DONE) {
        const struct located *located = decoder->worker.scratch.located.at;
        input->way = LOCATED;
        most = 0;
        for (int64_t i = 0; i < input->segments; i++)
            if (located[i].marker - located[i].start > most)
                most = located[i].marker - located[i].start;
    } else {
        input->way = FOLLOWING;
        input->unindexed += input->checkpoints != NULL;
        input->checkpoints = NULL;
        input->lengths.at = NULL;
        input->scan = file + headers->scan_at;
        input->segments = headers->interval ? (mcus + headers->interval - 1) / headers->interval : 1;
    }
    for (int i = 0; i < LANES; i++)
        if (grow_buffer(&decoder->worker.scratch.unstuffed[i], (size_t)most + 1 + AHEAD) != DONE)
            return REFUSED;
    return DONE;
}

/* Returns row `y` of a component's samples. */
static const uint8_t *plane_row(const struct decoder *decoder, int i, int64_t y)
{
    const struct output *output = &decoder->output;
    int shift = decoder->input.headers.component[i].v == 2 ? 4 : 3;
    int64_t row = ((y >> shift) - output->row0) & (output->kept - 1);
    return (const uint8_t *)decoder->worker.scratch.plane[i].at +
           ((row << shift) + (y & ((1 << shift) - 1))) * output->stride[i];
}

/* Upsamples a row of subsampled chroma. `y` is a row of the image; `left` and `count` are columns, in pixels from the
 * first decoded MCU. Returns the address of the samples. */
static const uint8_t *chroma_row(struct decoder *decoder, int which, int64_t y, int64_t left, int64_t count)
{
    const struct headers *headers = &decoder->input.headers;
    const struct kernels *kernels = decoder->worker.kernels;
    int64_t v = headers->mcu_height / 8, h = headers->mcu_width / 8;
    int64_t rows = (headers->height + v - 1) / v, columns = (headers->width + h - 1) / h; /* A.1.1 */
    int64_t near = y / v, far = near;
    if (v == 2) /* the outermost row is its own neighbour */
        far = y & 1 ? smaller(near + 1, rows - 1) : near - (near > 0);
    const uint8_t *near_row = plane_row(decoder, 1 + which, near), *far_row = plane_row(decoder, 1 + which, far);
    uint8_t *wide = decoder->worker.scratch.wide[which].at;
    if (h == 1) {
        if (v == 1)
            return near_row + left;
        kernels->heighten(wide, near_row + left, far_row + left, count, y & 1 ? 2 : 1);
        return wide;
    }
    int64_t first = left >> 1, stop = (left + count + 1) >> 1;
    if (columns <= 2) { /* libjpeg repeats samples of so narrow images: jinit_upsampler() */
        for (int64_t x = left; x < left + count; x++)
            wide[x - 2 * first] = near_row[x >> 1];
        return wide + (left & 1);
    }
    /* Neighbouring columns are those of the image; at its edges the outermost column is repeated. */
    int64_t here = columns - decoder->output.column0 * 8, from = first > 0 ? first - 1 : 0,
            to = stop < here ? stop + 1 : here;
    int16_t *sums = (int16_t *)decoder->worker.scratch.sums[which].at + PADDING / 2;
    kernels->blend(sums + 1, near_row + from, far_row + from, to - from, v == 2 ? 3 : 1);
    sums += 1 + first - from;
    kernels->widen(wide, sums, stop - first, v == 2 ? 8 : 1, v == 2 ? 7 : 2, v == 2 ? 4 : 2);
    return wide + (left & 1);
}

/* Notes that MCUs of a row have samples. Returns the row of the image up to which pixels can be made now; 0 if no new
 * row can. */
int64_t note_samples(struct decoder *decoder, int64_t mcu, int64_t count)
{
    struct output *output = &decoder->output;
    const struct headers *headers = &decoder->input.headers;
    int64_t row = mcu / headers->across - output->row0, rows = output->row1 - output->row0;
    int64_t first = mcu % headers->across, stop = first + count, before = output->whole;
    int32_t *missing = decoder->worker.scratch.missing.at;
    first = first > output->column0 ? first : output->column0;
    stop = stop < output->column1 ? stop : output->column1;
    if (row < 0 || row >= rows || stop <= first)
        return 0;
    missing[row] -= (int32_t)(stop - first);
    while (output->whole < rows && !missing[output->whole])
        output->whole++;
    if (output->whole == before)
        return 0;
    /* Chroma of a row is mixed with chroma of the row below. */
    bool last = output->row0 + output->whole == headers->rows,
         mixed = output->components > 1 && headers->mcu_height > 8;
    return last ? headers->height : (output->row0 + output->whole) * headers->mcu_height - mixed;
}

/* Writes the pixels of `count` rows of the box, RGB, from the planes; writes nothing after them. */
static void write_pixels(struct decoder *decoder, int64_t y, int64_t count, uint8_t *to)
{
    const struct headers *headers = &decoder->input.headers;
    const struct box *box = &decoder->output.task.box;
    int64_t left = box->left - decoder->output.column0 * headers->mcu_width;
    for (; count; count--, y++, to += 3 * box->width) {
        const uint8_t *luma = plane_row(decoder, 0, y) + left;
        if (headers->components == 1) {
            for (int64_t x = 0; x < box->width; x++)
                to[3 * x] = to[3 * x + 1] = to[3 * x + 2] = luma[x];
            continue;
        }
        const uint8_t *cb = chroma_row(decoder, 0, y, left, box->width);
        const uint8_t *cr = chroma_row(decoder, 1, y, left, box->width);
        decoder->worker.kernels->colours(to, luma, cb, cr, box->width);
    }
}

/* Makes pixels of the new rows above `bottom`, which have samples, while these are in the caches. */
void use_rows(struct decoder *decoder, int64_t bottom)
{
    struct task *task = &decoder->output.task;
    const struct box *box = &task->box;
    const bool mirrored = task->request->mirrored;
    int64_t stop = smaller(bottom - box->top, box->height), channels = task->channels,
            row_bytes = channels * box->width;
    int64_t left = box->left - decoder->output.column0 * decoder->input.headers.mcu_width;
    while (task->rows < stop) {
        int64_t count = task->resized ? 2 : 1, y = box->top + task->rows;
        if (task->rows + count > stop) {
            if (stop < box->height)
                return;
            count = 1;
        }
        uint8_t *to = task->shown + task->rows * channels * task->request->window.width;
        const uint8_t *a, *b;
        if (channels == 1) { /* pixels are the samples themselves */
            a = plane_row(decoder, 0, y) + left;
            b = plane_row(decoder, 0, y + count - 1) + left;
        } else {
            uint8_t *made = task->resized || mirrored ? decoder->worker.scratch.pixels.at : to;
            write_pixels(decoder, y, count, made);
            a = made;
            b = made + (count - 1) * row_bytes;
        }
        if (task->resized)
            resize_rows(&decoder->output.resizing, a, b);
        else if (mirrored)
            decoder->worker.kernels->mirror(to, a, box->width, channels);
        else if (channels == 1)
            memcpy(to, a, (size_t)row_bytes);
        task->rows += count;
    }
}

/* Prepares to decode all segments of a JPEG file whose headers were read. */
enum outcome prepare_scan(struct decoder *decoder, const uint8_t *file, int64_t nbytes)
{
    const struct headers *headers = &decoder->input.headers;
    struct box whole = {0, 0, headers->height, headers->width};
    choose_mcus(decoder, &whole);
    return make_segments(decoder, file, nbytes);
}

/* Prepares to decode a box of a JPEG file whose headers were read; use_rows() is called when rows are complete. */
enum outcome begin_box(struct decoder *decoder, const uint8_t *file, int64_t nbytes, const struct box *box)
{
    struct scratch *scratch = &decoder->worker.scratch;
    struct output *output = &decoder->output;
    choose_mcus(decoder, box);
    if (make_tables(decoder) != DONE || make_segments(decoder, file, nbytes) != DONE || make_planes(decoder) != DONE)
        return REFUSED;
    bool subsampled = output->components > 1 && decoder->input.headers.blocks > 3;
    for (int i = 0; subsampled && i < 2; i++)
        if (grow_buffer(&scratch->wide[i], (size_t)box->width + 2 * PADDING) != DONE ||
            grow_buffer(&scratch->sums[i], (size_t)(box->width + 4 * PADDING) * sizeof(int16_t)) != DONE)
            return REFUSED;
    int64_t rows = output->row1 - output->row0;
    if (grow_buffer(&scratch->missing, (size_t)rows * sizeof(int32_t)) != DONE)
        return REFUSED;
    output->whole = 0;
    for (int64_t row = 0; row < rows; row++)
        ((int32_t *)scratch->missing.at)[row] = (int32_t)(output->column1 - output->column0);
    return DONE;
}
