/*
 * A file that rewrite.c has made holds what the old one does: it is read by its own tables, through its seek index, and
 * has to have the same size, sampling, quantisation and coefficients.
 *
 * Which symbol is next is known, so nothing has to be decoded before what follows it can be looked at: its code by the
 * new file's tables, and the bits behind it, have to be where a decoder finds them. As no code begins as another one
 * does, every decoder reads the same symbols then. This takes half the time of decoding.
 */
#include "reader.h"

/* Compares the code and the bits behind it at the high end of `*bits`, and takes them away. Returns how far k moves. */
INLINE uint32_t prove_symbol(uint64_t *bits, uint64_t *taken, const struct code *code, uint32_t behind, uint64_t *wrong)
{
    uint32_t length = code->length;
    *wrong |= *bits >> (64 - length) ^ (code->bits | behind);
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
 * Compares a segment of the new file, which `lane` has opened, with the first coefficients and the tokens that follow.
 * A block is looked at as a whole, 64 * 31 bits at most, before it shows that the data have ended: AHEAD bytes.
 */
INLINE int prove_segment(struct decoder *decoder, struct lane *lane, const uint32_t **tokens)
{
    const struct headers *headers = &decoder->headers;
    const struct rewriting *rewriting = &decoder->rewriting;
    const int16_t *first = (const int16_t *)rewriting->firsts.at + lane->mcu * headers->blocks;
    const uint32_t *token = *tokens;
    const uint8_t *from = lane->room;
    uint64_t taken = 0, end = 8 * (uint64_t)(lane->end - from), wrong = 0;
    int predicted[COMPONENTS] = {0};
    for (int64_t m = 0; m < lane->left; m++)
        for (int b = 0; b < headers->blocks; b++, first++) {
            int i = headers->component_of[b], difference = *first - predicted[i], size = bits_of(difference);
            const struct code *dc = rewriting->codes + (i ? 2 << 8 : 0), *ac = dc + 256;
            predicted[i] = *first;
            uint64_t bits = peek(from, taken);
            prove_symbol(&bits, &taken, &dc[size], low_bits(difference, size), &wrong);
            token++; /* of the first coefficient */
            for (uint32_t k = 1; k < 64;) {
                k += prove_symbol(&bits, &taken, &ac[*token >> 16 & 255], *token & 0xFFFF, &wrong);
                token++;
                if (k >= 64)
                    break;
                bits = peek(from, taken);
                k += prove_symbol(&bits, &taken, &ac[*token >> 16 & 255], *token & 0xFFFF, &wrong);
                token++;
            }
            if (UNLIKELY(wrong || taken > end))
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
    const uint32_t *token = rewriting->tokens.at; /* of as many blocks as the new file has, if its headers are right */
    struct lane lane = {0};
    if (!rewriting->segments || read_headers(&decoder->headers, file, nbytes) != DONE ||
        compare_headers(&decoder->headers, &rewriting->headers) || make_new_codes(decoder) ||
        prepare_scan(decoder, file, nbytes) || decoder->scan)
        return REFUSED;
    lane.room = decoder->unstuffed[0].at;
    for (;;) {
        int outcome = open_segment(decoder, &lane);
        if (outcome != DONE)
            return outcome == NO_MORE ? DONE : REFUSED;
        if (decoder->kernels->prove_segment(decoder, &lane, &token) != DONE || close_segment(&lane) != DONE)
            return REFUSED;
    }
}
