/* Masks of objects, from polygons and run lengths: the pixels of pycocotools (maskApi.c of
 * https://github.com/cocodataset/cocoapi), computed for the part of the image that is shown alone. */
#include "outlines.h"

#include <stdlib.h>
#include <string.h>

enum { PARTS = 5, CENTRE = 2 }; /* a pixel has 5 x 5 places; the places before its centre are 5n + 2 */

/* The place of a coordinate, in fifths of pixels. */
INLINE int64_t place_of(double coordinate)
{
    return (int64_t)(PARTS * coordinate + 0.5);
}

INLINE int64_t round_down(double value)
{
    int64_t whole = (int64_t)value;
    return whole - (value < (double)whole);
}

INLINE int64_t divide_down(int64_t value, int64_t by)
{
    return value / by - (value % by < 0);
}

/* Marks the place where an outline crosses the centres of column `x` (of the image) at `y` (in fifths): below it,
 * inside and outside change. */
INLINE void mark(const struct view *view, uint8_t *marks, int64_t x, int64_t y)
{
    int64_t row = divide_down(y + CENTRE, PARTS) - view->top, column = x - view->left;
    if (row < view->height)
        marks[(row < 0 ? 0 : row) * view->stride + (view->mirrored ? view->width - 1 - column : column)] ^= 1;
}

/* Marks the crossings of an edge with the columns of the view. Follows it as pycocotools does, in steps of one place
 * along its longer axis, but only computes the steps next to centres of columns. */
static void mark_edge(const struct view *view, uint8_t *marks, int64_t x, int64_t y, int64_t end_x, int64_t end_y)
{
    int64_t across = end_x < x ? x - end_x : end_x - x, down = end_y < y ? y - end_y : end_y - y;
    bool flat = across >= down;
    if (flat ? x > end_x : y > end_y) {
        int64_t swapped = x;
        x = end_x, end_x = swapped;
        swapped = y, y = end_y, end_y = swapped;
    }
    int64_t least = x < end_x ? x : end_x, most = x < end_x ? end_x : x;
    int64_t first = divide_down(least + CENTRE, PARTS), last = divide_down(most - CENTRE - 1, PARTS);
    first = first < view->left ? view->left : first;
    last = last >= view->left + view->width ? view->left + view->width - 1 : last;
    double slope = flat ? (double)(end_y - y) / (double)across : (double)(end_x - x) / (double)down;
    for (int64_t column = first; column <= last; column++) {
        int64_t before = PARTS * column + CENTRE; /* the crossing is between this place and the next */
        if (flat) {
            double step = (double)(before - x);
            int64_t one = round_down((double)y + slope * step + 0.5);
            int64_t other = round_down((double)y + slope * (step + 1) + 0.5);
            mark(view, marks, column, one < other ? one : other);
            continue;
        }
        /* The last step on the near side of the crossing: estimated, then corrected by what each step gives. */
        bool right = slope > 0;
        int64_t step = (int64_t)(((double)before + 0.5 - (double)x) / slope);
        step = step < 0 ? 0 : step >= down ? down - 1 : step;
        while (step > 0 && (round_down((double)x + slope * (double)step + 0.5) > before) == right)
            step--;
        while (step + 1 < down && (round_down((double)x + slope * (double)(step + 1) + 0.5) > before) != right)
            step++;
        mark(view, marks, column, y + step);
    }
}

/* Sets the pixels inside a polygon of `count` corners x, y to 1. `spare`: as many zeros as the mask has bytes, which
 * are zeros again afterwards. Adds to the mask; with `even_odd` instead turns the pixels that are 1 to 0. */
static void fill_ring(const struct view *view, const double *corners, int64_t count, bool even_odd, uint8_t *spare,
                      uint8_t *mask)
{
    int64_t x = place_of(corners[2 * count - 2]), y = place_of(corners[2 * count - 1]);
    int64_t top = INT64_MAX, bottom = INT64_MIN, left = INT64_MAX, right = INT64_MIN;
    for (int64_t n = 0; n < count; n++) {
        int64_t next_x = place_of(corners[2 * n]), next_y = place_of(corners[2 * n + 1]);
        mark_edge(view, spare, x, y, next_x, next_y);
        x = next_x, y = next_y;
        top = y < top ? y : top, bottom = y > bottom ? y : bottom;
        left = x < left ? x : left, right = x > right ? x : right;
    }
    top = divide_down(top, PARTS) - view->top - 1, bottom = divide_down(bottom, PARTS) - view->top + 2;
    left = divide_down(left, PARTS) - view->left - 1, right = divide_down(right, PARTS) - view->left + 2;
    top = top < 0 ? 0 : top, bottom = bottom > view->height ? view->height : bottom;
    left = left < 0 ? 0 : left, right = right > view->width ? view->width : right;
    if (left >= right || top >= view->height)
        return;
    bottom = bottom < top + 1 ? top + 1 : bottom;
    if (view->mirrored) {
        int64_t swapped = left;
        left = view->width - right, right = view->width - swapped;
    }
    for (int64_t row = top; row < bottom; row++) {
        uint8_t *marks = spare + row * view->stride, *to = mask + row * view->stride;
        for (int64_t column = left; column < right; column++) {
            uint8_t inside = marks[column];
            to[column] = even_odd ? to[column] ^ inside : to[column] | inside;
            marks[column] = 0;
            if (row + 1 < bottom)
                marks[column + view->stride] ^= inside;
        }
    }
}

/* Reads COCO's text of run lengths: writes the end of each run. Returns their number; -1 if it is no such text, or for
 * more than `room`. */
static int64_t read_run_lengths(const char *text, int64_t nbytes, int64_t *ends, int64_t room)
{
    int64_t count = 0, end = 0, lengths[2] = {0, 0};
    for (int64_t at = 0; at < nbytes; count++) {
        int64_t value = 0, part = 0x20;
        int bits = 0;
        for (; part & 0x20; bits += 5) {
            if (at == nbytes || bits > 60 || text[at] < 48 || text[at] >= 112)
                return -1;
            part = text[at++] - 48;
            value |= (int64_t)((uint64_t)(part & 0x1f) << bits);
        }
        if (part & 0x10 && bits < 64)
            value -= (int64_t)1 << bits;
        value += count > 2 ? lengths[count & 1] : 0;
        if (value < 0 || value >= (int64_t)1 << 40 || count == room)
            return -1;
        lengths[count & 1] = value;
        ends[count] = end += value;
    }
    return count;
}

/* Sets pixels of a mask that show the inside of run lengths, which go down the columns, to 1. */
static void fill_runs(const int64_t *ends, int64_t count, const struct shown *shown, uint8_t *mask)
{
    const int64_t *rows = shown->rows, *columns = shown->columns, width = shown->width, down = shown->image_height;
    for (int64_t x = 0; x < width; x++) {
        if (columns[x] < 0)
            continue;
        int64_t from = 0, past = count; /* the first run that ends behind the column's first pixel */
        while (from < past) {
            int64_t middle = (from + past) / 2;
            if (ends[middle] > columns[x] * down)
                past = middle;
            else
                from = middle + 1;
        }
        int64_t run = from;
        for (int64_t y = 0; y < shown->height; y++) {
            if (rows[y] < 0)
                continue;
            int64_t place = columns[x] * down + rows[y];
            while (run > 0 && ends[run - 1] > place)
                run--;
            while (run < count && ends[run] <= place)
                run++;
            mask[y * width + x] = run < count && run % 2;
        }
    }
}

enum { NO_SHAPE, POLYGONS, EVEN_ODD, TEXT, COUNTS }; /* forms of core/column_types/segments.py */

/* A stored value of segments: its tables, and where its coordinates and run lengths begin. */
struct stored {
    const uint8_t *table, *sizes, *coordinates, *runs, *end;
    int64_t objects, width; /* bytes of a coordinate */
    double unit;            /* coordinates are divided by it */
};

INLINE int64_t number_at(const uint8_t *table, int64_t n)
{
    uint32_t value;
    memcpy(&value, table + 4 * n, 4);
    return value;
}

/* Finds the parts of a value, and checks that they fill it exactly. `largest`: the most coordinates of a ring, and the
 * most bytes of run lengths. */
static enum outcome find_parts(struct stored *stored, const uint8_t *value, int64_t nbytes, int64_t *largest)
{
    if (nbytes < 8)
        return REFUSED;
    int64_t decimals = number_at(value, 1), numbers = 0, rings = 0, coordinates = 0, runs = 0, size = 0;
    stored->objects = number_at(value, 0), stored->table = value + 8, stored->end = value + nbytes;
    stored->width = decimals == 255 ? 8 : 4;
    if ((decimals > 7 && decimals != 255) || stored->objects > (nbytes - 8) / 8)
        return REFUSED;
    for (stored->unit = 1; stored->width == 4 && decimals--;)
        stored->unit *= 10;
    stored->sizes = stored->table + 8 * stored->objects;
    int64_t room = (stored->end - stored->sizes) / 4;
    for (int64_t n = 0; n < stored->objects; n++) {
        int64_t form = number_at(stored->table, 2 * n), parts = number_at(stored->table, 2 * n + 1);
        if (form > COUNTS || (form == NO_SHAPE && parts) || (form == COUNTS && parts % 4))
            return REFUSED;
        runs += form >= TEXT ? parts : 0;
        largest[1] = form >= TEXT && parts > largest[1] ? parts : largest[1];
        rings = form >= TEXT ? 0 : parts;
        for (int64_t i = 0; i < rings && numbers + i < room; i++) {
            size = number_at(stored->sizes, numbers + i);
            coordinates += size;
            largest[0] = size > largest[0] ? size : largest[0];
            if (size % 2)
                return REFUSED;
        }
        int64_t first = numbers;
        numbers += form >= TEXT ? 2 : parts;
        if (numbers > room)
            return REFUSED;
        for (int64_t i = first; form >= TEXT && i < numbers; i++)
            if (!number_at(stored->sizes, i) || number_at(stored->sizes, i) > INT32_MAX)
                return REFUSED;
    }
    stored->coordinates = stored->sizes + 4 * numbers;
    stored->runs = stored->coordinates + stored->width * coordinates;
    return coordinates <= nbytes && runs == stored->end - stored->runs ? DONE : REFUSED;
}

/* Reads a ring's coordinates, moved to the view's scale; REFUSED for one beyond 1e8 pixels, or
 * beyond 1e12 then. */
static enum outcome read_corners(const struct stored *stored, const uint8_t *from, int64_t count, const double *scale,
                                 const double *offset, double *to)
{
    for (int64_t n = 0; n < count; n++) {
        double value;
        int32_t whole;
        if (stored->width == 8) {
            memcpy(&value, from + 8 * n, 8);
        } else {
            memcpy(&whole, from + 4 * n, 4);
            value = whole / stored->unit;
        }
        to[n] = value * scale[n & 1] + offset[n & 1];
        if (!(value <= 1e8 && value >= -1e8 && to[n] <= 1e12 && to[n] >= -1e12))
            return REFUSED;
    }
    return DONE;
}

/* Sets the pixels of the objects of a stored value that `keep` names to 1, each in a mask of its own of zeros. `move`:
 * factors and then offsets of x and y, from the image to the mask's scale. REFUSED if the value is damaged, or run
 * lengths do not have the image's size. */
EXPORT int packstore_engine_segments(const uint8_t *value, int64_t nbytes, const uint8_t *keep, const struct view *view,
                                     const double *move, const struct shown *shown, uint8_t *masks, int64_t mask_bytes)
{
    struct stored stored;
    int64_t largest[2] = {0, 0};
    if (find_parts(&stored, value, nbytes, largest) != DONE)
        return REFUSED;
    uint8_t *spare = calloc((size_t)(mask_bytes + 8 * (largest[0] + largest[1]) + 8), 1);
    if (!spare)
        return REFUSED;
    double *corners = (double *)(spare + (mask_bytes + 7) / 8 * 8);
    int64_t *ends = (int64_t *)corners + largest[0];
    enum outcome outcome = DONE;
    const uint8_t *sizes = stored.sizes, *coordinates = stored.coordinates, *runs = stored.runs;
    uint8_t *mask = masks + (view->top_of_mask * shown->width + view->left_of_mask);
    for (int64_t n = 0; n < stored.objects && outcome == DONE; n++) {
        int64_t form = number_at(stored.table, 2 * n), parts = number_at(stored.table, 2 * n + 1);
        if (form >= TEXT) {
            int64_t height = number_at(sizes, 0), width = number_at(sizes, 1), end = 0, count = parts / 4;
            if (form == TEXT)
                count = read_run_lengths((const char *)runs, parts, ends, largest[1]);
            for (int64_t i = 0; form == COUNTS && i < count; i++)
                ends[i] = end += number_at(runs, i);
            bool fits = height == shown->image_height && width == shown->image_width && count > 0 &&
                        ends[count - 1] == height * width;
            if (!fits)
                outcome = REFUSED;
            else if (keep[n])
                fill_runs(ends, count, shown, masks);
            runs += parts, sizes += 8;
        }
        for (; form < TEXT && parts-- && outcome == DONE; sizes += 4) {
            int64_t size = number_at(sizes, 0);
            outcome = read_corners(&stored, coordinates, size, move, move + 2, corners);
            if (outcome == DONE && keep[n] && size && view->height > 0 && view->width > 0)
                fill_ring(view, corners, size / 2, form == EVEN_ODD, spare, mask);
            coordinates += stored.width * size;
        }
        masks += keep[n] ? mask_bytes : 0, mask += keep[n] ? mask_bytes : 0;
    }
    free(spare);
    return outcome;
}
