"""Keyrings and signatures against gpg's own, both formats of sources.list(5), and small files out of packages."""

from __future__ import annotations

import base64
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
from hypothesis import HealthCheck, given, settings, strategies as st

from gdsdeploy.errors import RepositoryUnusable
from gdsdeploy.host.apply.packages.aptsources import Source, SourcesError, parse_sources
from gdsdeploy.platform.debian import ARCHIVE_KEYS, KEYRING, SECURITY_KEYS
from gdsdeploy.repo import packagefile, unpack
from gdsdeploy.repo.packagefile import UnreadablePackageError, find_files
from gdsdeploy.repo.repository import _judge, controller_sources, key_fingerprints, without_armour
from tests.repos.dkmspackages import deb
from tests.unit.host.kmod.test_kmod_unreadable import zst

DEBIANS = KEYRING.read_bytes()


def armoured(content: bytes) -> bytes:
    body = base64.encodebytes(content)
    return (
        b"-----BEGIN PGP PUBLIC KEY BLOCK-----\nComment: none\n\n"
        + body
        + b"=abcd\n-----END PGP PUBLIC KEY BLOCK-----\n"
    )


def test_debians_keyring_has_the_keys_that_presets_pin() -> None:
    assert {*ARCHIVE_KEYS, *SECURITY_KEYS} <= set(key_fingerprints(DEBIANS))
    assert len(set(key_fingerprints(DEBIANS))) == len(key_fingerprints(DEBIANS))


def test_armour_changes_nothing() -> None:
    assert without_armour(armoured(DEBIANS)) == DEBIANS
    assert key_fingerprints(armoured(DEBIANS)) == key_fingerprints(DEBIANS)


def test_packets_with_lengths_of_the_newer_form() -> None:
    """The same key, its packet with one octet, two octets and five octets of length (RFC 9580, 4.2.1)."""
    body = b"\x04" + bytes(range(100))
    expected = key_fingerprints(bytes([0x98, len(body)]) + body)
    assert len(expected) == 1
    assert key_fingerprints(bytes([0xC6, len(body)]) + body) == expected
    assert key_fingerprints(b"\xc6\xff" + len(body).to_bytes(4, "big") + body) == expected
    long = b"\x04" + bytes(300)
    two = bytes([0xC6, ((len(long) - 192) >> 8) + 192, (len(long) - 192) & 0xFF]) + long
    assert key_fingerprints(two) == key_fingerprints(b"\x99" + len(long).to_bytes(2, "big") + long)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"text",
        DEBIANS[:100],
        b"\x9b" + DEBIANS[1:],
        b"\xc6\xe1" + DEBIANS,
        armoured(b"x")[:-60],
        b"\x99",
        b"\xc6\xff",
    ],
)
def test_what_is_no_keyring_has_none(content: bytes) -> None:
    assert key_fingerprints(content) == ()


# -- What gpgv's status lines mean; the whole way is tried with real keys in tests/repos.

PINNED, OTHER = "A" * 40, "B" * 40


def valid(primary: str, algorithm: str = "8") -> str:
    return f"VALIDSIG {'C' * 40} 2026-11-18 1795040262 0 4 0 1 {algorithm} 01 {primary}"


GOOD = ("NEWSIG", "GOODSIG CCCC someone", valid(PINNED))
#: A good one by a key that isn't pinned.
STRANGERS = ("NEWSIG", "GOODSIG E x", valid(OTHER))
NOT_PINNED = f"signed by {OTHER}, which is not one of the pinned fingerprints"


@pytest.mark.parametrize(
    ("lines", "good", "reasons"),
    [
        (GOOD, {PINNED}, []),
        # As Debian's archive has them: each index is signed by the keys of two releases.
        (("NEWSIG", "ERRSIG DDDD 1 8 01 1795040262 9", "NO_PUBKEY DDDD", *GOOD, *STRANGERS), {PINNED}, []),
        # A bad one outweighs a good one, and none is saved by the one before it.
        ((*GOOD, "NEWSIG", "BADSIG DDDD x"), {PINNED}, ["the text was changed after key DDDD signed it"]),
        ((*STRANGERS, "NEWSIG", "EXPKEYSIG DDDD someone", valid(PINNED)), set(),
         [NOT_PINNED, "signed by DDDD, but the key has expired"]),
        (("NEWSIG", "GOODSIG C x", valid(PINNED, "1")), set(), [f"signed by {PINNED} with a hash that is too weak"]),
        (("NEWSIG", "GOODSIG C x", valid(PINNED, "2")), set(), [f"signed by {PINNED} with a hash that is too weak"]),
        (("NEWSIG", "REVKEYSIG DDDD x", valid(PINNED)), set(), ["signed by DDDD, but the key was revoked"]),
        (("NODATA 3",), set(), []),
    ],
)  # fmt: skip
def test_which_signatures_count(lines: tuple[str, ...], good: set[str], reasons: list[str]) -> None:
    assert _judge("".join(f"[GNUPG:] {line}\n" for line in lines), [PINNED]) == (good, reasons)


# -- Both formats of sources.list(5), as they are found on machines.

DEB822 = """\
# written by the installer
Types: deb deb-src
URIs: https://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: https://mirror.example/old
Suites: bookworm
Components: main
Enabled: no

Types: deb
URIs: https://mirror.example/flat
Suites: ./
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mDMEYCQjIxYJKwYBBAHaRw8BAQdAD/P5Nvvnvk66SxBBHDbhRml9ORg1WV5CvzKY
 -----END PGP PUBLIC KEY BLOCK-----
"""


def test_deb822_gives_one_source_for_each_suite() -> None:
    sources = parse_sources(DEB822, "debian.sources")
    assert sources[:2] == [
        Source(
            types=("deb", "deb-src"),
            uri="https://mirror.example/debian",
            suite=suite,
            components=("main", "contrib"),
            signed_by="/usr/share/keyrings/debian-archive-keyring.gpg",
            filename="debian.sources",
        )
        for suite in ("bookworm", "bookworm-updates")
    ]


def test_deb822_leaves_out_what_is_not_enabled() -> None:
    assert [s.uri for s in parse_sources(DEB822, "x.sources")] == [
        "https://mirror.example/debian",
        "https://mirror.example/debian",
        "https://mirror.example/flat",
    ]


def test_deb822_keeps_an_embedded_key() -> None:
    flat = parse_sources(DEB822, "x.sources")[-1]
    assert (flat.suite, flat.components) == ("./", ())
    assert flat.signed_by is not None
    assert flat.signed_by.startswith("-----BEGIN PGP")


def test_one_line_format_with_options_and_comments() -> None:
    text = (
        "# deb https://mirror.example/off stable main\n"
        "deb [arch=amd64,i386 signed-by=/etc/apt/keyrings/x.gpg] https://mirror.example/x stable main extra # why\n"
        "deb-src https://mirror.example/x stable main\n"
        "\n"
        "deb [ trusted=no ] file:///srv/flat ./\n"
    )
    assert parse_sources(text, "x.list") == [
        Source(
            ("deb",), "https://mirror.example/x", "stable", ("main", "extra"), "/etc/apt/keyrings/x.gpg",
            ("amd64", "i386"), "x.list",
        ),
        Source(("deb-src",), "https://mirror.example/x", "stable", ("main",), None, (), "x.list"),
        Source(("deb",), "file:///srv/flat", "./", (), None, (), "x.list"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "filename", "place"),
    [
        ("deb https://mirror.example/x stable main\ndeb https://mirror.example/x\n", "a.list", "a.list:2"),
        ("Types: deb\nURIs: https://mirror.example/x\n", "a.sources", "a.sources: entry 1 has no Suites"),
    ],
)
def test_what_apt_would_refuse_is_refused_by_place(text: str, filename: str, place: str) -> None:
    with pytest.raises(SourcesError, match=place):
        parse_sources(text, filename)


def test_the_controller_says_it_as_an_error_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text("deb https://mirror.example/1\n")
    with pytest.raises(RepositoryUnusable, match=r"sources\.list:1: not an apt source"):
        controller_sources(tmp_path)


def test_comments_and_lines_that_go_on_belong_to_no_other_field() -> None:
    text = "Types: deb\n# Types: deb-src\nURIs: https://one.example/\n https://two.example/\nSuites: s\nComponents:\n"
    text += " main\n"
    assert [(s.uri, s.components) for s in parse_sources(text, "x.sources")] == [
        ("https://one.example/", ("main",)),
        ("https://two.example/", ("main",)),
    ]


def test_files_are_read_in_the_order_of_apt_and_others_ignored(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text("deb https://mirror.example/1 s main\n")
    parts = tmp_path / "sources.list.d"
    parts.mkdir()
    (parts / "b.sources").write_text("Types: deb\nURIs: https://mirror.example/3\nSuites: s\nComponents: main\n")
    (parts / "a.list").write_text("deb https://mirror.example/2 s main\n")
    (parts / "c.sources.save").write_text("not a source at all")
    assert [s.uri[-1] for s in controller_sources(tmp_path)] == ["1", "2", "3"]


def test_a_machine_without_apt_has_no_sources(tmp_path: Path) -> None:
    assert controller_sources(tmp_path / "none") == []


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sources.list").write_text("deb https://mirror.example/1 s main\n")

    def refuse(self: Path, **how: str) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(RepositoryUnusable, match=r"sources\.list: cannot be read: Permission denied"):
        controller_sources(tmp_path)


# -- Small files out of packages, also out of damaged ones.

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


GOOD_PACKAGE = [deb(FILES, ending, pack) for ending, pack in PACKERS.items()]
GOOD_PACKAGE += [rpm(FILES, NAMES[ending], PACKERS[ending]) for ending in (".gz", ".xz", ".zst")]


@settings(
    max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    which=st.integers(0, len(GOOD_PACKAGE) - 1),
    place=st.integers(0, 4000),
    data=st.binary(max_size=12),
    cut=st.booleans(),
)
def test_damage_is_one_error(tmp_path: Path, which: int, place: int, data: bytes, cut: bool) -> None:
    content = GOOD_PACKAGE[which]
    place %= len(content)
    damaged = content[:place] + data + (b"" if cut else content[place + len(data) :])
    with contextlib.suppress(UnreadablePackageError):
        find_files(write(tmp_path, damaged), CONF)
