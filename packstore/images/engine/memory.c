/* Growing, reused memory of a decoder. */
#include "engine.h"

#include <stdlib.h>

enum { KEPT_BYTES = 64 << 20 }; /* most bytes kept in a decoder between images */

enum outcome grow_buffer(struct buffer *buffer, size_t size)
{
    if (size <= buffer->size)
        return DONE;
    free(buffer->at);
    size += size / 4; /* allocates more than asked, so that slowly growing sizes do not allocate each time */
    buffer->at = malloc(size);
    buffer->size = buffer->at ? size : 0;
    return buffer->at ? DONE : REFUSED;
}

/* Returns buffer `i` of a decoder; NULL after the last. */
static struct buffer *buffer_at(struct decoder *decoder, size_t i)
{
    struct scratch *scratch = &decoder->scratch;
    struct output *output = &decoder->output;
    struct buffer *taps[] = {&output->across.places,       &output->across.exact,     &output->across.rounded,
                             &output->down.places,         &output->down.exact,       &output->down.rounded,
                             &output->float_across.buffer, &output->float_down.buffer};
    size_t buffers = sizeof *scratch / sizeof(struct buffer), others = sizeof taps / sizeof taps[0];
    return i < buffers ? (struct buffer *)scratch + i : i < buffers + others ? taps[i - buffers] : NULL;
}

void free_buffers(struct decoder *decoder)
{
    struct buffer *buffer;
    for (size_t i = 0; (buffer = buffer_at(decoder, i)); i++) {
        free(buffer->at);
        *buffer = (struct buffer){NULL, 0};
    }
}

/* Frees all memory of a decoder if it has more than KEPT_BYTES, so that one large image does not occupy it for ever. */
void trim_buffers(struct decoder *decoder)
{
    size_t kept = 0;
    struct buffer *buffer;
    for (size_t i = 0; (buffer = buffer_at(decoder, i)); i++)
        kept += buffer->size;
    if (kept > KEPT_BYTES)
        free_buffers(decoder);
}
