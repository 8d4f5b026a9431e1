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
    description: Name of this set of packages in the results.
    type: str
    default: ''
  wanted:
    description: Packages to install.
    type: list
    elements: dict
    default: []
    suboptions: &package
      package:
        description: Name of the package.
        type: str
        required: true
      version:
        description: Exact version.
        type: str
        required: true
  along:
    description: Packages that change to these versions in the same transaction if installed; apt only.
    type: list
    elements: dict
    default: []
    suboptions: *package
  leaving:
    description: Packages that are removed in the same transaction if installed in another version; apt only.
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
    description: Names of all locked packages. Holds of other packages are released; empty releases none.
    type: list
    elements: str
    default: []
  removes:
    description: Names or shell patterns of packages that may leave although nothing replaces them.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Install libcufile
  gdsdeploy.gds.gds_packages:
    manager: apt
    wanted:
      - {package: libcufile0, version: 1.9.1.3~12.4.1-2}
      - {package: gds-tools, version: 1.9.1.3~12.4.1-2}
"""

RETURN = r"""
changes:
  description: Every change; in check mode, every planned change.
  returned: when the host program answered
  type: list
  elements: dict
  sample:
    - kind: install
      subject: libcufile0
      before: ''
      after: 1.9.1.3~12.4.1-2
      reason: missing
      disruption: none
      resource: packages.cufile
report:
  description: With packages to install, whether it is certain which packages that removes, and if not, why.
  returned: success
  type: dict
  sample: {removals: {known: true, why: ""}}
"""
