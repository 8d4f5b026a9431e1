"""The files of an apt repository: package lists and the Release file that names them."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

from gdsdeploy import atomic

#: Fields that the mirror writes itself, or leaves out: where the file lies, and checksums that are too weak.
_DROPPED = re.compile(r"^(?:Filename|MD5sum|SHA1|SHA512):.*\n(?:[ \t].*\n)*", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True)
class MirroredPackage:
    """A package in a list: its stanza in the original index, and where its file lies in the mirror."""

    package: str
    version: str
    stanza: str
    filename: str


def place(repository: str, filename: str) -> str:
    """Where the file ``filename`` of ``repository`` lies, relative to the mirror."""
    return f"pool/{repository}/{filename.removeprefix('pool/')}"


def packages(entries: Iterable[MirroredPackage]) -> bytes:
    """The text of a package list, sorted."""
    blocks = []
    for entry in sorted(entries, key=lambda entry: (entry.package, entry.version)):
        text = _DROPPED.sub("", entry.stanza.strip("\n") + "\n")
        blocks.append(f"{text}Filename: {entry.filename}\n")
    return "\n".join(blocks).encode()


def write_suite(root: Path, suite: str, architecture: str, lists: Mapping[str, bytes], date: datetime) -> Path:
    """Write package lists (component → text) and the unsigned Release file; return its path.

    The same lists and date give the same bytes.  There is no Valid-Until: a mirror is what it was when it was made.
    """
    folder = root / "dists" / suite
    listed = []
    for component, text in sorted(lists.items()):
        for ending, data in (("", text), (".gz", gzip.compress(text, mtime=0)), (".xz", lzma.compress(text))):
            name = f"{component}/binary-{architecture}/Packages{ending}"
            listed.append(f" {hashlib.sha256(data).hexdigest()} {len(data)} {name}")
            write(folder / name, data)
    fields = {
        "Origin": "gdsdeploy mirror",
        "Label": "gdsdeploy mirror",
        "Suite": suite,
        "Codename": suite,
        "Date": format_datetime(date.astimezone(UTC), usegmt=True),
        "Architectures": architecture,
        "Components": " ".join(sorted(lists)),
        "Description": "The packages of a gdsdeploy.lock, and what they need",
    }
    release = "\n".join([*(f"{key}: {value}" for key, value in fields.items()), "SHA256:", *listed, ""])
    write(folder / "Release", release.encode())
    return folder / "Release"


def write(path: Path, data: bytes) -> bool:
    """Write a file in one step if its content differs; whether it did."""
    if path.is_file() and path.read_bytes() == data:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(path, data)
    return True
