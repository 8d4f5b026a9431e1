/*
 * Memory, copies, streams and events of the stand-in libcuda: "GPU memory" is one region of this process, so that
 * libcufile reads and writes files in compatibility mode, as with a GPU.  Copies are done when they are asked for.
 */

void *memcpy(void *, const void *, size_t);
int posix_memalign(void **, size_t, size_t);
void free(void *);

#define REGION ((size_t)256 << 20)
#define PAGE ((size_t)65536)
static char region[REGION] __attribute__((aligned(65536)));
static size_t used;

static int is_gpu(const void *address)
{
    return (const char *)address >= region && (const char *)address < region + REGION;
}

int cuMemAlloc_v2(void **address, size_t size)
{
    size = (size + PAGE - 1) & ~(PAGE - 1);
    if (used + size > REGION)
        return 2; /* out of memory */
    *address = region + used;
    used += size;
    return OK;
}
int cuMemAlloc(void **address, size_t size) { return cuMemAlloc_v2(address, size); }
int cuMemFree_v2(void *address) { (void)address; return OK; }
int cuMemFree(void *address) { (void)address; return OK; }
int cuMemGetInfo_v2(size_t *left, size_t *total) { *left = REGION - used; *total = REGION; return OK; }
int cuMemGetAddressRange_v2(void **base, size_t *size, void *address)
{
    if (!is_gpu(address))
        return INVALID;
    if (base)
        *base = region;
    if (size)
        *size = REGION;
    return OK;
}

int cuMemHostAlloc(void **address, size_t size, unsigned flags) { (void)flags; return posix_memalign(address, PAGE, size); }
int cuMemAllocHost_v2(void **address, size_t size) { return posix_memalign(address, PAGE, size); }
int cuMemFreeHost(void *address) { free(address); return OK; }
int cuMemHostRegister_v2(void *address, size_t size, unsigned flags) { return OK; }
int cuMemHostRegister(void *address, size_t size, unsigned flags) { return OK; }
int cuMemHostUnregister(void *address) { return OK; }
int cuMemHostGetDevicePointer_v2(void **gpu, void *address, unsigned flags) { *gpu = address; return OK; }

/* CUpointer_attribute of cuda.h. */
int cuPointerGetAttribute(void *value, int attribute, void *address)
{
    if (!is_gpu(address))
        return INVALID;
    switch (attribute) {
    case 1: *(void **)value = &the_context; break;
    case 2: *(unsigned *)value = 2; break;                /* memory of a GPU */
    case 3: case 4: *(void **)value = address; break;
    case 6: case 8: case 10: case 17: *(int *)value = 0; break;
    case 7: *(unsigned long long *)value = 1; break;
    case 9: *(int *)value = 0; break;
    case 11: *(void **)value = region; break;
    case 12: *(size_t *)value = REGION; break;
    case 13: *(int *)value = 1; break;
    case 15: *(unsigned long long *)value = 3; break;
    default: return INVALID;
    }
    return OK;
}
int cuPointerGetAttributes(unsigned count, int *attributes, void **values, void *address)
{
    for (unsigned at = 0; at < count; at++)
        if (cuPointerGetAttribute(values[at], attributes[at], address) != OK)
            *(int *)values[at] = 0;
    return OK;
}
int cuPointerSetAttribute(const void *value, int attribute, void *address) { return is_gpu(address) ? OK : INVALID; }

static int copy(void *to, const void *from, size_t size) { memcpy(to, from, size); return OK; }
int cuMemcpy(void *to, void *from, size_t size) { return copy(to, from, size); }
int cuMemcpyHtoD_v2(void *to, const void *from, size_t size) { return copy(to, from, size); }
int cuMemcpyDtoH_v2(void *to, void *from, size_t size) { return copy(to, from, size); }
int cuMemcpyDtoD_v2(void *to, void *from, size_t size) { return copy(to, from, size); }
int cuMemcpyAsync(void *to, void *from, size_t size, void *stream) { return copy(to, from, size); }
int cuMemcpyHtoDAsync_v2(void *to, const void *from, size_t size, void *stream) { return copy(to, from, size); }
int cuMemcpyDtoHAsync_v2(void *to, void *from, size_t size, void *stream) { return copy(to, from, size); }
int cuMemcpyDtoDAsync_v2(void *to, void *from, size_t size, void *stream) { return copy(to, from, size); }
int cuMemcpyPeer(void *to, void *a, void *from, void *b, size_t size) { return copy(to, from, size); }
int cuMemcpyPeerAsync(void *to, void *a, void *from, void *b, size_t size, void *stream) { return copy(to, from, size); }
int cuMemsetD8_v2(void *to, unsigned char value, size_t size) { memset(to, value, size); return OK; }
int cuMemsetD8Async(void *to, unsigned char value, size_t size, void *stream) { memset(to, value, size); return OK; }

int cuStreamCreate(void **stream, unsigned flags) { *stream = &the_context; return OK; }
int cuStreamCreateWithPriority(void **stream, unsigned flags, int priority) { *stream = &the_context; return OK; }
int cuStreamDestroy_v2(void *stream) { return OK; }
int cuStreamSynchronize(void *stream) { return OK; }
int cuStreamQuery(void *stream) { return OK; }
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) { return OK; }
int cuStreamGetCtx(void *stream, void **context) { *context = &the_context; return OK; }
int cuCtxGetStreamPriorityRange(int *least, int *greatest) { *least = *greatest = 0; return OK; }
int cuEventCreate(void **event, unsigned flags) { *event = &the_context; return OK; }
int cuEventDestroy_v2(void *event) { return OK; }
int cuEventRecord(void *event, void *stream) { return OK; }
int cuEventQuery(void *event) { return OK; }
int cuEventSynchronize(void *event) { return OK; }
int cuEventElapsedTime(float *time, void *begin, void *end) { *time = 0; return OK; }
int cuDeviceCanAccessPeer(int *can, int device, int other) { *can = 0; return OK; }
