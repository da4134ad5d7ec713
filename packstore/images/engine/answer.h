/* Answers to requests; see answer.c. */
#ifndef PACKSTORE_ANSWER_H
#define PACKSTORE_ANSWER_H

#include "jpeg/jpeg.h"

void answer_all(struct decoder *, const struct request *, int64_t count, const struct form *, int64_t channels,
                int64_t max_pixels, uint8_t *refused);

#endif
