"""Documentation of the module gds_expectation; ``plugins/action`` does its work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gds_expectation
short_description: Write the host's expectation
description:
  - Writes C(/etc/gdsdeploy/expectation.json).
extends_documentation_fragment:
  - gdsdeploy.gds.apply
  - gdsdeploy.gds.apply.state
options:
  content:
    description: JSON text. When it is empty, nothing is written.
    type: str
    default: ''
"""

EXAMPLES = r"""
- name: Write the expectation
  gdsdeploy.gds.gds_expectation:
    content: "{{ lookup('ansible.builtin.file', 'expectation.json') }}"
"""

RETURN = r"""
changes:
  description: Every change; in check mode, every planned change.
  returned: when the host program answered
  type: list
  elements: dict
  sample:
    - kind: write
      subject: /etc/gdsdeploy/expectation.json
      before: ''
      after: ''
      reason: missing
      disruption: none
      resource: expectation
"""
