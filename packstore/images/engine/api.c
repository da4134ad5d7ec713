/* Functions that Python calls, each for many images, without the GIL. packstore/core/compiled.py declares the same
 * functions, and requests.py the structures. Functions that can fail return an outcome of core/base.h. */
#include "answer.h"
#include "io/io.h"
#include "io/lmdb.h"
#include "ops/program.h"

#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

/* Increase this number whenever a structure or function that Python uses changes. */
#define INTERFACE 21

/* Exports a function whose body is one expression. */
#define FORWARD(result, name, parameters, expression)                                                                  \
    EXPORT result packstore_engine_##name parameters                                                                   \
    {                                                                                                                  \
        return expression;                                                                                             \
    }

/* Size of each structure that Python fills, and offset of its last field: STRUCTURES of compiled.py. */
#define LAYOUT(name, last) sizeof(struct name), offsetof(struct name, last)
EXPORT const int64_t packstore_engine_layout[] = {
    LAYOUT(form, table),         LAYOUT(request, sampling),   LAYOUT(step, p),
    LAYOUT(lmdb_tree, root),     LAYOUT(lmdb_lookup, prefix), LAYOUT(lmdb_value, code),
    LAYOUT(lmdb_column, nbytes), LAYOUT(lmdb_step, nodes),    LAYOUT(lmdb_walk, path),
    LAYOUT(lmdb_row, c)};

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

/* Writes height and width of each JPEG file; zeros for a file that this engine refuses. */
EXPORT void packstore_engine_sizes(const uint8_t *const *files, const int64_t *nbytes, int64_t count, int64_t *sizes)
{
    for (int64_t n = 0; n < count; n++) {
        struct headers headers;
        bool known = read_headers(&headers, files[n], nbytes[n]) == DONE;
        sizes[2 * n] = known ? headers.height : 0;
        sizes[2 * n + 1] = known ? headers.width : 0;
    }
}

/* Answers requests; sets `refused` for each that the caller has to answer otherwise, such as images of more than
 * `max_pixels`. Pixels have three channels, or one: the luma of JPEG files. Returns the number of images whose
 * checkpoints belong to another file; these are decoded without. */
EXPORT int64_t packstore_engine_run(struct decoder *decoder, const struct request *requests, int64_t count,
                                    const struct form *form, int64_t channels, int64_t max_pixels, uint8_t *refused)
{
    decoder->input.unindexed = decoder->second->input.unindexed = 0;
    answer_all(decoder, requests, count, form, channels, max_pixels, refused);
    return decoder->input.unindexed + decoder->second->input.unindexed;
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

/* Decodes all pixels of a file that packstore_engine_size() accepts: (height, width, 3). */
EXPORT int packstore_engine_whole(struct decoder *decoder, const uint8_t *file, int64_t nbytes, int64_t height,
                                  int64_t width, int64_t max_pixels, uint8_t *to)
{
    const struct form form = {.from = UINT8, .to = UINT8};
    struct box whole = {0, 0, height, width};
    struct request request = {.source = file,
                              .nbytes = nbytes,
                              .box = whole,
                              .size_height = height,
                              .size_width = width,
                              .window = whole,
                              .to = to};
    uint8_t refused;
    answer_all(decoder, &request, 1, &form, 3, max_pixels, &refused);
    return refused ? REFUSED : DONE;
}

/* jpeg/ */
FORWARD(int, is_plain, (const uint8_t *file, int64_t nbytes, int64_t max_pixels),
        is_plain_jpeg(file, nbytes, max_pixels))
FORWARD(void, checkpoints,
        (struct decoder * decoder, const uint8_t *const *files, const int64_t *nbytes, int64_t count, int gray,
         uint8_t *const *to, const int64_t *capacities, int64_t *sizes),
        make_checkpoints(decoder, files, nbytes, count, gray, to, capacities, sizes))

/* io/ */
FORWARD(int, png,
        (const uint8_t *packed, int64_t packed_bytes, uint8_t *to, int64_t rows, int64_t nbytes, int64_t step,
         int is_all),
        png_rows(packed, packed_bytes, to, rows, nbytes, step, is_all != 0))
#if !defined(_WIN32)
FORWARD(void, read_files,
        (int directory, const char *names, int64_t count, const int64_t *sizes, const int64_t *modified, uint8_t *to,
         uint8_t *refused),
        read_files(directory, names, count, sizes, modified, to, refused))
FORWARD(int64_t, scan_tar, (int file, int64_t at, int64_t end, int64_t most, int64_t (*facts)[3], char *names),
        scan_tar(file, at, end, most, facts, names))
FORWARD(void, stat_files, (int directory, const char *names, int64_t count, int64_t *facts),
        stat_files(directory, names, count, facts))
FORWARD(int, list_names, (int directory, int64_t capacity, char *files, char *folders, int64_t *sizes),
        list_names(directory, capacity, files, folders, sizes))
#endif
FORWARD(void, find_lmdb_value,
        (const struct lmdb_tree *tree, const uint8_t *key, int64_t key_size, struct lmdb_value *value),
        find_lmdb_value(tree, key, key_size, value))
FORWARD(int64_t, locate_lmdb_records,
        (const struct lmdb_lookup *lookup, const int64_t *records, int64_t count, int64_t *starts, int64_t *sizes,
         struct lmdb_value *value),
        locate_lmdb_records(lookup, records, count, starts, sizes, value))
FORWARD(int64_t, locate_lmdb_record, (const struct lmdb_lookup *lookup, int64_t record, struct lmdb_value *value),
        locate_lmdb_records(lookup, &record, 1, &value->start, &value->size, value))
FORWARD(int64_t, walk_lmdb, (struct lmdb_walk * walk, struct lmdb_row *rows, int64_t room, int64_t most),
        walk_lmdb(walk, rows, room, most))

/* Replaces each of `count` values by its place in a permutation of 0 to length - 1. See permute.c. */
FORWARD(void, permute,
        (int64_t *values, int64_t count, uint32_t length, int shift, uint32_t radix, const uint32_t *keys),
        choose_kernels(false)->permute(values, count, length, shift, radix, keys))
