"""Documentation of the module gds_guard; ``plugins/action`` does its work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gds_guard
short_description: Guard the boot default
description:
  - Installs hooks that check each installed or removed kernel. A kernel without audited
    modules never becomes the boot default.
extends_documentation_fragment:
  - gdsdeploy.gds.apply
  - gdsdeploy.gds.apply.manager
  - gdsdeploy.gds.apply.state
"""

EXAMPLES = r"""
- name: Guard the boot default
  gdsdeploy.gds.gds_guard:
    manager: apt
"""

RETURN = r"""
changes:
  description: Every change; in check mode, every planned change.
  returned: when the host program answered
  type: list
  elements: dict
  sample:
    - kind: write
      subject: /etc/kernel/postinst.d/zzz-gdsdeploy-guard
      before: ''
      after: ''
      reason: missing
      disruption: none
      resource: guard
"""
