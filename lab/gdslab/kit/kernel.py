"""A Debian kernel under another release's name: the same code, other names.

The image keeps its own release.  VM hosts boot it with a module that changes what uname prints: see standin.py.
"""

from __future__ import annotations

import lzma
import os
import re
import shutil
import struct
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from gdsdeploy import run
from gdslab import guest, signing
from gdslab.kit.content import Content, Original

#: Debian's kernel in all kits: the newest on which Debian's driver 550 compiles (docs/kernels.md).
ABI, VERSION, SUITE = "6.12.95+deb12", "6.12.95-1~bpo12+1", "bookworm-backports"
RELEASE = f"{ABI}-amd64"
#: Files of the headers that name the release.
_NAMED = ("Makefile", ".kernelvariables", ".config", "include/config/*", "include/generated/*.h")
#: Who signs the kernel's own modules, and the file of the certificate, which stays.
_SIGNER, CERTIFICATE = "Lab kernel module signing key", "kernel_modules.der"
#: ELF64's header and section header, little-endian.
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
#: Compression of modules: ending → program.  The kernel's unpacker knows only these checksums of xz.
_COMPRESS = {
    ".ko": (),
    ".ko.zst": ("zstd", "--quiet", "--rm", "-1", "--"),
    ".ko.xz": ("xz", "--check=crc32", "-0", "--"),
}


@dataclass(frozen=True)
class Kernel:
    """A repacked kernel: folders and files to be put into packages.

    modules: content of /lib/modules/RELEASE, without ``build``; release: that they are for.
    vmlinuz, system_map, config: files of /boot.
    """

    release: str
    modules: Path
    vmlinuz: Path
    system_map: Path
    config: Path


@dataclass(frozen=True)
class Headers:
    """Headers of a repacked kernel, as folders.

    own: the release's build folder.  common: what its Makefile includes from the path that the kit chose.
    """

    own: Path
    common: Path


def repack(content: Content, release: str, work: Path, *, ending: str = ".ko.zst") -> Kernel:
    """Debian's kernel as ``release``, in a folder below ``work``.

    ending: of module files: ``.ko``, ``.ko.zst`` or ``.ko.xz``.
    The modules are those that the lab's hosts keep, signed with a key that is deleted afterwards.  They load under any
    name of this kernel, since it compares symbols' versions and not the release.
    """
    image = _unpacked(content, f"linux-image-{RELEASE}")
    names = (f"boot/{name}-{RELEASE}" for name in ("vmlinuz", "System.map", "config"))
    kernel = Kernel(release, work / "modules", *(image / name for name in names))
    sign_file = _tools(content) / "scripts/sign-file"
    _modules(image / f"lib/modules/{RELEASE}", kernel, sign_file, ending)
    return kernel


def sign(content: Content, modules: Sequence[Path], folder: Path, name: str) -> None:
    """Sign ``modules``, which aren't compressed, in place with a new key of ``name``, which is deleted.

    folder: for the key.  A signature that a module has is taken off first.
    """
    for module in modules:
        module.write_bytes(signing.unsigned(module.read_bytes()))
    _sign(modules, _tools(content) / "scripts/sign-file", folder, name)
    (folder / CERTIFICATE).unlink()


def headers(content: Content, release: str, common: str, work: Path) -> Headers:
    """The headers of Debian's kernel as those of ``release``, in folders below ``work``; only once.

    common: path on hosts of the headers' common part.
    """
    folders = Headers(work / "headers", work / "common")
    work.mkdir(parents=True, exist_ok=True)
    tools = _tools(content)
    own = _unpacked(content, f"linux-headers-{RELEASE}") / f"usr/src/linux-headers-{RELEASE}"
    shared = _unpacked(content, f"linux-headers-{ABI}-common") / f"usr/src/linux-headers-{ABI}-common"
    own.rename(folders.own)
    shared.rename(folders.common)
    for architecture in (folders.common / "arch").iterdir():
        if architecture.is_dir() and architecture.name != "x86":
            shutil.rmtree(architecture)
    # Other vendors have no vmlinux here, so modules get no BTF.
    (folders.own / "vmlinux").unlink(missing_ok=True)
    for folder in (folders.own, folders.common):
        for name in ("scripts", "tools"):
            (folder / name).unlink(missing_ok=True)
            shutil.copytree(tools / name, folder / name, symlinks=True)
    for pattern in _NAMED:
        for path in folders.own.glob(pattern):
            if path.is_file() and not path.is_symlink():
                text = path.read_bytes()
                named = text.replace(f"/usr/src/linux-headers-{ABI}-common".encode(), common.encode())
                named = named.replace(RELEASE.encode(), release.encode())
                if named != text:
                    path.write_bytes(named)
    # Only make reads this file: modules compile without debugging symbols, which takes half the time, and C code still
    # sees the kernel's configuration.
    settings = folders.own / "include/config/auto.conf"
    settings.write_text(settings.read_text().replace("CONFIG_DEBUG_INFO=y\n", ""))
    return folders


def _unpacked(content: Content, package: str) -> Path:
    return content.unpack(Original(package, SUITE, VERSION)).files


def _tools(content: Content) -> Path:
    return _unpacked(content, f"linux-kbuild-{ABI}") / f"usr/lib/linux-kbuild-{ABI}"


def _modules(source: Path, kernel: Kernel, sign_file: Path, ending: str) -> None:
    kernel.modules.mkdir(parents=True)
    names = list(_chosen(source))

    def rename(name: str) -> Path:
        target = kernel.modules / name.removesuffix(".xz")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(renamed(lzma.decompress((source / name).read_bytes()), kernel.release))
        return target

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        paths = list(pool.map(rename, names))
    _sign(paths, sign_file, kernel.modules.parent)
    if _COMPRESS[ending]:
        _each(_COMPRESS[ending], paths, "compress the lab's kernel modules", at_once=100)
    for name in ("modules.builtin", "modules.builtin.modinfo"):
        shutil.copyfile(source / name, kernel.modules / name)
    present = {name.removesuffix(".xz") for name in names}
    order = (source / "modules.order").read_text().splitlines()
    (kernel.modules / "modules.order").write_text("".join(f"{name}\n" for name in order if name in present))


def _chosen(source: Path) -> Iterator[str]:
    """The modules below ``source`` that the lab's hosts keep, as ``kernel/fs/…``."""
    for path in sorted((source / "kernel").rglob("*.ko.xz")):
        name = path.relative_to(source).as_posix()
        if any(fnmatch(name, f"kernel/{pattern}") for pattern in guest.KERNEL_MODULES):
            yield name


def renamed(module: bytes, release: str) -> bytes:
    """``module`` (an ELF64 file) for kernel ``release``: another ``vermagic``, and no signature.

    The section .modinfo is copied to the end of the file with the new text last.  Zero bytes take the old text's
    place, and readers skip them, so no other text moves.
    """
    module = signing.unsigned(module)
    header = list(_HEADER.unpack_from(module))
    table, count, names_index = header[6], header[12], header[13]
    entries = [table + number * _SECTION.size for number in range(count)]
    names = _SECTION.unpack_from(module, entries[names_index])[4]
    for entry in entries:
        section = list(_SECTION.unpack_from(module, entry))
        if module.startswith(b".modinfo\0", names + section[0]):
            break
    else:
        raise ValueError("the module has no section .modinfo")
    content = module[section[4] : section[4] + section[5]]
    old = re.search(rb"(?:^|\0)(vermagic=\S+ ([^\0]*))\0", content)
    if old is None:
        raise ValueError("the module has no vermagic")
    content = content[: old.start(1)] + bytes(len(old[1])) + content[old.end(1) :]
    content += b"vermagic=" + release.encode() + b" " + old[2] + b"\0"
    start = -len(module) % 16 + len(module)
    section[4], section[5] = start, len(content)
    head = module[:entry] + _SECTION.pack(*section) + module[entry + _SECTION.size :]
    return head.ljust(start, b"\0") + content


def _sign(modules: Iterable[Path], sign_file: Path, folder: Path, name: str = _SIGNER) -> None:
    """Sign ``modules`` in place with the kernel's own program and a new key, which is deleted."""
    key, certificate = folder / "signing_key.pem", folder / CERTIFICATE
    signing.make_key(key, certificate, name)
    try:
        argv = (str(sign_file), "sha256", str(key), str(certificate))
        _each(argv, modules, "sign the lab's kernel modules", at_once=1)
    finally:
        key.unlink()


def _each(argv: Iterable[str], paths: Iterable[Path], doing: str, *, at_once: int) -> None:
    """Run ``argv`` with ``at_once`` of ``paths`` at its end, a process for each processor."""
    listing = "\0".join(map(str, paths))
    xargs = ["xargs", "--null", f"--max-procs={os.cpu_count() or 1}", f"--max-args={at_once}"]
    run.run([*xargs, *argv], doing=doing, input=listing)
