/* Memory of a decoder that grows and is used again. */
#include "engine.h"

#include <stdlib.h>

enum { KEPT_BYTES = 64 << 20 }; /* in a decoder between two images */

enum outcome make_room(struct room *room, size_t size)
{
    if (size <= room->size)
        return DONE;
    free(room->at);
    size += size / 4; /* so that a little more each time does not mean new memory each time */
    room->at = malloc(size);
    room->size = room->at ? size : 0;
    return room->at ? DONE : REFUSED;
}

/* All rooms of a decoder, one after the other; NULL behind the last. */
static struct room *room_at(struct decoder *decoder, size_t i)
{
    struct scratch *scratch = &decoder->scratch;
    struct output *output = &decoder->output;
    struct room *taps[] = {&output->across.places,     &output->across.exact,   &output->across.rounded,
                           &output->down.places,       &output->down.exact,     &output->down.rounded,
                           &output->float_across.room, &output->float_down.room};
    size_t rooms = sizeof *scratch / sizeof(struct room), others = sizeof taps / sizeof taps[0];
    return i < rooms ? (struct room *)scratch + i : i < rooms + others ? taps[i - rooms] : NULL;
}

void give_back(struct decoder *decoder)
{
    struct room *room;
    for (size_t i = 0; (room = room_at(decoder, i)); i++) {
        free(room->at);
        *room = (struct room){NULL, 0};
    }
}

/* So that one large image does not fix the memory of each thread. */
void keep_little(struct decoder *decoder)
{
    size_t kept = 0;
    struct room *room;
    for (size_t i = 0; (room = room_at(decoder, i)); i++)
        kept += room->size;
    if (kept > KEPT_BYTES)
        give_back(decoder);
}
