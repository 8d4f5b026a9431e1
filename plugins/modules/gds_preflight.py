"""Documentation of the module gds_preflight; ``plugins/action`` does its work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gds_preflight
short_description: Refuse a host that can't take the locked packages
description:
  - Changes nothing. The task fails if a condition isn't met, and names the next step.
extends_documentation_fragment:
  - gdsdeploy.gds.apply
  - gdsdeploy.gds.apply.manager
  - gdsdeploy.gds.apply.order
options:
  os:
    description: Operating system that was locked, as C(ID-VERSION_ID) of os-release, without the minor version.
    type: str
    required: true
  arch:
    description: Architecture that was locked, as C(uname -m) prints it.
    type: str
    choices: [x86_64, aarch64]
    default: x86_64
  free_mib:
    description: Directory to free MiB that its filesystem needs.
    type: dict
    default: {}
  kernel_release:
    description:
      - Release of the locked kernel.
      - With it, the module also looks for a driver, modules and libraries that others have installed, and refuses a
        host where they would win. Empty means that it doesn't look.
    type: str
    default: ""
  versions:
    description: Package to its locked version.
    type: dict
    default: {}
  repositories:
    description: Addresses of the locked repositories. Others with a driver are only named.
    type: list
    elements: str
    default: []
  driver_version:
    description:
      - Version of the locked driver.
      - A host is refused whose fabric manager or IMEX is of another one, and one with NVSwitches for which the lock has
        no fabric manager. Empty means that this isn't checked.
    type: str
    default: ""
  imex_nodes:
    description: IP addresses of the hosts in the host's IMEX domain.
    type: list
    elements: str
    default: []
  unasked_kernel:
    description:
      - Release of the locked kernel, where no flavour was asked for.
      - A host whose kernel is of another flavour is refused. Empty means that this isn't checked.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Check the host
  gdsdeploy.gds.gds_preflight:
    os: debian-13
    arch: x86_64
    manager: apt
    free_mib: {/boot: 200, /usr: 800, /var: 500}
"""

RETURN = r"""
changes:
  description: Every change; in check mode, every planned change.
  returned: when the host program answered
  type: list
  elements: dict
  sample: []
report:
  description: What the preflight read on the host.
  returned: success
  type: dict
  contains:
    os:
      description: The operating system.
      returned: success
      type: str
      sample: debian-13
    arch:
      description: The architecture.
      returned: success
      type: str
      sample: x86_64
    free_mib:
      description: Free space of each folder in MiB.
      returned: success
      type: dict
      sample: {/boot: 412, /usr: 9120}
    foreign:
      description: Drivers and libraries that other tools installed.
      returned: success
      type: dict
      sample: {installs: [], unknown: []}
"""
