"""Build once: pack audited modules with a manifest, and install such an archive on hosts that need no compiler.

An archive is a tar file with ``manifest.json``, the builder's signed envelope (see ``provenance.py``) and
``modules/<file>``.  Installed modules are the kernel's folder updates/gdsdeploy and lines in depmod.d that prefer it.

Keep the modules of a kernel as an archive, so that they can be put back without a network or a compiler.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import tarfile
import tempfile
from typing import IO, Any, Dict, Iterable, List, NamedTuple, Optional, Sequence

from .. import derived, process
from ..audit.audit import Result, audit, file_of, stack_files
from ..errors import AuditError, HostError, PackError, failing
from ..io import atomic
from ..kmod.files import sha256
from ..kmod.kernel import Inputs, Kernel, override_line, read_dependencies, run_depmod
from ..kmod.module import decisive, is_incomplete, name_of, read_module
from ..kmod.packaged import FOLDER, MANIFEST, identity, installed_manifest, is_same_build, vouched_files
from ..rootdir import inside, list_folder, read_bytes
from . import provenance
from .archive import FORMAT, read_manifest, read_provenance, unpack, verify
from .key import NONE, objections, of_modules
from .provenance import Builder, Origin

__all__ = ["install", "pack", "read_manifest", "read_provenance", "unpack", "verify"]
_OVERRIDES = "/etc/depmod.d/gdsdeploy-{}.conf"
_INDEX = "modules.dep"
#: Bytes; the largest kernels have 1.5 MB.
_INDEX_LIMIT = 64 << 20
#: Beside the folders of kernels: the modules that were there before, and the names that tempfile makes.
_PREFIX, _BACKUP = ".gdsdeploy-", ".gdsdeploy-old-"
_TEMPORARY = re.compile(r"\.gdsdeploy-(?:old-)?[a-z0-9_]{8}")
RELEASE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+~-]*")
#: Why a file differs from the archive, in words.
_REASONS = {
    "new": "new",
    "content": "other content",
    "depmod": "not in modules.dep",
    "surplus": "removed",
    "manifest": "manifest",
    "preference": "preference",
}


class Difference(NamedTuple):
    """A file that differs from the archive; ``reason``: a key of ``_REASONS``."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path} ({_REASONS[self.reason]})"


def pack(kernel: Kernel, modules: Sequence[str], output: str, builder: Optional[Builder] = None) -> Dict[str, Any]:
    """Write ``modules`` (names or files; default: NVIDIA's installed ones) to ``output``; return the manifest.

    builder: the signer; hosts of a fleet receive only signed archives.  Raises AuditError unless the audit of all
    modules passes, PackError if the archive can't be written.
    """
    chosen = list(modules) or stack_files(kernel)
    if not chosen:
        raise PackError(f"kernel {kernel.release} has none of NVIDIA's modules to pack", "build them first")
    _refuse("pack", [result for result in audit(kernel, modules) if result["ok"] is not True])
    paths = [file_of(kernel, name) for name in chosen]
    names = sorted(map(os.path.basename, paths))
    if len(set(names)) != len(names):
        raise PackError(f"two of the modules have the same file name: {', '.join(names)}")
    manifest = _manifest(kernel, paths)
    with failing(PackError, f"cannot write {output}"), atomic.replacing(output, make=False) as target:
        write_archive(target, manifest, paths, builder)
    return manifest


def write_archive(
    target: IO[bytes], manifest: Dict[str, Any], paths: Sequence[str], builder: Optional[provenance.Builder] = None
) -> None:
    """Write the manifest, signed by ``builder``, and the files of the modules; raises OSError, tarfile.TarError."""
    with tarfile.open(fileobj=target, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        text = (json.dumps(manifest, indent=2, sort_keys=True) + "\n").encode("utf-8")
        archive.addfile(_member(MANIFEST, len(text)), io.BytesIO(text))
        if builder is not None:
            envelope = provenance.sign(text, builder)
            archive.addfile(_member(provenance.MEMBER, len(envelope)), io.BytesIO(envelope))
        for path in sorted(paths, key=os.path.basename):
            with open(path, "rb") as file:
                archive.addfile(_member("modules/" + os.path.basename(path), os.fstat(file.fileno()).st_size), file)


def is_current(archive: str, kernel: Kernel, builder: Optional[Builder] = None) -> bool:
    """Whether packing the installed modules would give the same archive again, apart from the run and the time."""
    origin = Origin(builder.name, provenance.public_pem(builder.seed)) if builder is not None else None
    try:
        manifest = read_manifest(archive, origin)
    except PackError:
        return False
    paths = stack_files(kernel)
    return bool(paths) and manifest == _manifest(kernel, paths)


def install(archive: str, kernel: Kernel, check: bool = False, origin: Optional[Origin] = None) -> Dict[str, Any]:
    """Verify and audit ``archive`` against this host's ``kernel``, then place its modules; idempotent.

    check: change nothing.  origin: the required signer, verified before anything is unpacked.  Returns ``{"changed",
    "changes": [text], "notes": [text], "modules": [name], "audit": [result]}``.  Raises PackError or AuditError, and
    then nothing has changed.
    """
    base = os.path.dirname(kernel.folder)
    if not check:
        _sweep(kernel.release, kernel.root)
    with failing(PackError, f"cannot write below {base}"):
        # Not below the kernel's own folder, where a crash would leave files that depmod finds.
        staging = tempfile.mkdtemp(prefix=_PREFIX, dir=None if check else base)
    try:
        manifest = unpack(archive, kernel.release, staging, origin)
        names = [module["file"] for module in manifest["modules"]]
        paths = [os.path.join(staging, name) for name in names]
        same_build = is_same_build(kernel, manifest.get("kernel_build"))
        results = audit(kernel, paths, trusted=paths if same_build else ())
        for result, name in zip(results, names):
            result["file"] = f"/lib/modules/{kernel.release}/{FOLDER}/{name}"
        _refuse("install", [result for result in results if result["ok"] is False or is_incomplete(result["findings"])])
        reasons = "; ".join(objections(kernel, manifest))
        if reasons:
            hint = "let a host like this one build them, or set modules: build for it in the fleet file"
            raise PackError(f"refusing to install {archive}: {reasons}", hint)
        changes = _differences(kernel, manifest) + (_leftovers(kernel) if check else [])
        if changes and not check:
            _swap(kernel, staging, _override_lines(kernel, manifest))
        return _change(
            map(str, changes), _other_files(kernel, names), [m["name"] for m in manifest["modules"]], results
        )
    except OSError as error:
        message = f"cannot install {archive}: {error.filename or base}: {error.strerror or error}"
        raise PackError(message, "the previous modules are still in place") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def differences(archive: str, kernel: Kernel) -> List[Difference]:
    """What installing ``archive`` would change, without unpacking or auditing it; raises PackError."""
    return _differences(kernel, read_manifest(archive)) + _leftovers(kernel)


def remove_from(release: str, root: str, check: bool = False) -> Dict[str, Any]:
    """Remove what :func:`install` placed for a kernel, also one that isn't installed any more; as :func:`install`."""
    folder = inside(root, "/lib/modules/" + release)
    kernel = Kernel(release, root) if "/" in release or os.path.isdir(folder) else None
    overrides = inside(root, _OVERRIDES.format(release))
    places = [os.path.join(folder, FOLDER), overrides, *_left_behind(release, root)]
    changes = [place for place in places if os.path.lexists(place)]
    if kernel is not None and _is_index_due(release, root):
        changes.append(os.path.join(folder, _INDEX))
    if changes and not check:
        try:
            _sweep(release, root)
            if kernel is not None:
                _swap(kernel, None, "")
            else:
                atomic.remove(overrides)
        except OSError as error:
            raise PackError(f"cannot remove {error.filename}: {error.strerror}") from None
    return _change(changes)


def _change(
    changes: Iterable[str], notes: Sequence[str] = (), modules: Sequence[str] = (), results: Sequence[Result] = ()
) -> Dict[str, Any]:
    listed = list(changes)
    return {
        "changed": bool(listed),
        "changes": listed,
        "notes": list(notes),
        "modules": list(modules),
        "audit": list(results),
    }


def _manifest(kernel: Kernel, paths: Sequence[str]) -> Dict[str, Any]:
    modules = list(map(read_module, paths))
    nvidia_fs = next((module for module in modules if module.name == "nvidia_fs"), None)
    key = of_modules(kernel, modules)
    return {
        "format": FORMAT,
        "kernel_release": kernel.release,
        "vermagic": kernel.vermagic(),
        "kernel_build": identity(kernel),
        "symvers": kernel.symvers_digest(),
        "driver": {
            "version": key["driver_version"],
            "flavour": key["driver_flavour"],
            "tree": "" if key["driver_tree"] == NONE else key["driver_tree"],
        },
        "nvidia_fs": {
            "version": nvidia_fs.version if nvidia_fs is not None else "",
            "source": nvidia_fs.provenance.get("source", "") if nvidia_fs is not None else "",
        },
        "compiler": key["compiler"],
        "key": key,
        "modules": [
            {
                "name": module.name,
                "file": os.path.basename(module.path),
                "sha256": sha256(module.path),
                "size": os.path.getsize(module.path),
                "srcversion": module.srcversion,
            }
            for module in sorted(modules, key=lambda module: module.name)
        ],
    }


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, 0o644, 0
    return member


def _override_lines(kernel: Kernel, manifest: Dict[str, Any]) -> str:
    return "".join(override_line(f"{FOLDER}/{module['file']}", kernel.release) for module in manifest["modules"])


def _differences(kernel: Kernel, manifest: Dict[str, Any]) -> List[Difference]:
    """What installing would change; empty when everything is in place already."""
    folder = os.path.join(kernel.folder, FOLDER)
    installed = sorted(set(os.listdir(folder)) - {MANIFEST}) if os.path.isdir(folder) else []
    digests = {module["file"]: module["sha256"] for module in manifest["modules"]}
    changes: List[Difference] = []
    for name, digest in digests.items():
        path = os.path.join(folder, name)
        if name not in installed:
            changes.append(Difference(path, "new"))
        elif sha256(path) != digest:
            changes.append(Difference(path, "content"))
        elif f"{FOLDER}/{name}" not in kernel.dependencies:
            changes.append(Difference(path, "depmod"))
    changes += [Difference(os.path.join(folder, name), "surplus") for name in installed if name not in digests]
    if _is_index_due(kernel.release, kernel.root) and not any(change.reason == "depmod" for change in changes):
        changes.append(Difference(os.path.join(kernel.folder, _INDEX), "depmod"))
    if installed_manifest(kernel) != manifest:
        changes.append(Difference(os.path.join(folder, MANIFEST), "manifest"))
    if _overrides(kernel) != _override_lines(kernel, manifest):
        changes.append(Difference(_overrides_path(kernel), "preference"))
    return changes


def _swap(kernel: Kernel, staging: Optional[str], overrides: str) -> None:
    """Replace the installed folder by ``staging`` (or nothing), then run depmod.

    All of it or none, however this ends; what SIGKILL interrupts, :func:`_sweep` puts back.
    """
    folder, backup = os.path.join(kernel.folder, FOLDER), _backup(kernel.release, kernel.root)
    before = _overrides(kernel)
    was_there = os.path.isdir(folder)
    try:
        with derived.remaking([_index(kernel.release)], kernel.root, keep=staging is not None):
            atomic.make_folder(os.path.dirname(folder))
            if was_there:
                os.rename(folder, backup)
            if staging is not None:
                os.chmod(staging, 0o755)  # noqa: S103 # nosec B103 # mkdtemp made it 0700; modules aren't secret
                os.rename(staging, folder)
            _write_overrides(kernel, overrides)
            run_depmod(kernel.root, kernel.release, PackError, "nothing was changed")
            _check_taken(kernel, folder)
            if staging is None:
                with contextlib.suppress(OSError):
                    # Where others have files in it, it stays.
                    os.rmdir(os.path.dirname(folder))
    except BaseException:
        with process.defer_signals():
            if os.path.isdir(backup) or not was_there:
                # A new folder in its place is in the way, and may have filled the disk.
                shutil.rmtree(folder, ignore_errors=True)
            if was_there and os.path.isdir(backup):
                with contextlib.suppress(OSError):
                    atomic.make_folder(os.path.dirname(folder))
                    os.rename(backup, folder)
            with contextlib.suppress(OSError):
                _write_overrides(kernel, before)
            # Where this fails, the next run finds modules.dep due.
            with contextlib.suppress(OSError, PackError):
                run_depmod(kernel.root, kernel.release, PackError, "")
                derived.settle([_index(kernel.release)], kernel.root, keep=was_there)
        raise
    if was_there:
        # First out of the way, so that what is half deleted is never put back.
        rest = tempfile.mkdtemp(prefix=_PREFIX, dir=os.path.dirname(backup))
        os.rename(backup, rest)
        shutil.rmtree(rest, ignore_errors=True)


def placed_releases(root: str) -> List[str]:
    """The kernels that have received modules, or something left of them by a run that was killed; sorted."""
    listed = list_folder(root, "/lib/modules")
    overrides = (re.fullmatch(r"gdsdeploy-(.+)\.conf", name) for name in list_folder(root, "/etc/depmod.d"))
    releases = {match.group(1) for match in overrides if match}
    releases |= {name[len(_BACKUP) :] for name in listed if name.startswith(_BACKUP)}
    releases |= {name[1:] for name in listed if _is_temporary(name, root)}
    for name in listed:
        if os.path.isdir(inside(root, f"/lib/modules/{name}/{FOLDER}")) or _is_index_due(name, root):
            releases.add(name)
    return sorted(name for name in releases if RELEASE.fullmatch(name))


def _sweep(release: str, root: str) -> None:
    """Put back what a killed :func:`_swap` had moved aside, or delete it where its successor is in place."""
    folder, backup = inside(root, f"/lib/modules/{release}/{FOLDER}"), _backup(release, root)
    if os.path.isdir(backup) and not os.path.isdir(folder) and os.path.isdir(os.path.dirname(folder)):
        os.rename(backup, folder)
    for path in _left_behind(release, root):
        shutil.rmtree(path, ignore_errors=True)


def _left_behind(release: str, root: str) -> List[str]:
    """Folders of runs that were killed, beside those of the kernels."""
    base, names = inside(root, "/lib/modules"), list_folder(root, "/lib/modules")
    return [os.path.join(base, name) for name in names if name == _BACKUP + release or _is_temporary(name, root)]


def _is_temporary(name: str, root: str) -> bool:
    """Whether this may be a folder of a run that was killed: root's, with modules and a manifest in it, or nothing."""
    path = os.path.join(inside(root, "/lib/modules"), name)
    if not _TEMPORARY.fullmatch(name) or os.path.islink(path) or not os.path.isdir(path):
        return False
    return os.stat(path).st_uid == os.geteuid() and all(".ko" in each or each == MANIFEST for each in os.listdir(path))


def _leftovers(kernel: Kernel) -> List[Difference]:
    """What :func:`install` deletes before all else."""
    return [Difference(path, "surplus") for path in _left_behind(kernel.release, kernel.root)]


def _backup(release: str, root: str) -> str:
    return os.path.join(inside(root, "/lib/modules"), _BACKUP + release)


def _index(release: str) -> derived.Thing:
    """modules.dep and its like; the manifest has the digest of each module."""
    manifest = f"/lib/modules/{release}/{FOLDER}/{MANIFEST}"
    return derived.Thing(f"{_INDEX} {release}", (manifest, _OVERRIDES.format(release)))


def _is_index_due(release: str, root: str) -> bool:
    """Whether depmod has to run: it didn't end after the last change, or modules.dep names files that are gone."""
    if derived.is_due(_index(release), root):
        return True
    text = read_bytes(root, f"/lib/modules/{release}/{_INDEX}", _INDEX_LIMIT).decode("utf-8", "replace")
    ours = re.findall(rf"^({re.escape(FOLDER)}/[^:]+):", text, re.MULTILINE)
    return any(not os.path.lexists(inside(root, f"/lib/modules/{release}/{name}")) for name in ours)


def _check_taken(kernel: Kernel, folder: str) -> None:
    """Raise PackError where depmod takes another file than one in ``folder``, so that half of a stack would load."""
    taken = read_dependencies(Inputs(kernel.root).text(f"/lib/modules/{kernel.release}/modules.dep"))
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    others = [name for name in names if name != MANIFEST and f"{FOLDER}/{name}" not in taken]
    if others:
        hint = "another line of depmod.d prefers other files; nothing was changed: grep -r override /etc/depmod.d"
        raise PackError(f"depmod doesn't take {', '.join(others)} from {FOLDER} for kernel {kernel.release}", hint)


def _overrides_path(kernel: Kernel) -> str:
    return inside(kernel.root, _OVERRIDES.format(kernel.release))


def _overrides(kernel: Kernel) -> str:
    try:
        with open(_overrides_path(kernel), encoding="utf-8", errors="replace") as file:
            return "".join(line for line in file if not line.startswith("#"))
    except FileNotFoundError:
        return ""


def _write_overrides(kernel: Kernel, text: str) -> None:
    path = _overrides_path(kernel)
    atomic.sweep(path)
    if text:
        atomic.write(path, "# Written by gdsdeploy: its audited modules are the ones to load.\n" + text)
    else:
        atomic.remove(path)


def _other_files(kernel: Kernel, names: Sequence[str]) -> List[str]:
    """Other files that claim to be one of the modules, each as a sentence."""
    return [
        f"{kernel.path(file)} is another {name}; {FOLDER} is preferred by depmod.d"
        for name in map(name_of, names)
        for file in kernel.by_name.get(name, [])
        if not file.startswith(FOLDER + "/")
    ]


def _refuse(verb: str, results: Sequence[Result]) -> None:
    problems = "; ".join(
        f"{result['module'] or result['file']}: [{finding['id']}] {finding['message']}"
        for result in results
        for finding in decisive(result["findings"])
    )
    if problems:
        raise AuditError(
            f"refusing to {verb}: {problems}", "gdsdeploy kmod audit shows all findings; nothing was changed"
        )


PLACE = "/var/lib/gdsdeploy/rollout"
#: Where provision leaves the archive that it made or received.
PROVISIONED = "/var/lib/gdsdeploy/modules-{}.tar"


def keep(ident: str, release: str = "", root: str = "/") -> Dict[str, Any]:
    """Keep the modules that kernel ``release`` (by default the running one) would load now; idempotent.

    Deletes what earlier rollouts kept.  Returns ``{"changed", "kernel", "archive", "from", "modules": [file]}``;
    archive: empty without NVIDIA's modules; from: "kept", "provision", "installed" or "packed".  Raises AuditError if
    the modules have no manifest and fail their audit, PackError or OSError if they can't be written.
    """
    answer = _keep(ident, release or os.uname().release, root)
    folder = inside(root, PLACE)
    for other in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        if other != ident:
            forget_kept(other, root)
    return answer


def _keep(ident: str, release: str, root: str) -> Dict[str, Any]:
    kernel = Kernel(release, root) if os.path.isdir(inside(root, "/lib/modules/" + release)) else None
    digests = module_digests(kernel) if kernel is not None else {}
    answer = {"changed": False, "kernel": release, "archive": "", "from": "", "modules": sorted(digests)}
    if kernel is None or not digests:
        return answer
    archive = kept_path(ident, kernel.release)
    place = inside(root, archive)
    if _has_exactly(place, digests):
        return {**answer, "archive": archive, "from": "kept"}
    atomic.make_folder(os.path.dirname(place))
    provisioned = inside(root, PROVISIONED.format(kernel.release))
    if _has_exactly(provisioned, digests):
        atomic.copy(provisioned, place)
        source = "provision"
    elif _is_received(kernel, digests):
        _rebuild(kernel, place)
        source = "installed"
    else:
        pack(kernel, [], place)
        source = "packed"
    return {**answer, "changed": True, "archive": archive, "from": source}


def forget_kept(ident: str, root: str = "/") -> Dict[str, Any]:
    """Delete what was kept; returns ``{"changed", "folder"}``.  Raises OSError."""
    folder = f"{PLACE}/{ident}"
    place = inside(root, folder)
    exists = os.path.isdir(place)
    if exists:
        shutil.rmtree(place)
    return {"changed": exists, "folder": folder}


def kept_path(ident: str, release: str) -> str:
    """Where the archive of a kernel's modules is, or would be."""
    return f"{PLACE}/{ident}/modules-{release}.tar"


def module_digests(kernel: Kernel) -> Dict[str, str]:
    """File name → SHA-256 of each of NVIDIA's modules that the kernel would load."""
    return {os.path.basename(each): sha256(each) for each in stack_files(kernel)}


def _has_exactly(archive: str, digests: Dict[str, str]) -> bool:
    """Whether the archive is undamaged and has exactly these modules."""
    try:
        return os.path.isfile(archive) and digests == {
            module["file"]: module["sha256"] for module in verify(archive)["modules"]
        }
    except HostError:
        return False


def _is_received(kernel: Kernel, digests: Dict[str, str]) -> bool:
    """Whether the received modules are all that is to be kept, and unchanged since they were audited."""
    files = {module.get("file") for module in installed_manifest(kernel).get("modules", [])}
    return bool(files) and files == set(digests) == set(map(os.path.basename, vouched_files(kernel)))


def _rebuild(kernel: Kernel, target: str) -> None:
    """Write the archive as it was received: its manifest and its modules lie beside each other."""
    manifest = installed_manifest(kernel)
    paths = [os.path.join(kernel.folder, FOLDER, module["file"]) for module in manifest["modules"]]
    try:
        with atomic.replacing(target) as file:
            write_archive(file, manifest, paths)
            file.flush()
            verify(f"/proc/self/fd/{file.fileno()}")
    except tarfile.TarError as error:
        raise PackError(f"cannot write {target}: {error}") from None
