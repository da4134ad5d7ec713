/*
 * The crop of a crop-seekable JPEG in one call, without the GIL: splice, decode, cut to the box, mirror.
 *
 * native.py loads this by ctypes and does without where it was not compiled. What it does is what splice.py does; that
 * plans the crops. Nothing of Python is used here, so Python's headers are not needed.
 *
 * No number that comes in is believed: files, and so the indexes that plans are made of, may come from anybody.
 */

#include <stdint.h>
#include <string.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

/* One function for each generation of processors, chosen when it is loaded: reversing bytes takes SSSE3 to be quick. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__)
#define CLONES __attribute__((target_clones("avx2", "ssse3", "default")))
#else
#define CLONES
#endif

/* To be counted up whenever what follows changes; native.py has the same number. */
#define INTERFACE 2

enum { DONE = 0, REFUSED = 1, NO_ROOM = 2 };
enum { MIRRORED = 1, WHOLE = 2 };
enum { TJPF_RGB = 0, TJPF_BGR = 1 }; /* from turbojpeg.h, as the functions below */

typedef void *(*init_function)(void);
typedef int (*destroy_function)(void *);
typedef int (*header_function)(void *, const unsigned char *, unsigned long, int *, int *, int *, int *);
typedef int (*decompress_function)(void *, const unsigned char *, unsigned long, unsigned char *, int, int, int, int, int);

/* What is wanted of each file. Arrays that end in `_at` say where a file's own entries begin, and where the next's do. */
struct head {
    int64_t prefix_bytes, tables_at, frame_at, scan_at; /* as in its index */
    int64_t part_height, part_width;                    /* of what is decoded */
    int64_t top, left, height, width;                   /* of the box in it */
    int64_t flags;                                      /* MIRRORED; WHOLE: the file is decoded as it is */
};

struct crops {
    int64_t count;
    const uint8_t *const *files;
    const int64_t *nbytes;
    const struct head *heads;
    const int64_t *runs_at, *starts, *stops;
    const int64_t *ends_at, *ends;
    const int64_t *checked_at, *checked;
    const uint8_t *markers; /* two each */
};

/* What a thread needs. */
struct worker {
    init_function init;
    destroy_function destroy;
    header_function header;
    decompress_function decompress;
    uint8_t *jpeg; /* for the spliced file */
    int64_t jpeg_bytes;
    uint8_t *pixels; /* for what is decoded; the box at the end */
    int64_t pixels_bytes;
};

EXPORT int packstore_interface(void)
{
    return INTERFACE;
}

CLONES static void copy_reversed(uint8_t *restrict to, const uint8_t *restrict from, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = from[count - 1 - i];
}

static uint8_t *append(uint8_t *to, const uint8_t *from, int64_t count)
{
    memcpy(to, from, (size_t)count);
    return to + count;
}

/* Bytes of the spliced file; 0 where the plan does not fit the file. */
static int64_t spliced_bytes(const struct crops *crops, int64_t n)
{
    const struct head *head = &crops->heads[n];
    int64_t nbytes = crops->nbytes[n];
    if (head->prefix_bytes < 2 || head->prefix_bytes > nbytes || head->tables_at < 0 || head->tables_at > nbytes ||
        head->frame_at < 0 || head->frame_at > nbytes || head->scan_at > nbytes ||
        head->scan_at < head->tables_at + head->frame_at + 9)
        return 0;
    int64_t total = head->prefix_bytes + head->scan_at - head->tables_at;
    for (int64_t k = crops->runs_at[n]; k < crops->runs_at[n + 1]; k++) {
        if (crops->starts[k] < 0 || crops->starts[k] > crops->stops[k] || crops->stops[k] > nbytes)
            return 0;
        total += crops->stops[k] - crops->starts[k];
    }
    return total;
}

/* As splice() in splice.py; `jpeg` has room. */
static int splice(const struct crops *crops, int64_t n, uint8_t *jpeg, int64_t total)
{
    const struct head *head = &crops->heads[n];
    const uint8_t *file = crops->files[n];
    for (int64_t k = crops->checked_at[n]; k < crops->checked_at[n + 1]; k++) {
        int64_t at = crops->checked[k];
        if (at < 0 || at > crops->nbytes[n] - 2 || memcmp(file + at, crops->markers + 2 * k, 2))
            return REFUSED;
    }
    uint8_t *to = append(jpeg, file, head->prefix_bytes);
    to = append(to, file + head->tables_at, head->frame_at + 5);
    *to++ = (uint8_t)(head->part_height >> 8);
    *to++ = (uint8_t)head->part_height;
    *to++ = (uint8_t)(head->part_width >> 8);
    *to++ = (uint8_t)head->part_width;
    int64_t rest = head->tables_at + head->frame_at + 9;
    to = append(to, file + rest, head->scan_at - rest);
    for (int64_t k = crops->runs_at[n]; k < crops->runs_at[n + 1]; k++)
        to = append(to, file + crops->starts[k], crops->stops[k] - crops->starts[k]);
    int64_t number = 0;
    for (int64_t k = crops->ends_at[n]; k < crops->ends_at[n + 1]; k++, number++) {
        int64_t at = crops->ends[k];
        if (at < 0 || at > total - 2)
            return REFUSED;
        jpeg[at] = 0xFF;
        jpeg[at + 1] = (uint8_t)(0xD0 | (number & 7));
    }
    jpeg[total - 1] = 0xD9;
    return DONE;
}

/* Decodes a file that has to have this size, into the worker's pixels, all of it. */
static int decode(const struct worker *worker, const uint8_t *jpeg, int64_t nbytes, int width, int height, int format)
{
    /* A handle for each: what went wrong with one file, or the tables that it had, would be there for the next. */
    void *handle = worker->init();
    if (!handle)
        return REFUSED;
    int found_width = 0, found_height = 0, subsampling, colours;
    int failed = worker->header(handle, jpeg, (unsigned long)nbytes, &found_width, &found_height, &subsampling, &colours);
    failed = failed || found_width != width || found_height != height;
    /* It also fails where libjpeg only warns. */
    failed = failed ||
             worker->decompress(handle, jpeg, (unsigned long)nbytes, worker->pixels, width, 0, height, format, 0);
    worker->destroy(handle);
    return failed ? REFUSED : DONE;
}

/*
 * Decodes what crop `n` needs. On DONE the pixels of the box, (height, width, 3), RGB, are at the beginning of the
 * worker's. REFUSED is everything that is not flawless: somebody else finds out what it is. NO_ROOM: one of the
 * worker's two buffers is too small.
 */
EXPORT int packstore_crop(const struct crops *crops, int64_t n, const struct worker *worker)
{
    if (n < 0 || n >= crops->count)
        return REFUSED;
    const struct head *head = &crops->heads[n];
    int64_t height = head->part_height, width = head->part_width;
    if (height < 1 || height > 65535 || width < 1 || width > 65535 || head->top < 0 || head->left < 0 ||
        head->height < 1 || head->width < 1 || head->height > height - head->top || head->width > width - head->left)
        return REFUSED;
    if (3 * height * width > worker->pixels_bytes || 3 * head->width > worker->jpeg_bytes)
        return NO_ROOM;

    const uint8_t *jpeg = crops->files[n];
    int64_t total = crops->nbytes[n];
    if (!(head->flags & WHOLE)) {
        total = spliced_bytes(crops, n);
        if (total < 4)
            return REFUSED;
        if (total > worker->jpeg_bytes)
            return NO_ROOM;
        if (splice(crops, n, worker->jpeg, total) != DONE)
            return REFUSED;
        jpeg = worker->jpeg;
    }

    /* Read backwards, a row of BGR is one of RGB that is mirrored. */
    int format = head->flags & MIRRORED ? TJPF_BGR : TJPF_RGB;
    if (decode(worker, jpeg, total, (int)width, (int)height, format) != DONE)
        return REFUSED;

    /* The box moves to the beginning, row by row: each comes to lie where it was or before that. */
    int64_t row_bytes = 3 * head->width;
    const uint8_t *from = worker->pixels + 3 * (head->top * width + head->left);
    uint8_t *to = worker->pixels;
    for (int64_t row = 0; row < head->height; row++, from += 3 * width, to += row_bytes) {
        if (head->flags & MIRRORED) {
            copy_reversed(worker->jpeg, from, row_bytes); /* which is not needed any more */
            memcpy(to, worker->jpeg, (size_t)row_bytes);
        } else {
            memmove(to, from, (size_t)row_bytes);
        }
    }
    return DONE;
}
