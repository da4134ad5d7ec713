/*
 * The engine: baseline JPEG (ITU-T T.81, 8 bits, Huffman coding) and raw pixels to crops that are resized and mirrored.
 *
 * headers.c   markers and their segments up to the scan
 * checkpoints.c  the seek index of a file: where in its scan pieces begin
 * skip.c      a scan passed over, for that index
 * tables.c    Huffman tables
 * entropy.c   Huffman decoding, two restart segments or two images at a time
 * pixels.c    a box of an image, from coded data to rows of RGB, or of luma alone
 * idct.c      the inverse DCT: that of libjpeg-turbo, bit for bit
 * colours.c   upsampling and colours: likewise
 * resize.c    antialiased bilinear resizing: that of torch for uint8, bit for bit
 * planes.c    the same of floating point: that of torch, but for the last bits
 * place.c     pixels that are not resized: cut out, padded, mirrored
 * convert.c   types and layouts: normalised bytes, planes, interleaved channels
 * files.c     small files, many in a call
 * png.c       rows of PNG files of one channel: masks
 * augment.c   programs: operations on the pixels that are shown; see augment.h
 * kernels.c   the loops that there are twice
 * vectors.h   the vector instructions of these
 * answer.c    requests: what is wanted of an image
 * memory.c    memory that grows and is used again
 * batch.c     what Python calls
 *
 * Files come from anybody, so no number in them is believed. Everything that is not flawless, or not known here, is
 * REFUSED: other decoders find out what it is. Each thread has a decoder of its own, and nothing else is kept.
 */
#ifndef PACKSTORE_ENGINE_H
#define PACKSTORE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if !defined(__GNUC__)
#error "a compiler that knows GNU C is needed"
#elif __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "packstore runs on little-endian processors alone: it reads and writes numbers as they lie in memory"
#elif __SIZEOF_POINTER__ != 8
#error "packstore runs on 64-bit processors alone: sizes and offsets of stores take 64 bits"
#endif

#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)
#define INLINE static inline __attribute__((always_inline))
#define NOT_INLINE __attribute__((noinline))
#if defined(__x86_64__)
#define HAS_VECTORS 1 /* AVX2, if the processor has it */
#define VECTORS __attribute__((target("avx2,bmi2")))
#define VECTORS_F16C __attribute__((target("avx2,bmi2,f16c")))
#define VECTORS_FMA __attribute__((target("avx2,bmi2,fma")))
#elif defined(__aarch64__)
#define HAS_VECTORS 1 /* NEON, which all have */
#define VECTORS
#define VECTORS_F16C
#define VECTORS_FMA
#endif

enum { FLOAT32, FLOAT16, BFLOAT16, UINT8 };
enum { SAMPLE_BILINEAR, SAMPLE_NEAREST, SAMPLE_BICUBIC, SAMPLE_BOX, SAMPLE_LANCZOS };
enum { CONSTANT, EDGE, REFLECT, SYMMETRIC }; /* what padding shows */
enum { AC_TABLE, DC_TABLE };
/* What can fail says how it ended, and is compared with one of these; only the first means that all is well. */
enum outcome { DONE, REFUSED, NO_MORE, BEGUN, HELD };
/* How the segments of a scan are found: those between checkpoints beforehand, or restart segments on the way. */
enum segment_way { LOCATED, FOLLOWING };
enum {
    COMPONENTS = 3,    /* at most */
    MCU_BLOCKS = 6,    /* at most, with the samplings that are known here */
    TABLES = 4,        /* of a kind, B.2.4 */
    MOST_SIDE = 65500, /* pixels, as libjpeg has it */
    LANES = 2,         /* more are not faster */
    STRETCH = 256,     /* blocks, at most, that are decoded before they become pixels */
    ROWS_KEPT = 8,     /* of MCUs, whose samples stay in the caches until they are pixels; a power of 2 */
    LOOKUP_BITS = 11,  /* of a code and its value, decoded by one lookup */
    AHEAD = 512,       /* bytes behind coded data that may be looked at: a block has 64 * 27 bits at most */
    PADDING = 64,      /* bytes behind rows of samples that vector instructions may touch */
    MOST_SEGMENTS = 1 << 20,
    MOST_DC = 1 << 13, /* of what is predicted: 8-bit samples give 2^11, times 8 */
    /* Dequantised. Beyond it the 16-bit arithmetic of libjpeg-turbo's vector instructions gives something else than its
       C. No image of 8 bits has such. */
    MOST_COEFFICIENT = 4095
};

/* Table B.1 */
enum { SOF0 = 0xC0, SOF1, DHT = 0xC4, RST0 = 0xD0, SOI = 0xD8, EOI, SOS, DQT, DRI = 0xDD };
enum { APP0 = 0xE0, APP14 = 0xEE, APP15, COM = 0xFE };

/* A Huffman table as B.2.4.2 has it, in the file: how many codes there are of each length, and their values. */
struct huffman_spec {
    const uint8_t *counts, *values;
    int total;
};

struct component {
    int id, h, v;             /* sampling factors, B.2.2 */
    int quantisation, dc, ac; /* numbers of its tables */
    int rows, columns;        /* of its own blocks; those of the MCUs may be more, A.2.4 */
    int block;                /* of an MCU, its first one */
};

struct headers {
    int height, width, components;
    struct component component[COMPONENTS];
    int mcu_height, mcu_width; /* in pixels, A.2.3 */
    int rows, across;          /* of MCUs */
    int interval;              /* MCUs between restart markers, B.2.4.4; 0 for none */
    int blocks;                /* of an MCU */
    uint8_t component_of[MCU_BLOCKS], block_x[MCU_BLOCKS], block_y[MCU_BLOCKS];
    uint8_t quantisation[TABLES][64]; /* in natural order */
    struct huffman_spec dc[TABLES], ac[TABLES];
    int64_t scan_at; /* the scan's first coded byte */
};

/* An entry of `look`: bits 0-5: bits of the code and its value; 7: look further; 8-15: how far k moves; 16-31: value.
 * In a table that passes over symbols it is of as many as fit, and has no value.
 */
struct huffman {
    uint32_t look[1 << LOOKUP_BITS];
    int32_t largest[17], offset[17]; /* as MAXCODE, and VALPTR - MINCODE, in F.2.2.3 */
    uint8_t counts[16], values[256];
    int total, kind;
    bool known;
    const struct huffman *single; /* the table of single symbols, if this passes over several; else NULL */
};

struct block_tables {
    const struct huffman *dc, *ac;
};

/* A restart segment being decoded, as far as it is kept while other work is done. */
struct lane {
    struct decoder *decoder;
    uint64_t taken; /* bits read of those at `at`; from bit 8 on: number of the next coefficient */
    const uint8_t *at, *end;
    const struct huffman *table;
    int16_t *out;
    const struct block_tables *block, *block_end;
    int64_t mcu, count, left;   /* first of the stretch; its MCUs; those of the segment from there on */
    bool open, cut_short;       /* whether it has a segment; whether more of that follows than is wanted */
    enum outcome outcome;       /* once it has stopped: NO_MORE, HELD or REFUSED */
    const struct located *part; /* of a part between checkpoints; else NULL */
    int64_t base;               /* where in the file the segment begins, as long as segments are found on the way */
    int predicted[COMPONENTS];
    uint8_t *room;         /* the segment without stuffing */
    int16_t *coefficients; /* of a stretch; zeros between stretches */
};

/* Lanes that are decoded together: those of one image, or one each of two. */
struct team {
    struct lane *lanes[LANES];
    int count;
};

/* Memory that grows and is used again. */
struct room {
    void *at;
    size_t size;
};

struct box {
    int64_t top, left, height, width;
};

/* For each of the pixels of an axis: where in the source those begin that it is made of, and their weights. */
struct taps {
    int32_t *at;
    int16_t *weights;
    int64_t low_at; /* if weights have more than 16 bits, how far behind them their LOW_BITS lower ones are; else 0 */
    int taps, precision;
    int64_t sampling;    /* set before they are made */
    int64_t first, stop; /* of the source, needed for all of them */
    struct room places, rounded, exact;
};

/* The same in float32. */
struct float_taps {
    int32_t *at;
    float *weights;
    int taps;
    int64_t first, stop;
    struct room room;
};

/* Rows on their way through resize_rows(). */
struct resizing {
    int64_t row_bytes, reach; /* bytes of a row that is resized across; of what is read of one of the source */
    int64_t first, most;      /* the row of the source that lies first of those kept; how many are, at most */
    int64_t read, made;       /* rows of the source that were taken; rows that are complete */
};

/* What the sources of a call are, and what is made of them. */
struct form {
    int64_t from;     /* UINT8: JPEG files, or pixels (height, width, C); other types: planes (C, height, width) */
    int64_t to;       /* the type of what is made; floating point if `from` is */
    int64_t planes;   /* whether that is (C, height, width) and not (height, width, C) */
    int64_t padding;  /* what is shown outside of pixels that are not resized; outside of others are zeros */
    float factors[6]; /* of each channel, what bytes are multiplied with before it is floating point, and what is added;
                         of gray all channels have the same */
    float fill;       /* for CONSTANT */
};

/* What becomes of an image: a box of it is resized, a window of that is cut out, and mirrored. */
struct request {
    const uint8_t *source; /* a JPEG file where `height` is 0 */
    int64_t nbytes;
    int64_t height, width;
    struct box box;
    int64_t size_height, size_width;
    struct box window;
    int64_t mirrored;
    uint8_t *to;
    const uint8_t *checkpoints; /* of a JPEG file: its index, see checkpoints.c; NULL for none */
    int64_t checkpoint_bytes;
    const struct step *program; /* what is done with the bytes that are shown; see augment.h */
    int64_t steps;              /* of the program; 0 for none */
    int64_t sampling;           /* how bytes are resized */
};

struct decoder;
struct step;
struct augment_kernels;
struct skipper;

/* The loops that there are twice: with vector instructions, and for any processor. */
struct kernels {
    int (*one_lane)(struct lane *const *);
    int (*two_lanes)(struct lane *const *);
    int (*one_gray_lane)(struct lane *const *);
    int (*two_gray_lanes)(struct lane *const *);
    enum outcome (*samples)(struct decoder *, const struct lane *, int *predicted);
    const uint8_t *place; /* the order of the coefficients that `samples` takes */
    int (*pass_one)(struct skipper *const *, enum outcome *outcome);
    int (*pass_two)(struct skipper *const *, enum outcome *outcome);
    void (*colours)(uint8_t *to, const uint8_t *y, const uint8_t *cb, const uint8_t *cr, int64_t count);
    void (*blend)(int16_t *to, const uint8_t *near, const uint8_t *far, int64_t count, int weight);
    void (*widen)(uint8_t *to, const int16_t *from, int64_t count, int even, int odd, int shift);
    void (*heighten)(uint8_t *to, const uint8_t *near, const uint8_t *far, int64_t count, int bias);
    void (*rows)(const struct taps *, const uint8_t *a, const uint8_t *b, uint8_t *to_a, uint8_t *to_b, int64_t count);
    void (*columns)(const uint8_t *from, int64_t stride, const int16_t *weights, const struct taps *, uint8_t *to,
                    int64_t bytes);
    void (*mirror)(uint8_t *to, const uint8_t *from, int64_t pixels);
    void (*gray_rows)(const struct taps *, const uint8_t *a, const uint8_t *b, uint8_t *to_a, uint8_t *to_b,
                      int64_t count);
    void (*gray_mirror)(uint8_t *to, const uint8_t *from, int64_t pixels);
    void (*normalize)(void *to, int kind, const uint8_t *from, int64_t count, const float *factors);
    void (*split)(void *to, int kind, const uint8_t *from, int64_t pixels, const float *factors);
    void (*to_floats)(float *to, int kind, const void *from, int64_t count);
    void (*from_floats)(void *to, int kind, const float *from, int64_t count);
    void (*sum_rows)(float *to, int kind, const uint8_t *from, int64_t stride, const float *weights, int taps,
                     int64_t count);
    void (*sum_pixels)(float *const to[3], float *pixels, const float *const from[3], const struct float_taps *,
                       int64_t pixel_count, int64_t count);
    const struct augment_kernels *augment; /* those of programs */
};

/* What is being made of a request for pixels. */
struct making {
    const struct request *request; /* NULL for none */
    const struct form *form;
    int64_t channels; /* of pixels: 3, or 1 for gray, which is the luma of JPEG files */
    bool resized, without_index;
    int kind;           /* of what is made before it is converted */
    uint8_t *to;        /* where that goes: the answer itself where nothing is converted */
    struct box visible; /* the part of the window that lies in the resized box */
    struct box box;     /* of the image, whose pixels are needed */
    uint8_t *shown;     /* where the visible part goes */
    int64_t rows;       /* of the box that were made of a JPEG file's samples */
    uint8_t *refused;
};

/* The coded data of an image. */
struct input {
    struct headers headers;
    enum segment_way way;
    const uint8_t *file, *file_end, *scan; /* `scan`: what follows of it, if segments are found on the way */
    int64_t segments, next_segment;
    const uint8_t *checkpoints; /* of the image that is decoded; NULL where they are not used */
    int64_t checkpoint_bytes;
    int64_t unindexed; /* images whose checkpoints were none of theirs, since somebody asked */
    int64_t piece;     /* MCUs between the points that are noted */
    int unread;        /* blocks of an MCU, if `coefficients` has remains in those that became no samples; else 0 */
    struct lane lanes[LANES];
    int16_t coefficients[LANES][STRETCH * 64] __attribute__((aligned(64)));
};

struct tables {
    struct huffman dc[TABLES], ac[TABLES], passing[TABLES];
    struct block_tables sequence[STRETCH];
    int16_t quantisation[COMPONENTS][64] __attribute__((aligned(32)));
    int16_t limit[COMPONENTS][64] __attribute__((aligned(32)));
    int skips_known; /* of the tables in `skips` */
    uint8_t skip_counts[TABLES][16 + 256];
};

/* What is made of an image, and how far that is. */
struct output {
    struct making making;
    int64_t row0, row1, column0, column1; /* MCUs that are needed */
    int components, blocks;               /* those that become samples; how many blocks of an MCU that is */
    int64_t whole;                        /* rows before the first of which some samples are missing */
    int64_t stride[COMPONENTS];           /* of the planes of samples */
    int64_t kept; /* rows of MCUs that a plane has room for, one after the other and from the start again */
    bool held;    /* a lane waits until rows before its own are pixels */
    struct taps across, down;
    struct resizing resizing;
    struct float_taps float_across, float_down;
};

/* Memory that grows and is used again, rooms alone: see memory.c. */
struct scratch {
    struct room located, unstuffed[LANES]; /* segments */
    struct room points, skips;             /* one for each MCU and the end; see skip.c */
    struct room missing;                   /* of each row of MCUs, how many have no samples yet */
    struct room plane[COMPONENTS], sums[2], wide[2], pixels, resized, line, made;
    struct room copied, floats, remembered, sum; /* of a step of a program; of several: an image, and a sum of images */
};

struct decoder {
    struct decoder *second; /* for the image that is decoded together with this one's */
    const struct kernels *kernels;
    uint32_t crc[8][256];
    struct input input;
    struct tables tables;
    struct output output;
    struct scratch scratch;
};

/* Where a part of the scan between checkpoints lies, and which MCUs it has. */
struct located {
    int64_t start, marker; /* of its first byte, and of the marker, or byte, behind it */
    int64_t mcu, count;
    bool cut_short, at_marker; /* whether it ends within a piece; whether that ends with a marker */
    int bit, end_bit;          /* of the byte at `start`; of that at `marker`, where the scan goes on */
    int predicted[COMPONENTS], next[COMPONENTS];
};

/* Where an MCU begins, as long as that is noted. */
struct point {
    int64_t bit; /* of the file */
    int predicted[COMPONENTS];
};

extern const struct kernels plain_kernels;
#ifdef HAS_VECTORS
extern const struct kernels vector_kernels;
#endif

/* headers.c */
enum outcome read_headers(struct headers *, const uint8_t *file, int64_t nbytes);

/* checkpoints.c */
void make_crc_table(uint32_t table[8][256]);
enum outcome locate_checkpoints(struct decoder *, int64_t nbytes);
int64_t piece_at(const struct headers *, int64_t piece, int64_t mcu);
enum outcome begin_checkpoints(struct decoder *, const uint8_t *file, int64_t nbytes);
void place_points(struct decoder *, int64_t base, int64_t first, int64_t stop, int64_t length);
int64_t pack_checkpoints(struct decoder *, uint8_t *to, int64_t room);

/* skip.c */
void make_checkpoints(struct decoder *, const uint8_t *const *files, const int64_t *nbytes, int64_t count,
                      uint8_t *const *to, const int64_t *rooms, int64_t *sizes);
int pass_one_plain(struct skipper *const *, enum outcome *outcome);
int pass_two_plain(struct skipper *const *, enum outcome *outcome);
int pass_one_vector(struct skipper *const *, enum outcome *outcome);
int pass_two_vector(struct skipper *const *, enum outcome *outcome);

/* tables.c */
extern const uint8_t natural_place[256];
enum outcome make_table(struct huffman *, const struct huffman_spec *, int kind);
enum outcome make_tables(struct decoder *);

/* entropy.c */
enum outcome open_segment(struct decoder *, struct lane *);
enum outcome close_segment(struct lane *);
enum outcome join(struct team *, struct decoder *);
struct decoder *decode_together(struct team *, enum outcome *outcome);
int one_lane_plain(struct lane *const *);
int two_lanes_plain(struct lane *const *);
int one_lane_vector(struct lane *const *);
int two_lanes_vector(struct lane *const *);
int one_gray_lane_plain(struct lane *const *);
int two_gray_lanes_plain(struct lane *const *);
int one_gray_lane_vector(struct lane *const *);
int two_gray_lanes_vector(struct lane *const *);

/* pixels.c */
enum outcome prepare_scan(struct decoder *, const uint8_t *file, int64_t nbytes);
enum outcome begin_box(struct decoder *, const uint8_t *file, int64_t nbytes, const struct box *);
int64_t note_samples(struct decoder *, int64_t mcu, int64_t count);
void use_rows(struct decoder *, int64_t bottom);

/* idct.c */
extern const uint8_t paired_place[256];
enum outcome samples_plain(struct decoder *decoder, const struct lane *lane, int *predicted);
enum outcome samples_vector(struct decoder *decoder, const struct lane *lane, int *predicted);

/* colours.c */
void blend_plain(int16_t *to, const uint8_t *near, const uint8_t *far, int64_t count, int weight);
void widen_plain(uint8_t *to, const int16_t *from, int64_t count, int even, int odd, int shift);
void heighten_plain(uint8_t *to, const uint8_t *near, const uint8_t *far, int64_t count, int bias);
void mirror_plain(uint8_t *to, const uint8_t *from, int64_t pixels);
void colours_plain(uint8_t *to, const uint8_t *y, const uint8_t *cb, const uint8_t *cr, int64_t count);
void blend_vector(int16_t *to, const uint8_t *near, const uint8_t *far, int64_t count, int weight);
void widen_vector(uint8_t *to, const int16_t *from, int64_t count, int even, int odd, int shift);
void heighten_vector(uint8_t *to, const uint8_t *near, const uint8_t *far, int64_t count, int bias);
void colours_vector(uint8_t *to, const uint8_t *y, const uint8_t *cb, const uint8_t *cr, int64_t count);
void mirror_vector(uint8_t *to, const uint8_t *from, int64_t pixels);
void gray_mirror_plain(uint8_t *to, const uint8_t *from, int64_t pixels);
void gray_mirror_vector(uint8_t *to, const uint8_t *from, int64_t pixels);

/* resize.c */
enum outcome make_taps(struct taps *, int64_t source, int64_t target, int64_t from, int64_t count, bool mirrored,
                       int multiple);
enum outcome begin_resizing(struct decoder *, int64_t columns);
void resize_rows(struct decoder *, const uint8_t *a, const uint8_t *b);
enum outcome resize(struct decoder *, const uint8_t *pixels, int64_t nbytes, int64_t stride);

void rows_plain(const struct taps *, const uint8_t *a, const uint8_t *b, uint8_t *to_a, uint8_t *to_b, int64_t count);
void rows_vector(const struct taps *, const uint8_t *a, const uint8_t *b, uint8_t *to_a, uint8_t *to_b, int64_t count);
void gray_rows_plain(const struct taps *, const uint8_t *a, const uint8_t *b, uint8_t *to_a, uint8_t *to_b,
                     int64_t count);
void gray_rows_vector(const struct taps *, const uint8_t *a, const uint8_t *b, uint8_t *to_a, uint8_t *to_b,
                      int64_t count);
void columns_plain(const uint8_t *from, int64_t stride, const int16_t *weights, const struct taps *, uint8_t *to,
                   int64_t bytes);
void columns_vector(const uint8_t *from, int64_t stride, const int16_t *weights, const struct taps *, uint8_t *to,
                    int64_t bytes);

/* planes.c */
enum outcome make_float_taps(struct float_taps *, int64_t source, int64_t target, int64_t from, int64_t count,
                             bool mirrored);
enum outcome resize_planes(struct decoder *, const struct request *, float *to, int64_t rows, int64_t columns);
void sum_rows_plain(float *to, int kind, const uint8_t *from, int64_t stride, const float *weights, int taps,
                    int64_t count);
void sum_rows_vector(float *to, int kind, const uint8_t *from, int64_t stride, const float *weights, int taps,
                     int64_t count);
void sum_pixels_plain(float *const to[3], float *pixels, const float *const from[3], const struct float_taps *,
                      int64_t pixel_count, int64_t count);
void sum_pixels_vector(float *const to[3], float *pixels, const float *const from[3], const struct float_taps *,
                       int64_t pixel_count, int64_t count);

/* place.c */
void place(const struct decoder *, const struct making *);

/* convert.c */
INLINE int64_t size_of(int64_t kind)
{
    return kind == UINT8 ? 1 : kind == FLOAT32 ? 4 : 2;
}
float to_float(int kind, const void *from, int64_t i);
void from_float(void *to, int kind, int64_t i, float value);
void convert_pixels(const struct decoder *, const struct making *, const uint8_t *from, void *to, int64_t pixels);
void convert_planes(const struct decoder *, const struct making *, const void *from, void *to, int64_t pixels);
void normalize_plain(void *to, int kind, const uint8_t *from, int64_t count, const float *factors);
void normalize_vector(void *to, int kind, const uint8_t *from, int64_t count, const float *factors);
void split_plain(void *to, int kind, const uint8_t *from, int64_t pixels, const float *factors);
void split_vector(void *to, int kind, const uint8_t *from, int64_t pixels, const float *factors);
void to_floats_plain(float *to, int kind, const void *from, int64_t count);
void to_floats_vector(float *to, int kind, const void *from, int64_t count);
void from_floats_plain(void *to, int kind, const float *from, int64_t count);
void from_floats_vector(void *to, int kind, const float *from, int64_t count);

/* files.c */
void read_files(int directory, const char *names, int64_t count, const int64_t *sizes, const int64_t *modified,
                uint8_t *to, uint8_t *refused);
void stat_files(int directory, const char *names, int64_t count, int64_t *facts);
int list_names(int directory, int64_t room, char *files, char *folders, int64_t *sizes);

/* highway.c */
uint64_t highway_hash(const uint8_t *data, uint64_t size);

/* png.c */
enum outcome png_rows(const uint8_t *packed, int64_t packed_bytes, uint8_t *to, int64_t rows, int64_t nbytes,
                      int64_t step, bool is_all);

/* answer.c */
void answer_all(struct decoder *, const struct request *, int64_t count, const struct form *, int64_t channels,
                int64_t max_pixels, uint8_t *refused);

/* memory.c */
enum outcome make_room(struct room *, size_t size);
void keep_little(struct decoder *);
void give_back(struct decoder *);

#endif
