/* Colours by the arithmetic of Pillow (libImaging: Convert.c, Blend.c), by which torchvision changes PIL images. */
#include "augment.h"

/* Converts RGB to L: ITU-R 601-2, with 16 fractional bits. */
INLINE void luma_with(uint8_t *restrict to, const uint8_t *const planes[3], int64_t count)
{
    const uint8_t *r = planes[0], *g = planes[1], *b = planes[2];
    for (int64_t i = 0; i < count; i++)
        to[i] = (uint8_t)((19595 * r[i] + 38470 * g[i] + 7471 * b[i] + 32768) >> 16);
}

/* Blends `from` with values, of which `factor` is the share. */
INLINE void blend_plane_with(uint8_t *restrict at, const uint8_t *restrict from, int64_t count, float factor)
{
    for (int64_t i = 0; i < count; i++)
        at[i] = pillow_blend(from[i], at[i], factor);
}

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
INLINE void turn_byte_hue_with(uint8_t *const planes[3], int64_t count, int shift)
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

void luma_plain(uint8_t *to, const uint8_t *const planes[3], int64_t count)
{
    luma_with(to, planes, count);
}

void blend_plane_plain(uint8_t *at, const uint8_t *from, int64_t count, float factor)
{
    blend_plane_with(at, from, count, factor);
}

void turn_byte_hue_plain(uint8_t *const planes[3], int64_t count, int shift)
{
    turn_byte_hue_with(planes, count, shift);
}

#ifdef HAS_VECTORS
VECTORS void luma_vector(uint8_t *to, const uint8_t *const planes[3], int64_t count)
{
    luma_with(to, planes, count);
}

VECTORS void blend_plane_vector(uint8_t *at, const uint8_t *from, int64_t count, float factor)
{
    blend_plane_with(at, from, count, factor);
}

VECTORS void turn_byte_hue_vector(uint8_t *const planes[3], int64_t count, int shift)
{
    turn_byte_hue_with(planes, count, shift);
}
#endif
