"""Documentation of the module gds_repositories; ``plugins/action`` does its work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gds_repositories
short_description: Configure the locked package repositories
description:
  - Adds missing sources and keys, and reads the package lists.
  - The host's own sources stay.
extends_documentation_fragment:
  - gdsdeploy.gds.apply
  - gdsdeploy.gds.apply.manager
  - gdsdeploy.gds.apply.locked
  - gdsdeploy.gds.apply.state
options:
  keys:
    description: Keys that no package of the operating system provides.
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
"""

EXAMPLES = r"""
- name: Configure the repositories
  gdsdeploy.gds.gds_repositories:
    manager: apt
    indices:
      - repository: debian
        uri: https://mirror.example/debian/20261101T000000Z
        suite: trixie
        components: [main, contrib, non-free]
        host_keyring: /usr/share/keyrings/debian-archive-keyring.gpg
    pins:
      - {package: libcufile0, version: 1.9.1.3~12.4.1-2}
"""

RETURN = r"""
changes:
  description: Every change; in check mode, every planned change.
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
