/* Device numbers, names and errors; the switches that tests turn; the count of calls. */
#include "standin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

aclError standin_lost = 0;

static int current = -1;
static int context; /* there is one, and its address is all that is asked of it */

void standin_set_late(int late) {
    if (!late) standin_drain_all();
    standin_late = late;
}

void standin_set_batch(int supported) { standin_has_batch = supported; }
void standin_lose(aclError code) { standin_lost = code; }

/* Calls by name: a table that only grows. */
static struct { const char *name; long calls; } counts[1024];

static int place(const char *name) {
    int i = 0;
    while (i < 1023 && counts[i].name && strcmp(counts[i].name, name)) i++;
    return i;
}

long standin_count(const char *name) {
    int i = place(name);
    counts[i].name = name;
    counts[i].calls++;
    return 0;
}

long standin_calls(const char *name) { return counts[place(name)].calls; }

static int setting(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

/* The devices that ASCEND_RT_VISIBLE_DEVICES lets through: a list of numbers, in which the first wrong one ends it. */
static int visible(void) {
    int installed = setting("STANDIN_DEVICES", 1), n = 0;
    const char *list = getenv("ASCEND_RT_VISIBLE_DEVICES");
    if (!list) return installed;
    while (*list) {
        char *end;
        long number = strtol(list, &end, 10);
        if (end == list || number < 0 || number >= installed) break;
        n++;
        list = *end == ',' ? end + 1 : end;
    }
    return n;
}

aclError aclrtGetDeviceCount(uint32_t *count) {
    *count = visible();
    return *count ? ACL_SUCCESS : 107033; /* ACL_ERROR_RT_NO_DEVICE */
}

aclError aclrtSetDevice(int32_t device) {
    if (standin_lost) return standin_lost;
    if (device < 0 || device >= visible()) return ACL_ERROR_RT_PARAM_INVALID;
    current = device;
    return ACL_SUCCESS;
}

aclError aclrtGetDevice(int32_t *device) {
    if (current < 0) return ACL_ERROR_RT_CONTEXT_NULL;
    *device = current;
    return ACL_SUCCESS;
}

aclError aclrtGetCurrentContext(void **found) {
    *found = &context;
    return ACL_SUCCESS;
}

aclError aclrtSetCurrentContext(void *wanted) { return ACL_SUCCESS; }
aclError aclrtResetDevice(int32_t device) { return ACL_SUCCESS; }

aclError aclrtGetPrimaryCtxState(int32_t device, uint32_t *flags, int32_t *active) {
    if (active) *active = current == device;
    return ACL_SUCCESS;
}

const char *aclrtGetSocName(void) {
    const char *name = getenv("STANDIN_SOC");
    return name && *name ? name : "Ascend910B2";
}

const char *aclGetRecentErrMsg(void) { return standin_lost ? "the stand-in was told to lose its device" : ""; }

aclError aclGetDeviceCapability(uint32_t device, int what, int64_t *value) {
    *value = 24;
    return ACL_SUCCESS;
}

aclError aclrtGetDeviceInfo(uint32_t device, int what, int64_t *value) {
    *value = 24;
    return ACL_SUCCESS;
}

size_t aclGetCompileoptSize(int option) { return 16; }

aclError aclGetCompileopt(int option, char *value, size_t length) {
    snprintf(value, length, "disable");
    return ACL_SUCCESS;
}
