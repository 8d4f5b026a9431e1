"""Documentation of the module gds_program; ``plugins/action`` does its work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gds_program
short_description: Install the host program
description:
  - Installs C(/usr/lib/gdsdeploy/gdsdeploy-host.pyz), which the guard, the gate and an operator use.
extends_documentation_fragment:
  - gdsdeploy.gds.apply
  - gdsdeploy.gds.apply.state
"""

EXAMPLES = r"""
- name: Install the host program
  gdsdeploy.gds.gds_program:
"""

RETURN = r"""
changes:
  description: Every change; in check mode, every planned change.
  returned: when the host program answered
  type: list
  elements: dict
  sample:
    - kind: write
      subject: /usr/lib/gdsdeploy/gdsdeploy-host.pyz
      before: ''
      after: ''
      reason: missing
      disruption: none
      resource: program
"""
