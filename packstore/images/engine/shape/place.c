/* Cuts a window out of pixels that are not resized, pads it where it exceeds them, and mirrors it. */
#include "shape.h"

/* Returns the element of `length` that padding shows at `at`; -1 for CONSTANT. */
INLINE int64_t padded_place(int64_t at, int64_t length, int64_t padding)
{
    if (at >= 0 && at < length)
        return at;
    if (padding == CONSTANT)
        return -1;
    int64_t last = length - 1, twice = padding == SYMMETRIC;
    if (padding != EDGE) /* beyond the second edge, the outermost element */
        at = at < 0 ? -at - twice : 2 * last - at + twice;
    return at < 0 ? 0 : at > last ? last : at;
}

/* Copies elements in reverse order. */
INLINE void reverse(uint8_t *to, const uint8_t *from, int64_t count, const int size)
{
    for (int64_t x = 0; x < count; x++)
        memcpy(to + x * size, from + (count - 1 - x) * size, (size_t)size);
}

/* Writes `columns` elements of a line of `width` elements, from `left` on; only `fill` if the line is NULL. */
INLINE void place_line(const struct kernels *kernels, uint8_t *to, const uint8_t *from, int64_t width, int64_t left,
                       int64_t columns, bool mirrored, int64_t padding, const uint8_t *fill, const int size)
{
    int64_t first = left < 0 ? -left : 0, stop = width - left < columns ? width - left : columns;
    if (!from || first >= stop)
        first = stop = columns; /* all columns are outside */
    int64_t count = stop - first;
    if (count > 0 && mirrored && (size == 1 || size == 3))
        kernels->mirror(to + (columns - stop) * size, from + (left + first) * size, count, size);
    else if (count > 0 && mirrored)
        reverse(to + (columns - stop) * size, from + (left + first) * size, count, size);
    else if (count > 0)
        memcpy(to + first * size, from + (left + first) * size, (size_t)(count * size));
    for (int64_t x = 0; x < columns; x++) {
        if (x == first)
            x = stop;
        if (x == columns)
            break;
        int64_t place = from ? padded_place(left + x, width, padding) : -1;
        memcpy(to + (mirrored ? columns - 1 - x : x) * size, place < 0 ? fill : from + place * size, (size_t)size);
    }
}

INLINE void place_of(const struct kernels *kernels, const struct request *request, const struct form *form, uint8_t *to,
                     const uint8_t *fills, int planes, const int size)
{
    const struct box *window = &request->window, *box = &request->box;
    for (int c = 0; c < planes; c++) {
        const uint8_t *plane = request->source + c * request->height * request->width * size, *fill = fills + c * size;
        for (int64_t y = 0; y < window->height; y++, to += window->width * size) {
            int64_t row = padded_place(window->top + y, box->height, form->padding);
            const uint8_t *from = row < 0 ? NULL : plane + ((box->top + row) * request->width + box->left) * size;
            place_line(kernels, to, from, box->width, window->left, window->width, request->mirrored, form->padding,
                       fill, size);
        }
    }
}

/* Writes the window of the request's pixels or planes, in their type and layout. */
void place(const struct kernels *kernels, const struct task *task)
{
    const struct request *request = task->request;
    const struct form *form = task->form;
    uint8_t *to = task->to;
    int channels = (int)task->channels;
    uint8_t fill[12] __attribute__((aligned(4)));
    if (form->from == UINT8) {
        for (int c = 0; c < 3; c++)
            fill[c] = (uint8_t)(int)form->fill[c];
    } else {
        kernels->from_floats(fill, (int)form->from, form->fill, 3);
    }
    if (form->from == UINT8 && channels == 1)
        place_of(kernels, request, form, to, fill, 1, 1);
    else if (form->from == UINT8)
        place_of(kernels, request, form, to, fill, 1, 3);
    else if (form->from == FLOAT32)
        place_of(kernels, request, form, to, fill, channels, 4);
    else
        place_of(kernels, request, form, to, fill, channels, 2);
}
