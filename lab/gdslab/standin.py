"""The lab's kernel modules, which gdsdeploy builds on this machine: the stand-in GPU, and another kernel release."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from gdsdeploy import console, run
from gdsdeploy.errors import ProgramFailed
from gdsdeploy.files import folders
from gdslab import archive as archives, guest, images, recipe, signing
from gdslab.archive import Archive
from gdslab.errors import LabUnavailable
from gdslab.host import LabHost
from gdslab.kit import kernel as repacked
from gdslab.state import Lab, cache_directory

_SOURCES = ("gds_lab_gpu.c", "gds_lab_release.c", "Kbuild", "build.sh")
#: The stand-in GPU, and the module that gives a running kernel another release.
GPU, RENAMER = "gds_lab_gpu.ko", "gds_lab_release.ko"
#: The module imitates hardware, so it lies where depmod and audits of installed modules don't look.
MODULE_DIRECTORY = "usr/local/lib/lab"


@dataclass(frozen=True)
class Kernel:
    """A Debian kernel: its ``release`` (uname -r), and the package ``version`` of its headers or None for any.

    sources: one-line apt sources that have it, beside those of the lab's own release.
    """

    release: str
    version: str | None = None
    sources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for text in (self.release, self.version or "0"):
            if not re.fullmatch(r"[0-9][A-Za-z0-9._+~:-]*", text):
                raise LabUnavailable(f"{text!r} is not a kernel release or version")


def locked_kernels(lab: Lab) -> list[Kernel]:
    """The kernels in the lab's lock file; raises LabUnavailable without a lock or without kernels in it."""
    path = lab.fleet_path.with_name("gdsdeploy.lock")
    hint = f"Run `gdsdeploy lock {lab.fleet_path}`, or name a kernel with --kernel"
    if not path.is_file():
        raise LabUnavailable(f"lab {lab.name} has no lock yet, so the kernel of its stand-in GPU is unknown", hint=hint)
    content = yaml.safe_load(path.read_text())
    targets = content.get("targets") if isinstance(content, dict) else None
    kernels: list[Kernel] = []
    for target in (targets or {}).values():
        kernel = target.get("kernel") if isinstance(target, dict) else None
        if isinstance(kernel, dict) and isinstance(kernel.get("release"), str):
            version = kernel.get("version")
            indices = target.get("indices") or []
            sources = tuple(guest.source_line(index) for index in indices if index.get("kind", "apt") == "apt")
            kernels.append(Kernel(kernel["release"], version if isinstance(version, str) else None, sources))
    if not kernels:
        raise LabUnavailable(f"{path} names no kernel", hint=hint)
    return list(dict.fromkeys(kernels))


def debian_kernel(archive: Archive) -> tuple[guest.Release, Kernel]:
    """The kernel that all kits repack, and the release of Debian on which its modules are built."""
    source = f"deb [signed-by={archive.keyring}] {archive.uri} {repacked.SUITE} main"
    return guest.RELEASES["trixie"], Kernel(repacked.RELEASE, repacked.VERSION, (source,))


#: Builds the modules of the archive on standard input with the headers that a host has; prints an archive as base64.
_ON_HOST = (
    'work=$(mktemp -d); trap \'rm -r "$work"\' EXIT; tar --extract --directory="$work"'
    '; make -C "/lib/modules/$0/build" M="$work" modules >&2; strip --strip-debug "$work"/*.ko'
    f'; tar --create --directory="$work" {GPU} {RENAMER} | base64'
)


def build(release: guest.Release, kernel: Kernel, builder: LabHost | None = None) -> Path:
    """Folder of the modules GPU and RENAMER for ``kernel``, signed with the lab's own key.

    builder: compiles them if it has this kernel's headers, which takes seconds.  Otherwise a copy of a base system
    gets a compiler.  Raises LabUnavailable without the kernel's headers, or if they don't compile.
    """
    archive = archives.controller_archive()
    sources = guest.data("standin")
    digest = hashlib.sha256(b"".join((sources / name).read_bytes() for name in _SOURCES)).hexdigest()
    key = signing.module_key(cache_directory())
    version = (kernel.version or "any").replace(":", "_")
    name = f"standin-{kernel.release}-{version}-{digest[:12]}-{key.fingerprint[:8]}"

    def in_copy(work: Path) -> None:
        base = images.base(cache_directory(), recipe.debian(release, archive, "light"))
        arguments = [base, work, sources, kernel.release, kernel.version or "", *kernel.sources]
        argv = [*images.CONTAINED, "sh", (sources / "build.sh").as_posix(), *map(str, arguments)]
        run.run(run.as_root(argv), doing=f"build the lab's modules for {kernel.release}", log=work / "log")

    def on_host(host: LabHost, work: Path) -> None:
        files = {name: ((sources / name).read_bytes(), 0o644) for name in _SOURCES if name != "build.sh"}
        done = host.ssh(["sh", "-euc", _ON_HOST, kernel.release], input=guest.tar(files))
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(done.stdout))) as built:
            built.extractall(work, filter="data")

    def make(work: Path) -> None:
        headers = ["test", "-d", f"/lib/modules/{kernel.release}/build"]
        able = builder is not None and builder.running() and builder.ssh(headers, ok=(0, 1)).status == 0
        with console.step(f"Building the lab's modules for kernel {kernel.release}"):
            try:
                on_host(builder, work) if builder is not None and able else in_copy(work)
            except ProgramFailed as error:
                raise LabUnavailable(
                    error.message, hint="The archive may no longer have this kernel's headers; name another kernel"
                ) from error
        for module in (work / GPU, work / RENAMER):
            signed = key.sign(module.read_bytes())
            # It may be root's; the folder is this user's.
            module.unlink()
            module.write_bytes(signed)
        for folder in ("root", "upper", "work"):
            folders.remove_tree(work / folder, within=work)

    return folders.cached_folder(cache_directory(), name, make, what=f"the lab's modules for {kernel.release}")


def plug(lab: Lab, host: LabHost, kernel_release: str, kernel_version: str | None = None) -> None:
    """Give ``host`` a stand-in GPU under kernel ``kernel_release``, now and at each boot.

    The kernel need not be installed.  Raises LabUnavailable for a light host, which has no kernel.
    """
    plug_all(lab, [host], Kernel(kernel_release, kernel_version))


def _gpu(lab: Lab, kernel: Kernel) -> bytes:
    """The stand-in for ``kernel``; that of a repacked kernel is the original's under another name."""
    if not lab.system.kit:
        return (build(lab.release, kernel, next(iter(lab.group("light")), None)) / GPU).read_bytes()
    module = build(*debian_kernel(archives.controller_archive())) / GPU
    return signing.module_key(cache_directory()).sign(repacked.renamed(module.read_bytes(), kernel.release))


def plug_all(lab: Lab, hosts: Sequence[LabHost], kernel: Kernel) -> None:
    """:func:`plug` for several hosts."""
    for host in hosts:
        if host.kind != "vm":
            raise LabUnavailable(f"{host.name} is a light host: it has no kernel to load modules into")
    content: dict[str, tuple[str | bytes, int]] = {
        f"{MODULE_DIRECTORY}/{kernel.release}/{GPU}": (_gpu(lab, kernel), 0o644),
        "etc/systemd/system/lab-gpu.service": (guest.data("guest/lab-gpu.service").read_text(), 0o644),
    }
    # The unit's conditions decide whether the running kernel gets one.
    script = (
        "tar --extract --directory=/ --no-overwrite-dir --same-permissions"
        " && systemctl daemon-reload && systemctl enable --quiet --now lab-gpu.service"
    )
    for host in hosts:
        with console.step(f"Plugging the stand-in GPU into {host.name} for kernel {kernel.release}"):
            host.ssh(["sudo", "sh", "-c", script], input=guest.tar(content))
