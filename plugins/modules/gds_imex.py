"""Documentation of the module gds_imex; ``plugins/action`` does its work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gds_imex
short_description: Write the nodes of the host's IMEX domain
description:
  - Writes C(/etc/nvidia-imex/nodes_config.cfg), and restarts nvidia-imex if it runs with other nodes.
extends_documentation_fragment:
  - gdsdeploy.gds.apply
  - gdsdeploy.gds.apply.state
options:
  nodes:
    description: IP addresses of the hosts in the domain. With none, a file of others stays.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Write the nodes of the IMEX domain
  gdsdeploy.gds.gds_imex:
    nodes: [10.0.0.1, 10.0.0.2]
"""

RETURN = r"""
changes:
  description: Every change; in check mode, every planned change.
  returned: when the host program answered
  type: list
  elements: dict
  sample:
    - kind: write
      subject: /etc/nvidia-imex/nodes_config.cfg
      before: ''
      after: ''
      reason: missing
      disruption: none
      resource: imex
"""
