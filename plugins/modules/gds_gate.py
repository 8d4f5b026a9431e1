"""Documentation of the module gds_gate; ``plugins/action`` does its work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gds_gate
short_description: Validate each boot before the scheduler uses the host
description:
  - Installs the unit of the gate and its settings, or removes them.
extends_documentation_fragment:
  - gdsdeploy.gds.apply
  - gdsdeploy.gds.apply.state
options:
  enabled:
    description: Whether this host has a gate; V(false) removes one.
    type: bool
    default: true
  settings:
    description: JSON text of C(/etc/gdsdeploy/gate.json).
    type: str
    default: ''
  before:
    description: Units that start after the gate, even if it's closed.
    type: list
    elements: str
    default: []
  required_by:
    description: Units that don't start while the gate is closed.
    type: list
    elements: str
    default: []
  seconds:
    description: Time limit of the gate's checks, in seconds.
    type: int
    default: 30
  slurm:
    description: Whether the gate drains and resumes this host's Slurm node.
    type: bool
    default: false
  left:
    description: Files that the gate writes in folders of other programs.
    type: list
    elements: path
    default: []
"""

EXAMPLES = r"""
- name: Install the gate
  gdsdeploy.gds.gds_gate:
    settings: '{"seconds": 30}'
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
      subject: /etc/systemd/system/gds-gate.service
      before: ''
      after: ''
      reason: missing
      disruption: none
      resource: gate
"""
