"""Documentation of the module gds_boot_default; ``plugins/action`` does its work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gds_boot_default
short_description: Boot the locked kernel by default
description:
  - The task fails unless the kernel's audited modules are installed, so a reboot always leads to a working host.
extends_documentation_fragment:
  - gdsdeploy.gds.apply
  - gdsdeploy.gds.apply.kernel
  - gdsdeploy.gds.apply.state
"""

EXAMPLES = r"""
- name: Boot the locked kernel
  gdsdeploy.gds.gds_boot_default:
    kernel_release: 6.12.94+deb13-amd64
"""

RETURN = r"""
changes:
  description: Every change; in check mode, every planned change.
  returned: when the host program answered
  type: list
  elements: dict
  sample:
    - kind: boot
      subject: 6.12.94+deb13-amd64
      before: ''
      after: ''
      reason: missing
      disruption: none
      resource: boot_default
"""
