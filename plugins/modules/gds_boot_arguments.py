"""Documentation of the module gds_boot_arguments; ``plugins/action`` does its work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gds_boot_arguments
short_description: Set arguments of the kernel in the boot loader
description:
  - Debian and Ubuntu have a drop-in in C(/etc/default/grub.d), which C(update-grub) reads.
  - Other systems have entries of the Boot Loader Specification, and C(/etc/kernel/cmdline) for later kernels.
  - Arguments of other writers stay. Another value for the same argument is refused.
  - The arguments take effect with the next boot. See M(gdsdeploy.gds.gds_reboot).
extends_documentation_fragment:
  - gdsdeploy.gds.apply
  - gdsdeploy.gds.apply.kernel
  - gdsdeploy.gds.apply.state
options:
  arguments:
    description: Each C(name=value) or C(name). Arguments of earlier runs that aren't listed are taken out.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Turn the IOMMU off
  gdsdeploy.gds.gds_boot_arguments:
    kernel_release: 6.12.94+deb13-amd64
    arguments: [intel_iommu=off, amd_iommu=off]
"""

RETURN = r"""
changes:
  description: Every change; in check mode, every planned change.
  returned: when the host program answered
  type: list
  elements: dict
  sample:
    - kind: arguments
      subject: /boot/grub/grub.cfg
      before: none
      after: intel_iommu=off amd_iommu=off
      reason: arguments
      disruption: none
      resource: boot_arguments
"""
