"""Package files that bring a source tree: small .debs, made without any program, with a real dkms.conf in them."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Callable, Mapping, Sequence

from gdsdeploy.lock.sources import SourceTree, parse
from gdsdeploy.model.lock import Package, Part

#: sha256 of a package file → its content
CONTENTS: dict[str, bytes] = {}


def conf(name: str, version: str, more: str = "") -> str:
    """A dkms.conf."""
    return f'PACKAGE_NAME="{name}"\nPACKAGE_VERSION="{version}"\nAUTOINSTALL="yes"\n{more}'


def upstream(version: str) -> str:
    """Upstream's part of a package version."""
    return version.split(":", 1)[-1].rsplit("-", 1)[0].split("~", 1)[0]


def tar(files: Mapping[str, bytes]) -> bytes:
    """A tar of these files, which are the same each time."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return target.getvalue()


def deb(
    files: Mapping[str, bytes],
    ending: str = ".gz",
    pack: Callable[[bytes], bytes] = lambda data: gzip.compress(data, mtime=0),
    control: bytes = gzip.compress(b"", mtime=0),
) -> bytes:
    """A .deb whose data are packed by ``pack``; ``control`` is the packed tar of its control files."""
    members = {
        "debian-binary": b"2.0\n",
        "control.tar.gz": control,
        f"data.tar{ending}": pack(tar(files)),
    }
    data = b"!<arch>\n"
    for name, content in members.items():
        data += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
        data += content + b"\n" * (len(content) % 2)
    return data


def with_tree(name: str, version: str) -> bytes:
    """A .deb with the source tree of DKMS's package ``name`` in this package version."""
    number = upstream(version)
    files = {
        f"./usr/src/{name}-{number}/dkms.conf": conf(name, number).encode(),
        f"./usr/src/{name}-{number}/Makefile": b"",
    }
    return remember(deb(files))


def remember(content: bytes) -> bytes:
    """``content``, which a repository then has."""
    CONTENTS[hashlib.sha256(content).hexdigest()] = content
    return content


def sources(part: Part, packages: Sequence[Package]) -> SourceTree:
    """What :class:`PackageReader` reads of these packages, without a repository."""
    for package in packages:
        content = CONTENTS.get(package.sha256, b"")
        if package.part == part and content:
            start = content.index(b"data.tar.gz") + 60
            with tarfile.open(fileobj=io.BytesIO(gzip.decompress(content[start:].rstrip(b"\n")))) as archive:
                path = next(name for name in archive.getnames() if name.endswith("/dkms.conf"))
                file = archive.extractfile(path)
                assert file is not None
                return parse(path.removeprefix("./"), file.read().decode())
    raise AssertionError(f"no test package of {part} has a source tree: {[package.package for package in packages]}")
