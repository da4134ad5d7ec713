/*
 * Drives the engine with mutated files, indexes, boxes and windows; to be compiled with -fsanitize=address,undefined.
 *
 *     engine_fuzz COUNT SEED FILE ...
 *
 * Every buffer is a block of its own on the heap, of exactly the size that the engine is told, so that a byte too far
 * is seen. The decoders with and without vector instructions have to answer alike, down to the last byte, and so has
 * each request alone as among others. Prints how many inputs were tried, and how many accepted; ends with 1 where
 * answers differ.
 */
#include "../../packstore/images/engine/jpeg/jpeg.h"
#include "../../packstore/images/engine/ops/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct decoder *packstore_engine_new(int plain);
void packstore_engine_free(struct decoder *);
int packstore_engine_is_plain(const uint8_t *, int64_t, int64_t);
void packstore_engine_sizes(const uint8_t *const *, const int64_t *, int64_t, int64_t *);
int64_t packstore_engine_run(struct decoder *, const struct request *, int64_t, const struct form *, int64_t, int64_t,
                             uint8_t *);
void packstore_engine_checkpoints(struct decoder *, const uint8_t *const *, const int64_t *, int64_t, int,
                                  uint8_t *const *, const int64_t *, int64_t *);

enum { TOGETHER = 5 }; /* requests of a call, at most */

static uint64_t state;

static uint64_t any(uint64_t below) /* splitmix64 */
{
    uint64_t z = state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return below ? (z ^ z >> 31) % below : 0;
}

struct file {
    uint8_t *at;
    int64_t nbytes;
};

static struct file load(const char *path)
{
    FILE *in = fopen(path, "rb");
    struct file file = {malloc(1 << 24), 0};
    if (!in)
        exit(2);
    file.nbytes = (int64_t)fread(file.at, 1, 1 << 24, in);
    fclose(in);
    return file;
}

static uint32_t crc_of(uint32_t crc, const uint8_t *at, int64_t count)
{
    for (crc = ~crc; count > 0; count--, at++) {
        crc ^= *at;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    return ~crc;
}

/* Gives an index the checksum that fits it and the file of these headers: the page *formats* of the guide. */
static void repair(struct file *index, const struct headers *headers, int64_t nbytes)
{
    const int64_t facts[] = {nbytes,
                             headers->scan_at,
                             headers->height,
                             headers->width,
                             headers->interval,
                             headers->components,
                             headers->mcu_height,
                             headers->mcu_width};
    uint32_t crc = crc_of(0, (const uint8_t *)facts, sizeof facts);
    for (int i = 0; i < headers->components; i++) {
        const struct huffman_spec *specs[] = {&headers->dc[headers->component[i].dc],
                                              &headers->ac[headers->component[i].ac]};
        for (int kind = 0; kind < 2; kind++) {
            crc = crc_of(crc, specs[kind]->counts, 16);
            crc = crc_of(crc, specs[kind]->values, specs[kind]->total);
        }
    }
    crc = crc_of(crc, index->at, 16);
    crc = crc_of(crc, index->at + 20, index->nbytes - 20);
    memcpy(index->at + 16, &crc, sizeof crc);
}

/* A copy with some bytes changed, most of them in the headers, or cut off, or with a piece moved. */
static struct file mutated(const struct file *from)
{
    static const uint8_t telling[] = {0, 1, 2, 7, 8, 16, 63, 64, 127, 128, 0xC4, 0xD0, 0xD7, 0xD9, 0xDA, 0xFE, 0xFF};
    struct file file = {malloc((size_t)from->nbytes), from->nbytes};
    memcpy(file.at, from->at, (size_t)from->nbytes);
    int64_t head = file.nbytes < 700 ? file.nbytes : 700;
    for (uint64_t changes = any(5); changes; changes--) {
        int64_t at = (int64_t)any((uint64_t)(any(3) ? head : file.nbytes));
        switch (any(4)) {
        case 0: file.at[at] ^= (uint8_t)(1 << any(8)); break;
        case 1: file.at[at] = telling[any(sizeof telling)]; break;
        case 2: file.at[at] = (uint8_t)any(256); break;
        default: {
            int64_t other = (int64_t)any((uint64_t)file.nbytes), count = (int64_t)any(16);
            if (at + count <= file.nbytes && other + count <= file.nbytes)
                memmove(file.at + at, file.at + other, (size_t)count);
        }
        }
    }
    if (!any(20))
        file.nbytes = (int64_t)any((uint64_t)file.nbytes + 1);
    struct file exact = {malloc((size_t)file.nbytes + !file.nbytes), file.nbytes};
    memcpy(exact.at, file.at, (size_t)file.nbytes);
    free(file.at);
    return exact;
}

static int64_t side(int64_t most)
{
    switch (any(8)) {
    case 0: return (int64_t)any(5) - 2;
    case 1: return most;
    case 2: return (int64_t)any(1 << 20) - (1 << 19);
    default: return 1 + (int64_t)any(most > 0 ? (uint64_t)most : 1);
    }
}

/* Bytes that are enough for an answer. */
static size_t room(const struct request *request, int64_t channels)
{
    return (size_t)(channels * request->window.height * request->window.width * 4);
}

static const struct step steps[] = {{.code = STEP_EQUALIZE},
                                    {.code = STEP_BLUR, .p = {5, 3, 1, 2}},
                                    {.code = STEP_HUE, .p = {0.2f}},
                                    {.code = STEP_AFFINE, .flags = BILINEAR, .p = {0.9f, 0.1f, 2, -0.1f, 1.1f, -3}},
                                    {.code = STEP_POSTERIZE, .p = {9}}}; /* this one is refused */

/* A request for anything of a file; or of pixels, or planes, in memory of their own at `*raw`. */
static struct request wanted(const struct file *file, int64_t kind, int64_t channels, uint8_t **raw)
{
    struct request request = {.source = file->at, .nbytes = file->nbytes, .mirrored = (int64_t)any(2)};
    int64_t sizes[2];
    packstore_engine_is_plain(file->at, file->nbytes, INT64_MAX);
    packstore_engine_sizes((const uint8_t *const *)&file->at, &file->nbytes, 1, sizes);
    if (sizes[0] * sizes[1] > 1 << 20)
        sizes[0] = sizes[1] = 64;
    if (kind != UINT8 || !any(8)) {
        request.height = 1 + (int64_t)any(40), request.width = 1 + (int64_t)any(40);
        request.nbytes = channels * request.height * request.width * size_of(kind);
        request.source = *raw = malloc((size_t)request.nbytes);
        for (int64_t i = 0; i < request.nbytes; i++) /* of floating point, numbers: of others any bits may come */
            (*raw)[i] = (uint8_t)any(kind == UINT8 ? 256 : 0x70);
        sizes[0] = request.height, sizes[1] = request.width;
        if (!any(9))
            request.nbytes += (int64_t)any(9) - 4;
    }
    request.box = any(3) ? (struct box){0, 0, sizes[0], sizes[1]}
                         : (struct box){side(sizes[0]), side(sizes[1]), side(sizes[0]), side(sizes[1])};
    if (any(2)) {
        request.box.top = (int64_t)any((uint64_t)(sizes[0] > 0 ? sizes[0] : 1));
        request.box.left = (int64_t)any((uint64_t)(sizes[1] > 0 ? sizes[1] : 1));
        request.box.height = 1 + (int64_t)any((uint64_t)(sizes[0] > request.box.top ? sizes[0] - request.box.top : 1));
        request.box.width = 1 + (int64_t)any((uint64_t)(sizes[1] > request.box.left ? sizes[1] - request.box.left : 1));
    }
    bool same = any(2);
    request.size_height = same ? request.box.height : side(50);
    request.size_width = same ? request.box.width : side(50);
    request.window = (struct box){0, 0, 1 + (int64_t)any(40), 1 + (int64_t)any(40)};
    if (any(2))
        request.window.top = side(50) - 25, request.window.left = side(50) - 25;
    request.sampling = any(2) ? 0 : any(3) ? (int64_t)any(25) : (int64_t)any(40) - 4;
    if (!any(3) && ((kind == UINT8 && channels == 3) || !any(20))) {
        request.steps = (int64_t)any(4);
        request.program = steps + any(sizeof steps / sizeof *steps - (uint64_t)request.steps);
    }
    return request;
}

/* Checkpoints of the file as both decoders make them, some with changes, and of these some with the right checksum; of
 * a size of their own. Ends the program where the decoders differ. */
static struct file checkpoints(struct decoder *const *decoders, const struct file *of, const struct file *file)
{
    uint8_t *made[2];
    int64_t sizes[2], rooms = (int64_t)any(3000);
    int gray = (int)any(2);
    for (int i = 0; i < 2; i++) {
        made[i] = malloc((size_t)rooms + !rooms);
        packstore_engine_checkpoints(decoders[i], (const uint8_t *const *)&of->at, &of->nbytes, 1, gray, &made[i],
                                     &rooms, &sizes[i]);
    }
    if (sizes[0] != sizes[1] || memcmp(made[0], made[1], (size_t)sizes[0])) {
        printf("checkpoints with and without vector instructions differ\n");
        exit(1);
    }
    struct file index = {malloc((size_t)sizes[0] + !sizes[0]), sizes[0]};
    memcpy(index.at, made[0], (size_t)sizes[0]);
    free(made[0]), free(made[1]);
    bool changed = index.nbytes && any(2);
    for (uint64_t changes = changed ? 1 + any(4) : 0; changes; changes--)
        index.at[any((uint64_t)index.nbytes)] ^= (uint8_t)(1 << any(8));
    if (changed && !any(9))
        index.nbytes = (int64_t)any((uint64_t)index.nbytes);
    struct headers *headers = &decoders[0]->input.headers;
    if (index.nbytes > 20 && any(4) && read_headers(headers, file->at, file->nbytes) == DONE)
        repair(&index, headers, file->nbytes);
    struct file exact = {malloc((size_t)index.nbytes + !index.nbytes), index.nbytes};
    memcpy(exact.at, index.at, (size_t)index.nbytes);
    free(index.at);
    return exact;
}

static bool shares(const struct request *requests, int n, int i)
{
    return (i > 0 && requests[i - 1].source == requests[i].source) ||
           (i + 1 < n && requests[i + 1].source == requests[i].source);
}

int main(int count, char **arguments)
{
    int64_t tried = 0, accepted = 0, total = atoll(arguments[1]);
    state = strtoull(arguments[2], NULL, 10);
    struct decoder *decoders[2] = {packstore_engine_new(0), packstore_engine_new(1)};
    struct file *seeds = malloc(sizeof *seeds * (size_t)count);
    for (int i = 3; i < count; i++)
        seeds[i - 3] = load(arguments[i]);
    while (tried < total) {
        const struct file *seed = &seeds[any((uint64_t)count - 3)];
        struct file file = mutated(seed);
        struct file files[2] = {file, mutated(&seeds[any((uint64_t)count - 3)])};
        struct request requests[TOGETHER];
        int64_t channels = any(3) ? 3 : 1;
        struct form form = {UINT8, UINT8, 0, CONSTANT, {1, 2, 3, 4, 5, 6}, {0}, NULL};
        if (any(2)) {
            form.to = (int64_t)any(4), form.planes = (int64_t)any(2), form.padding = (int64_t)any(4);
            form.fill[any(3)] = any(3) ? 0 : (float)any(256);
        }
        if (!any(6)) { /* planes, or pixels only */
            form.from = (int64_t)any(4);
            form.to = form.from == UINT8 ? form.to : (int64_t)any(3);
        }
        uint8_t *raw[TOGETHER] = {NULL}, *out[2][TOGETHER], refused[2][TOGETHER];
        int n = 1 + (int)any(TOGETHER);
        struct file indexes[2];
        for (int i = 0; i < 2; i++)
            indexes[i] = checkpoints(decoders, any(2) ? seed : &files[i], &files[i]);
        for (int i = 0; i < n; i++) {
            int which = (int)any(2);
            requests[i] = wanted(&files[which], form.from, channels, &raw[i]);
            if (indexes[which].nbytes && any(3)) {
                requests[i].checkpoints = indexes[which].at;
                requests[i].checkpoint_bytes = indexes[which].nbytes;
            }
        }
        if (!any(30))
            form.from = (int64_t)any(7) - 1, form.padding = (int64_t)any(7) - 1, form.fill[any(3)] = 1e9f;
        for (int d = 0; d < 2; d++) {
            for (int i = 0; i < n; i++)
                requests[i].to = out[d][i] = calloc(1, room(&requests[i], channels));
            packstore_engine_run(decoders[d], requests, n, &form, channels, 1 << 20, refused[d]);
        }
        for (int i = 0; i < n; i++, tried++) {
            accepted += !refused[0][i];
            if (refused[0][i] != refused[1][i] ||
                (!refused[0][i] && memcmp(out[0][i], out[1][i], room(&requests[i], channels)))) {
                printf("input %lld: with and without vector instructions it differs\n", (long long)tried);
                return 1;
            }
            requests[i].to = out[1][i];
            packstore_engine_run(decoders[0], &requests[i], 1, &form, channels, 1 << 20, refused[1]);
            /* From the pixels of a file that others share, padding of any kind is made, and no index misleads. */
            bool pads = form.padding != CONSTANT || form.fill[0] || form.fill[1] || form.fill[2];
            bool free_of_index = !requests[i].checkpoints || !shares(requests, n, i);
            if (free_of_index &&
                ((refused[0][i] != refused[1][0] && !(pads && refused[1][0])) ||
                 (!refused[0][i] && !refused[1][0] && memcmp(out[0][i], out[1][i], room(&requests[i], channels))))) {
                printf("input %lld: alone it differs\n", (long long)tried);
                return 1;
            }
            free(out[0][i]), free(out[1][i]), free(raw[i]);
        }
        free(indexes[0].at), free(indexes[1].at);
        free(files[1].at);
        free(file.at);
    }
    for (int i = 0; i < 2; i++)
        packstore_engine_free(decoders[i]);
    for (int i = 3; i < count; i++)
        free(seeds[i - 3].at);
    free(seeds);
    printf("%lld %lld\n", (long long)tried, (long long)accepted);
    return 0;
}
