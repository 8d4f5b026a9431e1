"""Documentation of the module gds_restore; ``plugins/action`` does its work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gds_restore
short_description: Bring back what a host had before a rollout
description:
  - V(offer) comes before the packages are installed again, V(remove) afterwards.
  - Names and paths come from a snapshot of the host. Each is checked before it is used.
extends_documentation_fragment:
  - gdsdeploy.gds.apply
  - gdsdeploy.gds.apply.manager
options:
  step:
    description: Offer what was there before, or remove what was not.
    type: str
    choices: [offer, remove]
    required: true
  archive:
    description: Tar file on the controller with a signed repository of the packages. Empty where none has to come
      back.
    type: path
    default: ''
  keyring:
    description: The key that the repository is signed with, on the controller.
    type: path
    default: ''
  modules:
    description: The archive of modules that was kept on the host. Empty where others come.
    type: str
    default: ''
  kernel_release:
    description: Release of the kernel that those modules are for.
    type: str
    default: ''
  unwanted:
    description: Packages that were not there before.
    type: list
    elements: str
    default: []
  unwanted_kernels:
    description: Kernels that were not there before.
    type: list
    elements: str
    default: []
  files:
    description: Files of gdsdeploy that differ from what they were. Each comes back from the record of the host, or is
      removed where none was there.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Where it is.
        type: str
        required: true
      sha256:
        description: Checksum of what was there. Empty where nothing was.
        type: str
        default: ''
  known:
    description: Whether O(installed) and O(held) say what was written down before.
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
"""

EXAMPLES = r"""
- name: Remove what a rollout has added
  gdsdeploy.gds.gds_restore:
    manager: apt
    step: remove
    unwanted: [libcufile0]
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
      before: ''
      after: ''
      reason: not-there-before
      disruption: none
      resource: restore
"""
