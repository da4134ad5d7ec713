/* Walks the pages of an LMDB in a mapped file: `lmdb.h` version 1 (`mdb.c`: MDB_page, MDB_node). LMDB has no checksums
 * and trusts its pages. Here every number of the file is compared with its bounds before it is used. */
#include "lmdb.h"

enum { PAGE_HEADER = 16, NODE_HEADER = 8, DIGITS = 10, MOST_KEY = 511 };
enum { BRANCH_PAGE = 1, LEAF_PAGE = 2, OVERFLOW_PAGE = 4, BIG_VALUE = 1 };

struct key {
    const uint8_t *at;
    int64_t size;
};

/* Key of the node at an offset that `node_at` returned. */
INLINE struct key key_of(const struct lmdb_tree *tree, int64_t node)
{
    return (struct key){tree->map + node + NODE_HEADER, read_2(tree->map + node + 6)};
}

static int compare_keys(struct key a, struct key b)
{
    int order = memcmp(a.at, b.at, (size_t)(a.size < b.size ? a.size : b.size));
    return order ? order : (a.size > b.size) - (a.size < b.size);
}

/* Page number in a branch node. */
INLINE uint64_t child_of(const struct lmdb_tree *tree, int64_t node)
{
    return read_4(tree->map + node) | (uint64_t)read_2(tree->map + node + 4) << 32;
}

/* Returns the record number of a key that is the prefix and ten digits; -1 for any other key. */
static int64_t record_of(struct key key, struct key prefix)
{
    int64_t record = 0;
    if (key.size != prefix.size + DIGITS || memcmp(key.at, prefix.at, (size_t)prefix.size))
        return -1;
    for (const uint8_t *digit = key.at + prefix.size; digit < key.at + key.size; digit++) {
        if (*digit < '0' || *digit > '9')
            return -1;
        record = record * 10 + *digit - '0';
    }
    return record;
}

/* Returns the offset in the file of node `i` of a page, if node and key lie within the page; else 0. */
static int64_t node_at(const struct lmdb_tree *tree, uint64_t page, int64_t i)
{
    int64_t start = (int64_t)page * tree->page_size;
    int64_t pointer = read_2(tree->map + start + PAGE_HEADER + 2 * i);
    if (pointer > tree->page_size - NODE_HEADER)
        return 0;
    int64_t size = read_2(tree->map + start + pointer + 6);
    return size > MOST_KEY || pointer + NODE_HEADER + size > tree->page_size ? 0 : start + pointer;
}

/* Writes the number of nodes of a page at a level of the tree. LMDB_PAGE if the page is damaged. Without `all`, checks
 * only what keeps `node_at` within the page: undamaged records of a damaged page can be read. */
static enum lmdb_code check_page(const struct lmdb_tree *tree, uint64_t page, int64_t level, bool all, int64_t *nodes)
{
    if (page < 2 || page > tree->last_page)
        return LMDB_PAGE;
    int64_t start = (int64_t)page * tree->page_size;
    const uint8_t *at = tree->map + start;
    int64_t lower = read_2(at + 12), upper = read_2(at + 14);
    if (read_8(at) != page || read_2(at + 10) != (level < tree->depth ? BRANCH_PAGE : LEAF_PAGE) ||
        lower <= PAGE_HEADER || lower % 2 || lower > tree->page_size)
        return LMDB_PAGE;
    *nodes = (lower - PAGE_HEADER) / 2;
    if (!all)
        return LMDB_DONE;
    if (lower > upper || upper > tree->page_size)
        return LMDB_PAGE;
    for (int64_t i = 0; i < *nodes; i++) {
        int64_t node = node_at(tree, page, i);
        if (!node || node - start < upper)
            return LMDB_PAGE;
    }
    return LMDB_DONE;
}

/* Writes start and size of a leaf node's value. `header`: also checks the header of its overflow pages. */
static enum lmdb_code read_value(const struct lmdb_tree *tree, uint64_t page, int64_t node, bool header,
                                 struct lmdb_value *value)
{
    int64_t size = read_4(tree->map + node), flags = read_2(tree->map + node + 4);
    int64_t start = node + NODE_HEADER + key_of(tree, node).size, end = ((int64_t)page + 1) * tree->page_size;
    value->size = size;
    value->start = start;
    if (flags > BIG_VALUE || (flags ? 8 : size) > end - start)
        return LMDB_VALUE;
    if (!flags)
        return LMDB_DONE;
    uint64_t first = read_8(tree->map + start), pages = (uint64_t)((PAGE_HEADER - 1 + size) / tree->page_size) + 1;
    if (first < 2 || first > tree->last_page || pages - 1 > tree->last_page - first)
        return LMDB_VALUE;
    const uint8_t *at = tree->map + first * (uint64_t)tree->page_size;
    if (header && (read_8(at) != first || read_2(at + 10) != OVERFLOW_PAGE || read_4(at + 12) < pages))
        return LMDB_VALUE;
    value->start = (int64_t)first * tree->page_size + PAGE_HEADER;
    return LMDB_DONE;
}

/* Last leaf in which a record was found, and the record of its first node if no record is missing. */
struct leaf {
    uint64_t page;
    int64_t first, nodes;
};

/* Returns the node of a record at its computed place in a leaf; 0 if it is not there. */
static int64_t guess_node(const struct lmdb_tree *tree, const struct leaf *leaf, struct key key, int64_t record)
{
    int64_t i = record - leaf->first;
    int64_t node = i >= 0 && i < leaf->nodes ? node_at(tree, leaf->page, i) : 0;
    return node && !compare_keys(key_of(tree, node), key) ? node : 0;
}

/* Returns the node with a key; 0 without one, and the reason in `value`. `record`: number in the key, or -1. `all`:
 * checks all nodes of the pages on the way, not only those that are compared. */
static int64_t search(const struct lmdb_tree *tree, struct key key, struct key prefix, int64_t record, bool all,
                      struct leaf *leaf, struct lmdb_value *value)
{
    leaf->page = tree->root;
    leaf->first = 0;
    for (int64_t level = 1;; level++) {
        bool branch = level < tree->depth;
        *value = (struct lmdb_value){.page = leaf->page, .where = level};
        value->code = check_page(tree, leaf->page, level, all, &leaf->nodes);
        if (value->code)
            return 0;
        int64_t node = branch || record < 0 ? 0 : guess_node(tree, leaf, key, record);
        if (node)
            return node;
        int64_t low = branch, high = leaf->nodes; /* the first key of a branch counts as smaller than all others */
        while (low < high) {
            int64_t middle = (low + high) / 2;
            node = node_at(tree, leaf->page, middle);
            value->code = node ? LMDB_DONE : LMDB_PAGE;
            if (!node)
                return 0;
            if (compare_keys(key_of(tree, node), key) <= 0)
                low = middle + 1;
            else
                high = middle;
        }
        node = low ? node_at(tree, leaf->page, low - 1) : 0;
        if (!branch && node && !compare_keys(key_of(tree, node), key))
            return node;
        value->code = branch ? LMDB_PAGE : LMDB_MISSING;
        if (!branch || !node)
            return 0;
        if (record >= 0 && low > 1) {
            int64_t first = record_of(key_of(tree, node), prefix);
            leaf->first = first < 0 ? 0 : first;
        }
        leaf->page = child_of(tree, node);
    }
}

/* Finds the value of a key. Of a damaged file, checks all nodes on the way, and the header of overflow pages. */
EXPORT void packstore_engine_find_lmdb_value(const struct lmdb_tree *tree, const uint8_t *key, int64_t key_size,
                                             struct lmdb_value *value)
{
    struct leaf leaf;
    int64_t node = search(tree, (struct key){key, key_size}, (struct key){NULL, 0}, -1, true, &leaf, value);
    if (node) {
        value->where = node;
        value->code = read_value(tree, leaf.page, node, true, value);
    }
}

/* Locates the values of records. Returns their number, or the index of the first that is missing or damaged, for which
 * `value` tells the reason. Does not read overflow pages of sound files. */
EXPORT int64_t packstore_engine_locate_lmdb_records(const struct lmdb_lookup *lookup, const int64_t *records,
                                                    int64_t count, int64_t *starts, int64_t *sizes,
                                                    struct lmdb_value *value)
{
    const struct lmdb_tree *tree = &lookup->tree;
    struct key prefix = {lookup->prefix, lookup->prefix_size}, key = {lookup->prefix, prefix.size + DIGITS};
    uint8_t bytes[sizeof lookup->prefix + DIGITS];
    struct leaf leaf = {0, 0, 0};
    memcpy(bytes, prefix.at, (size_t)prefix.size);
    key.at = bytes;
    for (int64_t n = 0; n < count; n++) {
        int64_t record = records[n], rest = record;
        for (int64_t i = key.size - 1; i >= prefix.size; i--, rest /= 10)
            bytes[i] = (uint8_t)('0' + rest % 10);
        *value = (struct lmdb_value){.code = LMDB_MISSING};
        if (record < 0 || rest)
            return n;
        int64_t node = guess_node(tree, &leaf, key, record);
        if (!node)
            node = search(tree, key, prefix, record, false, &leaf, value);
        value->code = node ? read_value(tree, leaf.page, node, false, value) : LMDB_MISSING;
        if (value->code) { /* a damaged page can be the reason: search again, with all checks */
            packstore_engine_find_lmdb_value(tree, key.at, key.size, value);
            leaf.nodes = 0;
        }
        if (value->code)
            return n;
        starts[n] = value->start;
        sizes[n] = value->size;
    }
    return count;
}

EXPORT int64_t packstore_engine_locate_lmdb_record(const struct lmdb_lookup *lookup, int64_t record,
                                                   struct lmdb_value *value)
{
    return packstore_engine_locate_lmdb_records(lookup, &record, 1, &value->start, &value->size, value);
}

/* Enters a page of the next level. Returns 1 after it has written its fault to `row`, else 0. */
static int64_t enter_page(struct lmdb_walk *walk, uint64_t page, struct lmdb_row *row)
{
    struct lmdb_step *step = &walk->path[walk->level];
    enum lmdb_code code = check_page(&walk->tree, page, walk->level + 1, true, &step->nodes);
    /* A page that two others name would be walked twice, and a damaged tree could take exponential time. */
    if (!code && walk->seen[page / 8] >> page % 8 & 1)
        code = LMDB_TWICE;
    if (code) {
        *row = (struct lmdb_row){code, page, (uint64_t)walk->level + 1, 0};
        return 1;
    }
    walk->seen[page / 8] |= (uint8_t)(1 << page % 8);
    step->page = page;
    step->next = 0;
    walk->level++;
    return 0;
}

/* Compares an entry with the entry before and with what is expected. Returns the number of rows that it has written. */
static int64_t visit_entry(struct lmdb_walk *walk, uint64_t page, int64_t node, struct lmdb_row *rows)
{
    const struct lmdb_tree *tree = &walk->tree;
    struct lmdb_value value;
    enum lmdb_code code = read_value(tree, page, node, walk->overflow, &value);
    if (code) {
        rows[0] = (struct lmdb_row){code, page, (uint64_t)node, 0};
        return 1;
    }
    int64_t written = 0, record = -1;
    struct key key = key_of(tree, node), last = walk->last ? key_of(tree, walk->last) : (struct key){key.at, 0};
    walk->entries++;
    if (compare_keys(key, last) <= 0)
        rows[written++] = (struct lmdb_row){LMDB_ORDER, (uint64_t)node, (uint64_t)walk->last, 0};
    if (walk->lowest && compare_keys(key, key_of(tree, walk->lowest)) < 0)
        rows[written++] = (struct lmdb_row){LMDB_OUTSIDE, (uint64_t)node, (uint64_t)walk->lowest, 0};
    walk->last = node;
    walk->lowest = 0;
    struct lmdb_column *column = NULL;
    for (int64_t tried = 0; tried < walk->column_count && record < 0; tried++) {
        int64_t which = (walk->column + tried) % walk->column_count; /* most likely that of the entry before */
        column = &walk->columns[which];
        record = record_of(key, (struct key){column->prefix, column->prefix_size});
        if (record >= 0)
            walk->column = which;
    }
    if (record < 0 || record < column->next || record >= walk->records) {
        rows[written++] = (struct lmdb_row){LMDB_ENTRY, (uint64_t)node, (uint64_t)value.start, (uint64_t)value.size};
        return written;
    }
    uint64_t which = (uint64_t)walk->column;
    if (record > column->next)
        rows[written++] = (struct lmdb_row){LMDB_GAP, which, (uint64_t)column->next, (uint64_t)record};
    if (column->width >= 0 && column->width != value.size)
        rows[written++] = (struct lmdb_row){LMDB_SIZE, which, (uint64_t)record, (uint64_t)value.size};
    column->next = record + 1;
    column->nbytes += value.size;
    return written;
}

/* Walks on through the tree, over up to `most` nodes. Writes a row for each fault, gap and entry that is not expected,
 * at most `room`. Returns the number of rows. The walk ends with `walk->ended`. */
EXPORT int64_t packstore_engine_walk_lmdb(struct lmdb_walk *walk, struct lmdb_row *rows, int64_t room, int64_t most)
{
    const struct lmdb_tree *tree = &walk->tree;
    int64_t written = 0;
    if (!walk->level && !walk->ended && room)
        written += enter_page(walk, tree->root, rows);
    while (walk->level && most-- && written + LMDB_ROWS_OF_ENTRY <= room) {
        struct lmdb_step *step = &walk->path[walk->level - 1];
        if (step->next == step->nodes) {
            walk->level--;
            continue;
        }
        bool first = !step->next;
        int64_t node = node_at(tree, step->page, step->next++);
        if (!node) /* impossible unless the file has changed */
            continue;
        if (walk->level == tree->depth) {
            written += visit_entry(walk, step->page, node, rows + written);
            continue;
        }
        if (!first) { /* the first key of a branch page has no meaning */
            struct key last = walk->last ? key_of(tree, walk->last) : (struct key){tree->map, 0};
            if (compare_keys(key_of(tree, node), last) <= 0)
                rows[written++] = (struct lmdb_row){LMDB_OUTSIDE, (uint64_t)walk->last, (uint64_t)node, 0};
            walk->lowest = node;
        }
        written += enter_page(walk, child_of(tree, node), rows + written);
    }
    walk->ended = !walk->level;
    return written;
}
