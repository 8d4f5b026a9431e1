"""Documentation of the module gds_boot_default; ``plugins/action`` does its work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gds_boot_default
short_description: Boot the locked kernel by default
description:
  - Refused unless the audited modules of that kernel are in place, so that a reboot always leads to a working host.
extends_documentation_fragment:
  - gdsdeploy.gds.apply
  - gdsdeploy.gds.apply.state
options:
  kernel_release:
    description: Release of the locked kernel, as C(uname -r) prints it.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Boot the locked kernel
  gdsdeploy.gds.gds_boot_default:
    kernel_release: 6.12.94+deb13-amd64
"""

RETURN = r"""
changes:
  description: Every change that was made, or in check mode would be made.
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
