/* Colours and affine maps by the arithmetic of Pillow (libImaging: Convert.c, Blend.c, Geometry.c), by which
 * torchvision changes PIL images. */
#include "../simd/arithmetic.h"
#include "program.h"

/* Converts RGB to L: ITU-R 601-2, with 16 fractional bits. */
INLINE void luma_of(uint8_t *restrict to, const uint8_t *const planes[3], int64_t count)
{
    const uint8_t *r = planes[0], *g = planes[1], *b = planes[2];
    for (int64_t i = 0; i < count; i++)
        to[i] = (uint8_t)((19595 * r[i] + 38470 * g[i] + 7471 * b[i] + 32768) >> 16);
}
BOTH_LOOPS(void, luma, (uint8_t *to, const uint8_t *const planes[3], int64_t count), luma_of(to, planes, count))

/* Blends `from` with values, of which `factor` is the share. */
INLINE void blend_plane_of(uint8_t *restrict at, const uint8_t *restrict from, int64_t count, float factor)
{
    for (int64_t i = 0; i < count; i++)
        at[i] = pillow_blend(from[i], at[i], factor);
}
BOTH_LOOPS(void, blend_plane, (uint8_t *at, const uint8_t *from, int64_t count, float factor),
           blend_plane_of(at, from, count, factor))

/* Hue of RGB from 0 to 255. A hue is counted from 0 to 1, some steps in single and some in double precision. */
INLINE int hue_of(int r, int g, int b, int high, int spread)
{
    const float all = (float)spread;
    const float red = (float)(high - r) / all, green = (float)(high - g) / all, blue = (float)(high - b) / all;
    const double second = 2.0 + (double)red - (double)blue, third = 4.0 + (double)green - (double)red;
    const float sixths = r == high ? blue - green : g == high ? (float)second : (float)third;
    const double turns = (double)sixths / 6.0 + 1.0, below = turns - 1.0;
    return (int)((double)(float)(turns >= 1 ? below : turns) * 255.0);
}

/* Rounds a number of at least 0, halves up. */
INLINE int nearest(double value)
{
    return (int)(value + 0.5);
}

/* `a` if the condition holds, else `b`: without a branch, which would keep the compiler from vectors. */
INLINE int choose(bool condition, int a, int b)
{
    return b ^ (-(int)condition & (a ^ b));
}

/* Converts RGB to HSV of bytes, adds `shift` to the hue, which wraps, and converts back. */
INLINE void turn_byte_hue_of(uint8_t *const planes[3], int64_t count, int shift)
{
    uint8_t *restrict red = planes[0], *restrict green = planes[1], *restrict blue = planes[2];
    for (int64_t i = 0; i < count; i++) {
        const int r = red[i], g = green[i], b = blue[i];
        const int more = r > g ? r : g, less = r < g ? r : g;
        const int high = more > b ? more : b, low = less < b ? less : b, spread = high - low;
        const int safe = spread ? spread : 1, most = high ? high : 1;
        const int share = (int)((double)((float)spread / (float)most) * 255.0);
        const int found = hue_of(r, g, b, high, safe);
        const int hue = ((spread ? found : 0) + shift) & 255;
        const double sixths = (double)hue * 6.0 / 255.0;
        const int sector = (int)sixths;
        const float part = (float)(sixths - (double)sector), saturation = (float)((double)share / 255.0);
        const double value = (double)high, strong = (double)saturation, inside = (double)part;
        const int least = nearest(value * (1.0 - strong));
        const int falling = nearest(value * (1.0 - strong * inside));
        const int rising = nearest(value * (1.0 - strong * (1.0 - inside)));
        const bool gray = share == 0;
        const int at = choose(gray, 6, choose(sector == 6, 0, sector));
        red[i] = (uint8_t)choose((at == 0) | (at >= 5), high, choose(at == 1, falling, choose(at == 4, rising, least)));
        green[i] = (uint8_t)choose((at == 1) | (at == 2) | (at == 6), high,
                                   choose(at == 0, rising, choose(at == 3, falling, least)));
        blue[i] = (uint8_t)choose((at == 3) | (at == 4) | (at == 6), high,
                                  choose(at == 2, rising, choose(at == 5, falling, least)));
    }
}
BOTH_LOOPS(void, turn_byte_hue, (uint8_t *const planes[3], int64_t count, int shift),
           turn_byte_hue_of(planes, count, shift))

/* ---- affine maps ---- */

/* Positions in the source with 16 fractional bits, along one axis: of the first pixel, and what a column and a row add.
 * They wrap around, as every position is checked. */
struct axis {
    uint32_t at, column, row;
};

/* Computes the indices of a row's pixels in the source; `outside` for those beyond it. */
INLINE void find_places(uint32_t *restrict to, struct axis across, struct axis down, uint32_t width, uint32_t height,
                        uint32_t outside)
{
    for (uint32_t x = 0; x < width; x++) {
        uint32_t column = (uint32_t)((int32_t)(across.at + across.column * x) >> 16);
        uint32_t row = (uint32_t)((int32_t)(down.at + down.column * x) >> 16);
        to[x] = (column < width) & (row < height) ? row * width + column : outside;
    }
}

/* Computes the index in a source of `length` of each of as many pixels, `step` apart; -1 outside. */
static void find_indices(int32_t *to, double at, double step, int64_t length)
{
    for (int64_t i = 0; i < length; i++, at += step) /* adds up rounding errors, as Pillow does */
        to[i] = at >= 0 && at < (double)length ? (int32_t)at : -1;
}

/* Shows the nearest pixels of the source, as ImagingTransformAffine(). */
enum outcome place_pixels(struct worker *worker, const struct image *image, const struct step *step)
{
    struct scratch *scratch = &worker->scratch;
    int64_t width = image->width, height = image->height, pixels = height * width;
    if (grow_buffer(&scratch->copied, (size_t)(3 * pixels) + PADDING) != DONE ||
        grow_buffer(&scratch->floats, (size_t)(2 * width + height) * sizeof(int32_t)) != DONE)
        return REFUSED;
    uint8_t *source = scratch->copied.at, *to = image->at;
    memcpy(source, image->at, (size_t)(3 * pixels));
    for (int c = 0; c < 3; c++) /* the fill is a pixel behind the source */
        source[3 * pixels + c] = (uint8_t)(step->flags >> 8 * (c + 1));
    uint32_t *places = (uint32_t *)scratch->floats.at, outside = (uint32_t)pixels;
    int32_t *columns = (int32_t *)places + width, *rows = columns + width;
    double scales[4];
    struct axis across, down;
    memcpy(scales, step->p, sizeof scales);
    memcpy(&across, step->p, sizeof across);
    memcpy(&down, step->p + 3, sizeof down);
    if (step->flags & PILLOW_SCALE) {
        find_indices(columns, scales[0], scales[1], width);
        find_indices(rows, scales[2], scales[3], height);
    }
    for (int64_t y = 0; y < height; y++, to += 3 * width, across.at += across.row, down.at += down.row) {
        if (step->flags & PILLOW_FIXED)
            find_places(places, across, down, (uint32_t)width, (uint32_t)height, outside);
        else
            for (int64_t x = 0; x < width; x++)
                places[x] = columns[x] < 0 || rows[y] < 0 ? outside : (uint32_t)(rows[y] * width + columns[x]);
        show_places(to, source, places, width);
    }
    return DONE;
}
