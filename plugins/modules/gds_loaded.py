"""Documentation of the module gds_loaded; ``plugins/action`` does its work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gds_loaded
short_description: Load modules into the running kernel, and start the driver's services
description:
  - Loads and starts nothing unless the locked kernel runs.
extends_documentation_fragment:
  - gdsdeploy.gds.apply
  - gdsdeploy.gds.apply.kernel
options:
  modules:
    description: Modules to load, in this order.
    type: list
    elements: str
    default: []
  units:
    description: Module name to the systemd unit that loads it instead of modprobe.
    type: dict
    default: {}
  services:
    description: Units of the driver's packages to enable and, once the driver is loaded, to start.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Load the modules
  gdsdeploy.gds.gds_loaded:
    kernel_release: 6.12.94+deb13-amd64
    modules: [nvidia, nvidia-fs, nvidia-peermem]
    units: {nvidia-peermem: gds-peermem.service}
    services: [nvidia-persistenced.service]
"""

RETURN = r"""
changes:
  description: Every change; in check mode, every planned change.
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
