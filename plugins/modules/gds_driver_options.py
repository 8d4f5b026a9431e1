"""Documentation of the module gds_driver_options; ``plugins/action`` does its work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gds_driver_options
short_description: Set the driver's parameters and load its modules at boot
description:
  - Writes C(/etc/modprobe.d/gdsdeploy.conf) and C(/etc/modules-load.d/gdsdeploy.conf), and blocks nouveau.
  - Rebuilds the locked kernel's initramfs when the parameters change.
extends_documentation_fragment:
  - gdsdeploy.gds.apply
  - gdsdeploy.gds.apply.kernel
  - gdsdeploy.gds.apply.rdma
  - gdsdeploy.gds.apply.state
options:
  options:
    description: Parameters of the driver's module; values are text.
    type: dict
    default: {}
  option_module:
    description: Name of the module in modprobe.d; Debian's differs from C(nvidia).
    type: str
    default: nvidia
  modules:
    description: Modules to load at boot, in this order.
    type: list
    elements: str
    default: []
  p2pdma:
    description: Turn NVMe multipath off, which PCI P2PDMA needs on x86.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Configure the driver
  gdsdeploy.gds.gds_driver_options:
    kernel_release: 6.12.94+deb13-amd64
    options: {NVreg_EnableStreamMemOPs: "1"}
    modules: [nvidia, nvidia-fs]
"""

RETURN = r"""
changes:
  description: Every change; in check mode, every planned change.
  returned: when the host program answered
  type: list
  elements: dict
  sample:
    - kind: write
      subject: /etc/modprobe.d/gdsdeploy.conf
      before: ''
      after: ''
      reason: missing
      disruption: none
      resource: driver_options
"""
