"""Documentation of the module gds_restore; ``plugins/action`` does its work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gds_restore
short_description: Restore a host's packages and files from before a rollout
description:
  - Use V(offer) before the packages are installed again, and V(remove) afterwards.
  - Names and paths come from a snapshot of the host. Each is checked before it is used.
extends_documentation_fragment:
  - gdsdeploy.gds.apply
  - gdsdeploy.gds.apply.manager
options:
  step:
    description: Provide the earlier packages, or remove the new ones.
    type: str
    choices: [offer, remove]
    required: true
  archive:
    description: Tar file on the controller with the earlier packages, for apt as a signed repository; empty for none.
    type: path
    default: ''
  keyring:
    description: The key of that repository on the controller; empty for dnf.
    type: path
    default: ''
  modules:
    description: The host's earlier archive of modules; empty if other modules follow.
    type: str
    default: ''
  kernel_release:
    description: Release of the kernel that those modules are for.
    type: str
    default: ''
  unwanted:
    description: Packages that weren't installed before.
    type: list
    elements: str
    default: []
  unwanted_kernels:
    description: Kernels that weren't installed before.
    type: list
    elements: str
    default: []
  files:
    description: Changed files of gdsdeploy. Each is restored from the host's record, or removed if it didn't exist.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Path of the file.
        type: str
        required: true
      sha256:
        description: Checksum of the earlier file; empty if there was none.
        type: str
        default: ''
  known:
    description: Whether O(installed), O(held) and O(removed) are from an earlier record.
    type: bool
    default: false
  installed:
    description: Packages that gdsdeploy had installed.
    type: list
    elements: str
    default: []
  held:
    description: Packages that gdsdeploy held.
    type: list
    elements: str
    default: []
  removed:
    description: Packages that had left for the lock. Others that have left since then are installed again.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Remove the packages of a rollout
  gdsdeploy.gds.gds_restore:
    manager: apt
    step: remove
    unwanted: [libcufile0]
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
      before: ''
      after: ''
      reason: not-there-before
      disruption: none
      resource: restore
"""
