/* Answers requests: finds the box of an image that a request needs, decodes it (two JPEG files at a time), and makes
 * the requested output from its pixels. */
#include "jpeg/jpeg.h"
#include "ops/program.h"
#include "simd/arithmetic.h"

static bool is_within(const struct box *box, int64_t height, int64_t width)
{
    return box->top >= 0 && box->left >= 0 && box->height > 0 && box->width > 0 && box->top <= height - box->height &&
           box->left <= width - box->width;
}

/* True if the source is a JPEG file, false if it is pixels. */
static bool is_file(const struct request *request)
{
    return request->height == 0;
}

static bool is_side(int64_t side)
{
    return side > 0 && side <= MOST_SIDE;
}

/* Reads the headers of a JPEG file and checks that they are plausible: a block takes at least two bits. */
static enum outcome check_file(struct decoder *decoder, const struct request *request)
{
    struct headers *headers = &decoder->input.headers;
    if (read_headers(headers, request->source, request->nbytes) != DONE)
        return REFUSED;
    int64_t blocks = (int64_t)headers->rows * headers->across * headers->blocks;
    bool possible = (request->nbytes - headers->scan_at) * 4 >= blocks &&
                    (int64_t)headers->height * headers->width <= decoder->output.task.max_pixels;
    return possible && is_within(&request->box, headers->height, headers->width) ? DONE : REFUSED;
}

/* Returns the part of the window that is inside the resized box; `at` receives the index of its first pixel in the
 * output. */
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

/* Resizes planes of floating point and writes the window as planes of float32. */
static enum outcome make_planes(struct decoder *decoder)
{
    struct task *task = &decoder->output.task;
    const struct box *window = &task->request->window, *visible = &task->visible;
    int64_t at, values = task->channels * window->height * window->width;
    task->visible = visible_part(task->request, &at);
    if (visible->height != window->height || visible->width != window->width)
        memset(task->to, 0, (size_t)values * sizeof(float));
    if (visible->height <= 0 || visible->width <= 0)
        return DONE;
    return resize_planes(&decoder->worker, task, (float *)task->to + at);
}

/* Runs the program on the pixels and converts them to the requested type and layout. */
static enum outcome convert(struct decoder *decoder)
{
    const struct task *task = &decoder->output.task;
    const struct request *request = task->request;
    struct image image = {task->to, request->window.height, request->window.width};
    if (request->steps && run_program(&decoder->worker, &image, request->program, request->steps) != DONE)
        return REFUSED;
    if (task->to != request->to)
        convert_image(decoder->worker.kernels, task, task->to);
    return DONE;
}

/* Computes the box of the image that the visible part needs. */
static enum outcome plan_box(struct decoder *decoder)
{
    struct output *output = &decoder->output;
    struct task *task = &output->task;
    const struct request *request = task->request;
    const struct box *box = &request->box, *window = &request->window, *visible = &task->visible;
    struct taps *across = &output->resizing.across, *down = &output->resizing.down;
    struct buffer *buffers = decoder->worker.scratch.taps;
    int64_t top = window->top + visible->top, left = window->left + visible->left;
    if (!task->resized) {
        task->box = (struct box){box->top + top, box->left + left, visible->height, visible->width};
        return DONE;
    }
    across->sampling = down->sampling = request->sampling & ~(int64_t)SAMPLE_COLUMNS_FIRST;
    bool mirrored = request->mirrored;
    if (make_taps(across, &buffers[0], box->width, request->size_width, left, visible->width, mirrored, 4) != DONE ||
        make_taps(down, &buffers[1], box->height, request->size_height, top, visible->height, false, 2) != DONE)
        return REFUSED;
    task->box = (struct box){box->top + down->first, box->left + across->first, down->stop - down->first,
                             across->stop - across->first};
    return DONE;
}

/* For sources of interleaved bytes: finishes an image of pixels; only begins to decode a JPEG file. */
static enum outcome begin_pixels(struct decoder *decoder, struct team *team)
{
    struct task *task = &decoder->output.task;
    const struct request *request = task->request;
    const float *fill = task->form->fill;
    int64_t at, channels = task->channels;
    task->visible = visible_part(request, &at);
    const struct box *visible = &task->visible;
    bool whole = visible->height == request->window.height && visible->width == request->window.width;
    if (!is_file(request) && !task->resized) {
        place(decoder->worker.kernels, task);
        return DONE;
    }
    if (!whole && !task->resized && (task->form->padding != CONSTANT || fill[0] != 0 || fill[1] != 0 || fill[2] != 0))
        return REFUSED;
    if (!whole)
        memset(task->to, 0, (size_t)(channels * request->window.height * request->window.width));
    if (visible->height <= 0 || visible->width <= 0)
        return DONE;
    task->shown = task->to + channels * at;
    if (plan_box(decoder) != DONE)
        return REFUSED;
    if (!is_file(request)) {
        int64_t first = channels * (task->box.top * request->width + task->box.left);
        return resize(&decoder->output.resizing, &decoder->worker, task, request->source + first,
                      request->nbytes - first, channels * request->width);
    }
    decoder->input.checkpoints = task->without_index ? NULL : request->checkpoints;
    decoder->input.checkpoint_bytes = request->checkpoint_bytes;
    task->rows = 0;
    if (task->resized && begin_resizing(&decoder->output.resizing, &decoder->worker, task) != DONE)
        return REFUSED;
    size_t two_rows = (size_t)(channels == 1 ? 0 : 6 * task->box.width + decoder->output.resizing.reach);
    if (grow_buffer(&decoder->worker.scratch.pixels, two_rows) != DONE ||
        begin_box(decoder, request->source, request->nbytes, &task->box) != DONE || join(team, decoder) != DONE)
        return REFUSED;
    return BEGUN;
}

/* True for a filter that this engine knows for sources of a type. */
static bool is_sampling(int64_t sampling, int64_t type)
{
    if (type != UINT8)
        return sampling == SAMPLE_BILINEAR;
    sampling &= ~(int64_t)SAMPLE_COLUMNS_FIRST;
    return (sampling >= SAMPLE_BILINEAR && sampling <= SAMPLE_LANCZOS) || sampling == SAMPLE_PILLOW_BILINEAR ||
           sampling == SAMPLE_PILLOW_BICUBIC;
}

/* Begins an image whose request is valid. Returns DONE, REFUSED, or BEGUN if the image must be decoded first. */
static enum outcome begin_image(struct decoder *decoder, struct team *team)
{
    struct task *task = &decoder->output.task;
    const struct request *request = task->request;
    const struct form *form = task->form;
    const struct box *window = &request->window;
    int64_t pixels = window->height * window->width;
    bool resized = request->size_height != request->box.height || request->size_width != request->box.width;
    task->resized = resized;
    if (resized && !is_sampling(request->sampling, form->from))
        return REFUSED;
    task->kind = resized && form->from != UINT8 ? FLOAT32 : (int)form->from;
    bool as_it_is = task->kind == form->to && (task->channels == 1 || form->planes == (task->kind != UINT8));
    bool whole = request->box.height == request->height && request->box.width == request->width;
    if (!is_file(request) && whole && !request->steps && !resized && !request->mirrored && !window->top &&
        !window->left && window->height == request->height && window->width == request->width) {
        convert_image(decoder->worker.kernels, task, request->source);
        return DONE;
    }
    if (!as_it_is &&
        grow_buffer(&decoder->worker.scratch.made, (size_t)(task->channels * pixels * size_of(task->kind))) != DONE)
        return REFUSED;
    task->to = as_it_is ? request->to : decoder->worker.scratch.made.at;
    enum outcome outcome = DONE;
    if (form->from == UINT8)
        outcome = begin_pixels(decoder, team);
    else if (resized)
        outcome = make_planes(decoder);
    else
        place(decoder->worker.kernels, task);
    return outcome == DONE ? convert(decoder) : outcome;
}

/* Checks a request, then does begin_image(). */
static enum outcome begin_request(struct decoder *decoder, struct team *team)
{
    const struct request *request = decoder->output.task.request;
    const struct form *form = decoder->output.task.form;
    const struct box *window = &request->window;
    if (!is_side(request->size_height) || !is_side(request->size_width) || !is_side(window->height) ||
        !is_side(window->width) || window->top < -MOST_SIDE || window->top > MOST_SIDE || window->left < -MOST_SIDE ||
        window->left > MOST_SIDE || request->nbytes < 0 || request->steps < 0 ||
        (request->steps && (form->from != UINT8 || decoder->output.task.channels != 3)))
        return REFUSED;
    if (!is_file(request) || form->from != UINT8) {
        if (!is_side(request->height) || !is_side(request->width) ||
            !is_within(&request->box, request->height, request->width) ||
            request->nbytes != decoder->output.task.channels * request->height * request->width * size_of(form->from))
            return REFUSED;
    } else if (check_file(decoder, request) != DONE) {
        return REFUSED;
    }
    return begin_image(decoder, team);
}

/* Begins a file again without its index, which may be the reason why the file was refused. */
static enum outcome begin_again(struct decoder *decoder, struct team *team)
{
    struct input *input = &decoder->input;
    if (!input->checkpoints)
        return REFUSED;
    input->unindexed++;
    input->checkpoints = NULL;
    decoder->output.task.without_index = true;
    return begin_request(decoder, team);
}

/* Does begin_request(), if need be without the index. */
static enum outcome begin_first(struct decoder *decoder, struct team *team)
{
    enum outcome outcome = begin_request(decoder, team);
    return outcome == REFUSED ? begin_again(decoder, team) : outcome;
}

/* Finishes an image that was decoded; begins it again if it was refused. */
static enum outcome end_image(struct decoder *decoder, struct team *team, enum outcome outcome)
{
    if (outcome != DONE)
        return begin_again(decoder, team);
    return decoder->output.task.rows == decoder->output.task.box.height ? convert(decoder) : REFUSED;
}

static bool is_known(const struct form *form)
{
    for (int c = 0; c < 3; c++)
        if (form->from == UINT8 && !(form->fill[c] >= 0 && form->fill[c] <= 255))
            return false;
    return form->from >= FLOAT32 && form->from <= UINT8 && form->to >= FLOAT32 && form->to <= UINT8 &&
           (form->to != UINT8 || (form->from == UINT8 && !form->table)) && form->padding >= CONSTANT &&
           form->padding <= SYMMETRIC;
}

/* Returns the number of requests, from the first on, that take the same JPEG file; 1 if it is pixels. */
static int64_t count_sharing(const struct request *requests, int64_t count)
{
    int64_t number = 1;
    while (number < count && is_file(requests) && is_file(requests + number) &&
           requests[number].source == requests->source && requests[number].nbytes == requests->nbytes)
        number++;
    return number;
}

static const struct form bytes = {.from = UINT8, .to = UINT8};

/* Returns the request for all pixels of a file, as `bytes`. */
static struct request whole_file(const uint8_t *file, int64_t nbytes, int64_t height, int64_t width, uint8_t *to)
{
    const struct box whole = {0, 0, height, width};
    struct request request = {.source = file, .nbytes = nbytes, .box = whole, .window = whole, .to = to};
    request.size_height = height;
    request.size_width = width;
    return request;
}

/* Begins to decode the whole file of the decoder's request, for all requests that share it. */
static enum outcome begin_shared(struct decoder *decoder, struct team *team)
{
    const struct headers *headers = &decoder->input.headers;
    struct task *task = &decoder->output.task;
    struct buffer *shared = &decoder->worker.scratch.shared;
    const struct request *first = task->sharers = task->request;
    if (read_headers(&decoder->input.headers, first->source, first->nbytes) != DONE)
        return REFUSED;
    int64_t height = headers->height, width = headers->width;
    if (height * width > task->max_pixels || grow_buffer(shared, (size_t)(task->channels * height * width)) != DONE)
        return REFUSED;
    decoder->output.source = whole_file(first->source, first->nbytes, height, width, shared->at);
    task->request = &decoder->output.source;
    task->form = &bytes;
    return begin_request(decoder, team);
}

/* Answers the requests that share the decoder's file: from its pixels if they are decoded, else one by one, since a
 * flaw may be outside of a request's box. */
static void answer_sharing(struct decoder *decoder, bool decoded, const struct form *form)
{
    const struct task shared = decoder->output.task;
    int64_t height = decoder->output.source.size_height, width = decoder->output.source.size_width;
    for (int64_t i = 0; i < shared.sharing; i++) {
        struct request request = shared.sharers[i];
        struct team team = {.count = 0};
        if (decoded) {
            request.source = decoder->worker.scratch.shared.at;
            request.height = height, request.width = width;
            request.nbytes = shared.channels * height * width;
        }
        decoder->output.task = (struct task){
            .request = &request, .form = form, .channels = shared.channels, .max_pixels = shared.max_pixels};
        enum outcome outcome = begin_first(decoder, &team);
        while (outcome == BEGUN) {
            decode_together(&team, &outcome);
            outcome = end_image(decoder, &team, outcome);
        }
        decoder->input.checkpoints = NULL;
        shared.refused[i] = outcome != DONE;
    }
}

/* Marks the decoder's request as answered or refused; answers those that share its file, in their `form`. */
static void end_request(struct decoder *decoder, enum outcome outcome, const struct form *form)
{
    const struct task *task = &decoder->output.task;
    if (task->sharing)
        answer_sharing(decoder, outcome == DONE, form);
    else
        *task->refused = outcome != DONE;
    decoder->output.task.request = NULL;
    decoder->input.checkpoints = NULL;
}

/* Fetches the first pixels of a source into the caches, since random rows of a large array are in none. */
static void prefetch(const struct request *request)
{
    for (int64_t at = 0; !is_file(request) && at < request->nbytes && at < 4096; at += 64)
        __builtin_prefetch((const uint8_t *)request->source + at);
}

/* True if another image may join the team. An image of several segments uses both lanes itself: they share its tables,
 * which stay in the caches. */
static bool has_room(const struct team *team)
{
    const struct decoder *decoder = team->count ? team->lanes[0]->decoder : NULL;
    return !decoder || (team->count < LANES && decoder->input.next_segment == decoder->input.segments);
}

/* Answers requests; sets `refused` for each that the caller has to answer otherwise. */
static void answer_all(struct decoder *decoder, const struct request *requests, int64_t count, const struct form *form,
                       int64_t channels, int64_t max_pixels, uint8_t *refused)
{
    struct team team = {.count = 0};
    int64_t next = 0;
    memset(refused, 1, (size_t)count);
    if (!is_known(form) || (channels != 1 && channels != 3))
        return;
    while (team.count || next < count) {
        if (next < count && has_room(&team)) {
            struct decoder *idle = decoder->output.task.request ? decoder->second : decoder;
            struct task *task = &idle->output.task;
            *task = (struct task){.request = &requests[next], .form = form, .refused = &refused[next]};
            task->channels = channels;
            task->max_pixels = max_pixels;
            int64_t shared = form->from == UINT8 ? count_sharing(requests + next, count - next) : 1;
            next += shared;
            if (next < count)
                prefetch(&requests[next]);
            task->sharing = shared > 1 ? shared : 0;
            enum outcome outcome = (shared > 1 ? begin_shared : begin_first)(idle, &team);
            if (outcome != BEGUN)
                end_request(idle, outcome, form);
            continue;
        }
        enum outcome outcome;
        struct decoder *ended = decode_together(&team, &outcome);
        outcome = end_image(ended, &team, outcome);
        if (outcome != BEGUN)
            end_request(ended, outcome, form);
    }
    trim_buffers(&decoder->worker.scratch);
    trim_buffers(&decoder->second->worker.scratch);
}

/* Answers requests; sets `refused` for each that the caller has to answer otherwise, such as images of more than
 * `max_pixels`. Pixels have three channels, or one: the luma of JPEG files. Returns the number of images whose
 * checkpoints belong to another file; these are decoded without. */
EXPORT int64_t packstore_engine_run(struct decoder *decoder, const struct request *requests, int64_t count,
                                    const struct form *form, int64_t channels, int64_t max_pixels, uint8_t *refused)
{
    decoder->input.unindexed = decoder->second->input.unindexed = 0;
    answer_all(decoder, requests, count, form, channels, max_pixels, refused);
    return decoder->input.unindexed + decoder->second->input.unindexed;
}

/* Decodes all pixels of a file that packstore_engine_size() accepts: (height, width, 3). */
EXPORT int packstore_engine_whole(struct decoder *decoder, const uint8_t *file, int64_t nbytes, int64_t height,
                                  int64_t width, int64_t max_pixels, uint8_t *to)
{
    struct request request = whole_file(file, nbytes, height, width, to);
    uint8_t refused;
    answer_all(decoder, &request, 1, &bytes, 3, max_pixels, &refused);
    return refused ? REFUSED : DONE;
}
