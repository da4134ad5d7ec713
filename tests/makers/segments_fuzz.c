/*
 * Drives the engine's masks of objects with mutated values; to be compiled with -fsanitize=address,undefined.
 *
 *     segments_fuzz COUNT SEED FILE ...
 *
 * A file is a stored value of segments, of an image of 40 x 56 pixels. Every buffer is a block of its own on the heap,
 * of exactly the size that the engine is told. Prints how many values were tried, and how many accepted.
 */
#include "../../packstore/images/engine/shape/outlines.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int packstore_engine_segments(const uint8_t *, int64_t, const uint8_t *, const struct view *, const double *,
                              const struct shown *, uint8_t *, int64_t);

enum { IMAGE_HEIGHT = 40, IMAGE_WIDTH = 56 };
static uint64_t state;

static uint64_t any(uint64_t below) /* splitmix64 */
{
    uint64_t z = state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return below ? (z ^ z >> 31) % below : 0;
}

static int64_t *places(int64_t count, int64_t below)
{
    int64_t *at = malloc(sizeof *at * (size_t)(count + 1)), first = (int64_t)any((uint64_t)below),
            step = (int64_t)any(3);
    for (int64_t i = 0; i < count; i++) {
        int64_t place = any(8) ? first + step * i : (int64_t)any((uint64_t)below);
        at[i] = place < below ? place : -1;
    }
    return at;
}

int main(int count, char **names)
{
    if (count < 4)
        return 2;
    long accepted = 0, tries = atol(names[1]);
    state = (uint64_t)atol(names[2]);
    for (long i = 0; i < tries; i++) {
        static uint8_t file[1 << 16];
        FILE *in = fopen(names[3 + any((uint64_t)count - 3)], "rb");
        if (!in)
            return 2;
        int64_t nbytes = (int64_t)fread(file, 1, sizeof file, in);
        fclose(in);
        for (uint64_t changes = any(4); changes && nbytes; changes--)
            file[any(2) ? any((uint64_t)nbytes) : any(nbytes < 40 ? (uint64_t)nbytes : 40)] = (uint8_t)any(256);
        if (!any(4))
            nbytes = (int64_t)any((uint64_t)nbytes + 1);
        uint32_t objects = 0;
        if (nbytes >= 8)
            memcpy(&objects, file, 4);
        if ((int64_t)objects > nbytes / 8) /* such a value has no masks: Python counts none */
            objects = 0;
        int64_t height = 1 + (int64_t)any(50), width = 1 + (int64_t)any(50), kept = 0;
        uint8_t *keep = malloc(objects + 1), *value = malloc((size_t)nbytes + 1);
        for (uint32_t n = 0; n < objects; n++)
            kept += keep[n] = any(4) != 0;
        memcpy(value, file, (size_t)nbytes);
        struct view view = {.stride = width, .mirrored = (int64_t)any(2)};
        view.top_of_mask = (int64_t)any((uint64_t)height), view.left_of_mask = (int64_t)any((uint64_t)width);
        view.height = (int64_t)any((uint64_t)(height - view.top_of_mask) + 1);
        view.width = (int64_t)any((uint64_t)(width - view.left_of_mask) + 1);
        view.top = (int64_t)any(100) - 50, view.left = (int64_t)any(100) - 50;
        double move[4] = {any(2) ? 1 : (double)any(1000) / 100, any(2) ? 1 : 0.5, any(2) ? 0 : -7.5, any(2) ? 0 : 3.25};
        if (!any(50))
            move[any(2)] = any(2) ? 1e300 : -1e12;
        int64_t *rows = places(height, IMAGE_HEIGHT), *columns = places(width, IMAGE_WIDTH);
        struct shown shown = {rows, columns, height, width, IMAGE_HEIGHT, IMAGE_WIDTH};
        uint8_t *masks = calloc((size_t)(kept * height * width) + 1, 1);
        bool done = packstore_engine_segments(value, nbytes, keep, &view, move, &shown, masks, height * width) == DONE;
        for (int64_t n = 0; n < kept * height * width; n++)
            if (masks[n] > 1)
                return 3;
        accepted += done;
        free(masks), free(rows), free(columns), free(keep), free(value);
    }
    printf("%ld %ld\n", tries, accepted);
    return 0;
}
