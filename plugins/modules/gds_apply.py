"""Documentation of the module gds_apply; ``plugins/action`` does its work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gds_apply
short_description: Bring one resource of a host to its desired state
version_added: 0.1.0
author: [gdsdeploy (@gdsdeploy)]
description:
  - Applies one resource of gdsdeploy's host program, or takes back what it has changed.
  - In a role of this collection, the role's variables are the options of the resource.
requirements: [python >= 3.9 on the host]
attributes:
  check_mode:
    description: Reports what would change, and changes nothing.
    support: full
  diff_mode:
    description: Shows files before and after.
    support: full
notes:
  - Runs gdsdeploy's host program from memory. Nothing is installed for it.
  - The interpreter is C(python3), unless C(ansible_python_interpreter) names another one.
  - Failures have C(gds_error) with C(kind), C(message) and C(hint).
options:
  resource:
    description:
      - The resource, as RESOURCE or RESOURCE.INSTANCE, such as C(packages.driver).
      - C(all), with O(state=absent), is everything that gdsdeploy has changed.
    type: str
    required: true
  desired:
    description:
      - The options of the resource. The documentation of the roles, and the page on resources, list them.
      - In a role of this collection, they come before the role's variables ROLE_OPTION.
    type: dict
    default: {}
  state:
    description: V(absent) reverts the resource's changes, based on the host's record.
    type: str
    choices: [present, absent]
    default: present
"""

EXAMPLES = r"""
- name: Install libcufile in one version
  gdsdeploy.gds.gds_apply:
    resource: packages.cufile
    desired:
      manager: apt
      packages:
        - {package: libcufile0, version: 1.9.1.3~12.4.1-2}
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
  description: What the resource reports about the host, such as the boot's id of C(reboot).
  returned: success
  type: dict
"""
