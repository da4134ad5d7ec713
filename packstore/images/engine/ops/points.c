/* Runs operations on single pixels. Consecutive operations become tables; tables and operations that mix channels run
 * in one pass. */
#include "../simd/arithmetic.h"
#include "program.h"

enum { MOST_POINTS = 8 };

/* Tables of the three channels, or an operation that mixes channels. */
struct colour_step {
    int code;    /* STEP_IDENTITY for tables */
    bool alike;  /* the three tables are equal */
    bool blends; /* the tables are a blend of values with `other` */
    bool as_pillow;
    float factor, other;
    int order[3];
    uint8_t tables[3][256];
};

/* Operations that have not run yet. */
struct run {
    const struct kernels *kernels;
    const struct image *image;
    struct colour_step points[MOST_POINTS];
    int count;
};

/* Splits pixels `first` to `first + count - 1` into planes in `strip`. */
static void take_planes(const struct run *run, int64_t first, int64_t count, uint8_t *strip, uint8_t *planes[3])
{
    static const float unused[6] = {0};
    run->kernels->split(strip, UINT8, run->image->at + 3 * first, count, unused);
    for (int c = 0; c < 3; c++)
        planes[c] = strip + c * count;
}

static void do_tables(const struct run *run, const struct colour_step *point, uint8_t *at, int64_t count, int channel)
{
    if (point->blends)
        run->kernels->blend_bytes(at, count, point->factor, point->other, (float)(1.0 - (double)point->factor));
    else
        run->kernels->table(at, count, point->tables[channel]);
}

/* Does saturation, hue and gray with Pillow's arithmetic. */
static void do_pillow_step(const struct run *run, const struct colour_step *point, uint8_t *planes[3], int64_t count)
{
    if (point->code == STEP_HUE) {
        run->kernels->turn_byte_hue(planes, count, (int)point->factor);
        return;
    }
    uint8_t luma[STRIP];
    run->kernels->luma(luma, (const uint8_t *const *)planes, count);
    for (int c = 0; c < 3; c++)
        if (point->code == STEP_GRAY)
            memcpy(planes[c], luma, (size_t)count);
        else
            run->kernels->blend_plane(planes[c], luma, count, point->factor);
}

static void do_colour_step(const struct run *run, const struct colour_step *point, uint8_t *planes[3], int64_t count)
{
    if (point->as_pillow) {
        do_pillow_step(run, point, planes, count);
        return;
    }
    switch (point->code) {
    case STEP_SATURATION: run->kernels->saturate(planes, count, point->factor); break;
    case STEP_HUE: run->kernels->turn_hue(planes, count, point->factor); break;
    case STEP_GRAY: run->kernels->gray(planes, count); break;
    case STEP_PERMUTE: {
        uint8_t copy[3 * STRIP];
        memcpy(copy, planes[0], (size_t)(3 * count)); /* planes follow one another */
        for (int c = 0; c < 3; c++)
            memcpy(planes[c], copy + point->order[c] * count, (size_t)count);
        break;
    }
    default:
        for (int c = 0; c < 3; c++)
            do_tables(run, point, planes[c], count, c);
    }
}

/* Runs the pending operations on the image. */
static void flush(struct run *run)
{
    int64_t pixels = run->image->height * run->image->width;
    bool alike = true; /* all steps treat all channels alike */
    for (int i = 0; i < run->count; i++)
        alike = alike && run->points[i].code == STEP_IDENTITY && run->points[i].alike;
    if (alike)
        for (int64_t at = 0; run->count && at < 3 * pixels; at += 3 * STRIP) {
            int64_t count = 3 * pixels - at < 3 * STRIP ? 3 * pixels - at : 3 * STRIP;
            for (int i = 0; i < run->count; i++)
                do_tables(run, &run->points[i], run->image->at + at, count, 0);
        }
    else
        for (int64_t at = 0, count; (count = smaller(pixels - at, STRIP)) > 0; at += count) {
            uint8_t strip[3 * STRIP], *planes[3];
            take_planes(run, at, count, strip, planes);
            for (int i = 0; i < run->count; i++)
                do_colour_step(run, &run->points[i], planes, count);
            run->kernels->join(run->image->at + 3 * at, (const uint8_t *const *)planes, count);
        }
    run->count = 0;
}

static struct colour_step *new_colour_step(struct run *run, int code)
{
    if (run->count == MOST_POINTS)
        flush(run);
    struct colour_step *point = &run->points[run->count++];
    point->code = code;
    point->as_pillow = false;
    return point;
}

/* Adds tables: combines them with the tables before, except two blends, which take less time than a table. `own`: the
 * tables of the channels, or one for all. */
static void add_tables(struct run *run, const uint8_t *const own[3], bool blends)
{
    bool alike = own[0] == own[1] && own[1] == own[2];
    const struct colour_step *last = run->count ? &run->points[run->count - 1] : NULL;
    if (last && last->code == STEP_IDENTITY && !(blends && last->blends)) {
        struct colour_step *point = &run->points[run->count - 1];
        for (int c = 0; c < 3; c++)
            for (int i = 0; i < 256; i++)
                point->tables[c][i] = own[c][point->tables[c][i]];
        point->alike = point->alike && alike;
        point->blends = false;
        return;
    }
    struct colour_step *point = new_colour_step(run, STEP_IDENTITY);
    point->alike = alike;
    point->blends = false;
    for (int c = 0; c < 3; c++)
        memcpy(point->tables[c], own[c], 256);
}

/* Computes the mean of gray, rounded as in torch, or to a whole number as in Pillow. */
static float mean_gray(struct run *run, bool as_pillow)
{
    int64_t pixels = run->image->height * run->image->width, sum = 0;
    flush(run);
    for (int64_t at = 0, count; (count = smaller(pixels - at, STRIP)) > 0; at += count) {
        uint8_t strip[3 * STRIP], *planes[3];
        take_planes(run, at, count, strip, planes);
        if (!as_pillow) {
            sum += run->kernels->sum_gray(planes, count);
            continue;
        }
        uint8_t luma[STRIP];
        run->kernels->luma(luma, (const uint8_t *const *)planes, count);
        for (int64_t i = 0; i < count; i++)
            sum += luma[i];
    }
    double mean = (double)sum / (double)pixels;
    return as_pillow ? (float)(int)(mean + 0.5) : (float)mean;
}

/* Does autocontrast_image() of torchvision's second or first version, or Pillow's autocontrast(). */
static void autocontrast(struct run *run, int flags)
{
    int64_t pixels = run->image->height * run->image->width;
    uint8_t low[3] = {255, 255, 255}, high[3] = {0, 0, 0}, tables[3][256];
    flush(run);
    for (int64_t at = 0, count; (count = smaller(pixels - at, STRIP)) > 0; at += count) {
        uint8_t strip[3 * STRIP], *planes[3];
        take_planes(run, at, count, strip, planes);
        for (int c = 0; c < 3; c++)
            run->kernels->extremes(planes[c], count, &low[c], &high[c]);
    }
    for (int c = 0; c < 3; c++) {
        bool flat = low[c] == high[c];
        float scale = flat ? 1 : (float)(high[c] - low[c]) * (float)(1.0 / 255);
        double pillow_scale = 255.0 / (flat ? 255 : high[c] - low[c]);
        for (int i = 0; i < 256; i++)
            if (flags & AS_PILLOW) /* only between the extremes, where it fits a byte */
                tables[c][i] = flat || i < low[c] || i > high[c]
                                   ? (uint8_t)i
                                   : (uint8_t)(int)(i * pillow_scale - low[c] * pillow_scale);
            else if (flags & AS_FIRST && !flat)
                tables[c][i] = to_byte((float)(i - low[c]) * (1 / (float)(high[c] - low[c]) * 255));
            else
                tables[c][i] = to_byte((float)(i - (flat ? 0 : low[c])) / scale);
    }
    add_tables(run, (const uint8_t *[3]){tables[0], tables[1], tables[2]}, false);
}

/* Does equalize_image(). */
static void equalize(struct run *run)
{
    int64_t pixels = run->image->height * run->image->width;
    const uint8_t *at = run->image->at, *end = at + 3 * pixels;
    uint32_t counts[2][3][256] = {{{0}}};
    uint8_t tables[3][256];
    flush(run);
    for (; at + 6 <= end; at += 6)
        for (int i = 0; i < 6; i++)
            counts[i / 3][i % 3][at[i]]++;
    for (int c = 0; at < end; at++, c++)
        counts[0][c][*at]++;
    for (int c = 0; c < 3; c++) {
        uint32_t last = 0;
        for (int i = 0; i < 256; i++) {
            counts[0][c][i] += counts[1][c][i];
            last = counts[0][c][i] ? counts[0][c][i] : last;
        }
        int64_t step = (pixels - last) / 255, before = 0;
        for (int i = 0; i < 256; before += counts[0][c][i++]) {
            int64_t value = step ? i ? (before + step / 2) / step : 0 : i;
            tables[c][i] = (uint8_t)(value > 255 ? 255 : value);
        }
    }
    add_tables(run, (const uint8_t *[3]){tables[0], tables[1], tables[2]}, false);
}

/* Adds one table for all channels, from the parameters, and for contrast from the mean of gray. */
static void add_table(struct run *run, const struct step *step, float mean)
{
    uint8_t table[256];
    const float *p = step->p;
    int mask = step->code == STEP_POSTERIZE ? 256 - (1 << (8 - (int)p[0])) : 0;
    float rest = (float)(1.0 - (double)p[0]);
    for (int i = 0; i < 256; i++)
        switch (step->code) {
        case STEP_BRIGHTNESS: table[i] = to_byte((float)i * p[0]); break;
        case STEP_CONTRAST:
            table[i] = step->flags & AS_PILLOW ? pillow_blend((uint8_t)mean, (uint8_t)i, p[0])
                                               : to_byte(fused(mean, rest, (float)i * p[0], false));
            break;
        case STEP_INVERT: table[i] = (uint8_t)(255 - i); break;
        case STEP_POSTERIZE: table[i] = (uint8_t)(i & mask); break;
        case STEP_SOLARIZE: table[i] = (uint8_t)((float)i >= p[0] ? 255 - i : i); break;
        default: table[i] = (float)i < p[1] ? to_byte((float)i + p[0]) : (uint8_t)i;
        }
    bool blends = (step->code == STEP_BRIGHTNESS || step->code == STEP_CONTRAST) && !(step->flags & AS_PILLOW);
    const struct colour_step *last = run->count ? &run->points[run->count - 1] : NULL;
    bool alone = !last || last->code != STEP_IDENTITY || last->blends;
    add_tables(run, (const uint8_t *[3]){table, table, table}, blends);
    if (blends && alone) {
        struct colour_step *point = &run->points[run->count - 1];
        point->blends = true;
        point->factor = p[0];
        point->other = mean;
    }
}

/* Runs the steps on single pixels at the beginning of `steps`; `done` receives their number. */
enum outcome run_points(struct worker *worker, const struct image *image, const struct step *steps, int64_t count,
                        int64_t *done)
{
    struct run run = {.kernels = worker->kernels, .image = image};
    int64_t i = 0;
    for (; i < count; i++) {
        const struct step *step = &steps[i];
        switch (step->code) {
        case STEP_IDENTITY: continue;
        case STEP_BRIGHTNESS:
        case STEP_INVERT:
        case STEP_POSTERIZE:
        case STEP_SOLARIZE:
        case STEP_SOLARIZE_ADD: add_table(&run, step, 0); continue;
        case STEP_SATURATION:
        case STEP_HUE:
        case STEP_GRAY: {
            struct colour_step *point = new_colour_step(&run, step->code);
            point->as_pillow = step->flags & AS_PILLOW;
            point->factor = step->p[point->as_pillow && step->code == STEP_HUE];
            continue;
        }
        case STEP_PERMUTE: {
            struct colour_step *point = new_colour_step(&run, step->code);
            for (int c = 0; c < 3; c++)
                point->order[c] = (int)step->p[c];
            continue;
        }
        case STEP_CONTRAST: add_table(&run, step, mean_gray(&run, step->flags & AS_PILLOW)); continue;
        case STEP_AUTOCONTRAST: autocontrast(&run, step->flags); continue;
        case STEP_EQUALIZE: equalize(&run); continue;
        default: break;
        }
        break;
    }
    flush(&run);
    *done = i;
    return DONE;
}
