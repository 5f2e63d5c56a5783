/* Streams, events and copies.
 *
 * A stream is a queue of work. Normally work runs when it is enqueued. With standin_late it runs when something waits
 * for it: a synchronisation, a wait of another stream that runs itself, or a query, which runs one piece of work. So a
 * program that forgets to wait reads what was there before.
 */
#include "queue.h"

#include <stdlib.h>
#include <string.h>

int standin_late = 0;
int standin_has_batch = 1;

static stream default_stream;
static stream *streams = &default_stream;
static int32_t last_id = 0;
static void (*on_call)(uint64_t) = NULL;

stream *standin_stream(void *handle) { return handle ? handle : &default_stream; }

void standin_release(event *e) {
    if (--e->users == 0) free(e);
}

static void run_one(stream *s);

static void run_until(stream *s, event *e, long serial) {
    while (e->done < serial && s->first) run_one(s);
}

/* The others may write it. Where nobody does, a device hangs until somebody loses patience. */
static void wait_for(const stream *waiting, const uint64_t *at, uint64_t value) {
    for (stream *s = streams; s && *at != value; s = s->next)
        while (s != waiting && s->first && *at != value) run_one(s);
    if (*at != value) standin_lost = ACL_ERROR_RT_STREAM_SYNC_TIMEOUT;
}

static void run_one(stream *s) {
    work *w = s->first;
    s->first = w->next;
    if (!s->first) s->last = NULL;
    switch (w->what) {
    case COPY: memmove(w->to, w->from, w->size); break;
    case FILL: memset(w->to, w->value, w->size); break;
    case WAIT: run_until(w->by, w->on, w->serial); break;
    case CALL: on_call(w->task ? w->task->token : w->token); break;
    case WRITE_VALUE: *(uint64_t *)w->to = w->token; break;
    case WAIT_VALUE: wait_for(s, w->to, w->token); break;
    case RECORD:
        w->on->done = w->serial;
        clock_gettime(CLOCK_MONOTONIC, &w->on->time);
        break;
    }
    if (w->on) standin_release(w->on);
    free(w);
}

void standin_drain(stream *s) {
    while (s->first) run_one(s);
}

void standin_drain_all(void) {
    for (stream *s = streams; s; s = s->next) standin_drain(s);
}

void standin_append(work **first, work **last, work *w) {
    w->next = NULL;
    if (*last) (*last)->next = w;
    else *first = w;
    *last = w;
}

aclError standin_enqueue(void *handle, work template) {
    if (standin_lost) return standin_lost;
    stream *s = standin_stream(handle);
    work *w = malloc(sizeof *w);
    *w = template;
    if (w->on) w->on->users++;
    aclError error;
    if (standin_take(s, w, &error)) return error;
    standin_append(&s->first, &s->last, w);
    if (!standin_late) standin_drain(s);
    return ACL_SUCCESS;
}

/* Work that lives in the program: the operators that it computes. */
void standin_on_call(void (*function)(uint64_t)) { on_call = function; }
aclError standin_launch(void *handle, uint64_t token) {
    return standin_enqueue(handle, (work){.what = CALL, .token = token});
}

long standin_pending(void) {
    long n = 0;
    for (stream *s = streams; s; s = s->next)
        for (work *w = s->first; w; w = w->next) n++;
    return n;
}

/* Copies. Pageable host memory cannot be reached while the program goes on: such a copy is done on return. */
static aclError copy(void *to, size_t room, const void *from, size_t size, int direction, void *handle) {
    if (size > room) return ACL_ERROR_RT_PARAM_INVALID;
    int at_once = (direction == HOST_TO_DEVICE && !standin_is_pinned(from, size)) ||
                  (direction == DEVICE_TO_HOST && !standin_is_pinned(to, size));
    if (at_once && standin_stream(handle)->capture) return ACL_ERROR_RT_PARAM_INVALID;
    aclError error = standin_enqueue(handle, (work){.what = COPY, .to = to, .from = from, .size = size});
    if (!error && at_once) standin_drain(standin_stream(handle));
    return error;
}

aclError aclrtMemcpyAsync(void *to, size_t room, const void *from, size_t size, int direction, void *handle) {
    standin_count("aclrtMemcpyAsync");
    return copy(to, room, from, size, direction, handle);
}

aclError aclrtMemcpyAsyncWithCondition(void *to, size_t room, const void *from, size_t size, int direction, void *handle) {
    return aclrtMemcpyAsync(to, room, from, size, direction, handle);
}

aclError aclrtMemcpy(void *to, size_t room, const void *from, size_t size, int direction) {
    if (standin_lost) return standin_lost;
    if (size > room) return ACL_ERROR_RT_PARAM_INVALID;
    memmove(to, from, size);
    return ACL_SUCCESS;
}

typedef struct { uint32_t id, type; } location;
typedef struct { location to, from; uint8_t reserved[16]; } batch_attributes;
enum { ON_HOST = 0, ON_DEVICE = 1 };

static int fits(const batch_attributes *a, const void *to, const void *from, size_t size) {
    for (size_t i = 0; i < sizeof a->reserved; i++)
        if (a->reserved[i]) return 0;
    return a->to.type != a->from.type && standin_is_device(to, size) == (a->to.type == ON_DEVICE) &&
           standin_is_device(from, size) == (a->from.type == ON_DEVICE);
}

aclError aclrtMemcpyBatchAsync(void **to, size_t *room, void **from, size_t *size, size_t n, batch_attributes *attributes,
                               size_t *first, size_t num_attributes, size_t *failed, void *handle) {
    standin_count("aclrtMemcpyBatchAsync");
    if (standin_lost) return standin_lost;
    if (!standin_has_batch) return ACL_ERROR_RT_FEATURE_NOT_SUPPORT;
    *failed = SIZE_MAX;
    if (!n || n > 4096 || !handle || num_attributes != 1 || first[0] != 0) return ACL_ERROR_RT_PARAM_INVALID;
    for (size_t i = 0; i < n; i++)
        if (!fits(attributes, to[i], from[i], size[i])) {
            *failed = i;
            return ACL_ERROR_RT_PARAM_INVALID;
        }
    int direction = attributes->to.type == ON_DEVICE ? HOST_TO_DEVICE : DEVICE_TO_HOST;
    for (size_t i = n; i--;) { /* in no order that anybody may rely on */
        aclError error = copy(to[i], room[i], from[i], size[i], direction, handle);
        if (error) return error;
    }
    return ACL_SUCCESS;
}

aclError aclrtMemsetAsync(void *to, size_t room, int32_t value, size_t size, void *handle) {
    if (size > room) return ACL_ERROR_RT_PARAM_INVALID;
    return standin_enqueue(handle, (work){.what = FILL, .to = to, .value = value, .size = size});
}

aclError aclrtMemset(void *to, size_t room, int32_t value, size_t size) {
    if (standin_lost) return standin_lost;
    memset(to, value, size);
    return ACL_SUCCESS;
}

/* Streams. */
aclError aclrtCreateStream(void **handle) {
    if (standin_lost) return standin_lost;
    stream *s = calloc(1, sizeof *s);
    s->id = ++last_id;
    s->next = streams->next;
    streams->next = s;
    *handle = s;
    return ACL_SUCCESS;
}

aclError aclrtCreateStreamWithConfig(void **handle, uint32_t priority, uint32_t flags) {
    return aclrtCreateStream(handle);
}

aclError aclrtStreamGetId(void *handle, int32_t *id) {
    *id = standin_stream(handle)->id;
    return ACL_SUCCESS;
}

aclError aclrtSynchronizeStream(void *handle) {
    standin_count("aclrtSynchronizeStream");
    if (standin_lost) return standin_lost;
    if (standin_stream(handle)->capture) return ACL_ERROR_RT_PARAM_INVALID; /* what is captured does not run */
    standin_drain(standin_stream(handle));
    return ACL_SUCCESS;
}

aclError aclrtSynchronizeStreamWithTimeout(void *handle, int32_t timeout) { return aclrtSynchronizeStream(handle); }

aclError aclrtSynchronizeDevice(void) {
    standin_count("aclrtSynchronizeDevice");
    if (standin_lost) return standin_lost;
    standin_drain_all();
    return ACL_SUCCESS;
}

aclError aclrtSynchronizeDeviceWithTimeout(int32_t timeout) { return aclrtSynchronizeDevice(); }

aclError aclrtStreamQuery(void *handle, int *status) {
    if (standin_lost) return standin_lost;
    *status = standin_stream(handle)->first != NULL;
    if (standin_stream(handle)->first) run_one(standin_stream(handle));
    return ACL_SUCCESS;
}

/* Events. */
aclError aclrtCreateEventExWithFlag(void **handle, uint32_t flags) {
    if (standin_lost) return standin_lost;
    event *e = calloc(1, sizeof *e);
    e->users = 1;
    *handle = e;
    return ACL_SUCCESS;
}

aclError aclrtCreateEventWithFlag(void **handle, uint32_t flags) { return aclrtCreateEventExWithFlag(handle, flags); }
aclError aclrtCreateEvent(void **handle) { return aclrtCreateEventExWithFlag(handle, 0); }

aclError aclrtDestroyEvent(void *handle) {
    standin_release(handle);
    return ACL_SUCCESS;
}

aclError aclrtRecordEvent(void *handle, void *on_stream) {
    event *e = handle;
    e->stream = standin_stream(on_stream);
    return standin_enqueue(on_stream, (work){.what = RECORD, .on = e, .serial = ++e->recorded});
}

aclError aclrtStreamWaitEvent(void *waiting, void *handle) {
    event *e = handle;
    if (!e->recorded) return ACL_SUCCESS;
    return standin_enqueue(waiting, (work){.what = WAIT, .on = e, .by = e->stream, .serial = e->recorded});
}

aclError aclrtSynchronizeEvent(void *handle) {
    event *e = handle;
    standin_count("aclrtSynchronizeEvent");
    if (standin_lost) return standin_lost;
    if (e->recorded) run_until(e->stream, e, e->recorded);
    return ACL_SUCCESS;
}

aclError aclrtResetEvent(void *handle, void *on_stream) { return ACL_SUCCESS; }

aclError aclrtQueryEventStatus(void *handle, int *status) {
    event *e = handle;
    if (standin_lost) return standin_lost;
    *status = e->done >= e->recorded; /* 1: complete */
    if (!*status && e->stream->first) run_one(e->stream);
    return ACL_SUCCESS;
}

aclError aclrtQueryEventWaitStatus(void *handle, int *status) {
    int complete = 0;
    aclError error = aclrtQueryEventStatus(handle, &complete);
    *status = !complete; /* 0: complete */
    return error;
}

aclError aclrtEventElapsedTime(float *milliseconds, void *begin, void *end) {
    event *b = begin, *e = end;
    *milliseconds = (e->time.tv_sec - b->time.tv_sec) * 1e3f + (e->time.tv_nsec - b->time.tv_nsec) / 1e6f;
    return ACL_SUCCESS;
}

/* Values in device memory, which external events are made of. */
aclError aclrtValueWrite(void *at, uint64_t value, uint32_t flag, void *handle) {
    standin_count("aclrtValueWrite");
    return standin_enqueue(handle, (work){.what = WRITE_VALUE, .to = at, .token = value});
}

aclError aclrtValueWait(void *at, uint64_t value, uint32_t flag, void *handle) {
    standin_count("aclrtValueWait");
    return standin_enqueue(handle, (work){.what = WAIT_VALUE, .to = at, .token = value});
}
