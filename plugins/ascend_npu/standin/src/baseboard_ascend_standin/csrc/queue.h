/* What queue.c and graph.c have in common. */
#ifndef STANDIN_QUEUE_H
#define STANDIN_QUEUE_H

#include "standin.h"

#include <time.h>

typedef struct event {
    long recorded, done; /* how often it was enqueued, and the last of these that has run */
    struct stream *stream; /* of the last record */
    struct timespec time;
    int users; /* its handle and the work that names it */
} event;

typedef enum { COPY, FILL, RECORD, WAIT, CALL, WRITE_VALUE, WAIT_VALUE } kind;

typedef struct work {
    struct work *next;
    kind what;
    void *to;
    const void *from;
    size_t size;
    int value;
    event *on;
    struct stream *by; /* WAIT: the stream that records */
    long serial;
    uint64_t token; /* CALL, and the value of WRITE_VALUE and WAIT_VALUE */
    struct task *task; /* CALL in a captured model: what it calls can be exchanged */
} work;

typedef struct stream {
    struct stream *next;
    int32_t id;
    work *first, *last;
    struct model *capture; /* where work goes instead, while it is captured */
    int updating; /* tasks of a captured model are exchanged */
    struct task *next_task; /* the next of them; NULL where all are done */
} stream;

typedef struct task {
    uint64_t token;
    struct task *next; /* in its group */
} task;

typedef struct group {
    task *first, *last;
} group;

typedef struct model {
    work *first, *last;
    group *open; /* the group that calls go into; NULL where none does */
} model;

stream *standin_stream(void *handle);
aclError standin_enqueue(void *handle, work template);
void standin_drain(stream *s);
void standin_append(work **first, work **last, work *w);
void standin_release(event *e);

/* graph.c: takes work that is captured, or that exchanges a task. 1 if it did; then *error is the answer. */
int standin_take(stream *s, work *w, aclError *error);

#endif
