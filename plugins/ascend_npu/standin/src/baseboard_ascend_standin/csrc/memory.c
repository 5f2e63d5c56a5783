/* Device and pinned memory: blocks of host memory in two lists, so that an address tells what it is. */
#include "standin.h"

#include <stdlib.h>

typedef struct block {
    struct block *next;
    char *address;
    size_t size;
} block;

typedef struct {
    block *blocks;
    size_t used, capacity;
} arena;

static arena device = {NULL, 0, (size_t)4 << 30};
static arena pinned = {NULL, 0, (size_t)64 << 30};

static aclError take(arena *from, void **address, size_t size) {
    if (standin_lost) return standin_lost;
    if (from->used + size > from->capacity) return ACL_ERROR_RT_MEMORY_ALLOCATION;
    block *made = malloc(sizeof *made);
    void *memory = NULL;
    /* 512 bytes more: kernels may read a little past the end, and torch_npu asks for such room. */
    if (posix_memalign(&memory, 4096, size + 512)) {
        free(made);
        return ACL_ERROR_RT_MEMORY_ALLOCATION;
    }
    *made = (block){from->blocks, memory, size};
    from->blocks = made;
    from->used += size;
    *address = memory;
    return ACL_SUCCESS;
}

static aclError give_back(arena *to, void *address) {
    if (!address) return ACL_SUCCESS;
    standin_drain_all(); /* work in the queues may still use it */
    for (block **at = &to->blocks; *at; at = &(*at)->next) {
        if ((*at)->address != address) continue;
        block *found = *at;
        *at = found->next;
        to->used -= found->size;
        free(found->address);
        free(found);
        return ACL_SUCCESS;
    }
    return ACL_ERROR_RT_PARAM_INVALID;
}

static int holds(const arena *in, const void *address, size_t n) {
    const char *first = address;
    for (const block *at = in->blocks; at; at = at->next)
        if (first >= at->address && first + n <= at->address + at->size) return 1;
    return 0;
}

int standin_is_pinned(const void *host, size_t n) { return holds(&pinned, host, n); }
int standin_is_device(const void *address, size_t n) { return holds(&device, address, n); }

/* What tests turn and read. */
void standin_set_capacity(size_t bytes) { device.capacity = bytes; }
void standin_set_pinned_capacity(size_t bytes) { pinned.capacity = bytes; }
size_t standin_device_used(void) { return device.used; }
size_t standin_pinned_used(void) { return pinned.used; }

aclError aclrtMalloc(void **address, size_t size, int policy) { return take(&device, address, size); }
aclError aclrtMallocAlign32(void **address, size_t size, int policy) { return take(&device, address, size); }
aclError aclrtFree(void *address) { return give_back(&device, address); }
aclError aclrtMallocHost(void **address, size_t size) { return take(&pinned, address, size ? size : 1); }
aclError aclrtMallocHostWithCfg(void **address, uint64_t size, void *config) { return aclrtMallocHost(address, size); }
aclError aclrtFreeHost(void *address) { return give_back(&pinned, address); }

aclError aclrtGetMemInfo(int kind, size_t *free_bytes, size_t *total) {
    if (standin_lost) return standin_lost;
    *free_bytes = device.capacity > device.used ? device.capacity - device.used : 0;
    *total = device.capacity;
    return ACL_SUCCESS;
}

/* aclrtPtrAttributes: location {id, type: 0 host, 1 device, 2 unregistered}, page size, reserved. */
aclError aclrtPointerGetAttributes(const void *address, void *attributes) {
    uint32_t *out = attributes;
    out[0] = 0;
    out[1] = standin_is_device(address, 1) ? 1 : standin_is_pinned(address, 1) ? 0 : 2;
    out[2] = 4096;
    out[3] = 0;
    return ACL_SUCCESS;
}
