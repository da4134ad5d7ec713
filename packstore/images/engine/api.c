/* What Python needs besides the functions that other files export: the layout of structures, decoders, sizes of files.
 * packstore/core/compiled.py declares all of these functions, and requests.py the structures. Functions that can fail
 * return an outcome of core/base.h. */
#include "io/lmdb.h"
#include "jpeg/jpeg.h"
#include "ops/program.h"
#include "shape/outlines.h"

#include <stdlib.h>

/* Increase this number whenever a structure or function that Python uses changes. */
#define INTERFACE 22

/* Size of each structure that Python fills, and offset of its last field: STRUCTURES of compiled.py. */
#define LAYOUT(name, last) sizeof(struct name), offsetof(struct name, last)
EXPORT const int64_t packstore_engine_layout[] = {
    LAYOUT(form, table),         LAYOUT(request, sampling),   LAYOUT(step, p),
    LAYOUT(lmdb_tree, root),     LAYOUT(lmdb_lookup, prefix), LAYOUT(lmdb_value, code),
    LAYOUT(lmdb_column, nbytes), LAYOUT(lmdb_step, nodes),    LAYOUT(lmdb_walk, path),
    LAYOUT(lmdb_row, c),         LAYOUT(view, left_of_mask),  LAYOUT(shown, image_width)};

EXPORT int packstore_engine_interface(void)
{
    return INTERFACE;
}

static struct decoder *new_decoder(int plain)
{
    struct decoder *decoder = aligned_alloc(64, (sizeof *decoder + 63) / 64 * 64);
    if (!decoder)
        return NULL;
    memset(decoder, 0, sizeof *decoder);
    make_crc_table(decoder->crc);
    decoder->worker.kernels = choose_kernels(plain);
    return decoder;
}

EXPORT void packstore_engine_free(struct decoder *decoder)
{
    if (!decoder)
        return;
    packstore_engine_free(decoder->second);
    free_buffers(&decoder->worker.scratch);
    free(decoder);
}

/* Creates a decoder for one thread; NULL without memory. `plain`: do not use vector instructions. */
EXPORT struct decoder *packstore_engine_new(int plain)
{
    struct decoder *decoder = new_decoder(plain);
    if (decoder && !(decoder->second = new_decoder(plain))) {
        packstore_engine_free(decoder);
        return NULL;
    }
    return decoder;
}

/* Writes height and width of a JPEG file. REFUSED, and zeros, if it has more than `max_pixels` or is none that this
 * engine decodes. */
EXPORT int packstore_engine_size(const uint8_t *file, int64_t nbytes, int64_t max_pixels, int64_t *size)
{
    struct headers headers;
    bool known = read_headers(&headers, file, nbytes) == DONE && (int64_t)headers.height * headers.width <= max_pixels;
    size[0] = known ? headers.height : 0;
    size[1] = known ? headers.width : 0;
    return known ? DONE : REFUSED;
}

/* Writes height and width of each JPEG file; zeros for a file that this engine refuses. */
EXPORT void packstore_engine_sizes(const uint8_t *const *files, const int64_t *nbytes, int64_t count, int64_t *sizes)
{
    for (int64_t n = 0; n < count; n++)
        packstore_engine_size(files[n], nbytes[n], INT64_MAX, sizes + 2 * n);
}

/* Runs a program on each of `count` images, (height, width, 3), in place; see run_program(). Stops at the
 * first image that is refused and returns its number; else returns `count`. */
EXPORT int64_t packstore_engine_augment(struct decoder *decoder, uint8_t *images, int64_t count, int64_t height,
                                        int64_t width, const struct step *programs, int64_t steps)
{
    for (int64_t i = 0; i < count; i++) {
        struct image image = {images + 3 * i * height * width, height, width};
        if (run_program(&decoder->worker, &image, programs + i * steps, steps) != DONE)
            return i;
    }
    trim_buffers(&decoder->worker.scratch);
    return count;
}
