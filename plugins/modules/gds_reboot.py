"""Documentation of the module gds_reboot; ``plugins/action`` does its work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gds_reboot
short_description: Report whether the host needs a reboot
description:
  - Never reboots. Use M(ansible.builtin.reboot) when the result is changed.
  - The result is changed when the running kernel, its arguments or a loaded module are not the installed ones.
  - The task fails when a reboot is needed and O(allowed) is false, or when O(after_boot) says that one has been tried.
extends_documentation_fragment:
  - gdsdeploy.gds.apply
  - gdsdeploy.gds.apply.kernel
options:
  modules:
    description: Modules that have to be loaded from their installed files.
    type: list
    elements: str
    default: []
  allowed:
    description: Whether this host may be rebooted.
    type: bool
    default: false
  arguments:
    description: Arguments that the running kernel has to be booted with.
    type: list
    elements: str
    default: []
  parameters:
    description: Parameters of loaded modules as C(module.parameter), with the values that they have to have.
    type: dict
    default: {}
  after_boot:
    description:
      - The C(report.boot_id) from before a reboot.
      - The task fails when the host hasn't rebooted since, or when it still needs a reboot.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Check whether a reboot is needed
  gdsdeploy.gds.gds_reboot:
    kernel_release: 6.12.94+deb13-amd64
    modules: [nvidia, nvidia-fs]
    allowed: true
  register: reboot

- name: Verify that the reboot has brought what is installed
  gdsdeploy.gds.gds_reboot:
    kernel_release: 6.12.94+deb13-amd64
    modules: [nvidia, nvidia-fs]
    after_boot: "{{ reboot.report.boot_id }}"
"""

RETURN = r"""
changes:
  description: Every change; in check mode, every planned change.
  returned: when the host program answered
  type: list
  elements: dict
  sample:
    - kind: reboot
      subject: 6.12.94+deb13-amd64
      before: ''
      after: ''
      reason: kernel
      disruption: reboot
      resource: reboot
report:
  description: The boot, and why the host needs another one.
  returned: success
  type: dict
  contains:
    needed:
      description: Whether the host needs a reboot.
      returned: success
      type: bool
      sample: true
    boot_id:
      description: The kernel's id of this boot.
      returned: success
      type: str
      sample: 0f6cfa05-2a4c-4b58-9d0e-5e1e0c3f8d11
    running:
      description: Release of the running kernel.
      returned: success
      type: str
      sample: 6.12.90+deb13-amd64
    reasons:
      description: Why the host needs a reboot, in words.
      returned: success
      type: list
      elements: str
      sample: ["the running kernel is 6.12.90+deb13-amd64, not 6.12.94+deb13-amd64"]
"""
