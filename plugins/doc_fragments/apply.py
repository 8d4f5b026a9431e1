"""Documentation that modules share."""

from __future__ import annotations


class ModuleDocFragment:
    """Parts of a module's documentation."""

    DOCUMENTATION = r"""
author: [gdsdeploy (@gdsdeploy)]
version_added: 0.1.0
requirements: [python >= 3.8 on the host]
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
"""

    KERNEL = r"""
options:
  kernel_release:
    description: Release of the locked kernel, as C(uname -r) prints it.
    type: str
    required: true
"""

    RDMA = r"""
options:
  rdma:
    description: How adapters reach GPU memory.
    type: str
    choices: [none, peermem, dmabuf]
    default: none
"""

    MANAGER = r"""
options:
  manager:
    description: The host's package manager.
    type: str
    choices: [apt, dnf]
    required: true
"""

    ORDER = r"""
options:
  fleet_id:
    description:
      - The fleet that the lock is for.
      - A host with the lock of another fleet is refused. Empty means that this isn't checked.
    type: str
    default: ""
  lock_serial:
    description:
      - The lock's serial. With O(fleet_id), a host with a lock of a higher serial is refused.
      - V(0) refuses none.
    type: int
    default: 0
"""

    LOCKED = r"""
options:
  indices:
    description: The locked, signed package indices.
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
        description: Path of the index's key on the host.
        type: path
        required: true
      exclusive:
        description: Whether only the locked packages may come from it.
        type: bool
        default: false
      package_keys:
        description: Paths of other keys on the host for its packages; dnf only.
        type: list
        elements: path
        default: []
      metadata:
        description: C(unsigned) where only its packages are signed, by the key at O(indices[].host_keyring); dnf only.
        type: str
        choices: [signed, unsigned]
        default: signed
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
    description: V(absent) reverts this module's changes, based on the host's record.
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
    description: The driver's source tree to build against; empty with packaged modules.
    type: path
    required: true
  driver_dkms_name:
    description: Name of the driver in DKMS; empty with packaged modules.
    type: str
    required: true
  nvidia_fs_version:
    description: Upstream version of nvidia-fs; empty if nvidia-fs isn't built.
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
