"""What DKMS is told about the driver and nvidia-fs beside their packages' own ``dkms.conf``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar, List, Sequence

from ..kmod.packaged import broken_in_dkms, dkms_version
from .file_resource import FileResource
from .files import FOLDER, File
from .host import ManagedHost
from .model import Change, Flavour, Source, Words
from .program import COMMAND

FOLDER_PATH = "/etc/dkms"
#: Names that drivers have in DKMS, whoever packaged them.
_NAMES = ("nvidia", "nvidia-current", "nvidia-current-open", "nvidia-fs", "nvidia-open", "nvidia-srv")
#: Why an entry of DKMS is deleted; and where an observation has those entries.
NO_SOURCE, _STALE = "no-source", "stale entries"
_LOG = "/var/log/gdsdeploy/kmod/${kernelver}"


@dataclass(frozen=True)
class Desired:
    """The driver, and nvidia-fs, as DKMS and the lock name them."""

    #: Upstream version of the driver.
    driver_version: str
    #: Flavour of the driver's kernel modules.
    driver_flavour: Flavour
    #: The driver's source tree to build against; empty with packaged modules.
    driver_tree: str
    #: Name of the driver in DKMS; empty with packaged modules.
    driver_dkms_name: str
    #: Upstream version of nvidia-fs; empty if nvidia-fs isn't built.
    nvidia_fs_version: str = ""
    #: Source tree of nvidia-fs.
    nvidia_fs_tree: str = ""
    #: Name of nvidia-fs in DKMS.
    nvidia_fs_dkms_name: str = "nvidia-fs"
    #: Build the modules on this machine, receive them, or have them from packages.  A machine that receives them may
    #: have DKMS from the driver's packages; it then builds nothing.
    source: Source = "build"
    #: Release of the kernel that the modules are for, running or not.
    kernel_release: str = ""
    #: Whether DKMS builds for the locked kernel alone, and not for every kernel that has headers.
    target_only: bool = False


class Recipes(FileResource[Desired]):
    """``/etc/dkms/NAME.conf`` of each package; in place before the package, whose installation already builds.

    Entries of DKMS whose source is gone are deleted: DKMS can't remove them, and packages' scripts fail at them.
    """

    name = "recipes"
    desired_type = Desired
    removal_rank = 120
    #: those of them that are ours
    reverts = (f"{FOLDER_PATH}/*.conf",)

    reasons: ClassVar[Words] = {NO_SOURCE: "an entry of DKMS whose source is gone"}

    def observe(self, host: ManagedHost, desired: Desired) -> Any:
        """Also the entries of DKMS that would fail the packages' own scripts."""
        names = sorted({desired.driver_dkms_name, desired.nvidia_fs_dkms_name, *_NAMES})
        return {**super().observe(host, desired), _STALE: broken_in_dkms(host.root, names)}

    def changes(self, desired: Desired, observed: Any, pending: Sequence[Change] = ()) -> List[Change]:
        entries = [Change("delete", path, "", "", NO_SOURCE) for path in observed[_STALE]]
        return [*entries, *super().changes(desired, observed, pending)]

    def apply(self, host: ManagedHost, desired: Desired, change: Change) -> None:
        if change.reason == NO_SOURCE:
            host.remove_tree(change.subject)
        else:
            super().apply(host, desired, change)

    def desired_files(self, desired: Desired) -> List[File]:
        builds = desired.source == "build"
        texts = {desired.driver_dkms_name: driver(desired) if builds else NOTHING}
        if desired.nvidia_fs_version:
            texts = {desired.nvidia_fs_dkms_name: nvidia_fs(desired) if builds else NOTHING, **texts}
        files = [File.of(f"{FOLDER_PATH}/{name}.conf", text) for name, text in texts.items()]
        return [File(FOLDER_PATH, FOLDER, mode=0o755), *files]


#: No kernel's release is empty.
NOTHING = """\
# Rendered by gdsdeploy; changes here are overwritten.
# This host receives its modules: DKMS, which came along with the driver's packages, builds them for no kernel.
BUILD_EXCLUSIVE_KERNEL="^$"
"""


def driver(desired: Desired) -> str:
    """The text of the driver's recipe."""
    name = desired.driver_dkms_name
    build = (
        f"{COMMAND} kmod build --kernel ${{kernelver}} --driver-tree . --driver-version ${{PACKAGE_VERSION}}"
        f" --driver-flavour {desired.driver_flavour} --output . --peermem stub --log {_LOG}/{name}.log --kept {name}"
        " --verbose driver"
    )
    return f"""\
# Rendered by gdsdeploy; changes here are overwritten.
# DKMS reads this after the package's own dkms.conf of the driver: for the given kernel whatever runs, nvidia-peermem
# against the OFED of that kernel, and a build that is audited before it is installed.
AUTOINSTALL="yes"
MAKE[0]="{build}"
{_only(desired, desired.driver_version)}{_end(name)}"""


def nvidia_fs(desired: Desired) -> str:
    """The text of nvidia-fs's recipe."""
    name = desired.nvidia_fs_dkms_name
    build = (
        f"{COMMAND} kmod build --kernel ${{kernelver}} --source . --driver-tree {desired.driver_tree}"
        f" --driver-version {desired.driver_version} --driver-flavour {desired.driver_flavour} --output nvidia-fs.ko"
        f" --log {_LOG}/{name}.log --kept {name} --verbose nvidia-fs"
    )
    return f"""\
# Rendered by gdsdeploy; changes here are overwritten.
# DKMS reads this after the package's own dkms.conf of nvidia-fs, so it corrects that file without changing it:
# the driver's name in DKMS, a rebuild when the driver changes, and a build that is audited before it is installed.
BUILD_DEPENDS[0]="{desired.driver_dkms_name}"
BUILD_DEPENDS_REBUILD="yes"
AUTOINSTALL="yes"
MAKE[0]="{build}"
{_only(desired, dkms_version(desired.nvidia_fs_tree), desired.driver_tree)}{_end(name)}\
# No initramfs holds nvidia-fs, so none has to be made anew; newer DKMS warns when the variable is there at all.
if [ -n "${{REMAKE_INITRD:-}}" ]; then
    REMAKE_INITRD="no"
fi
"""


def _only(desired: Desired, version: str, tree: str = "") -> str:
    """Lines that keep DKMS from building another version, before ``tree`` is there, or for a builder's other kernels.

    An upgrade brings the next kernel first: the old sources may not build for it, which would fail its installation.
    Debian 13's DKMS builds for every kernel with headers when a package is installed; on a builder, those of earlier
    locks are there.
    """
    missing = f' || [ ! -d "{tree}" ]' if tree else ""
    release = re.escape(desired.kernel_release).replace("\\-", "-")
    target = f"""\
    # This machine builds for others, and for no other kernel than theirs.
    BUILD_EXCLUSIVE_KERNEL="^{release}$"
"""
    return f"""\
# DKMS 3.2 skips kernels that are left out.  To DKMS 3.0 they are failures, and the installation of a kernel fails.
if [[ "$(declare -f autoinstall)" == *skipped_modules* ]]; then
{target if desired.target_only else ""}\
    # An upgrade brings its kernel before its sources; the old ones, which it replaces, aren't built for that kernel.
    if [ "${{PACKAGE_VERSION:-}}" != "{version}" ]{missing}; then
        BUILD_EXCLUSIVE_KERNEL="^$"
    fi
fi
"""


def _end(name: str) -> str:
    return f"""\
CLEAN="true"
# Every kernel gets a build of its own: links to another kernel's modules would be audited for none.
NO_WEAK_MODULES="yes"
# Run from the folder of the source, wherever that is; a copy is kept for the day on which a rebuild fails.
POST_INSTALL="../../../../../../../..{COMMAND} kmod kept save --kernel ${{kernelver}} {name}"
"""
