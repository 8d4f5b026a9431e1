// SPDX-License-Identifier: GPL-2.0
/*
 * Gives a running Debian kernel the release that its package has in the lab: uname -r prints the parameter "release".
 *
 * A family's kernel package holds Debian's kernel image, which has its own release built in.  The initramfs loads this
 * module before anything asks for the release.  Modules of either name load: with CONFIG_MODVERSIONS the kernel compares
 * the symbols' versions, and of the vermagic only what follows the release.
 */
#include <linux/module.h>
#include <linux/utsname.h>

static char release[__NEW_UTS_LEN + 1];
module_param_string(release, release, sizeof(release), 0444);
MODULE_PARM_DESC(release, "what uname -r prints from now on");

static int __init lab_release_init(void)
{
	if (!release[0])
		return -EINVAL;
	/* Nothing else runs yet that could read a half-written name. */
	strscpy(init_uts_ns.name.release, release, sizeof(init_uts_ns.name.release));
	return 0;
}
module_init(lab_release_init);

MODULE_DESCRIPTION("Another release for a kernel of gdsdeploy's lab");
MODULE_LICENSE("GPL");
