/*
 * The symbols of a scan as they are to be coded anew: a token each, which is the symbol's table, the symbol, and the
 * bits behind it (ITU-T T.81, F.1.2). They come with the coefficients, by which the new scan is checked.
 *
 * Runs and values of AC coefficients stay as they are in a baseline scan, so its symbols become tokens while they are
 * decoded (F.2.2). Of a progressive image tokens are made when all coefficients are there.
 */
#include "reader.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { NO_RUN = 0xF0, BLOCK_TOKENS = 64 };

/* Where tokens go, and how often there is each symbol of each table. */
struct tokens {
    uint32_t *to;
    uint32_t *counts;
};

INLINE void add_token(struct tokens *tokens, uint32_t which, uint32_t bits)
{
    tokens->counts[which]++;
    *tokens->to++ = which << 16 | bits;
}

/* Takes tokens back. */
static void drop(struct tokens *tokens, uint32_t *from)
{
    while (tokens->to > from)
        tokens->counts[*--tokens->to >> 16]--;
}

/* Entries of the lookups: bits 0-7: bits of the code and of the value behind it; 8-15: of the code; 16-23: its symbol.
 */
void fill_symbols(uint32_t *to, const struct huffman *table)
{
    uint32_t *end = to + (1 << LOOKUP_BITS);
    for (uint32_t length = 1, p = 0; length <= LOOKUP_BITS; length++)
        for (int i = 0; i < table->counts[length - 1]; i++, p++) {
            uint32_t symbol = table->values[p], entry = symbol << 16 | length << 8 | (length + (symbol & 15));
            for (int n = 0; n < 1 << (LOOKUP_BITS - length); n++)
                *to++ = entry;
        }
    while (to < end) /* longer codes, or none */
        *to++ = 0;
}

/* The entry of a code that is longer than the lookup; 0 for none. */
NOT_INLINE uint32_t long_code(const struct huffman *table, uint64_t bits)
{
    for (uint32_t length = LOOKUP_BITS + 1; length <= 16; length++) {
        int32_t code = (int32_t)(bits >> (64 - length));
        if (code <= table->largest[length]) {
            uint32_t symbol = table->values[(table->offset[length] + code) & 255];
            return symbol << 16 | length << 8 | (length + (symbol & 15));
        }
    }
    return 0;
}

/* The tokens of a block but its first one. Runs that nothing follows are no part of it. */
INLINE int read_block(struct reader *reader, struct tokens *tokens, const uint32_t *look, const struct huffman *table,
                      uint32_t which)
{
    uint32_t symbol = NO_RUN, *start = tokens->to;
    for (uint32_t k = 1; k < 64 && symbol;) {
        fill_reader(reader);
#pragma GCC unroll 2
        for (int step = 0; step < 2; step++) {
            uint32_t value, entry = read_symbol(reader, look, table, &value);
            if (UNLIKELY(!entry))
                return REFUSED;
            symbol = entry >> 16;
            add_token(tokens, which | symbol, value);
            if (!symbol)
                break;
            k += (symbol >> 4) + 1;
            if (k >= 64) {
                if (UNLIKELY(k > 64))
                    return REFUSED;
                break;
            }
        }
    }
    uint32_t *end = tokens->to - !symbol;
    if (UNLIKELY(end > start && end[-1] >> 16 == (which | NO_RUN))) {
        while (end > start && end[-1] >> 16 == (which | NO_RUN))
            end--;
        drop(tokens, end);
        add_token(tokens, which, 0);
    }
    return DONE;
}

/* Which of a block's coefficients are not zero: a bit each. */
static uint64_t present(const int16_t *coefficients)
{
    uint64_t found = 0;
#if defined(__SSE2__)
    for (int k = 0; k < 64; k += 16) {
        __m128i low = _mm_loadu_si128((const __m128i *)(coefficients + k));
        __m128i high = _mm_loadu_si128((const __m128i *)(coefficients + k + 8)), zero = _mm_setzero_si128();
        __m128i zeros = _mm_packs_epi16(_mm_cmpeq_epi16(low, zero), _mm_cmpeq_epi16(high, zero));
        found |= (uint64_t)(~_mm_movemask_epi8(zeros) & 0xFFFF) << k;
    }
#else
    for (int k = 0; k < 64; k++)
        found |= (uint64_t)(coefficients[k] != 0) << k;
#endif
    return found;
}

/* The tokens of a block's coefficients but the first. */
static int add_block(struct tokens *tokens, uint32_t which, const int16_t *coefficients)
{
    int next = 1;
    for (uint64_t left = present(coefficients) & ~(uint64_t)1; left; left &= left - 1) {
        int k = __builtin_ctzll(left), run = k - next, value = coefficients[k], bits = bits_of(value);
        if (bits > AC_BITS)
            return REFUSED;
        for (; run > 15; run -= 16)
            add_token(tokens, which | NO_RUN, 0);
        add_token(tokens, which | (uint32_t)(run << 4 | bits), low_bits(value, bits));
        next = k + 1;
    }
    if (next < 64)
        add_token(tokens, which, 0);
    return DONE;
}

/* The token of a block's first coefficient. */
INLINE int add_first(struct rewriting *rewriting, struct tokens *tokens, uint32_t which, int component, int dc)
{
    int difference = dc - rewriting->predicted[component], bits = bits_of(difference);
    rewriting->predicted[component] = dc;
    if (UNLIKELY(bits > DC_BITS))
        return REFUSED;
    add_token(tokens, which | (uint32_t)bits, low_bits(difference, bits));
    return DONE;
}

/* The blocks of an MCU that lie beyond a component's own. */
static uint32_t blocks_beyond(const struct headers *headers, int64_t row, int64_t column)
{
    uint32_t beyond = 0;
    for (int b = 0; b < headers->blocks; b++) {
        const struct component *component = &headers->component[headers->component_of[b]];
        beyond |= (uint32_t)(column * component->h + headers->block_x[b] >= component->columns ||
                             row * component->v + headers->block_y[b] >= component->rows)
                  << b;
    }
    return beyond;
}

/* Room for the tokens of a row of MCUs. */
static int reserve(struct rewriting *rewriting, int64_t mcus, int blocks)
{
    size_t needed = (size_t)(rewriting->count + mcus * BLOCK_TOKENS * blocks) * sizeof(uint32_t);
    if (needed <= rewriting->tokens.size)
        return DONE;
    void *larger = realloc(rewriting->tokens.at, 2 * needed);
    if (!larger)
        return REFUSED;
    rewriting->tokens = (struct room){larger, 2 * needed};
    return DONE;
}

/* An MCU begins: where a restart interval does so, its tokens are counted from here. */
INLINE void begin_mcu(struct rewriting *rewriting, const uint32_t *to)
{
    if (rewriting->until_restart--)
        return;
    rewriting->until_restart = rewriting->interval - 1;
    ((int64_t *)rewriting->ends.at)[rewriting->segments++] = to - (const uint32_t *)rewriting->tokens.at;
    memset(rewriting->predicted, 0, sizeof rewriting->predicted);
}

/* The tokens of a restart segment of the old scan, which `lane` has opened. */
INLINE int read_segment(struct decoder *decoder, struct lane *lane)
{
    int *predicted = lane->predicted;
    const struct headers *headers = &decoder->headers;
    struct rewriting *rewriting = &decoder->rewriting;
    struct reader reader = {0, lane->room, 0};
    int64_t row = lane->mcu / headers->across, column = lane->mcu % headers->across;
    int16_t *firsts = (int16_t *)rewriting->firsts.at + lane->mcu * headers->blocks;
    for (; lane->left; row++, column = 0) {
        int64_t stop = column + lane->left < headers->across ? column + lane->left : headers->across;
        lane->left -= stop - column;
        if (reserve(rewriting, headers->across, headers->blocks) != DONE)
            return REFUSED;
        struct tokens tokens = {(uint32_t *)rewriting->tokens.at + rewriting->count, rewriting->counts};
        for (; column < stop; column++) {
            bool edge = column == headers->across - 1 || row == headers->rows - 1;
            uint32_t beyond = edge ? blocks_beyond(headers, row, column) : 0;
            int latest = 0;
            begin_mcu(rewriting, tokens.to);
            for (int b = 0; b < headers->blocks; b++) {
                int i = headers->component_of[b];
                const struct component *component = &headers->component[i];
                uint32_t value, which = i ? 2 << 8 : 0, *from = tokens.to;
                fill_reader(&reader);
                uint32_t entry =
                    read_symbol(&reader, rewriting->look[0][component->dc], &decoder->dc[component->dc], &value);
                if (UNLIKELY(!entry))
                    return REFUSED;
                int dc = predicted[i] += extend(value, (int)(entry >> 16 & 15));
                if (UNLIKELY(dc >= 1 << 15 || dc < -(1 << 15)))
                    return REFUSED;
                tokens.to++; /* of the first coefficient, when it is known */
                if (read_block(&reader, &tokens, rewriting->look[1][component->ac], &decoder->ac[component->ac],
                               which | 1 << 8) != DONE ||
                    UNLIKELY(reader.at > lane->end + 8))
                    return REFUSED;
                struct tokens first = {from, tokens.counts};
                if (UNLIKELY(beyond >> b & 1)) {
                    drop(&tokens, from + 1);
                    add_token(&tokens, which | 1 << 8, 0);
                } else {
                    latest = dc;
                }
                *firsts++ = (int16_t)latest;
                if (add_first(rewriting, &first, which, i, latest) != DONE)
                    return REFUSED;
            }
        }
        rewriting->count = tokens.to - (uint32_t *)rewriting->tokens.at;
    }
    int64_t taken = bits_read(&reader, lane->room);
    lane->at = lane->room + taken / 8;
    lane->taken = (uint64_t)taken & 7;
    return DONE;
}

int segment_tokens_plain(struct decoder *decoder, struct lane *lane)
{
    return read_segment(decoder, lane);
}

#ifdef HAS_AVX2
AVX2 int segment_tokens_avx2(struct decoder *decoder, struct lane *lane)
{
    return read_segment(decoder, lane);
}
#endif

/* The tokens of a baseline scan. */
int read_tokens(struct decoder *decoder, const uint8_t *file, int64_t nbytes)
{
    const struct headers *headers = &decoder->headers;
    struct lane lane = {0};
    if (make_tables(decoder) || prepare_scan(decoder, file, nbytes))
        return REFUSED;
    for (int i = 0; i < headers->components; i++) {
        const struct component *component = &headers->component[i];
        fill_symbols(decoder->rewriting.look[0][component->dc], &decoder->dc[component->dc]);
        fill_symbols(decoder->rewriting.look[1][component->ac], &decoder->ac[component->ac]);
    }
    lane.room = decoder->unstuffed[0].at;
    for (;;) {
        int outcome = open_segment(decoder, &lane);
        if (outcome != DONE)
            return outcome == NO_MORE ? DONE : REFUSED;
        if (decoder->kernels->segment_tokens(decoder, &lane) != DONE || close_segment(&lane) != DONE)
            return REFUSED;
    }
}

/* The tokens of an image of which all coefficients are there; those beyond a component's own are changed. */
int make_tokens(struct decoder *decoder)
{
    const struct headers *headers = &decoder->headers;
    struct rewriting *rewriting = &decoder->rewriting;
    int16_t *coefficients = rewriting->coefficients.at, *firsts = rewriting->firsts.at;
    for (int64_t row = 0; row < headers->rows; row++) {
        if (reserve(rewriting, headers->across, headers->blocks) != DONE)
            return REFUSED;
        struct tokens tokens = {(uint32_t *)rewriting->tokens.at + rewriting->count, rewriting->counts};
        for (int64_t column = 0; column < headers->across; column++) {
            uint32_t beyond = blocks_beyond(headers, row, column);
            int16_t latest = 0;
            begin_mcu(rewriting, tokens.to);
            for (int b = 0; b < headers->blocks; b++, coefficients += 64) {
                int i = headers->component_of[b];
                uint32_t which = i ? 2 << 8 : 0;
                if (beyond >> b & 1) {
                    memset(coefficients, 0, 64 * sizeof *coefficients);
                    coefficients[0] = latest;
                }
                *firsts++ = latest = coefficients[0];
                if (add_first(rewriting, &tokens, which, i, latest) != DONE ||
                    add_block(&tokens, which | 1 << 8, coefficients) != DONE)
                    return REFUSED;
            }
        }
        rewriting->count = tokens.to - (uint32_t *)rewriting->tokens.at;
    }
    return DONE;
}
