"""Small files out of packages, also out of damaged ones."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import re
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gdsdeploy.repo import packagefile, unpack
from gdsdeploy.repo.packagefile import UnreadablePackageError, find_files
from tests.repos.dkmspackages import deb
from tests.unit.host.kmod.test_kmod_unreadable import zst

CONF = re.compile(r"usr/src/[^/]+/dkms\.conf")
FILES = {"./usr/share/doc/x": b"y" * 5001, "./usr/src/a-1/dkms.conf": b"text\n", "./usr/src/a-1/sub/dkms.conf": b"no"}
CONFS = {"usr/src/a-1/dkms.conf": b"text\n"}
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": zst,
}
NAMES = {"": "none", ".gz": "gzip", ".xz": "xz", ".bz2": "bzip2", ".zst": "zstd"}


def header(texts: dict[int, str]) -> bytes:
    store, index = b"", b""
    for tag, text in texts.items():
        index += struct.pack(">IIII", tag, 6, len(store), 1)
        store += text.encode() + b"\0"
    return b"\x8e\xad\xe8\x01\0\0\0\0" + struct.pack(">II", len(texts), len(store)) + index + store


def cpio(files: dict[str, bytes], mode: int = 0o100644) -> bytes:
    data = b""
    for name, content in [*files.items(), ("TRAILER!!!", b"")]:
        fields = [1, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0]
        entry = b"070701" + "".join(f"{number:08x}" for number in fields).encode() + name.encode() + b"\0"
        data += entry + b"\0" * (-len(entry) % 4) + content + b"\0" * (-len(content) % 4)
    return data


def rpm(
    files: dict[str, bytes], compressor: str, pack: Callable[[bytes], bytes], mode: int = 0o100644, odd: str = "x"
) -> bytes:
    signature = header({1000: odd})
    tags = {1124: "cpio"} | ({1125: compressor} if compressor else {})
    lead = b"\xed\xab\xee\xdb" + bytes(92)
    return lead + signature + b"\0" * (-len(signature) % 8) + header(tags) + pack(cpio(files, mode))


def write(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "package"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("ending", PACKERS)
def test_debs_of_every_compression(tmp_path: Path, ending: str) -> None:
    assert find_files(write(tmp_path, deb(FILES, ending, PACKERS[ending])), CONF) == CONFS


@pytest.mark.parametrize("control", [b"", b"1", b"12", b"123"])
def test_members_of_a_deb_begin_at_even_places(tmp_path: Path, control: bytes) -> None:
    assert find_files(write(tmp_path, deb(FILES, control=control)), CONF) == CONFS


@pytest.mark.parametrize("ending", [".gz", ".xz", ".bz2", ".zst"])
@pytest.mark.parametrize("odd", ["x", "xyzzy", "a longer one"])
def test_rpms_of_every_compression(tmp_path: Path, ending: str, odd: str) -> None:
    content = rpm(FILES, NAMES[ending], PACKERS[ending], odd=odd)
    assert find_files(write(tmp_path, content), CONF) == CONFS


def test_rpms_that_name_no_compressor_have_gzip(tmp_path: Path) -> None:
    assert find_files(write(tmp_path, rpm(FILES, "", gzip.compress)), CONF) == CONFS


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "neither a .deb nor an .rpm"),
        (b"PK\x03\x04" * 50, "neither"),
        (b"!<arch>\n", "ends early"),
        (b"!<arch>\n" + b"x" * 60, "damaged"),
        (deb({}, ".br", lambda data: data), "compressed with 'br'"),
        (deb(FILES, ".zst", lambda data: zst(data)[:-9]), "damaged"),
        (deb(FILES, ".xz", lambda data: lzma.compress(data)[:90]), "damaged"),
        (deb(FILES, ".gz", lambda _: b"garbage"), "damaged"),
        (rpm(FILES, "gzip", gzip.compress)[:120], "a header is cut off"),
        (rpm(FILES, "zstd", lambda data: zst(data[:300])), "ends early"),
        (rpm(FILES, "gzip", lambda data: gzip.compress(data.replace(b"070701", b"07070X"))), "another format"),
        (rpm(FILES, "xor", lambda data: data), "compressed with 'xor'"),
        (rpm(FILES, "gzip", gzip.compress, mode=0o120777), "is not a regular file"),
        (deb({"./usr/src/a-1/dkms.conf": b"x" * (packagefile.FILE_LIMIT + 1)}), "has 1048577 bytes"),
    ],
)
def test_what_cannot_be_read_has_its_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    with pytest.raises(UnreadablePackageError, match=reason):
        find_files(write(tmp_path, content), CONF)


def test_links_are_not_followed(tmp_path: Path) -> None:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        entry = tarfile.TarInfo("./usr/src/a-1/dkms.conf")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(entry)
    with pytest.raises(UnreadablePackageError, match="is not a regular file"):
        find_files(write(tmp_path, deb({}, "", lambda _: target.getvalue())), CONF)


@pytest.mark.parametrize("ending", [".gz", ".xz", ".bz2", ".zst"])
def test_a_bomb_stops_at_the_limit(tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packagefile, "UNPACKED_LIMIT", 1 << 20)
    big = {"./big": bytes(8 << 20), **FILES}
    for content in (deb(big, ending, PACKERS[ending]), rpm(big, NAMES[ending], PACKERS[ending])):
        with pytest.raises(UnreadablePackageError, match="unpacks to more than 1048576 bytes"):
            find_files(write(tmp_path, content), CONF)


def test_zstd_needs_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack.files, "zstd_library", lambda: None)
    with pytest.raises(UnreadablePackageError, match="libzstd is not installed here"):
        find_files(write(tmp_path, deb(FILES, ".zst", zst)), CONF)


GOOD = [deb(FILES, ending, pack) for ending, pack in PACKERS.items()]
GOOD += [rpm(FILES, NAMES[ending], PACKERS[ending]) for ending in (".gz", ".xz", ".zst")]


@settings(
    max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(which=st.integers(0, len(GOOD) - 1), place=st.integers(0, 4000), data=st.binary(max_size=12), cut=st.booleans())
def test_damage_is_one_error(tmp_path: Path, which: int, place: int, data: bytes, cut: bool) -> None:
    content = GOOD[which]
    place %= len(content)
    damaged = content[:place] + data + (b"" if cut else content[place + len(data) :])
    with contextlib.suppress(UnreadablePackageError):
        find_files(write(tmp_path, damaged), CONF)
