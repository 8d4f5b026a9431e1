#include <linux/module.h>
#include <linux/slab.h>
#include "nv-p2p.h"

int nvidia_p2p_get_pages(struct nvidia_p2p_page_table **table)
{
	*table = kzalloc(sizeof(**table), GFP_KERNEL);
	return *table ? 0 : -ENOMEM;
}
EXPORT_SYMBOL_GPL(nvidia_p2p_get_pages);

int nvidia_p2p_put_pages(struct nvidia_p2p_page_table *table)
{
	kfree(table);
	return 0;
}
EXPORT_SYMBOL_GPL(nvidia_p2p_put_pages);
