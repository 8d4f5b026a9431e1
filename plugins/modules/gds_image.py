"""Documentation of the module gds_image; ``plugins/action`` does its work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gds_image
short_description: Remove what belongs to one host from the root of an image
description:
  - Empties C(/etc/machine-id), and deletes a builder's key, the gate's last record and the state of a rollout. Where
    SELinux is configured, the first boot labels all files.
extends_documentation_fragment:
  - gdsdeploy.gds.apply
"""

EXAMPLES = r"""
- name: Remove what belongs to one host from the image
  gdsdeploy.gds.gds_image:
"""

RETURN = r"""
changes:
  description: Every change; in check mode, every planned change.
  returned: when the host program answered
  type: list
  elements: dict
  sample:
    - kind: write
      subject: /etc/machine-id
      before: ''
      after: empty
      reason: identity
      disruption: none
      resource: image
"""
