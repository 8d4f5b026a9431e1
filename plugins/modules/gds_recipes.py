"""Documentation of the module gds_recipes; ``plugins/action`` does its work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gds_recipes
short_description: Configure DKMS for the driver and nvidia-fs
description:
  - Writes C(/etc/dkms/NAME.conf). Use it before M(gdsdeploy.gds.gds_packages), which builds
    modules when it installs packages.
extends_documentation_fragment:
  - gdsdeploy.gds.apply
  - gdsdeploy.gds.apply.stack
  - gdsdeploy.gds.apply.state
options:
  source:
    description: Whether DKMS builds on this machine. On one that receives its modules, it builds for no kernel.
    type: str
    choices: [build, receive]
    default: build
  kernel_release:
    description: The kernel for which O(target_only) builds.
    type: str
    default: ''
  target_only:
    description:
      - Whether DKMS builds for O(kernel_release) alone, and not for every kernel that has headers.
      - DKMS of Debian 13 otherwise builds for all of them while a package is installed.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Configure DKMS
  gdsdeploy.gds.gds_recipes:
    driver_version: 550.163.01
    driver_flavour: open
    driver_tree: /usr/src/nvidia-current-open-550.163.01
    driver_dkms_name: nvidia-current-open
    nvidia_fs_version: 2.24.2
    nvidia_fs_tree: /usr/src/nvidia-fs-2.24.2
"""

RETURN = r"""
changes:
  description: Every change; in check mode, every planned change.
  returned: when the host program answered
  type: list
  elements: dict
  sample:
    - kind: write
      subject: /etc/dkms/nvidia-fs.conf
      before: ''
      after: ''
      reason: missing
      disruption: none
      resource: recipes
"""
