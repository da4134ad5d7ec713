/*
 * A file that rewrite.c has made holds what the old one does: it is read by its own tables, through its seek index, and
 * has to have the same size, sampling, quantisation and coefficients.
 *
 * Which symbol is next is known, so nothing has to be decoded before what follows it can be looked at: its code by the
 * new file's tables, and the bits behind it, have to be where a decoder finds them. As no code begins as another one
 * does, every decoder reads the same symbols then. This takes half the time of decoding.
 */
#include "reader.h"

/* Compares the token at the high end of `*bits` and takes it away. Returns how far k moves. */
INLINE uint32_t prove_token(uint64_t *bits, uint64_t *taken, const struct code *codes, const uint32_t *token,
                            uint64_t *wrong)
{
    const struct code *code = &codes[*token >> 16 & 255];
    uint32_t length = code->length;
    *wrong |= *bits >> (64 - length) ^ (code->bits | (*token & 0xFFFF));
    *bits <<= length;
    *taken += length;
    return code->advance;
}

/* What lies from bit `taken` on: 57 bits at least. */
INLINE uint64_t peek(const uint8_t *from, uint64_t taken)
{
    uint64_t bits;
    memcpy(&bits, from + (taken >> 3), 8);
    return __builtin_bswap64(bits) << (taken & 7);
}

/*
 * Compares a segment of the new file, which `lane` has opened, with the tokens that follow, block by block: a first
 * coefficient, and others up to an end of block or the 64th. A block is looked at as a whole, 64 * 31 bits at most,
 * before it shows that the data have ended: AHEAD bytes.
 */
INLINE int prove_segment(struct decoder *decoder, struct lane *lane, const uint32_t **tokens)
{
    const struct headers *headers = &decoder->headers;
    const struct rewriting *rewriting = &decoder->rewriting;
    const int16_t *firsts = (const int16_t *)rewriting->firsts.at + lane->mcu * headers->blocks;
    const uint32_t *token = *tokens, *stop = (const uint32_t *)rewriting->tokens.at + rewriting->count;
    const uint8_t *from = lane->room;
    uint64_t taken = 0, end = 8 * (uint64_t)(lane->end - from), wrong = 0;
    int predicted[COMPONENTS] = {0};
    for (int64_t m = 0; m < lane->left; m++)
        for (int b = 0; b < headers->blocks; b++, firsts++) {
            int i = headers->component_of[b];
            const struct code *dc = rewriting->codes + (i ? 2 << 8 : 0), *ac = dc + 256;
            predicted[i] += extend(*token & 0xFFFF, (int)(*token >> 16 & 15));
            wrong |= predicted[i] != *firsts;
            uint64_t bits = peek(from, taken);
            prove_token(&bits, &taken, dc, token++, &wrong);
            for (uint32_t k = 1;;) {
                k += prove_token(&bits, &taken, ac, token++, &wrong);
                if (k < 64) {
                    bits = peek(from, taken);
                    k += prove_token(&bits, &taken, ac, token++, &wrong);
                }
                if (k >= 64) {
                    wrong |= k > 64 && k < END_OF_BLOCK;
                    break;
                }
            }
            if (UNLIKELY(wrong || token > stop || taken > end))
                return REFUSED;
        }
    lane->at = from + taken / 8;
    lane->taken = taken & 7;
    *tokens = token;
    return DONE;
}

int prove_segment_plain(struct decoder *decoder, struct lane *lane, const uint32_t **tokens)
{
    return prove_segment(decoder, lane, tokens);
}

#ifdef HAS_AVX2
AVX2 int prove_segment_avx2(struct decoder *decoder, struct lane *lane, const uint32_t **tokens)
{
    return prove_segment(decoder, lane, tokens);
}
#endif

/* Whether the new file's headers say the same of the image. */
static int compare_headers(const struct headers *new, const struct headers *old)
{
    if (new->height != old->height || new->width != old->width || new->components != old->components)
        return REFUSED;
    for (int i = 0; i < new->components; i++) {
        const struct component *component = &new->component[i], *before = &old->component[i];
        if (component->h != before->h || component->v != before->v ||
            memcmp(new->quantisation[component->quantisation], old->quantisation[before->quantisation], 64))
            return REFUSED;
    }
    return DONE;
}

/* The codes of the new file's tables, which are two of a kind at most, as rewrite() makes them. */
static int make_new_codes(struct decoder *decoder)
{
    const struct headers *headers = &decoder->headers;
    for (int i = 0; i < headers->components; i++) {
        const struct component *component = &headers->component[i], *second = &headers->component[1];
        struct code *codes = decoder->rewriting.codes + (i ? 2 << 8 : 0);
        if (i == 2 && (component->dc != second->dc || component->ac != second->ac))
            return REFUSED;
        if (make_codes(codes, &headers->dc[component->dc], DC_TABLE) ||
            make_codes(codes + 256, &headers->ac[component->ac], AC_TABLE))
            return REFUSED;
    }
    return DONE;
}

/* Whether a file holds the same as the one that was rewritten just before, and its seek index is right. */
int check_rewritten(struct decoder *decoder, const uint8_t *file, int64_t nbytes)
{
    struct rewriting *rewriting = &decoder->rewriting;
    const uint32_t *token = rewriting->tokens.at, *stop = token + rewriting->count;
    struct lane lane = {0};
    if (!rewriting->segments || read_headers(&decoder->headers, file, nbytes) != DONE ||
        compare_headers(&decoder->headers, &rewriting->headers) || make_new_codes(decoder) ||
        prepare_scan(decoder, file, nbytes) || decoder->scan)
        return REFUSED;
    lane.room = decoder->unstuffed[0].at;
    for (;;) {
        int outcome = open_segment(decoder, &lane);
        if (outcome != DONE)
            return outcome == NO_MORE && token == stop ? DONE : REFUSED;
        if (decoder->kernels->prove_segment(decoder, &lane, &token) != DONE || close_segment(&lane) != DONE)
            return REFUSED;
    }
}
