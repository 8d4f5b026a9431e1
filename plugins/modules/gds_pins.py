"""Documentation of the module gds_pins; ``plugins/action`` does its work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gds_pins
short_description: Admit exactly the locked versions
description:
  - Keeps the package manager from every other version of the locked packages, wherever it comes from.
  - Verifies that the package manager would install the locked files.
extends_documentation_fragment:
  - gdsdeploy.gds.apply
  - gdsdeploy.gds.apply.manager
  - gdsdeploy.gds.apply.state
options:
  indices:
    description: The signed indices that the packages were locked from.
    type: list
    elements: dict
    default: []
    suboptions:
      repository:
        description: Name of the repository.
        type: str
        required: true
      uri:
        description: Base address.
        type: str
        required: true
      suite:
        description: Suite; a path that ends in C(/) for a flat repository; empty for dnf.
        type: str
        required: true
      components:
        description: Components; none for a flat repository and for dnf.
        type: list
        elements: str
        required: true
      host_keyring:
        description: Key on the host that the index is signed with.
        type: path
        required: true
      exclusive:
        description: Whether only the locked packages may come from it.
        type: bool
        default: false
      package_keys:
        description: Other keys on the host that its packages are signed with; dnf only.
        type: list
        elements: path
        default: []
  pins:
    description: Exact versions of all locked packages of this host.
    type: list
    elements: dict
    default: []
    suboptions:
      package:
        description: Name of the package.
        type: str
        required: true
      version:
        description: Exact version.
        type: str
        required: true
      sha256:
        description: Checksum of the package file.
        type: str
        default: ''
  deny:
    description: Names and globs of packages that are kept out in every version that isn't pinned.
    type: list
    elements: str
    default: []
  modules:
    description: Module streams to enable, as C(NAME:STREAM); dnf only.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Pin the locked versions
  gdsdeploy.gds.gds_pins:
    manager: apt
    indices:
      - repository: debian
        uri: http://snapshot.debian.org/archive/debian/20261101T000000Z
        suite: trixie
        components: [main, contrib, non-free]
        host_keyring: /usr/share/keyrings/debian-archive-keyring.gpg
    pins:
      - {package: libcufile0, version: 12.4.1-2}
"""

RETURN = r"""
changes:
  description: Every change that was made, or in check mode would be made.
  returned: when the host program answered
  type: list
  elements: dict
  sample:
    - kind: write
      subject: /etc/apt/preferences.d/00-gdsdeploy.pref
      before: ''
      after: ''
      reason: missing
      disruption: none
      resource: pins
"""
