#include <linux/module.h>

static int __init nv_init(void)
{
	return 0;
}

static void __exit nv_exit(void)
{
}

module_init(nv_init);
module_exit(nv_exit);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("stand-in driver");
MODULE_VERSION(NV_VERSION_STRING);
