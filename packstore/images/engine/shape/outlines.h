/* Masks of objects. */
#pragma once

#include "../core/base.h"

/* The part of an image that a mask shows: its corner in the image, which is moved to the mask's scale; its size; bytes
 * between rows of the mask; whether it is mirrored; and where in the mask it lies. */
struct view {
    int64_t top, left, height, width, stride, mirrored, top_of_mask, left_of_mask;
};

/* The pixel of the image that each row and column of a mask shows, negative for none; and both sizes. */
struct shown {
    const int64_t *rows, *columns;
    int64_t height, width, image_height, image_width;
};
