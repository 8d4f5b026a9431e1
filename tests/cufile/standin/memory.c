/* Of the GPU's memory there is what libcufile tries PCI P2PDMA with. */
#define TRIED ((size_t)64 << 10)
static char memory[TRIED];

int cuMemAlloc_v2(void **address, size_t size)
{
    *address = size == TRIED ? memory : NULL;
    return *address ? OK : NOT_SUPPORTED;
}
int cuMemFree_v2(void *address) { (void)address; return OK; }
