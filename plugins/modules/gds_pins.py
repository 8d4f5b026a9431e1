"""Documentation of the module gds_pins; ``plugins/action`` does its work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gds_pins
short_description: Pin the locked versions
description:
  - Prevents the package manager from installing other versions of the locked packages.
  - Verifies that the package manager would install the locked files.
extends_documentation_fragment:
  - gdsdeploy.gds.apply
  - gdsdeploy.gds.apply.manager
  - gdsdeploy.gds.apply.locked
  - gdsdeploy.gds.apply.state
options:
  deny:
    description: Names and globs of packages that may be installed only in a pinned version.
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
      subject: /etc/apt/preferences.d/00-gdsdeploy.pref
      before: ''
      after: ''
      reason: missing
      disruption: none
      resource: pins
"""
