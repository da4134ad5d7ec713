/* What Python and lmdb.c share: packstore/stores/lmdb/pages.py has the same structures and codes. */
#pragma once

#include "../core/base.h"

enum { LMDB_MOST_DEPTH = 32, LMDB_MOST_PREFIX = 72, LMDB_ROWS_OF_ENTRY = 4 };

enum lmdb_code {
    LMDB_DONE,
    LMDB_MISSING,
    /* Results of all, and what rows of a walk hold */
    LMDB_PAGE,    /* a damaged page: number and level in the tree */
    LMDB_VALUE,   /* a damaged value: page and node */
    LMDB_TWICE,   /* a page that the tree names twice: number and level */
    LMDB_ORDER,   /* an entry that is not after the entry before: both nodes, or 0 for none */
    LMDB_OUTSIDE, /* an entry that lookups miss by the key in a branch page: its node, or 0, and the branch's */
    LMDB_ENTRY,   /* an entry that belongs to no column: its node, start and size of its value */
    LMDB_GAP,     /* missing records: column, first and end */
    LMDB_SIZE     /* a value of another size than the column's: column, record and size */
};

/* The tree of an LMDB. The caller has checked that the pages up to `last_page` are mapped, that a page has 512 to
 * 65,536 bytes, a power of two, and that the depth is 1 to LMDB_MOST_DEPTH. */
struct lmdb_tree {
    const uint8_t *map;
    int64_t page_size, depth;
    uint64_t last_page, root;
};

/* Values whose keys are a prefix and a record number in ten digits. */
struct lmdb_lookup {
    struct lmdb_tree tree;
    int64_t prefix_size;
    uint8_t prefix[LMDB_MOST_PREFIX];
};

struct lmdb_value {
    int64_t start, size;
    uint64_t page;
    int64_t where; /* level of a damaged page, node of a damaged value */
    int64_t code;
};

/* A column with an entry for each record. */
struct lmdb_column {
    const uint8_t *prefix;
    int64_t prefix_size;
    int64_t width;        /* bytes of each value; -1 for values of any size */
    int64_t next, nbytes; /* the record expected next; bytes of the values so far */
};

struct lmdb_step {
    uint64_t page;
    int64_t next, nodes;
};

struct lmdb_walk {
    struct lmdb_tree tree;
    uint8_t *seen; /* a bit for each page, at first 0 */
    struct lmdb_column *columns;
    int64_t column_count, records;
    int64_t overflow; /* check the header of overflow pages */
    /* The state, at first 0 */
    int64_t ended, level, entries, column;
    int64_t last, lowest; /* nodes: of the entry before; of the branch whose key the next entry must reach */
    struct lmdb_step path[LMDB_MOST_DEPTH];
};

struct lmdb_row {
    uint64_t code, a, b, c;
};
