"""Documentation of the module gds_module_options; ``plugins/action`` does its work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gds_module_options
short_description: Set options of kernel modules, with the initramfs that carries them
description:
  - Writes C(/etc/modprobe.d/gdsdeploy-boot.conf).
  - Rebuilds the locked kernel's initramfs when the options change.
extends_documentation_fragment:
  - gdsdeploy.gds.apply
  - gdsdeploy.gds.apply.kernel
  - gdsdeploy.gds.apply.state
options:
  options:
    description: Parameters and their values by module; values are text.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Turn NVMe multipath off
  gdsdeploy.gds.gds_module_options:
    kernel_release: 6.12.94+deb13-amd64
    options: {nvme_core: {multipath: "N"}}
"""

RETURN = r"""
changes:
  description: Every change; in check mode, every planned change.
  returned: when the host program answered
  type: list
  elements: dict
  sample:
    - kind: write
      subject: /etc/modprobe.d/gdsdeploy-boot.conf
      before: ''
      after: ''
      reason: missing
      disruption: none
      resource: module_options
"""
