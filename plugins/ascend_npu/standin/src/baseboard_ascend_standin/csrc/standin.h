/* A stand-in for CANN's C library: devices made of host memory, streams that really queue.
 *
 *   memory.c   device and pinned memory with a capacity each
 *   queue.c    streams, events, copies: what is enqueued, and when it runs
 *   graph.c    captured models, and exchanging the tasks in them
 *   device.c   device numbers, names, errors, and the switches that tests turn
 *
 * Every other symbol of the wheel is made by build.py: it counts its calls and answers success.
 * One thread at a time: the library must be used with TASK_QUEUE_ENABLE=0.
 */
#ifndef STANDIN_H
#define STANDIN_H

#include <stddef.h>
#include <stdint.h>

typedef int aclError;

enum {
    ACL_SUCCESS = 0,
    ACL_ERROR_RT_PARAM_INVALID = 107000,
    ACL_ERROR_RT_CONTEXT_NULL = 107002,
    ACL_ERROR_RT_FEATURE_NOT_SUPPORT = 207000,
    ACL_ERROR_RT_MEMORY_ALLOCATION = 207001,
    ACL_ERROR_RT_STREAM_SYNC_TIMEOUT = 507046,
};

enum { HOST_TO_HOST = 0, HOST_TO_DEVICE = 1, DEVICE_TO_HOST = 2, DEVICE_TO_DEVICE = 3 };

/* The switches. */
extern int standin_late;          /* work runs only when something waits for it */
extern int standin_has_batch;     /* aclrtMemcpyBatchAsync is supported */
extern aclError standin_lost;     /* what every call answers once the device is lost; 0 while it is there */

/* memory.c */
int standin_is_pinned(const void *host, size_t n);
int standin_is_device(const void *address, size_t n);

/* queue.c */
void standin_drain_all(void);

/* device.c */
long standin_count(const char *name);

#endif
