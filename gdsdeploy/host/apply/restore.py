"""A rollback on one host: earlier packages are offered again, and later ones are removed.

Names and paths come from a snapshot, which is data: each is checked before it is used.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import tarfile
from dataclasses import dataclass, field
from typing import Any, List, Literal, Sequence, Tuple

from .. import derived
from ..archive import pack
from ..derived import Thing
from ..errors import ApplyError, DesiredError
from ..io import atomic
from ..paths import IMEX_NODES
from ..rootdir import inside
from . import files, imex, initramfs, services, unload, written
from .files import File
from .host import ManagedHost
from .model import Change, Refusal, Resource, with_kind, writing
from .packages import left
from .packages.managers import HOLDS, INSTALLED, RETURNING, check_names, manager, read_names, write_names
from .record import look

#: Packages on their way back (a signed repository for apt, files for dnf), and where they come from.
PLACE, ARCHIVE = RETURNING, RETURNING + ".tar"
KEYRING = "/etc/apt/keyrings/gdsdeploy-restore.gpg"
_KERNEL = "modules of kernel "
#: apt reads the repository as a user of its own.
_READABLE = 0o755


@dataclass(frozen=True)
class FileBefore:
    """A file before the rollout."""

    #: Path of the file.
    path: str
    #: Checksum of the earlier file; empty if there was none.
    sha256: str = ""


@dataclass(frozen=True)
class Desired:
    """A host's packages and files from before a rollout."""

    #: The host's package manager.
    manager: str
    #: Provide the earlier packages, or remove the new ones.
    step: Literal["offer", "remove"]
    #: sha256 of the tar file at ARCHIVE with the packages that were there before, for apt as a signed repository.
    #: Empty where none has to come back.
    archive_sha256: str = ""
    #: The key that signs it, in base64.
    keyring: str = ""
    #: The host's earlier archive of modules; empty if other modules follow.
    modules: str = ""
    #: Release of the kernel that those modules are for.
    kernel_release: str = ""
    #: Packages that weren't installed before.
    new_packages: List[str] = field(default_factory=list)
    #: Kernels that weren't installed before.
    new_kernels: List[str] = field(default_factory=list)
    #: Changed files of gdsdeploy.  Each is restored from the host's record, or removed if it didn't exist.
    files: List[FileBefore] = field(default_factory=list)
    #: Whether ``installed``, ``holds`` and ``removed`` are from an earlier record.
    has_record: bool = False
    #: Packages that gdsdeploy had installed.
    installed: List[str] = field(default_factory=list)
    #: Packages that gdsdeploy held.
    holds: List[str] = field(default_factory=list)
    #: Packages that had left for the lock.  Others that have left since then are installed again.
    removed: List[str] = field(default_factory=list)


class Restore(Resource[Desired]):
    """What a host had before a rollout."""

    name = "restore"
    desired_type = Desired

    def __init__(self) -> None:
        self._things: List[Thing] = []

    def observe(self, host: ManagedHost, desired: Desired) -> Any:
        """What is there of everything that comes or goes; raises DesiredError for names that can't be."""
        _check(desired)
        if desired.step == "offer":
            return _observe_offer(host, desired)
        observed = _observe_removal(host, desired)
        self._things = [initramfs.of_kernel(change.subject) for change in observed["images"]]
        self._things += [imex.running(host)] if observed["restarts"] else []
        self._things += [services.systemd(host)] if observed["reload"] else []
        return observed

    def derives(self, host: ManagedHost, desired: Desired) -> Sequence[Thing]:
        return self._things

    def refusals(self, desired: Desired, observed: Any) -> List[Refusal]:
        if observed.get("archive") != "other":
            return []
        return [Refusal("archive", f"{ARCHIVE}: not there, or not the one that was sent", "run this again")]

    def changes(self, desired: Desired, observed: Any, pending: Sequence[Change] = ()) -> List[Change]:
        if desired.step == "offer":
            return _offer_changes(desired, observed)
        return [
            *observed["units"],
            *(Change("delete", _KERNEL + release, "", "", "not-there-before") for release in observed["kernels"]),
            *(Change("remove", name, "", "", "not-there-before") for name in observed["packages"]),
            *(Change("write", path, "", "", "restore") for path in observed["records"]),
            *(Change(kind, path, "", "", reason) for kind, path, reason in observed["files"]),
            *observed["images"],
            *observed["reload"],
            *observed["restarts"],
            *observed["returning"],
        ]

    def apply(self, host: ManagedHost, desired: Desired, change: Change) -> None:
        """Everything but packages, which are one transaction."""
        if change.subject == INSTALLED:
            write_names(host, INSTALLED, desired.installed)
        elif change.subject == HOLDS:
            write_names(host, HOLDS, desired.holds)
        elif change.kind == "initramfs":
            initramfs.rebuild(host, change.subject)
        elif change.kind == "restart":
            imex.restart(host)
        elif change.kind in ("disable", "reload"):
            services.apply(host, change, stop=True)
            # A unit's file goes next, and doesn't come back when a later step fails.
            host.keep()
        elif change.subject == PLACE and change.kind == "make":
            _extract(host)
        elif change.kind == "write" and desired.step == "remove":
            host.restore(change.subject)
        elif change.kind == "write":
            _write(host, desired, change.subject)
        elif change.subject.startswith(_KERNEL):
            with with_kind("modules"):
                pack.remove_from(change.subject[len(_KERNEL) :], host.root)
            host.forget()
        elif change.kind == "remove" and desired.step == "remove" and change.reason == "not-there-before":
            names = _removable_packages(host, desired)
            if names:
                unload.before(host, names)
                manager(desired.manager).purge(host, names, with_held=True)
        elif change.kind == "delete":
            host.remove_tree(change.subject)
            if host.record.paths.get(change.subject) is None:
                host.record.forget(change.subject)

    def settle(self, host: ManagedHost, desired: Desired, changes: Sequence[Change]) -> None:
        """Finish what was interrupted, read the lists of what came, and install again what is half-installed.

        At the end: bring back what left.
        """
        chosen = manager(desired.manager)
        if desired.step != "offer":
            left.bring_back(host, chosen, _left_since(host, desired))
            return
        unload.before(host, [name for name in chosen.unfinished(host) if name in desired.new_packages])
        chosen.repair(host, desired.new_packages)
        if any(change.kind == "refresh" for change in changes):
            chosen.refresh_offer(host)
        chosen.reinstall(host)


def _check(desired: Desired) -> None:
    for name in ("new_packages", "installed", "holds", "removed"):
        check_names(getattr(desired, name), f"restore.{name}")
    releases = [*desired.new_kernels, *([desired.kernel_release] if desired.kernel_release else [])]
    for release in releases:
        if not pack.RELEASE.fullmatch(release):
            raise DesiredError(f"restore: {release!r} is not a kernel release")
    for file in desired.files:
        if not written.is_known(file.path):
            raise DesiredError(f"restore.files: {file.path!r} is not a file that gdsdeploy writes")
    is_kept = desired.modules.startswith(pack.PLACE + "/") and ".." not in desired.modules.split("/")
    if desired.modules and not (desired.kernel_release and is_kept):
        raise DesiredError(f"restore.modules: {desired.modules!r} is not an archive that a rollout kept")


def _observe_offer(host: ManagedHost, desired: Desired) -> Any:
    chosen = manager(desired.manager)
    entry = host.entry(ARCHIVE) if desired.archive_sha256 else None
    # A check brings no archive.  The run does.
    same = host.check or (entry is not None and entry.sha256 == desired.archive_sha256)
    paths = [desired.modules, pack.PROVISIONED.format(desired.kernel_release)] if desired.modules else []
    return {
        "archive": "" if not desired.archive_sha256 else "same" if same else "other",
        "files": [(file, host.entry(file.path)) for file in _offer_files(desired)],
        "modules": [host.entry(path) for path in paths] or (None, None),
        "unfinished": [name for name in chosen.unfinished(host) if name in desired.new_packages],
        "broken": chosen.broken(host),
    }


def _offer_files(desired: Desired) -> List[File]:
    if not desired.archive_sha256:
        return []
    key = files.decode_base64(desired.keyring, "restore.keyring")
    return manager(desired.manager).offer_files(PLACE, KEYRING, key)


def _offer_changes(desired: Desired, observed: Any) -> List[Change]:
    changes = []
    archive, present = observed["modules"]
    if archive is not None and (present is None or present.sha256 != archive.sha256):
        changes.append(
            Change("write", pack.PROVISIONED.format(desired.kernel_release), "", f"sha256:{archive.sha256}", "restore")
        )
    changes += [Change("remove", name, "", "", "half-installed") for name in observed["unfinished"]]
    if observed["archive"]:
        changes.append(Change("make", PLACE, "", "", "restore"))
    if observed["files"]:
        changes += [change for file, entry in observed["files"] for change in files.compare(file, entry)]
        changes.append(Change("refresh", "package lists", "", "", "sources"))
    return changes + [Change("install", name, "", "", "half-installed") for name in observed["broken"]]


def _observe_removal(host: ManagedHost, desired: Desired) -> Any:
    passing = [path for path in (*written.PASSING, KEYRING) if written.RESTORING in path]
    names = {INSTALLED: desired.installed, HOLDS: desired.holds} if desired.has_record else {}
    others = [release for release in desired.new_kernels if release != os.uname().release]
    packages = _removable_packages(host, desired)
    way = left.find(host, manager(desired.manager), _left_since(host, desired), packages)
    with with_kind("modules"):
        kernels = [release for release in others if pack.remove_from(release, host.root, check=True)["changed"]]
    changed = [change for file in desired.files for change in _file_changes(host, file)]
    paths = {path for _, path, _ in changed}
    images = initramfs.rebuilt_changes(host, gone=not paths.isdisjoint(initramfs.CARRIED))
    # Also one whose file a run that was stopped has deleted.
    new = [os.path.split(file.path) for file in desired.files if not file.sha256]
    observed = [(name, services.observe(host, name)) for folder, name in new if folder == services.FOLDER]
    units = [change for name, unit in observed for change in services.dismiss_changes(name, unit)]
    is_due = derived.is_due(services.systemd(host), host.root)
    outdated = bool(units) or is_due or any(path.startswith(services.FOLDER + "/") for path in paths)
    return {
        "units": units,
        "reload": services.reload_changes(outdated=outdated and services.is_booted(host), changes=()),
        "files": [*(("delete", path, "passing") for path in passing if host.entry(path) is not None), *changed],
        "restarts": imex.restart_changes(host, differs=IMEX_NODES in paths),
        "images": [change for change in images if change.subject not in desired.new_kernels],
        "kernels": kernels,
        "packages": packages,
        "returning": left.changes(way),
        "records": [path for path, listed in names.items() if read_names(host, path) != sorted(set(listed))],
    }


def _left_since(host: ManagedHost, desired: Desired) -> List[left.Left]:
    """What has left since the snapshot."""
    return [one for one in left.read(host) if desired.has_record and one.name not in desired.removed]


def _file_changes(host: ManagedHost, was: FileBefore) -> List[Tuple[str, str, str]]:
    """How a file becomes what it was: kind of the change, path, reason; a rollback names what can't come back."""
    if not was.sha256:
        return [("delete", was.path, "not-there-before")] if host.entry(was.path) is not None else []
    before = host.record.paths.get(was.path) or {}
    content = base64.b64decode(str(before.get("content") or ""))
    recorded = "content" in before and hashlib.sha256(content).hexdigest() == was.sha256
    return [("write", was.path, "restore")] if recorded and look(host.root, was.path) != before else []


def _removable_packages(host: ManagedHost, desired: Desired) -> List[str]:
    """Packages to remove: a running kernel can't be taken away under itself and goes after the reboot."""
    if not desired.new_packages:
        return []
    chosen, running = manager(desired.manager), os.uname().release
    present = chosen.present(host)
    return [name for name in desired.new_packages if name in present and not chosen.stays(name, running)]


def _write(host: ManagedHost, desired: Desired, path: str) -> None:
    offered = {file.path: file for file in _offer_files(desired)}
    if path in offered:
        host.write_unrecorded(offered[path])
        return
    with writing(path):
        atomic.copy(inside(host.root, desired.modules), inside(host.root, path))
    host.forget()


def _extract(host: ManagedHost) -> None:
    """Unpack the repository: files and folders, none of them outside."""
    host.remove_tree(PLACE)
    place = inside(host.root, PLACE)
    try:
        with writing(PLACE):
            atomic.make_folder(place, _READABLE)
            with tarfile.open(inside(host.root, ARCHIVE), "r:") as archive:
                for member in archive:
                    _extract_one(archive, member, place)
            os.unlink(inside(host.root, ARCHIVE))
    except tarfile.TarError as error:
        raise ApplyError(f"{ARCHIVE}: {error}", "run this again", "io") from None
    host.forget()


def _extract_one(archive: tarfile.TarFile, member: tarfile.TarInfo, place: str) -> None:
    target = os.path.normpath(os.path.join(place, member.name))
    if target != place and not target.startswith(place + "/"):
        raise ApplyError(f"{ARCHIVE}: {member.name!r} leads out of its folder", kind="refused")
    if member.isdir():
        atomic.make_folder(target, _READABLE)
        return
    source = archive.extractfile(member) if member.isreg() else None
    if source is None:
        raise ApplyError(f"{ARCHIVE}: {member.name!r} is neither a file nor a folder", kind="refused")
    with source, atomic.replacing(target) as file:
        shutil.copyfileobj(source, file)
