/* Answers requests: plans what is needed of an image, has it decoded, two JPEG files at a time, and makes of its pixels
 * what is wanted. */
#include "augment.h"

#include <string.h>

static bool is_within(const struct box *box, int64_t height, int64_t width)
{
    return box->top >= 0 && box->left >= 0 && box->height > 0 && box->width > 0 && box->top <= height - box->height &&
           box->left <= width - box->width;
}

/* Whether the source is a JPEG file, and not pixels. */
static bool is_file(const struct request *request)
{
    return request->height == 0;
}

static bool is_side(int64_t side)
{
    return side > 0 && side <= MOST_SIDE;
}

/* Whether a JPEG file's headers can be right: a block takes two bits at least. */
static enum outcome check_file(struct decoder *decoder, const struct request *request, int64_t max_pixels)
{
    struct headers *headers = &decoder->input.headers;
    if (read_headers(headers, request->source, request->nbytes) != DONE)
        return REFUSED;
    int64_t blocks = (int64_t)headers->rows * headers->across * headers->blocks;
    bool possible = (request->nbytes - headers->scan_at) * 4 >= blocks;
    return possible && (int64_t)headers->height * headers->width <= max_pixels &&
                   is_within(&request->box, headers->height, headers->width)
               ? DONE
               : REFUSED;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The part of the window that lies in the resized box; and where in what is made it begins, counted in pixels. */
static struct box visible_part(const struct request *request, int64_t *at)
{
    const struct box *window = &request->window;
    struct box visible = {window->top < 0 ? -window->top : 0, window->left < 0 ? -window->left : 0,
                          smaller(window->height, request->size_height - window->top),
                          smaller(window->width, request->size_width - window->left)};
    visible.height -= visible.top;
    visible.width -= visible.left;
    *at =
        visible.top * window->width + (request->mirrored ? window->width - visible.left - visible.width : visible.left);
    return visible;
}

/* The window of planes that are resized, in planes of float32. */
static enum outcome make_planes(struct decoder *decoder, const struct request *request, float *to)
{
    const struct box *window = &request->window;
    struct float_taps *across = &decoder->output.float_across, *down = &decoder->output.float_down;
    int64_t at, values = decoder->output.making.channels * window->height * window->width;
    struct box visible = visible_part(request, &at);
    if (visible.height != window->height || visible.width != window->width)
        memset(to, 0, (size_t)values * sizeof(float));
    if (visible.height <= 0 || visible.width <= 0)
        return DONE;
    if (make_float_taps(across, request->box.width, request->size_width, window->left + visible.left, visible.width,
                        request->mirrored) != DONE ||
        make_float_taps(down, request->box.height, request->size_height, window->top + visible.top, visible.height,
                        false) != DONE)
        return REFUSED;
    return resize_planes(decoder, request, to + at, visible.height, visible.width);
}

/* What was made goes through its program and becomes the answer. */
static enum outcome convert(struct decoder *decoder)
{
    const struct making *making = &decoder->output.making;
    const struct request *request = making->request;
    int64_t pixels = request->window.height * request->window.width;
    struct image image = {making->to, request->window.height, request->window.width};
    if (request->steps && run_program(decoder, &image, request->program, request->steps) != DONE)
        return REFUSED;
    if (making->to == request->to)
        return DONE;
    if (making->kind == UINT8)
        convert_pixels(decoder, making, making->to, request->to, pixels);
    else
        convert_planes(decoder, making, making->to, request->to, pixels);
    return DONE;
}

/* The box of the image whose pixels the visible part needs. */
static enum outcome plan_box(struct decoder *decoder)
{
    struct output *output = &decoder->output;
    struct making *making = &output->making;
    const struct request *request = making->request;
    const struct box *box = &request->box, *window = &request->window, *visible = &making->visible;
    struct taps *across = &output->across, *down = &output->down;
    int64_t top = window->top + visible->top, left = window->left + visible->left;
    if (!making->resized) {
        making->box = (struct box){box->top + top, box->left + left, visible->height, visible->width};
        return DONE;
    }
    across->sampling = down->sampling = request->sampling;
    if (make_taps(across, box->width, request->size_width, left, visible->width, request->mirrored, 4) != DONE ||
        make_taps(down, box->height, request->size_height, top, visible->height, false, 2) != DONE)
        return REFUSED;
    making->box = (struct box){box->top + down->first, box->left + across->first, down->stop - down->first,
                               across->stop - across->first};
    return DONE;
}

/* Bytes, the channels in turn: makes what is wanted of pixels, and begins to decode what is wanted of a JPEG file. */
static enum outcome begin_pixels(struct decoder *decoder, struct team *team)
{
    struct making *making = &decoder->output.making;
    const struct request *request = making->request;
    int64_t at, channels = making->channels;
    making->visible = visible_part(request, &at);
    const struct box *visible = &making->visible;
    bool whole = visible->height == request->window.height && visible->width == request->window.width;
    if (!is_file(request) && !making->resized) {
        place(decoder, making);
        return DONE;
    }
    if (!whole && !making->resized && (making->form->padding != CONSTANT || making->form->fill != 0))
        return REFUSED;
    if (!whole)
        memset(making->to, 0, (size_t)(channels * request->window.height * request->window.width));
    if (visible->height <= 0 || visible->width <= 0)
        return DONE;
    making->shown = making->to + channels * at;
    if (plan_box(decoder) != DONE)
        return REFUSED;
    if (!is_file(request)) {
        int64_t first = channels * (making->box.top * request->width + making->box.left);
        return resize(decoder, request->source + first, request->nbytes - first, channels * request->width);
    }
    decoder->input.checkpoints = making->without_index ? NULL : request->checkpoints;
    decoder->input.checkpoint_bytes = request->checkpoint_bytes;
    making->rows = 0;
    if (making->resized && begin_resizing(decoder, visible->width) != DONE)
        return REFUSED;
    size_t two_rows = (size_t)(channels == 1 ? 0 : 6 * making->box.width + decoder->output.resizing.reach);
    if (make_room(&decoder->scratch.pixels, two_rows) != DONE ||
        begin_box(decoder, request->source, request->nbytes, &making->box) != DONE || join(team, decoder) != DONE)
        return REFUSED;
    return BEGUN;
}

/* Begins with an image that is known to be well described: DONE, REFUSED, or BEGUN where it is decoded first. */
static enum outcome begin_image(struct decoder *decoder, struct team *team)
{
    struct making *making = &decoder->output.making;
    const struct request *request = making->request;
    const struct form *form = making->form;
    const struct box *window = &request->window;
    int64_t pixels = window->height * window->width;
    bool resized = request->size_height != request->box.height || request->size_width != request->box.width;
    making->resized = resized;
    if (resized && (request->sampling < SAMPLE_BILINEAR ||
                    request->sampling > (form->from == UINT8 ? SAMPLE_LANCZOS : SAMPLE_BILINEAR)))
        return REFUSED;
    making->kind = resized && form->from != UINT8 ? FLOAT32 : (int)form->from;
    bool as_it_is = making->kind == form->to && (making->channels == 1 || form->planes == (making->kind != UINT8));
    if (!is_file(request) && !request->steps && !resized && !request->mirrored && !window->top && !window->left &&
        window->height == request->height && window->width == request->width) {
        if (making->kind == UINT8)
            convert_pixels(decoder, making, request->source, request->to, pixels);
        else
            convert_planes(decoder, making, request->source, request->to, pixels);
        return DONE;
    }
    if (!as_it_is &&
        make_room(&decoder->scratch.made, (size_t)(making->channels * pixels * size_of(making->kind))) != DONE)
        return REFUSED;
    making->to = as_it_is ? request->to : decoder->scratch.made.at;
    enum outcome outcome = DONE;
    if (form->from == UINT8)
        outcome = begin_pixels(decoder, team);
    else if (resized)
        outcome = make_planes(decoder, request, (float *)making->to);
    else
        place(decoder, making);
    return outcome == DONE ? convert(decoder) : outcome;
}

/* Ends with an image that was decoded. */
static enum outcome end_image(struct decoder *decoder)
{
    if (decoder->output.making.rows != decoder->output.making.box.height)
        return REFUSED;
    return convert(decoder);
}

/* Begins with an image as begin_image() does. */
static enum outcome begin_request(struct decoder *decoder, struct team *team, int64_t max_pixels)
{
    const struct request *request = decoder->output.making.request;
    const struct form *form = decoder->output.making.form;
    const struct box *window = &request->window;
    if (!is_side(request->size_height) || !is_side(request->size_width) || !is_side(window->height) ||
        !is_side(window->width) || window->top < -MOST_SIDE || window->top > MOST_SIDE || window->left < -MOST_SIDE ||
        window->left > MOST_SIDE || request->nbytes < 0 || request->steps < 0 ||
        (request->steps && (form->from != UINT8 || decoder->output.making.channels != 3)))
        return REFUSED;
    if (!is_file(request) || form->from != UINT8) {
        if (!is_side(request->height) || !is_side(request->width) ||
            !is_within(&request->box, request->height, request->width) ||
            request->nbytes != decoder->output.making.channels * request->height * request->width * size_of(form->from))
            return REFUSED;
    } else if (check_file(decoder, request, max_pixels) != DONE) {
        return REFUSED;
    }
    return begin_image(decoder, team);
}

/* Of a file that was refused with its index, which may be at fault: begins once more, without. */
static enum outcome begin_again(struct decoder *decoder, struct team *team, int64_t max_pixels)
{
    struct input *input = &decoder->input;
    if (!input->checkpoints)
        return REFUSED;
    input->unindexed++;
    input->checkpoints = NULL;
    decoder->output.making.without_index = true;
    return begin_request(decoder, team, max_pixels);
}

static bool is_known(const struct form *form)
{
    return form->from >= FLOAT32 && form->from <= UINT8 && form->to >= FLOAT32 && form->to <= UINT8 &&
           (form->to != UINT8 || form->from == UINT8) && form->padding >= CONSTANT && form->padding <= SYMMETRIC &&
           (form->from != UINT8 || (form->fill >= 0 && form->fill <= 255));
}

/* The request that the decoder was given has its answer. */
static void end_request(struct decoder *decoder, enum outcome outcome)
{
    *decoder->output.making.refused = outcome != DONE;
    decoder->output.making.request = NULL;
    decoder->input.checkpoints = NULL;
    keep_little(decoder);
}

/* Whether another image is to be decoded together with the team's: one of several segments has both lanes itself, which
 * then share its tables and stay in the caches. */
static bool has_room(const struct team *team)
{
    const struct decoder *decoder = team->count ? team->lanes[0]->decoder : NULL;
    return !decoder || (team->count < LANES && decoder->input.next_segment == decoder->input.segments);
}

/* Answers requests: `refused` says of each whether somebody else has to. Pixels have three channels, or one. */
void answer_all(struct decoder *decoder, const struct request *requests, int64_t count, const struct form *form,
                int64_t channels, int64_t max_pixels, uint8_t *refused)
{
    struct team team = {.count = 0};
    int64_t next = 0;
    memset(refused, 1, (size_t)count);
    if (!is_known(form) || (channels != 1 && channels != 3))
        return;
    while (team.count || next < count) {
        if (next < count && has_room(&team)) {
            struct decoder *idle = decoder->output.making.request ? decoder->second : decoder;
            idle->output.making = (struct making){
                .request = &requests[next], .form = form, .channels = channels, .refused = &refused[next]};
            next++;
            enum outcome outcome = begin_request(idle, &team, max_pixels);
            if (outcome == REFUSED)
                outcome = begin_again(idle, &team, max_pixels);
            if (outcome != BEGUN)
                end_request(idle, outcome);
            continue;
        }
        enum outcome outcome;
        struct decoder *ended = decode_together(&team, &outcome);
        outcome = outcome == DONE ? end_image(ended) : begin_again(ended, &team, max_pixels);
        if (outcome != BEGUN)
            end_request(ended, outcome);
    }
}
