"""Support bundles of strangers: the bounds of their archives, and manifests that are not what they should be."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.errors import GdsError
from gdsdeploy.host.facts import document
from gdsdeploy.host.facts.document import EvidenceFileError
from gdsdeploy.host.io import tarball
from gdsdeploy.validate import support_bundle
from gdsdeploy.validate.support_bundle import judge
from tests.unit.host.facts.test_evidence_file import EVIDENCE, expected

MIB = 1024 * 1024
ZEROS = gzip.compress(bytes(MIB))


def header(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


def member(name: str, content: bytes, kind: bytes = tarfile.REGTYPE) -> bytes:
    return header(name, len(content), kind) + content + bytes(-len(content) % 512)


def record(key: str, value: str) -> bytes:
    """A record of a pax header; its length counts its own digits."""
    text = f" {key}={value}\n".encode()
    length = next(n for n in range(len(text), len(text) + 9) if n == len(text) + len(str(n)))
    return str(length).encode() + text


def pax(*records: bytes) -> bytes:
    return member("x", b"".join(records), tarfile.XHDTYPE)


def zeros(name: str, mib: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """A packed member of ``mib`` MiB."""
    return gzip.compress(header(name, mib * MIB, kind)) + ZEROS * mib


@pytest.fixture
def sparing() -> Iterator[None]:
    """A test may take a second, and no memory to speak of."""
    begin = time.process_time()
    tracemalloc.start()
    yield
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 * MIB
    assert time.process_time() - begin < 5


@pytest.mark.usefixtures("sparing")
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"".join(zeros(f"hosts/h{n}/evidence.json", 63) for n in range(100)), "hosts/h0/evidence.json is too large"),
        (b"".join(zeros(f"logs/{n}", 63) for n in range(100)), "it unpacks to more than 128 MiB"),
        (gzip.compress(header("x", 3 << 30, tarfile.XHDTYPE)) + ZEROS * 300, "a header of a member is too large"),
        (gzip.compress(header("x", 65537, tarfile.GNUTYPE_LONGNAME)) + ZEROS, "a header of a member is too large"),
        (gzip.compress(pax(record("comment", "a" * 60_000)) * 100), "a header of a member is too large"),
        (gzip.compress(pax(record("mtime", "1")) * 20_001), "it has more than 20000 members"),
        (gzip.compress(header("x") * 20_001), "it has more than 20000 members"),
        (gzip.compress(header("x", kind=tarfile.SYMTYPE)), "x is neither a file nor a folder"),
        (gzip.compress(header("x", kind=tarfile.LNKTYPE)), "x is neither a file nor a folder"),
        (gzip.compress(header("x", kind=tarfile.CHRTYPE)), "x is neither a file nor a folder"),
        (gzip.compress(header("x", kind=tarfile.GNUTYPE_SPARSE)), "x is neither a file nor a folder"),
        (gzip.compress(header("x", kind=tarfile.XGLTYPE)), "x is neither a file nor a folder"),
        (gzip.compress(member("x", bytes(512), tarfile.DIRTYPE)), "x is a folder with content"),
        (gzip.compress(pax(record("path", "a")) * 2), "a member has two names"),
        (gzip.compress(pax(record("path", "a")) + member("x", b"b", b"L")), "a member has two names"),
        (gzip.compress(pax(record("size", "1"))), "a header gives a member another size or content"),
        (gzip.compress(pax(record("GNU.sparse.name", "a"))), "a header gives a member another size or content"),
        (gzip.compress(pax(b"8 path=a\n")), "a header of a member is damaged"),
        (gzip.compress(pax(b"0 path=a\n")), "a header of a member is damaged"),
        (gzip.compress(pax(b"99 path=a\n")), "a header of a member is damaged"),
        (gzip.compress(pax(b"path=a\n")), "a header of a member is damaged"),
        (gzip.compress(header("x", -1)), "a member has a size below 0"),
        (gzip.compress(member("manifest.json", b"{}") * 2), "manifest.json is in it twice"),
        (gzip.compress(header("manifest.json", 9)), "it ends too early"),
        (gzip.compress(bytes(1024) + member("x", b"")), "something follows its end"),
        (gzip.compress(b"x" * 512), "no header of a member"),
        (gzip.compress(bytes(1024)), "it has no manifest.json"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_archives_that_are_refused(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "case.tar.gz"
    file.write_bytes(content)
    with pytest.raises(EvidenceFileError) as caught:
        document.bundle(str(file))
    assert caught.value.message.startswith(f"{file}: isn't a support bundle, or is a damaged one ({words}")
    assert caught.value.hint


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_what_other_programs_pack_is_read(tmp_path: Path, form: int) -> None:
    """With folders, and with names that need a header."""
    file, name = tmp_path / "case.tar", f"{'x/' * 60}y"
    with tarfile.open(file, "w", format=form) as archive:
        for path, content in (("hosts", None), (name, b"1"), ("hosts/a/evidence.json", b"{}")):
            info = tarfile.TarInfo(path)
            info.type, info.mtime = (tarfile.REGTYPE if content else tarfile.DIRTYPE), 1.5
            info.size = len(content or b"")
            archive.addfile(info, io.BytesIO(content or b""))
    everything = tarball.files(str(file), lambda _: True, 100)
    assert everything == {name: b"1", "hosts/a/evidence.json": b"{}"}


@pytest.mark.parametrize(
    "records",
    [
        [record("comment", "a\n15 path=hidden\n")],
        [record("path", "first"), record("path", "last")],
        [record("mtime", "1.5"), record("path", "a" * 200)],
    ],
)
def test_names_are_those_that_other_programs_see(tmp_path: Path, records: list[bytes]) -> None:
    file = tmp_path / "case.tar"
    file.write_bytes(pax(*records) + member("plain", b"1") + bytes(1024))
    with tarfile.open(file) as archive:
        assert list(tarball.files(str(file), lambda _: True, 100)) == archive.getnames()


def packed(path: Path, change: Any) -> Path:
    """A bundle whose files ``change`` has changed: name → JSON."""
    host = support_bundle.BundleHost(expected("g"), EVIDENCE)
    data = support_bundle.pack(support_bundle.Bundle("f.yml", "0", "2026-11-22T00:00:00Z", {"g": host}), {})
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        files = {name: archive.extractfile(name).read() for name in archive.getnames()}  # type: ignore[union-attr]
    values = {name.partition("/")[2]: json.loads(text) for name, text in files.items() if name.endswith(".json")}
    change(values)
    members = (member(f"gdsdeploy-support/{name}", json.dumps(value).encode()) for name, value in values.items())
    path.write_bytes(b"".join(members) + bytes(1024))
    return path


MANIFEST, EXPECTATION = "manifest.json", "hosts/g/expectation.json"


@pytest.mark.parametrize(
    ("file", "keys", "value"),
    [
        (MANIFEST, ["when"], "yesterday"), (MANIFEST, ["when"], 1), (MANIFEST, ["hosts"], []),
        (MANIFEST, ["fleet"], {}), (EXPECTATION, ["topology"], None),
        (MANIFEST, ["hosts", "g", "seconds"], "1"), (MANIFEST, ["hosts", "g", "waivers"], [{"check": "a"}]),
        (MANIFEST, ["hosts", "g", "error"], {"kind": 1}), (MANIFEST, ["hosts", "h"], {}),
        (EXPECTATION, ["kernel_release"], 6), (EXPECTATION, ["packages"], {"a": 1}), (EXPECTATION, ["storage"], ["x"]),
        (EXPECTATION, ["storage"], [{"mount": ["/"]}]),
        (EXPECTATION, ["storage"], [{"mount": "/", "load": {"read": "1"}}]),
    ],
)  # fmt: skip
def test_files_of_another_kind_are_refused(tmp_path: Path, file: str, keys: list[str], value: object) -> None:
    def change(values: dict[str, Any]) -> None:
        inner = values[file]
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value

    assert judge(support_bundle.read(packed(tmp_path / "good.tar", lambda _: None)), progress=lambda _: None).hosts
    with pytest.raises(GdsError, match="isn't a support bundle, or is a damaged one") as caught:
        support_bundle.read(packed(tmp_path / "case.tar", change))
    assert str(caught.value.hint).endswith(f"-o {tmp_path / 'case.tar'}")
    assert len(caught.value.message) < 400
