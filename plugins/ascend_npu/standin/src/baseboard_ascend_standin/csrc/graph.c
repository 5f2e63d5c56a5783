/* Captured models: lists of work that are enqueued again at each execution.
 *
 * Calls of operators are tasks. A group of tasks that was marked when it was captured can be exchanged for others: at
 * once, so that an execution that still runs finds the new ones. Programs have to wait for it.
 */
#include "queue.h"

#include <stdlib.h>

typedef struct dropped {
    struct dropped *next;
    uint64_t token;
} dropped;

static dropped *drops = NULL;

static void drop(uint64_t token) {
    dropped *d = malloc(sizeof *d);
    *d = (dropped){drops, token};
    drops = d;
}

/* A token that no captured model will call any more; 0 where there is none. */
uint64_t standin_dropped(void) {
    if (!drops) return 0;
    dropped *d = drops;
    uint64_t token = d->token;
    drops = d->next;
    free(d);
    return token;
}

int standin_capturing(void *handle) { return standin_stream(handle)->capture != NULL; }
int standin_updating(void *handle) { return standin_stream(handle)->updating; }

static void add_task(group *g, task *t) {
    if (g->last) g->last->next = t;
    else g->first = t;
    g->last = t;
}

static aclError capture(model *m, work *w) {
    if (w->what == CALL) {
        w->task = calloc(1, sizeof(task));
        w->task->token = w->token;
        if (m->open) add_task(m->open, w->task);
    }
    standin_append(&m->first, &m->last, w);
    return ACL_SUCCESS;
}

static aclError exchange(stream *s, work *w) {
    task *t = s->next_task;
    int fits = t && w->what == CALL;
    if (fits) {
        drop(t->token);
        t->token = w->token;
        s->next_task = t->next;
    }
    free(w);
    return fits ? ACL_SUCCESS : ACL_ERROR_RT_PARAM_INVALID;
}

int standin_take(stream *s, work *w, aclError *error) {
    if (!s->capture && !s->updating) return 0;
    *error = s->capture ? capture(s->capture, w) : exchange(s, w);
    return 1;
}

aclError aclmdlRICaptureBegin(void *handle, int mode) {
    standin_drain(standin_stream(handle));
    standin_stream(handle)->capture = calloc(1, sizeof(model));
    return ACL_SUCCESS;
}

aclError aclmdlRICaptureGetInfo(void *handle, int *status, void **captured) {
    *status = standin_stream(handle)->capture != NULL;
    if (captured) *captured = standin_stream(handle)->capture;
    return ACL_SUCCESS;
}

aclError aclmdlRICaptureEnd(void *handle, void **captured) {
    *captured = standin_stream(handle)->capture;
    standin_stream(handle)->capture = NULL;
    return ACL_SUCCESS;
}

aclError aclmdlRICaptureTaskGrpBegin(void *handle) {
    stream *s = standin_stream(handle);
    if (!s->capture || s->capture->open) return ACL_ERROR_RT_PARAM_INVALID;
    s->capture->open = calloc(1, sizeof(group));
    return ACL_SUCCESS;
}

aclError aclmdlRICaptureTaskGrpEnd(void *handle, void **tasks) {
    stream *s = standin_stream(handle);
    if (!s->capture || !s->capture->open) return ACL_ERROR_RT_PARAM_INVALID;
    *tasks = s->capture->open;
    s->capture->open = NULL;
    return ACL_SUCCESS;
}

aclError aclmdlRICaptureTaskUpdateBegin(void *handle, void *tasks) {
    stream *s = standin_stream(handle);
    if (standin_lost) return standin_lost;
    if (s->capture || s->updating || !tasks) return ACL_ERROR_RT_PARAM_INVALID;
    s->updating = 1;
    s->next_task = ((group *)tasks)->first;
    return ACL_SUCCESS;
}

aclError aclmdlRICaptureTaskUpdateEnd(void *handle) {
    stream *s = standin_stream(handle);
    int whole = s->updating && !s->next_task;
    s->updating = 0;
    return whole ? ACL_SUCCESS : ACL_ERROR_RT_PARAM_INVALID;
}

aclError aclmdlRIExecuteAsync(void *captured, void *handle) {
    standin_count("aclmdlRIExecuteAsync");
    for (work *w = ((model *)captured)->first; w; w = w->next) {
        aclError error = standin_enqueue(handle, *w);
        if (error) return error;
    }
    return ACL_SUCCESS;
}

aclError aclmdlRIDestroy(void *captured) {
    model *m = captured;
    standin_drain_all(); /* an execution may still want its tasks */
    while (m->first) {
        work *w = m->first;
        m->first = w->next;
        if (w->on) standin_release(w->on);
        if (w->task) {
            drop(w->task->token);
            free(w->task);
        }
        free(w);
    }
    free(m);
    return ACL_SUCCESS;
}
