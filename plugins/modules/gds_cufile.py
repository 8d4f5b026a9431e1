"""Documentation of the module gds_cufile; ``plugins/action`` does its work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gds_cufile
short_description: Write cufile.json and create the folder of its log files
description:
  - libcufile doesn't work without the folder of its log files.
extends_documentation_fragment:
  - gdsdeploy.gds.apply
  - gdsdeploy.gds.apply.state
options:
  content:
    description: Text of the configuration.
    type: str
    required: true
  path:
    description: Path of libcufile's configuration.
    type: path
    default: /etc/cufile.json
  log_dir:
    description: The configuration's folder of log files. Only the default folder is created.
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
  description: Every change; in check mode, every planned change.
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
