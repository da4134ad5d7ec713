/* Baseline JPEG: ITU-T T.81, 8 bits, Huffman coding. */
#pragma once

#include "../core/requests.h"
#include "../shape/shape.h"
#include "../simd/kernels.h"

enum { AC_TABLE, DC_TABLE };
/* How the segments of a scan are found: between checkpoints, before decoding; or restart segments, while decoding. */
enum segment_way { LOCATED, FOLLOWING };
enum {
    COMPONENTS = 3,   /* at most */
    MCU_BLOCKS = 6,   /* at most, with the supported samplings */
    TABLES = 4,       /* of a kind, B.2.4 */
    LANES = 2,        /* more are not faster */
    STRETCH = 256,    /* most blocks that are decoded before they become pixels */
    ROWS_KEPT = 4,    /* rows of MCUs whose samples stay in the caches until they are pixels; a power of 2 */
    LOOKUP_BITS = 11, /* bits of a code and its value that one lookup decodes */
    AHEAD = 512,      /* bytes after coded data that may be read: a block has at most 64 * 27 bits */
    MOST_SEGMENTS = 1 << 20,
    MOST_DC = 1 << 13, /* limit of predictions: 2^11 for 8-bit samples, times 8 */
    /* Limit of dequantised coefficients. Beyond it the 16-bit arithmetic of libjpeg-turbo's vector instructions differs
       from its C. No image of 8 bits exceeds it. */
    MOST_COEFFICIENT = 4095
};

/* Table B.1 */
enum { SOF0 = 0xC0, SOF1, SOF2, DHT = 0xC4, RST0 = 0xD0, SOI = 0xD8, EOI, SOS, DQT, DRI = 0xDD };
enum { APP0 = 0xE0, APP1, APP2, APP14 = 0xEE, APP15, COM = 0xFE };

enum { ESCAPE = 128, END_OF_BLOCK = 128, NO_CODE = 192, K = 8 }; /* see struct huffman */

/* A Huffman table in the file, B.2.4.2: number of codes of each length, and their values. */
struct huffman_spec {
    const uint8_t *counts, *values;
    int total;
};

struct component {
    int id, h, v;             /* sampling factors, B.2.2 */
    int quantisation, dc, ac; /* numbers of its tables */
    int rows, columns;        /* rows and columns of its own blocks; MCUs may have more, A.2.4 */
    int block;                /* index in an MCU of its first block */
};

struct headers {
    int height, width, components;
    struct component component[COMPONENTS];
    int mcu_height, mcu_width; /* in pixels, A.2.3 */
    int rows, across;          /* rows and columns of MCUs */
    int interval;              /* MCUs between restart markers, B.2.4.4; 0 for none */
    int blocks;                /* blocks of an MCU */
    uint8_t component_of[MCU_BLOCKS], block_x[MCU_BLOCKS], block_y[MCU_BLOCKS];
    uint8_t quantisation[TABLES][64]; /* in natural order */
    struct huffman_spec dc[TABLES], ac[TABLES];
    int64_t scan_at; /* offset of the scan's first coded byte */
};

/* An entry of `look`: bits 0-5: bits of the code and its value; 7: look further; 8-15: how far k moves; 16-31: value.
 */
struct huffman {
    uint32_t look[1 << LOOKUP_BITS];
    int32_t largest[17], offset[17]; /* as MAXCODE, and VALPTR - MINCODE, in F.2.2.3 */
    uint8_t counts[16], values[256];
    int total, kind;
    bool known;
};

struct block_tables {
    const struct huffman *dc, *ac;
};

/* What the loop keeps in registers of a lane: `bits` has the unread bits at its high end. */
struct hot {
    uint64_t bits;
    uint32_t taken; /* bits read since `at`; from bit 8 on: index of the next coefficient; from bit 16 on: no meaning */
    const uint8_t *at;
    const struct huffman *table;
    int16_t *out;
    const struct block_tables *block;
};

/* A restart segment. `hot` is its state while it is not being decoded. */
struct lane {
    struct decoder *decoder;
    struct hot hot;
    const uint8_t *end;
    const struct block_tables *block_end;
    int64_t mcu, count, left;   /* first MCU of the stretch; number of its MCUs; MCUs of the segment from there on */
    bool open, cut_short;       /* has a segment; the segment continues after the needed part */
    enum outcome outcome;       /* after it has stopped: NO_MORE, HELD or REFUSED */
    const struct located *part; /* the part between checkpoints; NULL for a restart segment */
    int64_t base;               /* offset of the segment in the file, if segments are found while decoding */
    int predicted[COMPONENTS];
    int64_t chroma_left;   /* MCUs of the stretch whose chroma is still to be passed over by its length */
    uint8_t *unstuffed;    /* the segment without stuffing */
    int16_t *coefficients; /* coefficients of a stretch; zeros between stretches */
};

/* Lanes that are decoded together: two of one image, or one each of two images. */
struct team {
    struct lane *lanes[LANES];
    int count;
};

/* Lengths of the coded chroma of all MCUs, in bits; from an index. */
struct lengths {
    const uint8_t *at; /* `bits` bits for each, from the lowest on; NULL if lengths are not used */
    int bits;
    uint32_t least, unknown; /* summand of each; stored value of an MCU whose length is not stored */
};

/* Coded data of an image. */
struct input {
    struct headers headers;
    enum segment_way way;
    const uint8_t *file, *file_end, *scan; /* `scan`: rest of the scan, if segments are found while decoding */
    int64_t segments, next_segment;
    const uint8_t *checkpoints; /* checkpoints of the image; NULL if they are not used */
    int64_t checkpoint_bytes;
    struct lengths lengths;
    int64_t unindexed; /* images whose checkpoints belonged to another file, since the last query */
    int64_t piece;     /* MCUs between points */
    int unread;        /* blocks of an MCU, if `coefficients` still has values of blocks without samples; else 0 */
    struct lane lanes[LANES];
    int16_t coefficients[LANES][STRETCH * 64] __attribute__((aligned(64)));
};

struct tables {
    struct huffman dc[TABLES], ac[TABLES];
    struct block_tables sequence[STRETCH];
    int16_t quantisation[COMPONENTS][64] __attribute__((aligned(32)));
    int16_t limit[COMPONENTS][64] __attribute__((aligned(32)));
    int skips_known; /* bit mask of the tables in `skips` */
    uint8_t skip_counts[TABLES][16 + 256];
};

/* Samples of an image, and the progress of decoding. */
struct output {
    struct task task;
    struct request source;                /* the whole file that several requests share */
    int64_t row0, row1, column0, column1; /* needed MCUs */
    int components, blocks;               /* components that become samples; number of their blocks in an MCU */
    int64_t whole;                        /* complete rows before the first row with missing samples */
    int64_t stride[COMPONENTS];           /* strides of the planes of samples */
    int64_t kept;                         /* rows of MCUs in a plane, which is a ring */
    bool held;                            /* a lane waits until earlier rows are pixels */
    struct resizing resizing;
};

struct decoder {
    struct decoder *second; /* decoder of the image that is decoded together with this one */
    struct worker worker;
    uint32_t crc[8][256];
    struct input input;
    struct tables tables;
    struct output output;
};

/* Location and MCUs of a part of the scan between checkpoints. */
struct located {
    int64_t start, marker; /* offsets of its first byte, and of the marker or byte after it */
    int64_t mcu, count;
    bool cut_short, at_marker; /* ends within a piece; the piece ends with a marker */
    int bit, end_bit; /* first bit in the byte at `start`; bit in the byte at `marker` at which the scan continues */
    int predicted[COMPONENTS], next[COMPONENTS];
};

/* Beginning of an MCU. */
struct point {
    int64_t bit; /* bit offset in the file */
    int predicted[COMPONENTS];
};

/* headers.c */
enum outcome read_headers(struct headers *, const uint8_t *file, int64_t nbytes);

/* checkpoints.c */
void make_crc_table(uint32_t table[8][256]);
enum outcome locate_checkpoints(struct decoder *, int64_t nbytes);
int64_t piece_at(const struct headers *, int64_t piece, int64_t mcu);
enum outcome begin_checkpoints(struct decoder *, const uint8_t *file, int64_t nbytes, bool gray);
void place_points(struct decoder *, int64_t base, int64_t first, int64_t stop, int64_t length);
int64_t pack_checkpoints(struct decoder *, uint8_t *to, int64_t capacity, bool gray);

/* tables.c */
enum outcome make_tables(struct decoder *);
uint32_t long_symbol(const struct huffman *, uint64_t bits, uint32_t entry);

/* entropy.c */
enum outcome open_segment(struct decoder *, struct lane *);
enum outcome close_segment(struct lane *);
enum outcome join(struct team *, struct decoder *);
struct decoder *decode_together(struct team *, enum outcome *outcome);

/* pixels.c */
enum outcome prepare_scan(struct decoder *, const uint8_t *file, int64_t nbytes);
enum outcome begin_box(struct decoder *, const uint8_t *file, int64_t nbytes, const struct box *);
int64_t note_samples(struct decoder *, int64_t mcu, int64_t count);
void use_rows(struct decoder *, int64_t bottom);
