/* A libcuda whose device is the memory of this process: what NVIDIA's bindings and our raw call reach of a driver
 * without a GPU. Work is done when it is enqueued, as on a device that is infinitely fast. It refuses what a driver
 * refuses; it says nothing of a driver's speed, order or memory. Compiled and loaded by test_cuda_library.py.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OK = 0, INVALID_VALUE = 1, INVALID_DEVICE = 101, ALREADY_REGISTERED = 712, NOT_REGISTERED = 713 };
enum { RANGES_MAX = 4096, GRANULE = 2 << 20, PORTABLE = 1, MAPPED = 2, READ_ONLY = 8 };
#ifndef READ_ONLY_SUPPORTED
#define READ_ONLY_SUPPORTED 0
#endif

typedef unsigned long long Pointer; /* CUdeviceptr */
typedef struct { char bytes[64]; } Handle; /* of an allocation or an event; travels by value */
typedef struct { int type, id, flags; } Access; /* CUmemAccessDesc with its CUmemLocation */
typedef struct {
    size_t x, y;
    int type;
    const void *host;
    Pointer device;
    void *array;
    size_t pitch;
} Side; /* half of a CUDA_MEMCPY2D */
typedef struct { Side source, target; size_t width, height; } Rectangle;
typedef struct { int order, hints[4]; unsigned flags; } Attributes; /* CUmemcpyAttributes */
typedef struct { uintptr_t address; size_t length; } Range;

static Range allocated[RANGES_MAX], registered[RANGES_MAX], reserved[RANGES_MAX];

static Range *find(Range *ranges, uintptr_t address) {
    for (int at = 0; at < RANGES_MAX; at++)
        if (ranges[at].length && address >= ranges[at].address && address < ranges[at].address + ranges[at].length)
            return &ranges[at];
    return NULL;
}

static int add(Range *ranges, uintptr_t address, size_t length) {
    for (int at = 0; at < RANGES_MAX; at++)
        if (!ranges[at].length) {
            ranges[at] = (Range){address, length};
            return OK;
        }
    abort();
}

static int take(Range *ranges, uintptr_t address, int error) {
    Range *found = find(ranges, address);
    if (!found || found->address != address) return error;
    found->length = 0;
    return OK;
}

int cuInit(unsigned flags) { return flags ? INVALID_VALUE : OK; }
int cuDriverGetVersion(int *version) { return *version = 13000, OK; }
int cuDeviceGetCount(int *count) { return *count = 1, OK; }
int cuDeviceGet(int *device, int ordinal) { return ordinal ? INVALID_DEVICE : (*device = 0, OK); }
int cuDeviceGetUuid(void *uuid, int device) { return memset(uuid, 0, 16), ((char *)uuid)[15] = 1, device; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    return *value = attribute == 113 ? READ_ONLY_SUPPORTED : 1, device;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = malloc(1), device; }
int cuCtxSetCurrent(void *context) { return context ? OK : INVALID_VALUE; }

int cuStreamCreate(void **stream, unsigned flags) { return *stream = malloc(1), flags == 1 ? OK : INVALID_VALUE; }
int cuStreamDestroy(void *stream) { return free(stream), OK; }
int cuStreamSynchronize(void *stream) { return stream ? OK : INVALID_VALUE; }
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) { return stream && event && !flags ? OK : INVALID_VALUE; }
int cuStreamWriteValue32(void *stream, Pointer address, uint32_t value, unsigned flags) {
    if (!stream || address % 4 || flags) return INVALID_VALUE;
    __atomic_store_n((uint32_t *)address, value, __ATOMIC_RELEASE);
    return OK;
}
int cuEventCreate(void **event, unsigned flags) { return *event = malloc(1), flags == 3 ? OK : INVALID_VALUE; }
int cuEventDestroy(void *event) { return free(event), OK; }
int cuEventRecord(void *event, void *stream) { return event && stream ? OK : INVALID_VALUE; }
int cuEventSynchronize(void *event) { return event ? OK : INVALID_VALUE; }

int cuMemcpyAsync(Pointer target, Pointer source, size_t length, void *stream) {
    return memcpy((void *)target, (void *)source, length), stream ? OK : INVALID_VALUE;
}
int cuMemcpy2DAsync(const Rectangle *copy, void *stream) {
    const Side *from = &copy->source, *to = &copy->target;
    if (!stream || from->type != 4 || to->type != 4 || from->x || from->y || to->x || to->y) return INVALID_VALUE;
    if (copy->width > from->pitch || copy->width > to->pitch) return INVALID_VALUE;
    for (size_t row = 0; row < copy->height; row++)
        memcpy((char *)to->device + row * to->pitch, (char *)from->device + row * from->pitch, copy->width);
    return OK;
}
int cuMemcpyBatchAsync(Pointer *targets, Pointer *sources, size_t *lengths, size_t count, Attributes *attributes,
                       size_t *firsts, size_t kinds, void *stream) {
    if (!stream || !count || kinds != 1 || firsts[0] || attributes->order != 1) return INVALID_VALUE;
    for (size_t at = 0; at < count; at++) memcpy((void *)targets[at], (void *)sources[at], lengths[at]);
    return OK;
}

int cuMemHostRegister(void *address, size_t length, unsigned flags) {
    if ((flags & ~READ_ONLY) != (PORTABLE | MAPPED) || (uintptr_t)address % 4096 || !length) return INVALID_VALUE;
    if (flags & READ_ONLY && !READ_ONLY_SUPPORTED) return 801;
    if (find(registered, (uintptr_t)address) || find(registered, (uintptr_t)address + length - 1)) return ALREADY_REGISTERED;
    return add(registered, (uintptr_t)address, length);
}
int cuMemHostUnregister(void *address) { return take(registered, (uintptr_t)address, NOT_REGISTERED); }
int cuMemHostGetDevicePointer(Pointer *device, void *address, unsigned flags) {
    return *device = (Pointer)address, find(registered, (uintptr_t)address) && !flags ? OK : INVALID_VALUE;
}

int cuMemAlloc(Pointer *address, size_t length) {
    return *address = (Pointer)calloc(1, length), add(allocated, *address, length);
}
int cuMemFree(Pointer address) { return free((void *)address), take(allocated, address, INVALID_VALUE); }
int cuMemGetAddressRange(Pointer *base, size_t *length, Pointer address) {
    Range *found = find(allocated, address);
    return found ? (*base = found->address, *length = found->length, OK) : INVALID_VALUE;
}
int cuIpcGetMemHandle(Handle *handle, Pointer address) {
    Range *found = find(allocated, address);
    if (!found || found->address != address) return INVALID_VALUE;
    return memset(handle, 0x5a, sizeof *handle), memcpy(handle, &address, sizeof address), OK;
}
int cuIpcOpenMemHandle(Pointer *address, Handle handle, unsigned flags) {
    Pointer found;
    memcpy(&found, &handle, sizeof found);
    if (handle.bytes[63] != 0x5a || flags != 1 || !find(allocated, found)) return INVALID_VALUE;
    return *address = found, OK;
}
int cuIpcCloseMemHandle(Pointer address) { return find(allocated, address) ? OK : INVALID_VALUE; }
int cuIpcOpenEventHandle(void **event, Handle handle) {
    return handle.bytes[63] == 0x5a ? (*event = malloc(1), OK) : INVALID_VALUE;
}

int cuMemImportFromShareableHandle(Pointer *physical, void *descriptor, int type) {
    struct stat status;
    int own = (int)(intptr_t)descriptor;
    if (type != 1 || fstat(own, &status) || !S_ISREG(status.st_mode) || status.st_size % GRANULE) return INVALID_VALUE;
    return *physical = (Pointer)dup(own), OK;
}
int cuMemRelease(Pointer physical) { return close((int)physical) ? INVALID_VALUE : OK; }
int cuMemAddressReserve(Pointer *address, size_t length, size_t alignment, Pointer wanted, unsigned long long flags) {
    if (!length || length % GRANULE || alignment || wanted || flags) return INVALID_VALUE;
    *address = (Pointer)mmap(NULL, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return add(reserved, *address, length);
}
int cuMemAddressFree(Pointer address, size_t length) {
    return munmap((void *)address, length), take(reserved, address, INVALID_VALUE);
}
int cuMemMap(Pointer address, size_t length, size_t offset, Pointer physical, unsigned long long flags) {
    struct stat status;
    if (fstat((int)physical, &status) || length > (size_t)status.st_size || offset || flags) return INVALID_VALUE;
    if (!find(reserved, address)) return INVALID_VALUE;
    void *at = mmap((void *)address, length, PROT_NONE, MAP_SHARED | MAP_FIXED, (int)physical, 0);
    return at == (void *)address ? OK : INVALID_VALUE;
}
int cuMemSetAccess(Pointer address, size_t length, const Access *access, size_t count) {
    if (count != 1 || access->type != 1 || access->id != 0 || access->flags != 3) return INVALID_VALUE;
    return mprotect((void *)address, length, PROT_READ | PROT_WRITE) ? INVALID_VALUE : OK;
}
int cuMemUnmap(Pointer address, size_t length) {
    void *at = mmap((void *)address, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    return at == (void *)address ? OK : INVALID_VALUE;
}

int cuGetProcAddress_v2(const char *symbol, void **address, int version, uint64_t flags, int *found) {
    Dl_info own;
    (void)version, (void)flags;
    *address = dladdr((void *)cuInit, &own) ? dlsym(dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD), symbol) : NULL;
    if (found) *found = *address ? 0 : 1;
    return *address ? OK : 500;
}
int cuGetProcAddress(const char *symbol, void **address, int version, uint64_t flags, int *found) {
    return cuGetProcAddress_v2(symbol, address, version, flags, found);
}
