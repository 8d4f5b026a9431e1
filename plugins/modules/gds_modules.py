"""Documentation of the module gds_modules; ``plugins/action`` does its work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gds_modules
short_description: Build or receive audited kernel modules
description:
  - Builds the modules with DKMS, signs and audits them, and packs them; or receives the archive of a machine that
    built them.
  - The archive is audited on the host before any module of it is used.
extends_documentation_fragment:
  - gdsdeploy.gds.apply
  - gdsdeploy.gds.apply.stack
  - gdsdeploy.gds.apply.state
options:
  source:
    description: Whether this machine builds its modules or receives them.
    type: str
    choices: [build, receive]
    required: true
  kernel_release:
    description: Release of the kernel that the modules are for, running or not.
    type: str
    required: true
  names:
    description: Modules that the host loads.
    type: list
    elements: str
    default: []
  signed:
    description: Whether the modules have to be signed; see M(gdsdeploy.gds.gds_signing).
    type: bool
    default: false
  archive:
    description:
      - Archive of audited modules on the controller. It is fetched from a machine that builds, and copied to one
        that receives.
      - When it is empty, nothing is fetched, and what was received before stays.
    type: path
    default: ''
  builder:
    description:
      - Name of the machine that builds, under which it signs the archive; empty is its inventory name. On a machine
        that receives, the name of the machine that has to have signed it.
    type: str
    default: ''
  builder_key:
    description:
      - File on the controller with the builder's public key. It is fetched from a machine that builds, where the file
        is missing; a builder with another key is refused.
      - A machine that receives verifies the archive with it, before anything is unpacked.
    type: path
    default: ''
"""

EXAMPLES = r"""
- name: Build the modules
  gdsdeploy.gds.gds_modules:
    source: build
    kernel_release: 6.12.94+deb13-amd64
    driver_version: 550.163.01
    driver_flavour: open
    driver_tree: /usr/src/nvidia-current-open-550.163.01
    driver_dkms_name: nvidia-current-open
    names: [nvidia]
    archive: /srv/modules/6.12.94.tar
"""

RETURN = r"""
changes:
  description: Every change that was made, or in check mode would be made.
  returned: when the host program answered
  type: list
  elements: dict
  sample:
    - kind: build
      subject: nvidia-current-open/550.163.01
      before: ''
      after: ''
      reason: missing
      disruption: none
      resource: modules
report:
  description: What DKMS has installed, and what the audit says.
  returned: success
  type: dict
"""
