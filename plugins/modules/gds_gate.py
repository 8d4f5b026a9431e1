"""Documentation of the module gds_gate; ``plugins/action`` does its work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gds_gate
short_description: Judge each boot before the scheduler gives the host work
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
    description: Units that start after the gate, whatever it finds.
    type: list
    elements: str
    default: []
  required_by:
    description: Units that don't start at all while the gate is closed.
    type: list
    elements: str
    default: []
  seconds:
    description: Seconds that the gate's look at the host may take.
    type: int
    default: 30
  slurm:
    description: Whether Slurm's node of this host is drained and resumed.
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
  description: Every change that was made, or in check mode would be made.
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
