/*
 * Runs programs of mutated steps on images of all sizes; to be compiled with -fsanitize=address,undefined.
 *
 *     programs_fuzz COUNT SEED
 *
 * Every image is a block of its own on the heap, of exactly its size, so that a byte too far is seen. The decoders with
 * and without vector instructions have to answer alike, down to the last byte. Prints how many programs were tried, and
 * how many accepted; ends with 1 where answers differ.
 */
#include "../../packstore/images/engine/core/requests.h"
#include "../../packstore/images/engine/ops/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct decoder *packstore_engine_new(int plain);
void packstore_engine_free(struct decoder *);
int64_t packstore_engine_augment(struct decoder *, uint8_t *, int64_t, int64_t, int64_t, const struct step *, int64_t);

static uint64_t state;

static uint64_t any(uint64_t below) /* splitmix64 */
{
    uint64_t z = state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return below ? (z ^ z >> 31) % below : 0;
}

static float number(void)
{
    static const float telling[] = {0, 1, -1, 0.5f, 2, 3, 23, 127.5f, 255, 256, 65535, 1e6f, -1e9f, 3e9f, 1e-30f};
    float value;
    uint32_t bits;
    switch (any(5)) {
    case 0: return telling[any(sizeof telling / sizeof *telling)];
    case 1: return (float)any(40);
    case 2: return (float)any(2000) / 500 - 2;
    case 3: return (float)any(600) - 300;
    default:
        bits = (uint32_t)any(1ull << 32);
        memcpy(&value, &bits, 4);
        return any(9) ? (float)any(8) / 8 : value;
    }
}

static struct step any_step(int64_t height, int64_t width)
{
    struct step step = {(int32_t)any(STEPS), any(2) ? (int32_t)any(16) : (int32_t)any(1ull << 32), {0}};
    if (!any(60))
        step.code = (int32_t)any(1ull << 32);
    for (int i = 0; i < 8; i++)
        step.p[i] = number();
    float *p = step.p;
    if (!any(9)) /* as it is, and most likely refused */
        return step;
    switch (step.code) {
    case STEP_HUE: p[0] = (float)any(1000) / 1000 - 0.5f; break;
    case STEP_POSTERIZE: p[0] = (float)any(9); break;
    case STEP_BLUR:
        p[0] = (float)(2 * any(any(9) ? 12 : 128) + 1), p[1] = (float)(2 * any(any(9) ? 12 : 128) + 1);
        p[2] = (float)(1 + any(500)) / 50, p[3] = (float)(1 + any(500)) / 50;
        break;
    case STEP_NOISE: p[2] = (float)any(65536), p[3] = (float)any(65536); break;
    case STEP_PERMUTE: p[0] = (float)any(3), p[1] = (float)any(3), p[2] = (float)any(3); break;
    case STEP_PERSPECTIVE: p[6] /= 1000, p[7] /= 1000; /* fall through */
    case STEP_AFFINE:
        step.flags = (int32_t)((uint32_t)any(3) | (uint32_t)any(3) << 2 | (uint32_t)any(1 << 24) << 8);
        step.flags |= (int32_t)(any(3) ? 0 : any(4) << 4); /* Pillow's, of which the bytes are other numbers */
        break;
    case STEP_ERASE:
        p[0] = (float)any((uint64_t)height + 5) - 2, p[1] = (float)any((uint64_t)width + 5) - 2;
        p[2] = (float)any((uint64_t)height + 5), p[3] = (float)any((uint64_t)width + 5);
        p[4] = (float)any(65536), p[5] = (float)any(65536);
        step.flags = (int32_t)any(3);
        break;
    default: break;
    }
    return step;
}

int main(int count, char **arguments)
{
    int64_t tried = 0, accepted = 0, total = count > 2 ? atoll(arguments[1]) : 0;
    struct decoder *decoders[2] = {packstore_engine_new(0), packstore_engine_new(1)};
    state = count > 2 ? strtoull(arguments[2], NULL, 10) : 0;
    for (; tried < total; tried++) {
        int64_t height = 1 + (int64_t)any(any(4) ? 40 : 3), width = 1 + (int64_t)any(any(4) ? 90 : 3);
        if (!any(200))
            *(any(2) ? &height : &width) = MOST_SIDE, *(height == MOST_SIDE ? &width : &height) = 1 + (int64_t)any(2);
        size_t size = (size_t)(3 * height * width);
        uint8_t *images[2] = {malloc(size), malloc(size)};
        struct step steps[20];
        int64_t n = any(3) ? 1 + (int64_t)any(3) : 1 + (int64_t)any(20), done[2];
        uint64_t most = 1 + any(256);
        for (size_t i = 0; i < size; i++)
            images[0][i] = images[1][i] = (uint8_t)(255 - any(most));
        for (int64_t i = 0; i < n; i++)
            steps[i] = any_step(height, width);
        for (int d = 0; d < 2; d++)
            done[d] = packstore_engine_augment(decoders[d], images[d], 1, height, width, steps, n);
        accepted += done[0];
        if (done[0] != done[1] || (done[0] && memcmp(images[0], images[1], size))) {
            printf("program %lld: with and without vector instructions it differs\n", (long long)tried);
            for (int64_t i = 0; i < n; i++) {
                printf("%d %#x", steps[i].code, (unsigned)steps[i].flags);
                for (int k = 0; k < 8; k++)
                    printf(" %.9g", (double)steps[i].p[k]);
                printf("\n");
            }
            return 1;
        }
        free(images[0]), free(images[1]);
    }
    packstore_engine_free(decoders[0]), packstore_engine_free(decoders[1]);
    printf("%lld %lld\n", (long long)tried, (long long)accepted);
    return 0;
}
