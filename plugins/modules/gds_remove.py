"""Documentation of the module gds_remove; ``plugins/action`` does its work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gds_remove
short_description: Revert all changes of gdsdeploy on the host
description:
  - Removes the packages, files, holds, kernel modules and boot default in the host's record. Everything else stays.
  - Packages of the running kernel stay; run the task again after a reboot.
extends_documentation_fragment:
  - gdsdeploy.gds.apply
  - gdsdeploy.gds.apply.order
"""

EXAMPLES = r"""
- name: Remove gdsdeploy
  gdsdeploy.gds.gds_remove:
"""

RETURN = r"""
changes:
  description: Every change; in check mode, every planned change.
  returned: when the host program answered
  type: list
  elements: dict
  sample:
    - kind: remove
      subject: libcufile0
      before: 1.9.1.3~12.4.1-2
      after: ''
      reason: recorded
      disruption: none
      resource: packages
"""
