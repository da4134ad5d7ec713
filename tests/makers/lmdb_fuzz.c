/*
 * Drives the engine's walk of LMDB pages with mutated files; to be compiled with -fsanitize=address,undefined.
 *
 *     lmdb_fuzz COUNT SEED FILE ...
 *
 * A file is a `data.mdb` with a tree that Python would accept. Each mutated copy is a block of its own on the heap, of
 * exactly its size, so that a byte too far is seen. Records that are located one by one and together have to agree, and
 * every value has to lie within the file. Prints how many files were tried, and in how many the walk found no fault.
 */
#include "../../packstore/images/engine/io/lmdb.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { META_DB = 40, MAIN_DB = 88, META_END = 136, ROWS = 64, ASKED = 40, RECORDS = 400 };

void packstore_engine_find_lmdb_value(const struct lmdb_tree *, const uint8_t *, int64_t, struct lmdb_value *);
int64_t packstore_engine_locate_lmdb_records(const struct lmdb_lookup *, const int64_t *, int64_t, int64_t *, int64_t *,
                                             struct lmdb_value *);
int64_t packstore_engine_walk_lmdb(struct lmdb_walk *, struct lmdb_row *, int64_t, int64_t);

static uint64_t state;

static uint64_t any(uint64_t below) /* splitmix64 */
{
    uint64_t z = state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return below ? (z ^ z >> 31) % below : 0;
}

static uint64_t number_at(const uint8_t *at, size_t size)
{
    uint64_t value = 0;
    memcpy(&value, at, size);
    return value;
}

/* Changes some bytes: most of them in the headers of pages, in pointers and in nodes. */
static void mutate(uint8_t *file, size_t nbytes, size_t page_size)
{
    static const uint8_t telling[] = {0, 1, 2, 4, 7, 8, 16, 63, 64, 127, 128, 254, 255};
    for (uint64_t changes = any(6); changes; changes--) {
        size_t page = any(nbytes / page_size) * page_size, at = any(nbytes);
        switch (any(4)) {
        case 0: at = page + any(24); break;
        case 1: at = page + 16 + any(page_size - 16) % 500; break;
        case 2: at = page + number_at(file + page + 16 + 2 * any(100), 2) + any(24); break;
        }
        if (at >= nbytes)
            continue;
        if (any(3))
            file[at] = any(2) ? telling[any(sizeof telling)] : file[at] ^ (uint8_t)(1 << any(8));
        else { /* a page number, header or node of elsewhere */
            size_t from = any(2) ? any(nbytes) : any(nbytes / page_size) * page_size, count = any(17);
            if (from + count <= nbytes && at + count <= nbytes)
                memmove(file + at, file + from, count);
        }
    }
}

/* The tree of the newer header page, with the checks of Python's read_newest_tree(). */
static bool read_tree(const uint8_t *file, size_t nbytes, struct lmdb_tree *tree)
{
    size_t page_size = number_at(file + META_DB, 4);
    if (page_size < 512 || page_size > 65536 || page_size & (page_size - 1) || 2 * page_size > nbytes)
        return false;
    const uint8_t *newest =
        number_at(file + page_size + META_END + 8, 8) > number_at(file + META_END + 8, 8) ? file + page_size : file;
    *tree = (struct lmdb_tree){.map = file,
                               .page_size = (int64_t)page_size,
                               .depth = (int64_t)number_at(newest + MAIN_DB + 6, 2),
                               .last_page = number_at(newest + META_END, 8),
                               .root = number_at(newest + MAIN_DB + 40, 8)};
    return tree->last_page < nbytes / page_size && tree->depth >= 1 && tree->depth <= LMDB_MOST_DEPTH;
}

static void require(bool condition, const char *what)
{
    if (condition)
        return;
    printf("%s\n", what);
    exit(1);
}

/* Touches all of a value. */
static void touch(const struct lmdb_tree *tree, int64_t start, int64_t size)
{
    uint8_t *copy = malloc(size ? (size_t)size : 1);
    memcpy(copy, tree->map + start, (size_t)size);
    free(copy);
}

static void look_up(const struct lmdb_tree *tree, const char *prefix, bool sound)
{
    struct lmdb_lookup lookup = {.tree = *tree, .prefix_size = (int64_t)strlen(prefix)};
    memcpy(lookup.prefix, prefix, strlen(prefix));
    int64_t records[ASKED], starts[ASKED], sizes[ASKED], start, size;
    struct lmdb_value value;
    for (int64_t i = 0; i < ASKED; i++)
        records[i] = any(9)        ? (int64_t)any(RECORDS)
                     : any(2)      ? (int64_t)any(UINT64_MAX)
                     : i && any(2) ? records[i - 1] + 1
                                   : 0;
    int64_t located = packstore_engine_locate_lmdb_records(&lookup, records, ASKED, starts, sizes, &value);
    for (int64_t i = 0; i < ASKED; i++) {
        bool found = packstore_engine_locate_lmdb_records(&lookup, records + i, 1, &start, &size, &value) == 1;
        if (i <= located)
            require(found == (i < located), "a record alone is not what it is among others");
        if (found) {
            touch(tree, start, size);
            /* A node that holds keys out of order may have one key twice. */
            require(i >= located || !sound || (starts[i] == start && sizes[i] == size), "a record is at two places");
        }
    }
}

static bool walk(const struct lmdb_tree *tree)
{
    struct lmdb_row rows[ROWS];
    struct lmdb_column columns[] = {{.prefix = (const uint8_t *)"", .width = any(2) ? -1 : 40},
                                    {.prefix = (const uint8_t *)"mask/", .prefix_size = 5, .width = -1}};
    struct lmdb_walk walk = {.tree = *tree,
                             .seen = calloc(tree->last_page / 8 + 1, 1),
                             .columns = columns,
                             .column_count = (int64_t)any(3),
                             .records = RECORDS,
                             .overflow = (int64_t)any(2)};
    bool sound = true;
    while (!walk.ended) {
        int64_t room = LMDB_ROWS_OF_ENTRY + (int64_t)any(ROWS - LMDB_ROWS_OF_ENTRY + 1);
        int64_t count = packstore_engine_walk_lmdb(&walk, rows, room, 1 + (int64_t)any(1000));
        require(count <= room, "more rows than there is room for");
        for (int64_t i = 0; i < count; i++) {
            sound &= rows[i].code >= LMDB_ENTRY;
            if (rows[i].code == LMDB_ENTRY)
                touch(tree, (int64_t)rows[i].b, (int64_t)rows[i].c);
        }
    }
    free(walk.seen);
    return sound;
}

int main(int count, char **names)
{
    static uint8_t file[1 << 20];
    if (count < 4)
        return 2;
    long tried = 0, sound = 0, tries = atol(names[1]);
    state = (uint64_t)atol(names[2]);
    while (tried < tries) {
        FILE *in = fopen(names[3 + any((uint64_t)count - 3)], "rb");
        if (!in)
            return 2;
        size_t nbytes = fread(file, 1, sizeof file, in);
        fclose(in);
        uint8_t *copy = malloc(nbytes);
        memcpy(copy, file, nbytes);
        mutate(copy, nbytes, 4096);
        struct lmdb_tree tree;
        if (read_tree(copy, nbytes, &tree)) {
            struct lmdb_value value;
            bool whole = walk(&tree);
            sound += whole;
            look_up(&tree, any(2) ? "" : "mask/", whole);
            packstore_engine_find_lmdb_value(&tree, (const uint8_t *)"manifest", 8, &value);
            if (!value.code)
                touch(&tree, value.start, value.size);
            tried++;
        }
        free(copy);
    }
    printf("%ld %ld\n", tried, sound);
    return 0;
}
