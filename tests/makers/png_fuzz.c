/*
 * Drives the engine's reader of PNG rows with mutated streams; to be compiled with -fsanitize=address,undefined.
 *
 *     png_fuzz COUNT SEED FILE ...
 *
 * A file is a zlib stream. Every buffer is a block of its own on the heap, of exactly the size that the engine is told.
 * Prints how many streams were tried, and how many accepted.
 */
#include "../../packstore/images/engine/core/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int packstore_engine_png(const uint8_t *, int64_t, uint8_t *, int64_t, int64_t, int64_t, int);

static uint64_t state;

static uint64_t any(uint64_t below) /* splitmix64 */
{
    uint64_t z = state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return below ? (z ^ z >> 31) % below : 0;
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
        int64_t line = 1 + (int64_t)any(300), rows = 1 + (int64_t)any(40);
        uint8_t *packed = malloc(nbytes ? (size_t)nbytes : 1), *to = malloc((size_t)((rows + 1) * (line + 1)));
        memcpy(packed, file, (size_t)nbytes);
        accepted += packstore_engine_png(packed, nbytes, to, rows, line, 1 + (int64_t)any(2), any(2)) == DONE;
        free(packed);
        free(to);
    }
    printf("%ld %ld\n", tries, accepted);
    return 0;
}
