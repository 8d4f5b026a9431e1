"""Documentation of the module gds_loaded; ``plugins/action`` does its work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gds_loaded
short_description: Load modules into the running kernel
description:
  - Does nothing while another kernel than the locked one runs.
extends_documentation_fragment:
  - gdsdeploy.gds.apply
options:
  kernel_release:
    description: Release of the locked kernel, as C(uname -r) prints it.
    type: str
    required: true
  modules:
    description: Modules to load, in this order.
    type: list
    elements: str
    default: []
  units:
    description: Module to the systemd unit that loads it in the place of modprobe.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Load the modules
  gdsdeploy.gds.gds_loaded:
    kernel_release: 6.12.94+deb13-amd64
    modules: [nvidia, nvidia-fs, nvidia-peermem]
    units: {nvidia-peermem: gds-peermem.service}
"""

RETURN = r"""
changes:
  description: Every change that was made, or in check mode would be made.
  returned: when the host program answered
  type: list
  elements: dict
  sample:
    - kind: load
      subject: nvidia-fs
      before: ''
      after: ''
      reason: missing
      disruption: none
      resource: loaded
"""
