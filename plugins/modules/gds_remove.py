"""Documentation of the module gds_remove; ``plugins/action`` does its work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gds_remove
short_description: Take back everything that gdsdeploy applied on the host
description:
  - Removes packages, files, holds, kernel modules and the boot default by the record that the host keeps. What was
    there before stays.
  - Packages of the running kernel stay; run it again after a reboot.
extends_documentation_fragment:
  - gdsdeploy.gds.apply
"""

EXAMPLES = r"""
- name: Remove gdsdeploy
  gdsdeploy.gds.gds_remove:
"""

RETURN = r"""
changes:
  description: Every change that was made, or in check mode would be made.
  returned: when the host program answered
  type: list
  elements: dict
  sample:
    - kind: remove
      subject: libcufile0
      before: 12.4.1-2
      after: ''
      reason: recorded
      disruption: none
      resource: packages
"""
