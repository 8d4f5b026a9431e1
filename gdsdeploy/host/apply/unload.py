"""nvidia-peermem and nvidia-fs are unloaded before packages of nvidia-fs or of the driver's modules change.

The prerm of nvidia-fs-dkms runs ``rmmod nvidia_fs``: while the module is in use, dpkg aborts the whole transaction.
A stale nvidia-fs on another driver is a kernel BUG (``kernel BUG … nvfs-stat.c``), and only a reboot ends that.
So modules in use stop the run before the transaction, on a host that will reboot anyway, too.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, Iterable, List

from ..errors import ApplyError
from . import gpu, peermem, services
from .host import ManagedHost
from .model import INSTALLS, RELOAD, Change

#: As the kernel calls them, in the order in which they are unloaded.
MODULES = ("nvidia_peermem", "nvidia_fs")
#: What was unloaded in this boot: modules and units, one a line.
MARKER = "/run/gdsdeploy/unloaded"
#: Packages of nvidia-fs, and those that build or carry the driver's modules.
_CARRIES = re.compile(r"nvidia-fs.*|(?:.+-)?nvidia-(?:.+-)?(?:dkms|kmod|kernel)(?:-.+)?|kmod-nvidia.*")
_DEVICES = {"nvidia_fs": "/dev/nvidia-fs", "nvidia_peermem": "/dev/infiniband/uverbs"}
#: One rmmod, or a unit that runs one.
_SECONDS = 180.0


def needed(names: Iterable[str]) -> bool:
    """Whether a change of these packages exchanges nvidia-fs or modules of the driver."""
    return any(_CARRIES.fullmatch(name) for name in names)


def loaded(host: ManagedHost) -> List[str]:
    """Which of MODULES are loaded, in the order in which they are unloaded."""
    return [module["name"] for module in gpu.modules(host.root, MODULES)]


def changes(present: Iterable[str], moves: Iterable[Change], users: Callable[[str], Iterable[str]]) -> List[Change]:
    """What is unloaded before the packages of ``moves`` change.  present: as :func:`loaded` says."""
    if not needed(change.subject for change in moves if change.kind in (*INSTALLS, "remove")):
        return []
    return [Change("unload", name, "loaded", "", "in-place", RELOAD, users=tuple(users(name))) for name in present]


def users(host: ManagedHost, name: str) -> List[str]:
    """Sentences about what keeps a module of MODULES in use; asked once until something changes."""
    sentences: List[str] = host.once(
        ("users", name), lambda: [user for module in gpu.modules(host.root, [name]) for user in _users(host, module)]
    )
    return sentences


def before(host: ManagedHost, names: Iterable[str]) -> None:
    """Unload MODULES if a transaction with these packages needs that.

    Raises ApplyError: of kind ``in-use``, with all users, before anything is unloaded.
    """
    modules = gpu.modules(host.root, MODULES) if needed(names) else []
    in_use = [user for module in modules for user in _users(host, module)]
    if in_use:
        message = f"{' and '.join(module['name'] for module in modules)} can't be unloaded: {'; '.join(in_use)}"
        hint = (
            "The packages would fail half-way. Drain this host or stop these programs, and run this again;"
            " gdsdeploy rollout drains hosts first"
        )
        raise ApplyError(message, hint, "in-use")
    for module in modules:
        _unload(host, module["name"])


def recorded(host: ManagedHost) -> List[str]:
    """Modules and units that were unloaded or stopped in this boot, and that have to come back."""
    names = host.text(MARKER).split()
    if peermem.UNIT in names and not host.exists(services.path(peermem.UNIT)):
        # The host has no use for nvidia-peermem any more.
        return [name for name in names if name not in (peermem.UNIT, "nvidia_peermem")]
    return names


def settle(host: ManagedHost) -> None:
    """Forget what was unloaded: all of it is loaded again, or isn't wanted."""
    if host.exists(MARKER):
        host.remove_tree(MARKER)


def _unload(host: ManagedHost, name: str) -> None:
    # The unit stays active without its module, and starting it again would load nothing.
    argv = ["systemctl", "--quiet", "is-active", peermem.UNIT]
    with_unit = name == "nvidia_peermem" and host.attempt(argv, _SECONDS).status == 0
    names = sorted({*recorded(host), name, *([peermem.UNIT] if with_unit else [])})
    # The record comes first: an interrupted run has recorded what it unloaded.
    host.keep_lines(MARKER, names)
    host.run(["systemctl", "stop", peermem.UNIT] if with_unit else ["rmmod", name], _SECONDS)


def _users(host: ManagedHost, module: Dict[str, Any]) -> List[str]:
    """Sentences about what keeps a module in use."""
    name = module["name"]
    programs = gpu.open_files(host.root, [_DEVICES[name]])
    if name == "nvidia_peermem":
        # It is unloaded even under an RDMA program, whose registrations of GPU memory then are lost.
        with_gpu = {user["pid"] for user in gpu.open_files(host.root)}
        programs = [user for user in programs if user["pid"] in with_gpu]
    others = [user for user in module["users"] if user not in MODULES]
    users = [f"{one['program'] or 'a program'} (process {one['pid']}) has {one['files'][0]} open" for one in programs]
    users += [f"the module {other} uses {name}" for other in others]
    rest = module["references"] - len(module["users"])
    if rest > 0 and not users:
        users.append(f"{name} has {rest} references that belong to no visible process")
    if users and name == "nvidia_fs":
        users += [f"{mount['target']} ({mount['fstype']}) does direct I/O" for mount in gpu.mounts(host.root)]
    return users
