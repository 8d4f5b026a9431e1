#include <linux/module.h>
#include "config-host.h"
#include "nv-p2p.h"

#ifndef HAVE_KZALLOC
#error "the probes answered wrongly"
#endif
#if !defined(NVFS_BATCH_SUPPORT) || !defined(NVFS_ENABLE_KERN_RDMA_SUPPORT) || !defined(GDS_VERSION)
#error "the flags of the stock Makefile are missing"
#endif

int nvfs_stat(void);

static int __init nvfs_init(void)
{
	struct nvidia_p2p_page_table *table;
	int status = nvidia_p2p_get_pages(&table);

	if (!status)
		status = nvidia_p2p_put_pages(table);
	return status ? status : nvfs_stat();
}

static void __exit nvfs_exit(void)
{
}

module_init(nvfs_init);
module_exit(nvfs_exit);
MODULE_VERSION("2.19.7");
MODULE_LICENSE("GPL v2");
MODULE_DESCRIPTION("stand-in nvidia-fs");
