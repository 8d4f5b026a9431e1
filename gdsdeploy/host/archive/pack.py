"""Build once: pack audited modules with a manifest, and install such an archive on hosts that need no compiler.

An archive is a tar file with ``manifest.json``, what its builder has signed (see ``provenance.py``; nothing where it
has no name) and ``modules/<file>``.  Installed modules are the folder updates/gdsdeploy of the kernel, replaced as a
whole, and lines in depmod.d that prefer it.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
import tempfile
from typing import IO, Any, Dict, List, NamedTuple, Optional, Sequence

from .. import process
from ..audit.audit import STACK, Result, audit
from ..errors import AuditError, PackError
from ..io import atomic
from ..kmod import driver as drivers
from ..kmod.depmod import override_line
from ..kmod.findings import decisive
from ..kmod.kernel import Kernel
from ..kmod.module import Module, name_of, read_module
from ..kmod.vouch import FOLDER, MANIFEST, identity, installed_manifest, is_same_build, sha256
from ..rootdir import inside
from . import provenance
from .archive import FORMAT, read_manifest, read_provenance, unpack, verify
from .key import NONE, objections, of_modules
from .provenance import Builder, Origin

__all__ = ["install", "pack", "read_manifest", "read_provenance", "unpack", "verify"]
_OVERRIDES = "/etc/depmod.d/gdsdeploy-{}.conf"
_DEPMOD_TIMEOUT = 600.0
#: Why a file is not as an archive has it, in words.
_REASONS = {
    "new": "new",
    "content": "other content",
    "depmod": "not in modules.dep",
    "surplus": "removed",
    "manifest": "manifest",
    "preference": "preference",
}


class Difference(NamedTuple):
    """A file that is not as an archive has it; ``reason``: a key of ``_REASONS``."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path} ({_REASONS[self.reason]})"


def pack(kernel: Kernel, modules: Sequence[str], output: str, builder: Optional[Builder] = None) -> Dict[str, Any]:
    """Write ``modules`` (names or files; by default NVIDIA's that are there) to ``output``; return the manifest.

    builder: who signs it; hosts of a fleet receive nothing that is not signed.  Raises AuditError unless the audit of
    all of them passes, PackError when the archive cannot be written.
    """
    chosen = list(modules) or stack(kernel)
    if not chosen:
        raise PackError(f"kernel {kernel.release} has none of NVIDIA's modules to pack", "build them first")
    results = audit(kernel, chosen)
    _refuse("pack", [item for item in results if item["ok"] is not True])
    paths = [_path(kernel, item) for item in chosen]
    names = [os.path.basename(path) for path in paths]
    if len(set(names)) != len(names):
        raise PackError("two of the modules have the same file name: {}".format(", ".join(sorted(names))))
    manifest = _manifest(kernel, paths)
    try:
        with atomic.replacing(output, make=False) as target:
            write_archive(target, manifest, paths, builder)
    except OSError as error:
        raise PackError(f"cannot write {output}: {error.strerror or error}") from None
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


def stack(kernel: Kernel) -> List[str]:
    """Which of NVIDIA's modules are there."""
    return [name for name in STACK if drivers.find(kernel, name) is not None]


def is_current(archive: str, kernel: Kernel, builder: Optional[Builder] = None) -> bool:
    """Whether packing the modules that are there would give the same archive again, but for the run and the time."""
    origin = Origin(builder.name, provenance.public_pem(builder.seed)) if builder is not None else None
    try:
        manifest = read_manifest(archive, origin)
    except PackError:
        return False
    names = stack(kernel)
    return bool(names) and manifest == _manifest(kernel, [_path(kernel, name) for name in names])


def install(archive: str, kernel: Kernel, check: bool = False, origin: Optional[Origin] = None) -> Dict[str, Any]:
    """Verify and audit ``archive`` against this host's ``kernel``, then place its modules; idempotent.

    check: say what would change and change nothing.  origin: who has to have signed it, which is verified before
    anything is unpacked.  Returns ``{"changed", "changes": [text], "notes": [text],
    "modules": [name], "audit": [result]}``.  Raises PackError or AuditError, and then nothing has changed.
    """
    base = os.path.dirname(kernel.folder)
    try:
        # Not below the kernel's own folder, where a crash would leave files that depmod finds.
        staging = tempfile.mkdtemp(prefix=".gdsdeploy-", dir=None if check else base)
    except OSError as error:
        raise PackError(f"cannot write below {base}: {error.strerror}") from None
    try:
        manifest = unpack(archive, kernel.release, staging, origin)
        names = [item["file"] for item in manifest["modules"]]
        paths = [os.path.join(staging, name) for name in names]
        same_build = is_same_build(kernel, manifest.get("kernel_build"))
        results = audit(kernel, paths, vouched_files=paths if same_build else ())
        for result, name in zip(results, names):
            result["file"] = f"/lib/modules/{kernel.release}/{FOLDER}/{name}"
        _refuse("install", [item for item in results if item["ok"] is False])
        wrong = objections(kernel, manifest)
        if wrong:
            hint = "let a host like this one build them, or say modules: build for it in the fleet file"
            raise PackError("refusing to install {}: {}".format(archive, "; ".join(wrong)), hint)
        overrides = "".join(override_line(name_of(name), kernel.release, FOLDER) for name in names)
        changes = _differences(kernel, manifest, overrides)
        if changes and not check:
            _swap(kernel, staging, overrides)
        return {
            "changed": bool(changes),
            "changes": [str(item) for item in changes],
            "notes": _leftovers(kernel, names),
            "modules": [item["name"] for item in manifest["modules"]],
            "audit": results,
        }
    except OSError as error:
        message = f"cannot install {archive}: {error.filename or base}: {error.strerror or error}"
        raise PackError(message, "the modules that were there are still in place") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def differences(archive: str, kernel: Kernel) -> List[Difference]:
    """What installing ``archive`` would change, without unpacking or auditing it; raises PackError."""
    manifest = read_manifest(archive)
    overrides = "".join(override_line(name_of(item["file"]), kernel.release, FOLDER) for item in manifest["modules"])
    return _differences(kernel, manifest, overrides)


def remove(kernel: Kernel, check: bool = False) -> Dict[str, Any]:
    """Remove what :func:`install` placed for ``kernel``; returns the same shape."""
    places = [os.path.join(kernel.folder, FOLDER), _overrides_path(kernel)]
    changes = [place for place in places if os.path.lexists(place)]
    if changes and not check:
        try:
            _swap(kernel, None, "")
        except OSError as error:
            raise PackError(f"cannot remove {error.filename}: {error.strerror}") from None
    return {"changed": bool(changes), "changes": changes, "notes": [], "modules": [], "audit": []}


def remove_from(release: str, root: str, check: bool = False) -> Dict[str, Any]:
    """Like :func:`remove`; a kernel that is not there, or not yet, has nothing but the overrides that it had."""
    if "/" in release or os.path.isdir(inside(root, "/lib/modules/" + release)):
        return remove(Kernel(release, root), check)
    path = inside(root, _OVERRIDES.format(release))
    changes = [path] if os.path.lexists(path) else []
    if changes and not check:
        try:
            os.unlink(path)
        except OSError as error:
            raise PackError(f"cannot remove {path}: {error.strerror}") from None
    return {"changed": bool(changes), "changes": changes, "notes": [], "modules": [], "audit": []}


def _path(kernel: Kernel, wanted: str) -> str:
    if "/" in wanted or ".ko" in wanted:
        return wanted
    place = drivers.find(kernel, wanted.replace("-", "_"))
    assert place is not None
    return kernel.path(place.file)


def _manifest(kernel: Kernel, paths: Sequence[str]) -> Dict[str, Any]:
    modules = {path: read_module(path) for path in paths}
    nvidia_fs = next((module for module in modules.values() if module.name == "nvidia_fs"), None)
    built = nvidia_fs.provenance if nvidia_fs is not None else {}
    key = of_modules(kernel, list(modules.values()))
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
            "source": built.get("source", ""),
        },
        "compiler": key["compiler"],
        "key": key,
        "modules": [_entry(path, module) for path, module in sorted(modules.items(), key=lambda item: item[1].name)],
    }


def _entry(path: str, module: Module) -> Dict[str, Any]:
    return {
        "name": module.name,
        "file": os.path.basename(path),
        "sha256": sha256(path),
        "size": os.path.getsize(path),
        "srcversion": module.srcversion,
    }


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, 0o644, 0
    return member


def _differences(kernel: Kernel, manifest: Dict[str, Any], overrides: str) -> List[Difference]:
    """What installing would change; empty when everything is in place already."""
    folder = os.path.join(kernel.folder, FOLDER)
    there = sorted(set(os.listdir(folder)) - {MANIFEST}) if os.path.isdir(folder) else []
    changes: List[Difference] = []
    for item in manifest["modules"]:
        path = os.path.join(folder, item["file"])
        if item["file"] not in there:
            changes.append(Difference(path, "new"))
        elif sha256(path) != item["sha256"]:
            changes.append(Difference(path, "content"))
        elif "{}/{}".format(FOLDER, item["file"]) not in kernel.dependencies:
            changes.append(Difference(path, "depmod"))
    wanted = {item["file"] for item in manifest["modules"]}
    changes += [Difference(os.path.join(folder, name), "surplus") for name in there if name not in wanted]
    if installed_manifest(kernel) != manifest:
        changes.append(Difference(os.path.join(folder, MANIFEST), "manifest"))
    if _overrides(kernel) != overrides:
        changes.append(Difference(_overrides_path(kernel), "preference"))
    return changes


def _swap(kernel: Kernel, staging: Optional[str], overrides: str) -> None:
    """Put ``staging`` (or nothing) in the place of the installed folder, then depmod; all of it or none."""
    folder = os.path.join(kernel.folder, FOLDER)
    before = _overrides(kernel)
    old = tempfile.mkdtemp(prefix=".gdsdeploy-old-", dir=os.path.dirname(kernel.folder))
    kept = os.path.join(old, "kept")
    try:
        atomic.make_folder(os.path.dirname(folder))
        if os.path.isdir(folder):
            os.rename(folder, kept)
        try:
            if staging is not None:
                os.chmod(staging, 0o755)  # noqa: S103 # nosec B103 # mkdtemp made it 0700; modules are no secret
                os.rename(staging, folder)
            _write_overrides(kernel, overrides)
            _depmod(kernel)
        except (OSError, PackError):
            _write_overrides(kernel, before)
            shutil.rmtree(folder, ignore_errors=True)
            if os.path.isdir(kept):
                os.rename(kept, folder)
            raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _depmod(kernel: Kernel) -> None:
    base = [] if kernel.root == "/" else ["-b", kernel.root]
    done = process.run(["depmod", *base, "-a", kernel.release], _DEPMOD_TIMEOUT)
    if done.status != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.status}"]
        raise PackError(f"depmod failed for kernel {kernel.release}: {lines[0]}", "nothing was changed")


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
    if not text:
        atomic.remove(path)
        return
    atomic.write(path, "# Written by gdsdeploy: its audited modules are the ones to load.\n" + text)


def _leftovers(kernel: Kernel, names: Sequence[str]) -> List[str]:
    """Other files that claim to be one of the modules, each as a sentence."""
    notes = []
    for name in names:
        for file in kernel.by_name.get(name_of(name), []):
            if not file.startswith(FOLDER + "/"):
                text = "{} is another {}; {} is preferred by depmod.d"
                notes.append(text.format(kernel.path(file), name_of(name), FOLDER))
    return notes


def _refuse(verb: str, results: Sequence[Result]) -> None:
    said = [
        "{}: [{}] {}".format(result["module"] or result["file"], item["id"], item["message"])
        for result in results
        for item in decisive(result["findings"])
    ]
    if said:
        hint = "gdsdeploy kmod audit shows all findings; nothing was changed"
        raise AuditError("refusing to {}: {}".format(verb, "; ".join(said)), hint)
