"""Documentation of the module gds_packages; ``plugins/action`` does its work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gds_packages
short_description: Install packages in exact versions and hold them
description:
  - Writes down what wasn't there before, so that it can be taken back.
extends_documentation_fragment:
  - gdsdeploy.gds.apply
  - gdsdeploy.gds.apply.manager
  - gdsdeploy.gds.apply.state
options:
  instance:
    description: Names these packages in the results, for hosts that have several sets.
    type: str
    default: ''
  wanted:
    description: Packages to install.
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
  along:
    description: Packages that move to these versions in the same transaction where they are installed; apt only.
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
  leaving:
    description: Packages that are removed in the same transaction where they are installed in another version; apt
      only.
    type: list
    elements: dict
    default: []
    suboptions:
      package:
        description: Name of the package.
        type: str
        required: true
      version:
        description: The version that may stay; empty for none.
        type: str
        required: true
  locked:
    description: Names of all locked packages. What is held beside them is released. Empty releases nothing.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Install libcufile
  gdsdeploy.gds.gds_packages:
    manager: apt
    wanted:
      - {package: libcufile0, version: 12.4.1-2}
      - {package: gds-tools, version: 12.4.1-2}
"""

RETURN = r"""
changes:
  description: Every change that was made, or in check mode would be made.
  returned: when the host program answered
  type: list
  elements: dict
  sample:
    - kind: install
      subject: libcufile0
      before: ''
      after: 12.4.1-2
      reason: missing
      disruption: none
      resource: packages.cufile
"""
