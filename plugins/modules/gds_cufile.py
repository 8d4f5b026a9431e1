"""Documentation of the module gds_cufile; ``plugins/action`` does its work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gds_cufile
short_description: Write cufile.json and make the folder of its log files
description:
  - libcufile refuses to work at all when the folder of its log files is missing.
extends_documentation_fragment:
  - gdsdeploy.gds.apply
  - gdsdeploy.gds.apply.state
options:
  content:
    description: Text of the configuration.
    type: str
    required: true
  path:
    description: Where libcufile reads its configuration.
    type: path
    default: /etc/cufile.json
  log_dir:
    description: Folder of the log files, as the configuration has it. Only the default folder is made.
    type: path
    default: /var/log/cufile
"""

EXAMPLES = r"""
- name: Configure libcufile
  gdsdeploy.gds.gds_cufile:
    content: "{{ lookup('ansible.builtin.file', 'cufile.json') }}"
"""

RETURN = r"""
changes:
  description: Every change that was made, or in check mode would be made.
  returned: when the host program answered
  type: list
  elements: dict
  sample:
    - kind: write
      subject: /etc/cufile.json
      before: ''
      after: ''
      reason: content
      disruption: none
      resource: cufile
"""
