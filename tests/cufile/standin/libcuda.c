/*
 * A stand-in for libcuda.so.1: as much of the CUDA driver API as libcufile asks for before it has read, judged and
 * logged its configuration.  One GPU of the class of an H100 at PCI address 0000:00:06.0, whose memory cannot be had.
 *
 * The build adds one function for every other name that the library looks up; it answers "not supported".
 */

/* Declared here and found in the program at run time, so that a compiler without the C library's headers will do. */
typedef unsigned long size_t;
#define NULL ((void *)0)
int snprintf(char *, size_t, const char *, ...);
void *memset(void *, int, size_t);
int memcmp(const void *, const void *, size_t);
void *dlopen(const char *, int);
void *dlsym(void *, const char *);
enum { RTLD_LAZY = 1, RTLD_NOLOAD = 4 };

enum { OK = 0, INVALID = 1, NOT_FOUND = 500, NOT_SUPPORTED = 801 };

#define CUDA_VERSION 13000
#define GPU_MEMORY ((size_t)80 << 30)

static int the_context;
static void *current;

int cuInit(unsigned flags) { return flags ? INVALID : OK; }
int cuDriverGetVersion(int *version) { *version = CUDA_VERSION; return OK; }
int cuDeviceGetCount(int *count) { *count = 1; return OK; }
int cuDeviceGet(int *device, int ordinal) { *device = 0; return ordinal ? INVALID : OK; }
int cuDeviceGetName(char *name, int size, int device) { snprintf(name, size, "stand-in GPU %d", device); return OK; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; *bytes = GPU_MEMORY; return OK; }
int cuDeviceTotalMem(size_t *bytes, int device) { return cuDeviceTotalMem_v2(bytes, device); }
int cuDeviceGetPCIBusId(char *name, int size, int device)
{
    (void)device;
    snprintf(name, size, "0000:00:06.0");
    return OK;
}
int cuDeviceGetUuid_v2(char *uuid, int device) { (void)device; memset(uuid, 0x11, 16); return OK; }
int cuDeviceGetUuid(char *uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)device;
    switch (attribute) {
    case 16: *value = 132; break;   /* multiprocessors */
    case 33: *value = 0; break;     /* PCI bus */
    case 34: *value = 6; break;     /* PCI device */
    case 50: *value = 0; break;     /* PCI domain */
    case 75: *value = 9; break;     /* compute capability, major */
    case 76: *value = 0; break;     /* compute capability, minor */
    case 20: case 92: case 116: case 124: *value = 1; break; /* 116: GPUDirect RDMA, 124: DMA-BUF */
    default: *value = 0;
    }
    return OK;
}

int cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; *context = &the_context; return OK; }
int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return OK; }
int cuDevicePrimaryCtxRelease(int device) { (void)device; return OK; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    (void)device;
    *flags = 0;
    *active = 1;
    return OK;
}
int cuCtxCreate_v2(void **context, unsigned flags, int device)
{
    (void)flags;
    (void)device;
    *context = current = &the_context;
    return OK;
}
int cuCtxDestroy_v2(void *context) { (void)context; current = NULL; return OK; }
int cuCtxGetCurrent(void **context) { *context = current; return OK; }
int cuCtxSetCurrent(void *context) { current = context; return OK; }
int cuCtxPushCurrent_v2(void *context) { current = context; return OK; }
int cuCtxPopCurrent_v2(void **context)
{
    if (context)
        *context = current;
    current = NULL;
    return OK;
}
int cuCtxGetDevice(int *device) { *device = 0; return OK; }
int cuCtxSynchronize(void) { return OK; }

int cuGetErrorName(int error, const char **text) { (void)error; *text = "CUDA_ERROR"; return OK; }
int cuGetErrorString(int error, const char **text) { (void)error; *text = "error of the stand-in"; return OK; }
/*
 * The private table that libcufile 1.13 and newer ask for before they take PCI P2PDMA: its size, and functions.  They
 * try the GPU with the last two, which make memory reachable for other devices and take that back.
 */
static int not_supported(void) { return NOT_SUPPORTED; }
static int share(void **shared, void *address, size_t size, unsigned long long flags)
{
    (void)size;
    (void)flags;
    *shared = address;
    return OK;
}
static int unshare(void *shared, size_t size, unsigned long long flags)
{
    (void)shared;
    (void)size;
    (void)flags;
    return OK;
}
static const unsigned char p2pdma_id[16] = {0xb7, 0xf6, 0xf3, 0x46, 0xf0, 0x70, 0xba, 0x43,
                                            0xab, 0x76, 0x4d, 0x00, 0xa3, 0xb2, 0xeb, 0x4f};
static void *p2pdma_table[5] = {(void *)sizeof p2pdma_table, not_supported, not_supported, share, unshare};

int cuGetExportTable(const void **table, const void *id)
{
    int known = memcmp(id, p2pdma_id, sizeof p2pdma_id) == 0;
    *table = known ? p2pdma_table : NULL;
    return known ? OK : NOT_FOUND;
}

int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags, int *status)
{
    char newer[256];
    /* The library opens it privately, so its names are not among the default ones. */
    void *self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    (void)version;
    (void)flags;
    snprintf(newer, sizeof newer, "%s_v2", name);
    *function = dlsym(self, newer);
    if (!*function)
        *function = dlsym(self, name);
    if (status)
        *status = *function ? 0 : 1;
    return *function ? OK : NOT_FOUND;
}
int cuGetProcAddress(const char *name, void **function, int version, unsigned long long flags)
{
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
