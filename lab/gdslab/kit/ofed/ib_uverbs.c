// SPDX-License-Identifier: GPL-2.0
/* Stands for the RDMA core of OFED: exports what nvidia-peermem registers itself with, and does nothing. */
#include <linux/module.h>

struct peer_memory_client;
typedef int (*invalidate_peer_memory)(void *reg_handle, u64 core_context);

void *ib_register_peer_memory_client(const struct peer_memory_client *client, invalidate_peer_memory *callback);
void ib_unregister_peer_memory_client(void *handle);

void *ib_register_peer_memory_client(const struct peer_memory_client *client, invalidate_peer_memory *callback)
{
	return NULL;
}
EXPORT_SYMBOL(ib_register_peer_memory_client);

void ib_unregister_peer_memory_client(void *handle)
{
}
EXPORT_SYMBOL(ib_unregister_peer_memory_client);

MODULE_LICENSE("Dual BSD/GPL");
MODULE_DESCRIPTION("RDMA core with peer memory, for tests");
/* DKMS doesn't replace a kernel's own module by one without a version. */
MODULE_VERSION("26.04");
