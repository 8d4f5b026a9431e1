// SPDX-License-Identifier: GPL-2.0
/*
 * Stand-in GPU: lets NVIDIA's open kernel modules load on a machine without a GPU.
 *
 * nvidia.ko fails with ENODEV unless it finds a GPU or an NVSwitch.  Its test for an NVSwitch is a PCI function
 * with NVIDIA's vendor id and the class "bridge, other".  This module adds a PCI domain with one such function.
 * The function has no memory, so the driver's probe of it ends early and the driver stays loaded.
 */
#include <linux/module.h>
#include <linux/pci.h>
#include <asm/pci.h>

#define LAB_DOMAIN 0x6d5e	/* far above what firmware hands out */
#define LAB_DEVICE 0x22a3
#define CONFIG_BYTES 256

static u8 config[CONFIG_BYTES];
static struct pci_bus *root_bus;

static int lab_read(struct pci_bus *bus, unsigned int devfn, int where, int size, u32 *value)
{
	*value = ~0U;
	if (devfn || where + size > CONFIG_BYTES)
		return PCIBIOS_DEVICE_NOT_FOUND;
	*value = 0;
	memcpy(value, config + where, size);	/* both sides are little-endian */
	return PCIBIOS_SUCCESSFUL;
}

/* Only the command register keeps what is written: every other one is fixed, so sizing finds no BAR. */
static int lab_write(struct pci_bus *bus, unsigned int devfn, int where, int size, u32 value)
{
	if (devfn)
		return PCIBIOS_DEVICE_NOT_FOUND;
	if (where == PCI_COMMAND && size == 2)
		memcpy(config + where, &value, size);
	return PCIBIOS_SUCCESSFUL;
}

static struct pci_ops lab_ops = { .read = lab_read, .write = lab_write };
static struct pci_sysdata lab_sysdata = { .domain = LAB_DOMAIN, .node = NUMA_NO_NODE };
static struct resource lab_busses = { .name = "gds-lab", .start = 0, .end = 0, .flags = IORESOURCE_BUS };

static int __init gds_lab_gpu_init(void)
{
	LIST_HEAD(resources);

	*(__le16 *)(config + PCI_VENDOR_ID) = cpu_to_le16(PCI_VENDOR_ID_NVIDIA);
	*(__le16 *)(config + PCI_DEVICE_ID) = cpu_to_le16(LAB_DEVICE);
	*(__le32 *)(config + PCI_CLASS_REVISION) = cpu_to_le32(PCI_CLASS_BRIDGE_OTHER << 16 | 0xa1);

	pci_add_resource(&resources, &lab_busses);
	pci_lock_rescan_remove();
	root_bus = pci_scan_root_bus(NULL, 0, &lab_ops, &lab_sysdata, &resources);
	if (root_bus)
		pci_bus_add_devices(root_bus);
	pci_unlock_rescan_remove();
	if (!root_bus) {
		pci_free_resource_list(&resources);
		return -ENODEV;
	}
	return 0;
}

static void __exit gds_lab_gpu_exit(void)
{
	pci_lock_rescan_remove();
	pci_stop_root_bus(root_bus);
	pci_remove_root_bus(root_bus);
	pci_unlock_rescan_remove();
}

module_init(gds_lab_gpu_init);
module_exit(gds_lab_gpu_exit);
MODULE_DESCRIPTION("A PCI function that lets nvidia.ko load without a GPU");
MODULE_LICENSE("GPL");
