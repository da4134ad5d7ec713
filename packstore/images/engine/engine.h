/*
 * The engine: baseline JPEG (ITU-T T.81, 8 bits, Huffman coding) and raw pixels to crops that are resized and mirrored.
 *
 * jpeg/     coded data to rows of RGB, or of luma alone
 *   headers.c      markers and their segments up to the scan
 *   checkpoints.c  the seek index of a file: where in its scan pieces begin
 *   skip.c         a scan passed over, for that index
 *   tables.c       Huffman tables
 *   entropy.c      Huffman decoding, two restart segments or two images at a time
 *   pixels.c       a box of an image, from coded data to rows
 *   idct.c         the inverse DCT: that of libjpeg-turbo, bit for bit
 *   colours.c      upsampling and colours: likewise
 * shape/    pixels to the size, type and layout that is wanted
 *   resize.c       antialiased bilinear resizing: that of torch for uint8, bit for bit
 *   planes.c       the same of floating point: that of torch, but for the last bits
 *   place.c        pixels that are not resized: cut out, padded, mirrored
 *   convert.c      types and layouts: normalised bytes, planes, interleaved channels
 * ops/      programs: operations on the pixels that are shown
 * io/       small files, many in a call; rows of PNG files of one channel; the pages of an LMDB
 * simd/     vector instructions, and the tables of the loops that there are twice
 * permute.c random orders of records
 * memory.c  memory that grows and is used again
 * answer.c  requests: what is wanted of an image
 * api.c     what Python calls
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
#define HAS_VECTORS 1 /* AVX2; used only if the processor has it */
#define VECTORS __attribute__((target("avx2,bmi2")))
#define VECTORS_F16C __attribute__((target("avx2,bmi2,f16c")))
#define VECTORS_FMA __attribute__((target("avx2,bmi2,fma")))
#elif defined(__aarch64__)
#define HAS_VECTORS 1 /* NEON, which every 64-bit ARM has */
#define VECTORS
#define VECTORS_F16C
#define VECTORS_FMA
#endif

enum { FLOAT32, FLOAT16, BFLOAT16, UINT8 };
enum {
    SAMPLE_BILINEAR,
    SAMPLE_NEAREST,
    SAMPLE_BICUBIC,
    SAMPLE_BOX,
    SAMPLE_LANCZOS,
    SAMPLE_PILLOW_BILINEAR = 7, /* numbers between are those of filters that this engine does not know */
    SAMPLE_PILLOW_BICUBIC,
    SAMPLE_COLUMNS_FIRST = 16 /* added to a filter: resize vertically before horizontally */
};
enum { CONSTANT, EDGE, REFLECT, SYMMETRIC }; /* content of padding */
enum { AC_TABLE, DC_TABLE };
/* Result of every function that can fail; only DONE is success. Compare with these names. `list_names` alone returns 0
 * or an errno instead. */
enum outcome { DONE, REFUSED, NO_MORE, BEGUN, HELD };
/* How the segments of a scan are found: between checkpoints, before decoding; or restart segments, while decoding. */
enum segment_way { LOCATED, FOLLOWING };
enum {
    COMPONENTS = 3,    /* at most */
    MCU_BLOCKS = 6,    /* at most, with the supported samplings */
    TABLES = 4,        /* of a kind, B.2.4 */
    MOST_SIDE = 65500, /* pixels, the limit of libjpeg */
    LANES = 2,         /* more are not faster */
    STRETCH = 256,     /* most blocks that are decoded before they become pixels */
    ROWS_KEPT = 4,     /* rows of MCUs whose samples stay in the caches until they are pixels; a power of 2 */
    LOOKUP_BITS = 11,  /* bits of a code and its value that one lookup decodes */
    AHEAD = 512,       /* bytes after coded data that may be read: a block has at most 64 * 27 bits */
    PADDING = 64,      /* bytes after rows of samples that vector instructions may touch */
    MOST_SEGMENTS = 1 << 20,
    MOST_DC = 1 << 13, /* limit of predictions: 2^11 for 8-bit samples, times 8 */
    /* Limit of dequantised coefficients. Beyond it the 16-bit arithmetic of libjpeg-turbo's vector instructions differs
       from its C. No image of 8 bits exceeds it. */
    MOST_COEFFICIENT = 4095
};

/* Table B.1 */
enum { SOF0 = 0xC0, SOF1, SOF2, DHT = 0xC4, RST0 = 0xD0, SOI = 0xD8, EOI, SOS, DQT, DRI = 0xDD };
enum { APP0 = 0xE0, APP1, APP2, APP14 = 0xEE, APP15, COM = 0xFE };

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

/* State of a restart segment while it is not being decoded. */
struct lane {
    struct decoder *decoder;
    uint32_t taken; /* bits read since `at`; from bit 8 on: index of the next coefficient */
    const uint8_t *at, *end;
    const struct huffman *table;
    int16_t *out;
    const struct block_tables *block, *block_end;
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

/* Buffer that grows and is reused. */
struct buffer {
    void *at;
    size_t size;
};

struct box {
    int64_t top, left, height, width;
};

/* For each pixel of an axis: its first source pixel, and the weights of its source pixels. */
struct taps {
    int32_t *at;
    int16_t *weights;
    int64_t low_at; /* if weights have more than 16 bits: distance to their LOW_BITS lower bits; else 0 */
    int taps, precision;
    int64_t sampling;    /* set before make_taps() */
    int64_t first, stop; /* range of source pixels that all taps need */
    struct buffer places, rounded, exact;
};

/* Taps in float32. */
struct float_taps {
    int32_t *at;
    float *weights;
    int taps;
    int64_t first, stop;
    struct buffer buffer;
};

/* State of resize_rows(). */
struct resizing {
    bool columns_first;       /* resize vertically before horizontally */
    int64_t row_bytes, reach; /* bytes of a kept row; bytes read from a source row */
    int64_t first, most;      /* first kept row of the source; most rows that are kept */
    int64_t read, made;       /* rows taken from the source; finished rows */
};

/* Formats of the sources and outputs of a call. */
struct form {
    int64_t from;     /* UINT8: JPEG files, or pixels (height, width, C); other types: planes (C, height, width) */
    int64_t to;       /* type of the outputs; floating point if `from` is */
    int64_t planes;   /* outputs are (C, height, width), not (height, width, C) */
    int64_t padding;  /* padding around sources that are not resized; resized sources are padded with zeros */
    float factors[6]; /* factor and summand of each channel, for bytes that become floating point; all equal for gray */
    float fill[3];    /* of each channel, for CONSTANT; all equal for gray */
    const void *table; /* output of each byte of each channel, (C, 256) of type `to`, instead of factors; or NULL */
};

/* Request for an image: resize a box of it, cut a window out of the result, and mirror that. */
struct request {
    const uint8_t *source; /* a JPEG file if `height` is 0, else pixels */
    int64_t nbytes;
    int64_t height, width;
    struct box box;
    int64_t size_height, size_width;
    struct box window;
    int64_t mirrored;
    uint8_t *to;
    const uint8_t *checkpoints; /* index of a JPEG file, see checkpoints.c; NULL for none */
    int64_t checkpoint_bytes;
    const struct step *program; /* program to run on the window's bytes; see augment.h */
    int64_t steps;              /* number of steps of the program; 0 for none */
    int64_t sampling;           /* filter that resizes bytes */
};

struct decoder;
struct step;
struct augment_kernels;
struct skipper;

/* Loops with two implementations: with vector instructions, and for any processor. */
struct kernels {
    int (*one_lane)(struct lane *const *);
    int (*two_lanes)(struct lane *const *);
    enum outcome (*samples)(struct decoder *, const struct lane *, int *predicted);
    const uint8_t *place; /* order of the coefficients that `samples` expects */
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
    const struct augment_kernels *augment; /* loops of programs */
};

/* Task of a decoder: the output of one request. */
struct task {
    const struct request *request; /* NULL for none */
    const struct form *form;
    int64_t channels; /* channels of a pixel: 3, or 1 for gray, which is the luma of JPEG files */
    bool resized, without_index;
    int kind;           /* type before conversion */
    uint8_t *to;        /* memory for it; the output itself if nothing is converted */
    struct box visible; /* part of the window inside the resized box */
    struct box box;     /* box of the image whose pixels are needed */
    uint8_t *shown;     /* address of the visible part */
    int64_t rows;       /* rows of the box made from a JPEG file's samples so far */
    uint8_t *refused;
    int64_t sharing; /* requests, with this one, that follow one another and take the same JPEG file; else 0 */
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
    struct taps across, down;
    struct resizing resizing;
    struct float_taps float_across, float_down;
};

/* Buffers that grow and are reused. Contains nothing but buffers: see memory.c. */
struct scratch {
    struct buffer located, unstuffed[LANES]; /* segments */
    struct buffer points, skips;             /* one point for each MCU and the end; see skip.c */
    struct buffer lengths;                   /* bits of chroma of each MCU, uint16_t */
    struct buffer missing;                   /* number of MCUs without samples, for each row */
    struct buffer plane[COMPONENTS], sums[2], wide[2], pixels, resized, line, made;
    struct buffer shared;                          /* pixels of the file that several requests share */
    struct buffer copied, floats, remembered, sum; /* for one step; for several: an image, a sum of images */
};

struct decoder {
    struct decoder *second; /* decoder of the image that is decoded together with this one */
    const struct kernels *kernels;
    uint32_t crc[8][256];
    struct input input;
    struct tables tables;
    struct output output;
    struct scratch scratch;
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

extern const struct kernels plain_kernels;
#ifdef HAS_VECTORS
extern const struct kernels vector_kernels;
#endif

/* headers.c */
enum outcome read_headers(struct headers *, const uint8_t *file, int64_t nbytes);
bool is_plain_jpeg(const uint8_t *file, int64_t nbytes, int64_t max_pixels);

/* checkpoints.c */
void make_crc_table(uint32_t table[8][256]);
enum outcome locate_checkpoints(struct decoder *, int64_t nbytes);
int64_t piece_at(const struct headers *, int64_t piece, int64_t mcu);
enum outcome begin_checkpoints(struct decoder *, const uint8_t *file, int64_t nbytes, bool gray);
void place_points(struct decoder *, int64_t base, int64_t first, int64_t stop, int64_t length);
int64_t pack_checkpoints(struct decoder *, uint8_t *to, int64_t capacity, bool gray);

/* skip.c */
void make_checkpoints(struct decoder *, const uint8_t *const *files, const int64_t *nbytes, int64_t count, bool gray,
                      uint8_t *const *to, const int64_t *capacities, int64_t *sizes);
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
void place(const struct decoder *, const struct task *);

/* convert.c */
INLINE int64_t size_of(int64_t kind)
{
    return kind == UINT8 ? 1 : kind == FLOAT32 ? 4 : 2;
}
float to_float(int kind, const void *from, int64_t i);
void convert_pixels(const struct decoder *, const struct task *, const uint8_t *from, void *to, int64_t pixels);
void convert_planes(const struct decoder *, const struct task *, const void *from, void *to, int64_t pixels);
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
int64_t scan_tar(int file, int64_t at, int64_t end, int64_t most, int64_t (*facts)[3], char *names);
void stat_files(int directory, const char *names, int64_t count, int64_t *facts);
int list_names(int directory, int64_t capacity, char *files, char *folders, int64_t *sizes);

/* permute.c */
void permute_plain(int64_t *, int64_t count, uint32_t length, int shift, uint32_t radix, const uint32_t *keys);
#ifdef HAS_VECTORS
void permute_vector(int64_t *, int64_t count, uint32_t length, int shift, uint32_t radix, const uint32_t *keys);
#endif

/* png.c */
enum outcome png_rows(const uint8_t *packed, int64_t packed_bytes, uint8_t *to, int64_t rows, int64_t nbytes,
                      int64_t step, bool is_all);

/* answer.c */
void answer_all(struct decoder *, const struct request *, int64_t count, const struct form *, int64_t channels,
                int64_t max_pixels, uint8_t *refused);

/* memory.c */
enum outcome grow_buffer(struct buffer *, size_t size);
void trim_buffers(struct decoder *);
void free_buffers(struct decoder *);

#endif
