/* Memory that grows and is used again. */
#include "base.h"

#include <stdlib.h>

enum { KEPT_BYTES = 64 << 20 }; /* most bytes kept between images */

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

void free_buffers(struct scratch *scratch)
{
    struct buffer *buffers = (struct buffer *)scratch;
    for (size_t i = 0; i < sizeof *scratch / sizeof *buffers; i++) {
        free(buffers[i].at);
        buffers[i] = (struct buffer){NULL, 0};
    }
}

/* Frees all memory if it is more than KEPT_BYTES, so that one large image does not occupy it for ever. */
void trim_buffers(struct scratch *scratch)
{
    const struct buffer *buffers = (const struct buffer *)scratch;
    size_t kept = 0;
    for (size_t i = 0; i < sizeof *scratch / sizeof *buffers; i++)
        kept += buffers[i].size;
    if (kept > KEPT_BYTES)
        free_buffers(scratch);
}
