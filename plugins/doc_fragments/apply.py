"""What the documentation of every module has in common."""

from __future__ import annotations


class ModuleDocFragment:
    """Parts of a module's documentation."""

    DOCUMENTATION = r"""
author: [gdsdeploy (@gdsdeploy)]
version_added: 1.0.0
requirements: [python >= 3.8 on the host]
attributes:
  check_mode:
    description: Says what would change, and changes nothing.
    support: full
  diff_mode:
    description: Shows files before and after.
    support: full
notes:
  - Runs the host program of gdsdeploy from memory, in one process. Nothing is installed for it.
  - The interpreter is C(python3), unless C(ansible_python_interpreter) names another one.
  - Failures have C(gds_error) with C(kind), C(message) and C(hint).
"""

    MANAGER = r"""
options:
  manager:
    description: The package manager of the host.
    type: str
    choices: [apt, dnf]
    required: true
"""

    LOCKED = r"""
options:
  indices:
    description: The signed indices that the packages were locked from.
    type: list
    elements: dict
    default: []
    suboptions:
      repository:
        description: Name of the repository.
        type: str
        required: true
      uri:
        description: Base address.
        type: str
        required: true
      suite:
        description: Suite; a path that ends in C(/) for a flat repository; empty for dnf.
        type: str
        required: true
      components:
        description: Components; none for a flat repository and for dnf.
        type: list
        elements: str
        required: true
      host_keyring:
        description: Key on the host that the index is signed with.
        type: path
        required: true
      exclusive:
        description: Whether only the locked packages may come from it.
        type: bool
        default: false
      package_keys:
        description: Other keys on the host that its packages are signed with; dnf only.
        type: list
        elements: path
        default: []
  pins:
    description: Exact versions of all locked packages of this host.
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
      sha256:
        description: Checksum of the package file.
        type: str
        default: ''
"""

    STATE = r"""
options:
  state:
    description: V(absent) takes back what this module did on the host, by the record that the host keeps.
    type: str
    choices: [present, absent]
    default: present
"""

    STACK = r"""
options:
  driver_version:
    description: Upstream version of the driver.
    type: str
    required: true
  driver_flavour:
    description: Flavour of the driver's kernel modules.
    type: str
    choices: [open, proprietary]
    required: true
  driver_tree:
    description: The one source tree of the driver to build against.
    type: path
    required: true
  driver_dkms_name:
    description: Name of the driver in DKMS.
    type: str
    required: true
  nvidia_fs_version:
    description: Upstream version of nvidia-fs. None is built when it is empty.
    type: str
    default: ""
  nvidia_fs_tree:
    description: Source tree of nvidia-fs.
    type: str
    default: ""
  nvidia_fs_dkms_name:
    description: Name of nvidia-fs in DKMS.
    type: str
    default: nvidia-fs
"""
