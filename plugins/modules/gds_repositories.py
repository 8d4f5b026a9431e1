"""Documentation of the module gds_repositories; ``plugins/action`` does its work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gds_repositories
short_description: Configure the locked package repositories
description:
  - Adds the sources and keys that the host lacks, and reads the package lists.
  - What the host has configured itself stays as it is.
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
  keys:
    description: Keys that no package of the operating system has.
    type: list
    elements: dict
    default: []
    suboptions:
      src:
        description: File on the controller.
        type: path
        required: true
      dest:
        description: File on the host.
        type: path
        required: true
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
"""

EXAMPLES = r"""
- name: Configure the repositories
  gdsdeploy.gds.gds_repositories:
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
      subject: /etc/apt/sources.list.d/gdsdeploy.sources
      before: ''
      after: ''
      reason: missing
      disruption: none
      resource: repositories
"""
