"""Documentation of the module gds_modules; ``plugins/action`` does its work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gds_modules
short_description: Provide audited kernel modules
description:
  - Builds, signs, audits and packs the modules with DKMS, or receives a builder's archive.
  - Audits the archive on the host before it uses any of its modules.
  - With packaged modules, removes what has precedence over them, and audits them.
extends_documentation_fragment:
  - gdsdeploy.gds.apply
  - gdsdeploy.gds.apply.stack
  - gdsdeploy.gds.apply.state
options:
  source:
    description: Whether this machine builds its modules, receives them, or has them from packages.
    type: str
    choices: [build, receive, packaged]
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
  packaged:
    description: Module files of locked packages, each with the package that brings it.
    type: list
    elements: dict
    default: []
    suboptions:
      module:
        description: Name of the module in the kernel.
        type: str
        required: true
      file:
        description: Path below the kernel's folder of modules.
        type: str
        required: true
      sha256:
        description: Checksum of the file.
        type: str
        required: true
      package:
        description: Name of the package.
        type: str
        required: true
      version:
        description: Version of the package.
        type: str
        required: true
  signed:
    description: Whether the modules have to be signed; see M(gdsdeploy.gds.gds_signing).
    type: bool
    default: false
  target_only:
    description: Whether DKMS builds for the locked kernel alone, and not for every kernel that has headers.
    type: bool
    default: false
  archive:
    description:
      - Archive of audited modules on the controller, fetched from a builder and copied to a receiving host.
      - If empty, nothing is fetched, and the host's archive stays.
    type: path
    default: ''
  builder:
    description:
      - The builder's name in its signature. On a builder, empty means its inventory name.
    type: str
    default: ''
  builder_key:
    description:
      - File on the controller with the builder's public key; fetched from the builder if missing. The
        task fails for a builder with another key.
      - A receiving host verifies the archive with it before it unpacks anything.
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
  description: Every change; in check mode, every planned change.
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
  description: What DKMS has installed, and the audit's answer. A value that can't be determined is empty.
  returned: success
  type: dict
  contains:
    dkms:
      description: The modules that DKMS has installed.
      returned: success
      type: list
      elements: dict
    audit:
      description: The audit of the modules for this kernel.
      returned: success
      type: dict
"""
