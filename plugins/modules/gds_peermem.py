"""Documentation of the module gds_peermem; ``plugins/action`` does its work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gds_peermem
short_description: Load nvidia-peermem after the RDMA core and before its users
description:
  - Installs or removes the unit that loads nvidia-peermem, and blocks nv_peer_mem.
extends_documentation_fragment:
  - gdsdeploy.gds.apply
  - gdsdeploy.gds.apply.rdma
  - gdsdeploy.gds.apply.state
options:
  before:
    description: Units that start after nvidia-peermem is loaded.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Load nvidia-peermem at boot
  gdsdeploy.gds.gds_peermem:
    rdma: peermem
    before: [slurmd.service]
"""

RETURN = r"""
changes:
  description: Every change; in check mode, every planned change.
  returned: when the host program answered
  type: list
  elements: dict
  sample:
    - kind: write
      subject: /etc/systemd/system/gds-peermem.service
      before: ''
      after: ''
      reason: missing
      disruption: none
      resource: peermem
"""
