/* What Python calls: many images at once, without the GIL. native.py of this folder has the same structures. */
#include "engine.h"

#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

/* To be counted up whenever what Python has to know changes. */
#define INTERFACE 9

enum { KEPT_BYTES = 64 << 20 }; /* of memory, in a decoder between two images */

int make_room(struct room *room, size_t size)
{
    if (size <= room->size)
        return DONE;
    free(room->at);
    size += size / 4; /* so that a little more each time does not mean new memory each time */
    room->at = malloc(size);
    room->size = room->at ? size : 0;
    return room->at ? DONE : REFUSED;
}

/* Calls `each` with every room of the decoder. */
static void for_all_rooms(struct decoder *decoder, void (*each)(struct room *, size_t *), size_t *argument)
{
    struct room *rooms[] = {&decoder->located,
                            &decoder->joined,
                            &decoder->unstuffed[0],
                            &decoder->unstuffed[1],
                            &decoder->plane[0],
                            &decoder->plane[1],
                            &decoder->plane[2],
                            &decoder->sums[0],
                            &decoder->sums[1],
                            &decoder->wide[0],
                            &decoder->wide[1],
                            &decoder->pixels,
                            &decoder->resized,
                            &decoder->line,
                            &decoder->made,
                            &decoder->float_across.room,
                            &decoder->float_down.room,
                            &decoder->across.places,
                            &decoder->across.exact,
                            &decoder->across.rounded,
                            &decoder->down.places,
                            &decoder->down.exact,
                            &decoder->down.rounded,
                            &decoder->rewriting.tokens,
                            &decoder->rewriting.scan,
                            &decoder->rewriting.coefficients,
                            &decoder->rewriting.packed,
                            &decoder->rewriting.ends};
    for (size_t i = 0; i < sizeof rooms / sizeof rooms[0]; i++)
        each(rooms[i], argument);
}

static void add_size(struct room *room, size_t *total)
{
    *total += room->size;
}

static void give_back(struct room *room, size_t *unused)
{
    (void)unused;
    free(room->at);
    *room = (struct room){NULL, 0};
}

#ifdef HAS_AVX2
#include <cpuid.h>

static bool has_avx2(void)
{
    unsigned eax, ebx, ecx = 0, edx;
    /* Not every compiler can be asked for the third by its name. */
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) &&
           ecx & bit_F16C;
}
#endif

EXPORT int packstore_engine_interface(void)
{
    return INTERFACE;
}

/* A decoder for one thread; NULL where there is no memory. `plain`: without vector instructions. */
EXPORT struct decoder *packstore_engine_new(int plain)
{
    struct decoder *decoder = aligned_alloc(64, (sizeof *decoder + 63) / 64 * 64);
    if (!decoder)
        return NULL;
    memset(decoder, 0, sizeof *decoder);
    make_crc_table(decoder->crc);
    decoder->kernels = &plain_kernels;
#ifdef HAS_AVX2
    if (!plain && has_avx2())
        decoder->kernels = &avx2_kernels;
#else
    (void)plain;
#endif
    return decoder;
}

EXPORT void packstore_engine_free(struct decoder *decoder)
{
    if (decoder)
        for_all_rooms(decoder, give_back, NULL);
    free(decoder);
}

/* Height and width of each JPEG file, or zeros for one that is not for this engine. */
EXPORT void packstore_engine_sizes(const uint8_t *const *files, const int64_t *nbytes, int64_t count, int64_t *sizes)
{
    for (int64_t n = 0; n < count; n++) {
        struct headers headers;
        bool known = read_headers(&headers, files[n], nbytes[n]) == DONE;
        sizes[2 * n] = known ? headers.height : 0;
        sizes[2 * n + 1] = known ? headers.width : 0;
    }
}

static bool is_within(const struct box *box, int64_t height, int64_t width)
{
    return box->top >= 0 && box->left >= 0 && box->height > 0 && box->width > 0 && box->top <= height - box->height &&
           box->left <= width - box->width;
}

static bool is_side(int64_t side)
{
    return side > 0 && side <= MOST_SIDE;
}

/* Whether a JPEG file's headers can be right: a block takes two bits at least. */
static int check_file(struct decoder *decoder, const struct request *request, int64_t max_pixels)
{
    struct headers *headers = &decoder->headers;
    if (read_headers(headers, request->source, request->nbytes) != DONE)
        return REFUSED;
    int64_t blocks = (int64_t)headers->rows * headers->across * headers->blocks;
    bool possible = (request->nbytes - headers->scan_at) * 4 >= blocks;
    return possible && (int64_t)headers->height * headers->width <= max_pixels &&
                   is_within(&request->box, headers->height, headers->width)
               ? DONE
               : REFUSED;
}

/* The pixels of a box of the request's image: sets *pixels, and *stride and *nbytes of what may be read from there on.
 */
static int source_pixels(struct decoder *decoder, const struct request *request, const struct box *box,
                         const uint8_t **pixels, int64_t *stride, int64_t *nbytes)
{
    if (request->height) {
        int64_t at = 3 * (box->top * request->width + box->left);
        *pixels = request->source + at;
        *stride = 3 * request->width;
        *nbytes = request->nbytes - at;
        return DONE;
    }
    *stride = 3 * box->width;
    *nbytes = *stride * box->height;
    if (make_room(&decoder->pixels, (size_t)*nbytes) != DONE)
        return REFUSED;
    *pixels = decoder->pixels.at;
    return decode_box(decoder, request->source, request->nbytes, box, decoder->pixels.at);
}

/* Of a JPEG file, a window of the box that is not resized: rows and columns of the window in `visible`, which are those
 * from `top` and `left` of the box. */
static int place_decoded(struct decoder *decoder, const struct request *request, const struct box *visible, uint8_t *to)
{
    struct box box = {request->box.top + request->window.top + visible->top,
                      request->box.left + request->window.left + visible->left, visible->height, visible->width};
    int64_t to_stride = 3 * request->window.width, stride, nbytes;
    const uint8_t *pixels;
    if (!request->mirrored && visible->width == request->window.width)
        return decode_box(decoder, request->source, request->nbytes, &box, to);
    if (source_pixels(decoder, request, &box, &pixels, &stride, &nbytes) != DONE)
        return REFUSED;
    for (int64_t y = 0; y < box.height; y++, pixels += stride, to += to_stride) {
        if (request->mirrored)
            decoder->kernels->mirror(to, pixels, box.width);
        else
            memcpy(to, pixels, (size_t)(3 * box.width));
    }
    return DONE;
}

static int place_resized(struct decoder *decoder, const struct request *request, const struct box *visible, uint8_t *to)
{
    struct taps *across = &decoder->across, *down = &decoder->down;
    if (make_taps(across, request->box.width, request->size_width, request->window.left + visible->left, visible->width,
                  request->mirrored, 4) ||
        make_taps(down, request->box.height, request->size_height, request->window.top + visible->top, visible->height,
                  false, 2))
        return REFUSED;
    struct box box = {request->box.top + down->first, request->box.left + across->first, down->stop - down->first,
                      across->stop - across->first};
    int64_t stride, nbytes;
    const uint8_t *pixels;
    if (source_pixels(decoder, request, &box, &pixels, &stride, &nbytes) != DONE)
        return REFUSED;
    return resize(decoder, pixels, nbytes, box.height, stride, to, 3 * request->window.width, visible->height,
                  visible->width);
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The part of the window that lies in the resized box; and where in what is made it begins, counted in pixels. */
static struct box visible_part(const struct request *request, int64_t *at)
{
    const struct box *window = &request->window;
    struct box visible = {window->top < 0 ? -window->top : 0, window->left < 0 ? -window->left : 0,
                          smaller(window->height, request->size_height - window->top),
                          smaller(window->width, request->size_width - window->left)};
    visible.height -= visible.top;
    visible.width -= visible.left;
    *at =
        visible.top * window->width + (request->mirrored ? window->width - visible.left - visible.width : visible.left);
    return visible;
}

/* The window in bytes, three channels in turn. */
static int make_pixels(struct decoder *decoder, const struct request *request, const struct form *form, bool resized,
                       uint8_t *to)
{
    int64_t at;
    struct box visible = visible_part(request, &at);
    bool whole = visible.height == request->window.height && visible.width == request->window.width;
    if (request->height && !resized) {
        place(decoder, request, form, to);
        return DONE;
    }
    if (!whole && !resized && (form->padding != CONSTANT || form->fill != 0))
        return REFUSED;
    if (!whole)
        memset(to, 0, (size_t)(3 * request->window.height * request->window.width));
    if (visible.height <= 0 || visible.width <= 0)
        return DONE;
    return resized ? place_resized(decoder, request, &visible, to + 3 * at)
                   : place_decoded(decoder, request, &visible, to + 3 * at);
}

/* The window of planes that are resized, in planes of float32. */
static int make_planes(struct decoder *decoder, const struct request *request, int kind, float *to)
{
    const struct box *window = &request->window;
    struct float_taps *across = &decoder->float_across, *down = &decoder->float_down;
    int64_t at, plane = window->height * window->width;
    struct box visible = visible_part(request, &at);
    if (visible.height != window->height || visible.width != window->width)
        memset(to, 0, (size_t)(3 * plane) * sizeof(float));
    if (visible.height <= 0 || visible.width <= 0)
        return DONE;
    if (make_float_taps(across, request->box.width, request->size_width, window->left + visible.left, visible.width,
                        request->mirrored) ||
        make_float_taps(down, request->box.height, request->size_height, window->top + visible.top, visible.height,
                        false))
        return REFUSED;
    return resize_planes(decoder, kind, request->source, request->height, request->width, &request->box, to + at, plane,
                         window->width, visible.height, visible.width);
}

/* Makes what is wanted of an image that is known to be well described. */
static int make(struct decoder *decoder, const struct request *request, const struct form *form)
{
    const struct box *window = &request->window;
    int64_t pixels = window->height * window->width;
    bool resized = request->size_height != request->box.height || request->size_width != request->box.width;
    int kind = resized && form->from != UINT8 ? FLOAT32 : (int)form->from;
    bool as_it_is = kind == form->to && form->planes == (kind != UINT8);
    if (request->height && !resized && !request->mirrored && !window->top && !window->left &&
        window->height == request->height && window->width == request->width) {
        if (kind == UINT8)
            convert_pixels(decoder, form, request->source, request->to, pixels);
        else
            convert_planes(decoder, form, kind, request->source, request->to, pixels);
        return DONE;
    }
    if (!as_it_is && make_room(&decoder->made, (size_t)(3 * pixels * size_of(kind))) != DONE)
        return REFUSED;
    uint8_t *to = as_it_is ? request->to : decoder->made.at;
    if (form->from == UINT8) {
        if (make_pixels(decoder, request, form, resized, to) != DONE)
            return REFUSED;
    } else if (!resized) {
        place(decoder, request, form, to);
    } else if (make_planes(decoder, request, (int)form->from, (float *)to) != DONE) {
        return REFUSED;
    }
    if (!as_it_is && kind == UINT8)
        convert_pixels(decoder, form, to, request->to, pixels);
    else if (!as_it_is)
        convert_planes(decoder, form, kind, to, request->to, pixels);
    return DONE;
}

static int answer(struct decoder *decoder, const struct request *request, const struct form *form, int64_t max_pixels)
{
    const struct box *window = &request->window;
    if (!is_side(request->size_height) || !is_side(request->size_width) || !is_side(window->height) ||
        !is_side(window->width) || window->top < -MOST_SIDE || window->top > MOST_SIDE || window->left < -MOST_SIDE ||
        window->left > MOST_SIDE || request->nbytes < 0)
        return REFUSED;
    if (request->height || form->from != UINT8) {
        if (!is_side(request->height) || !is_side(request->width) ||
            !is_within(&request->box, request->height, request->width) ||
            request->nbytes != 3 * request->height * request->width * size_of(form->from))
            return REFUSED;
    } else if (check_file(decoder, request, max_pixels) != DONE) {
        return REFUSED;
    }
    return make(decoder, request, form);
}

static bool is_known(const struct form *form)
{
    return form->from >= FLOAT32 && form->from <= UINT8 && form->to >= FLOAT32 && form->to <= UINT8 &&
           (form->to != UINT8 || form->from == UINT8) && form->padding >= CONSTANT && form->padding <= SYMMETRIC &&
           (form->from != UINT8 || (form->fill >= 0 && form->fill <= 255));
}

/* So that one large image does not fix the memory of each thread. */
static void keep_little(struct decoder *decoder)
{
    size_t kept = 0;
    for_all_rooms(decoder, add_size, &kept);
    if (kept > KEPT_BYTES)
        for_all_rooms(decoder, give_back, NULL);
}

/* Answers requests; `refused` says of each whether somebody else has to. Images of more than `max_pixels` are refused.
 */
EXPORT void packstore_engine_run(struct decoder *decoder, const struct request *requests, int64_t count,
                                 const struct form *form, int64_t max_pixels, uint8_t *refused)
{
    bool known = is_known(form);
    for (int64_t n = 0; n < count; n++) {
        refused[n] = (uint8_t)(!known || answer(decoder, &requests[n], form, max_pixels) != DONE);
        keep_little(decoder);
    }
}

/* Height and width of a JPEG file; whether it is one for this engine, and has no more pixels. */
EXPORT int packstore_engine_size(const uint8_t *file, int64_t nbytes, int64_t max_pixels, int64_t *size)
{
    struct headers headers;
    bool known = read_headers(&headers, file, nbytes) == DONE && (int64_t)headers.height * headers.width <= max_pixels;
    size[0] = known ? headers.height : 0;
    size[1] = known ? headers.width : 0;
    return known;
}

/* All pixels of such a file, (height, width, 3); whether it is refused. */
EXPORT int packstore_engine_whole(struct decoder *decoder, const uint8_t *file, int64_t nbytes, int64_t max_pixels,
                                  uint8_t *to)
{
    struct request request = {.source = file, .nbytes = nbytes};
    struct headers *headers = &decoder->headers;
    bool known = read_headers(headers, file, nbytes) == DONE;
    request.box = (struct box){0, 0, headers->height, headers->width};
    int outcome = known && check_file(decoder, &request, max_pixels) == DONE
                      ? decode_box(decoder, file, nbytes, &request.box, to)
                      : REFUSED;
    keep_little(decoder);
    return outcome != DONE;
}

/* See png_rows() in png.c: whether the file is refused. */
EXPORT int packstore_engine_png(const uint8_t *packed, int64_t packed_bytes, uint8_t *to, int64_t rows, int64_t nbytes,
                                int64_t step)
{
    return png_rows(packed, packed_bytes, to, rows, nbytes, step) != DONE;
}

/* See highway.c. */
EXPORT uint64_t packstore_engine_highway_hash(const uint8_t *data, uint64_t size)
{
    return highway_hash(data, size);
}

/* See rewrite() in rewrite.c: the number of bytes of the new scan; 0 where the file is refused. */
EXPORT int64_t packstore_engine_rewrite(struct decoder *decoder, const uint8_t *file, int64_t nbytes, int64_t interval)
{
    int64_t made = rewrite(decoder, file, nbytes, interval);
    if (!made)
        keep_little(decoder);
    return made;
}

/* How many segments it has. */
EXPORT int64_t packstore_engine_segments(const struct decoder *decoder)
{
    return decoder->rewriting.segments;
}

/* That scan, of `nbytes`; its four tables, each 16 numbers of codes, and 256 values; and where its segments end. */
EXPORT void packstore_engine_rewritten(struct decoder *decoder, int64_t nbytes, uint8_t *scan, uint8_t *tables,
                                       int64_t *ends)
{
    memcpy(scan, decoder->rewriting.scan.at, (size_t)nbytes);
    memcpy(ends, decoder->rewriting.ends.at, (size_t)decoder->rewriting.segments * sizeof *ends);
    for (int i = 0; i < 4; i++, tables += 16 + 256) {
        memcpy(tables, decoder->rewriting.tables[i].counts, 16);
        memcpy(tables + 16, decoder->rewriting.tables[i].values, 256);
    }
}

/* See check_rewritten() in rewrite.c: whether the new file decodes to the same as the old one. */
EXPORT int packstore_engine_check_rewritten(struct decoder *decoder, const uint8_t *file, int64_t nbytes)
{
    int same = check_rewritten(decoder, file, nbytes) == DONE;
    decoder->rewriting.segments = 0;
    keep_little(decoder);
    return same;
}
