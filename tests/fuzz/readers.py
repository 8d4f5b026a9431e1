"""The readers: what each is given, how it is called, and the errors that it may raise."""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import json
import lzma
import sqlite3
import tarfile
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

from gdsdeploy import answer, bundle, converge, explain, journal, lockfile, planning, validate
from gdsdeploy.answer import Answer, Endpoint, Output
from gdsdeploy.bundle import Bundle
from gdsdeploy.cli import mode
from gdsdeploy.cufile import check, migrate
from gdsdeploy.cufile.document import DocumentInvalid
from gdsdeploy.cufile.model import release_of
from gdsdeploy.errors import (
    FleetInvalid,
    GdsError,
    HostUnfit,
    HostUnreachable,
    JournalUnusable,
    LockInvalid,
    RepositoryUntrusted,
    RepositoryUnusable,
)
from gdsdeploy.host import evidence_file, expectation, golden
from gdsdeploy.host import topology as shown
from gdsdeploy.host.evidence_file import EvidenceFileError
from gdsdeploy.host.facts import Unknown, facts_from
from gdsdeploy.host.facts.cufile import cufile_facts
from gdsdeploy.host.facts.document import Document
from gdsdeploy.host.gdscheck import document as gdscheck_document
from gdsdeploy.host.gdscheck import runs
from gdsdeploy.host.kmod.errors import ElfError
from gdsdeploy.host.kmod.module import read_module
from gdsdeploy.load import load_fleet
from gdsdeploy.model.lock import Lock
from gdsdeploy.model.rollout import Kind, Plan, Wave
from gdsdeploy.repo import apt, packages, rpm, rpmprimary
from gdsdeploy.repo.rpmmodules import Modules
from gdsdeploy.repo.signature import Signed
from gdsdeploy.report import changes, html, junit, prometheus, text
from gdsdeploy.report import json as json_object
from gdsdeploy.report.model import Report, Trouble
from gdsdeploy.rollout import answers
from gdsdeploy.supporting import judge
from tests.fuzz.campaign import Reader
from tests.fuzz.mutation import changed, damaged, damaged_json
from tests.unit.host.kmod.kmod_elf import SIGNATURE, module_bytes

TESTS = Path(__file__).parents[1]
EVIDENCE = TESTS / "evidence"
HOSTS = ("h100-libcufile-1.20.0", "lab-vm-provisioned", "light-pinned")
#: Files of readers that take a path are in memory where the machine has such a folder.
_PLACE = tempfile.TemporaryDirectory(prefix="gds-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
FOLDER = Path(_PLACE.name)


def of_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """A reader of bytes from a reader of a file."""

    def written(data: bytes) -> object:
        path = FOLDER / name
        path.write_bytes(data)
        return read(path)

    return written


def seeds(*files: Path | bytes) -> Callable[[], list[bytes]]:
    return functools.cache(lambda: [file if isinstance(file, bytes) else file.read_bytes() for file in files])


def loads(data: bytes) -> Any:
    """JSON as it is after a transport has taken it in; readers of documents get nothing else."""
    return json.loads(data.decode("utf-8", "replace"))


# ── intent and lock ──────────────────────────────────────────────────────────────────────────────────────────────


@functools.cache
def locks() -> list[bytes]:
    from tests.unit.test_lockfile import LOCK

    newer = LOCK.model_dump(mode="json") | {"lock_version": "1.9"}
    newer["digest"] = lockfile._digest(newer)
    return [lockfile.render(LOCK).encode(), lockfile.render(Lock(**newer)).encode()]


# ── journals ─────────────────────────────────────────────────────────────────────────────────────────────────────


@functools.cache
def journals() -> list[bytes]:
    path = FOLDER / "seed.sqlite"
    plan = Plan("20261121T1054-7f3a", "/fleet.yml", "sha256:1", "sha256:2", (Wave("canary", ("a", "b"), soak=60),), {})
    with journal.writing(path, doing="test", wall=lambda: 1.0) as writer:
        writer.begin(plan)
        writer.append_many([(Kind.BEGIN, host, {"step": "drain", "attempt": 1}) for host in "abcdefgh"])
        writer.append(Kind.PAUSED, "", {"why": "x"})
    return [path.read_bytes()]


def damaged_journal(data: bytes, random: Random) -> bytes:
    """Bytes of the file, or what an editor of SQL would do."""
    if random.random() < 0.5:
        return damaged(data, random) if random.random() < 0.3 else flipped(data, random)
    path = FOLDER / "edited.sqlite"
    path.write_bytes(data)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as shell, contextlib.suppress(sqlite3.Error):
        shell.executescript(
            "PRAGMA synchronous=OFF; DROP TRIGGER event_stays; DROP TRIGGER event_keeps; DROP TRIGGER rollout_stays"
        )
        value = random.choice([b"\xff", None, 0, -1, 1e308, 2**62, "", "x", "\x1b", "null", "[" * 5000, "{}", "paused"])
        column = random.choice(["rollout", "number", "time", "kind", "host", "data", "digest"])
        shell.execute("PRAGMA foreign_keys = OFF")
        shell.execute(f"UPDATE event SET {column} = ? WHERE number = ?", (value, random.randint(1, 10)))
        if random.random() < 0.3:
            shell.execute(random.choice(["DELETE FROM event", "DROP TABLE event", "UPDATE rollout SET id = x'ff'",
                                         "UPDATE rollout SET id = ''", "DELETE FROM event WHERE number = 1"]))  # fmt: skip
        if random.random() < 0.5:
            redigest(shell)
    return path.read_bytes()


def redigest(shell: sqlite3.Connection) -> None:
    """As somebody does who knows how digests are made."""
    for key, number, at, kind, host, data in shell.execute(
        "SELECT rollout, number, time, kind, host, data FROM event"
    ).fetchall():
        digest = journal._digest("20261121T1054-7f3a", number, at, kind, host, data)
        shell.execute("UPDATE event SET digest = ? WHERE rollout IS ? AND number IS ?", (digest, key, number))


def flipped(data: bytes, random: Random) -> bytes:
    content = bytearray(data)
    for _ in range(random.randint(1, 20)):
        content[random.randrange(len(content))] = random.randrange(256)
    return bytes(content)


def read_journal(path: Path) -> None:
    with journal.reading(path) as reader:
        for summary in reader.rollouts():
            list(reader.events(summary.id))
            reader.plan(summary.id)
        reader.newest()


# ── evidence, reports and bundles ────────────────────────────────────────────────────────────────────────────────


@functools.cache
def expected() -> expectation.Expectation:
    return expectation.from_json((EVIDENCE / "hosts/lab-vm.expectation.json").read_text())


def reported(report: Report, number: int) -> None:
    """In one of the formats: each takes longer than all the rest."""
    formats: list[Callable[[Report], object]] = [
        json_object.render, html.render, junit.render, prometheus.render, text.details, text.fleet_table,
    ]  # fmt: skip
    made = formats[number % len(formats)](report)
    if isinstance(made, str):
        made.encode()


def judged(data: bytes) -> None:
    evidence = evidence_file.document("x", data.decode("utf-8", "replace"))
    host = validate.judged(expected(), evidence, validate.Asked(day="2026-11-22"), ())
    reported(Report("f.yml", "", "2026-11-22T00:00:00Z", (host,)), len(data))


def explained(data: bytes) -> None:
    facts = facts_from(evidence_file.document("x", data.decode("utf-8", "replace")))
    mode._text(facts)
    json.dumps(mode._document(facts))
    explain.explained(facts, "")
    if not isinstance(facts.topology, Unknown):
        shown.text(facts.topology)
        json.dumps(shown.document(facts.topology))
        golden.differences(golden.golden(facts.topology, "x"), facts.topology)


@functools.cache
def evidence() -> list[bytes]:
    return [(EVIDENCE / f"hosts/{name}.json").read_bytes() for name in HOSTS]


@functools.cache
def bundles() -> list[bytes]:
    hosts = {
        "g": bundle.Host(expected(), loads(evidence()[-1])),
        "lost": bundle.Host(expected(), None, Trouble("HostUnfit", "m", "h", 22)),
    }
    return [gzip.decompress(bundle.pack(Bundle("f.yml", "0", "2026-11-22T00:00:00Z", hosts), {}))]


def damaged_bundle(data: bytes, random: Random) -> bytes:
    """Damage to one of its files, or to the archive."""
    if random.random() < 0.3:
        data = flipped(data, random) if random.random() < 0.5 else damaged(data, random)
        return data if random.random() < 0.5 else damaged(gzip.compress(data, 1), random)
    made = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(data)) as old, tarfile.open(fileobj=made, mode="w") as new:
        names = [name for name in old.getnames() if name.endswith(".json")]
        chosen = random.choice(names)
        for name in names:
            content = old.extractfile(name).read()  # type: ignore[union-attr]
            content = damaged_json(content, random) if name == chosen else content
            info = tarfile.TarInfo(name)
            info.size = len(content)
            new.addfile(info, io.BytesIO(content))
    return made.getvalue()


def read_bundle(path: Path) -> None:
    reported(judge(bundle.read(path), progress=lambda _: None), path.stat().st_size // 512)


def compared(data: bytes) -> None:
    good = changes.report_from(
        json_object.render(judge(Bundle("f", "0", "2026-11-22T00:00:00Z", {}), progress=lambda _: None))
    )
    found = changes.compare(good, changes.report_from(data.decode("utf-8", "replace")))
    changes.to_text(found)
    changes.to_json(found)


@functools.cache
def reports() -> list[bytes]:
    host = validate.judged(expected(), loads(evidence()[0]), validate.Asked(day="2026-11-22"), ())
    return [json_object.render(Report("f.yml", "", "2026-11-22T00:00:00Z", (host,))).encode()]


@functools.cache
def goldens() -> list[bytes]:
    return [golden.to_json(golden.golden(facts_from(loads(data)).topology, "x")).encode() for data in evidence()[:1]]


def read_golden(data: bytes) -> None:
    wanted = golden.from_json(data.decode("utf-8", "replace"))
    golden.differences(wanted, facts_from(loads(evidence()[0])).topology)


# ── what hosts say ───────────────────────────────────────────────────────────────────────────────────────────────

HOST = Endpoint("gpu1", "192.0.2.1", 22, "root", (), ())


def raw_answer(data: bytes) -> Any:
    return answer.document(HOST, b"MARK", Output(b"motd\nMARK" + data, "", 0))


def plan_answer(data: bytes) -> None:
    planning.checked_variants(Answer("gpu1", raw_answer(data), None, 0.0), {"variants": {}})


def gate_record(data: bytes) -> None:
    given = Answer("gpu1", raw_answer(data), None, 0.0)
    host = validate._recorded(expected(), given, validate.Asked(day="2026-11-22"), ())
    reported(Report("f.yml", "", "2026-11-22T00:00:00Z", (host,)), len(data))


@functools.cache
def gate_records() -> list[bytes]:
    finding = {"check": "kernel.running", "verdict": "pass", "title": "t", "expected": "e", "found": "f", "hint": "",
               "evidence": ["x"], "waiver": {"until": "2026-12-01", "reason": "r", "was": "fail"}}  # fmt: skip
    record = gate.Record("open", "all passed", "pass", "b", "2026-11-22T00:00:00Z", 1.0, "gpu1", "gds", "sha256:1", "x",
                         [["kernel", "6.12"]], [finding], ["gap"])  # fmt: skip
    return [json.dumps({"boot_id": "b", "reason": "", "record": json.loads(record.to_json())}).encode()]


def rollout_answer(data: bytes) -> None:
    question, document = loads(data)
    answers.checked("gpu1", question, document)


@functools.cache
def rollout_answers() -> list[bytes]:
    from tests.loopback.rollout.test_answers import WHOLE

    return [json.dumps([question, document]).encode() for question, document in WHOLE.items()]


def damaged_answer(data: bytes, random: Random) -> bytes:
    question, document = loads(data)
    return json.dumps([question, changed(document, random)]).encode()


RESULT = {
    "name": "packages", "changes": [{"kind": "install", "subject": "nvidia-driver", "after": "550", "disruption": "reboot"}],
    "refusals": [{"message": "no", "hint": "h", "kind": "refused"}], "unknown": ["x"], "report": {"a": 1},
}  # fmt: skip
EVENTS = (
    {"event": "play", "name": "all"},
    {"event": "long", "host": "a", "role": "r", "task": "t"},
    {"event": "result", "host": "a", "status": "ok", "role": "r", "task": "t", "seconds": 1.5, "changed": True, "changes": RESULT["changes"]},
    {"event": "result", "host": "a", "status": "failed", "role": "r", "task": "t", "seconds": 1, "changed": False,
     "detail": {"msg": "m", "stderr": "e", "rc": 1, "cmd": ["a"], "gds_error": {"kind": "busy", "message": "m", "hint": "h"}}},
)  # fmt: skip


def event(data: bytes) -> None:
    outcome = converge.Outcome(status=0)
    for line in data.decode("utf-8", "replace").splitlines():
        converge._event(line, outcome, lambda _: None, FOLDER / "log")


# ── cufile.json, gdscheck, modules ───────────────────────────────────────────────────────────────────────────────


def cufile(data: bytes) -> None:
    old, new = release_of("1.4.0"), release_of("1.20.0")
    check.check(data, new)
    with contextlib.suppress(DocumentInvalid):
        migrate.migrate(data, old, new)
    cufile_facts(Document({"files": {"/etc/cufile.json": data.decode("utf-8", "replace")}}))


def gdscheck(data: bytes) -> None:
    found = runs.read(data)
    json.dumps(gdscheck_document.document(found, "x"))
    gdscheck_document.text(found, "x")


@functools.cache
def modules() -> list[bytes]:
    good = module_bytes(
        info=[("parm", "a:b")],
        imports={"kfree": 5, "memcpy": None},
        exports={"a": (1, True), "b": (2, False)},
        signature=SIGNATURE,
    )
    return [good, good, lzma.compress(good), gzip.compress(good)]


def kernel_module(data: bytes) -> None:
    """By the ending that its first bytes belong to."""
    endings = {b"\xfd7": ".xz", b"\x1f\x8b": ".gz", b"(\xb5": ".zst"}
    of_file(f"m.ko{endings.get(data[:2], '')}", lambda path: read_module(str(path)))(data)


def damaged_module(data: bytes, random: Random) -> bytes:
    return flipped(data, random) if random.random() < 0.7 else damaged(data, random)


# ── repositories ─────────────────────────────────────────────────────────────────────────────────────────────────

NOW = datetime(2026, 11, 22, tzinfo=UTC)
REPOSITORY = {"uri": "https://r.example", "keyring": Path("/k"), "fingerprints": (), "host_keyring": "/k"}
REPOMD = b"""<?xml version="1.0" encoding="UTF-8"?>
<repomd xmlns="http://linux.duke.edu/metadata/repo"><revision>1</revision>
<data type="primary"><checksum type="sha256">%(sum)s</checksum><open-checksum type="sha256">%(sum)s</open-checksum>
<location href="repodata/primary.xml.gz"/><timestamp>1700000000</timestamp><size>100</size><open-size>500</open-size></data>
<data type="modules"><checksum type="sha256">%(sum)s</checksum><location href="repodata/modules.yaml.gz"/>
<timestamp>1700000000.5</timestamp><size>100</size></data></repomd>
""" % {b"sum": b"0" * 64}
PRIMARY = b"""<?xml version="1.0" encoding="UTF-8"?>
<metadata xmlns="http://linux.duke.edu/metadata/common" xmlns:rpm="http://linux.duke.edu/metadata/rpm" packages="1">
<package type="rpm"><name>nvidia-driver</name><arch>x86_64</arch><version epoch="3" ver="550.1" rel="1.el9"/>
<checksum type="sha256" pkgid="YES">%s</checksum><time file="1" build="1"/><size package="1" installed="1" archive="1"/>
<location href="Packages/n.rpm"/><format><rpm:vendor>NVIDIA</rpm:vendor><rpm:sourcerpm>n.src.rpm</rpm:sourcerpm>
<rpm:provides><rpm:entry name="nvidia-driver" flags="EQ" epoch="3" ver="550.1" rel="1.el9"/></rpm:provides>
<rpm:requires><rpm:entry name="/usr/bin/x"/><rpm:entry name="(a if b)"/><rpm:entry name="kmod" flags="GE" epoch="0" ver="1"/></rpm:requires>
<file>/usr/bin/nvidia</file></format></package>
</metadata>
""" % (b"0" * 64)
FILELISTS = b"""<?xml version="1.0" encoding="UTF-8"?>
<filelists xmlns="http://linux.duke.edu/metadata/filelists" packages="1">
<package pkgid="%s" name="nvidia-driver" arch="x86_64"><version epoch="3" ver="550.1" rel="1.el9"/><file>/opt/x</file></package></filelists>
""" % (b"0" * 64)
MODULES = b"""---
document: modulemd
version: 2
data: {name: nvidia-driver, stream: 550-open, artifacts: {rpms: ["nvidia-driver-3:550.1-1.el9.x86_64"]}}
...
---
document: modulemd-defaults
version: 1
data: {module: nvidia-driver, stream: 550-open}
"""
RELEASE = b"""Origin: Debian
Suite: stable
Codename: trixie
Date: Sat, 21 Nov 2026 10:00:00 UTC
Valid-Until: Sat, 28 Nov 2026 10:00:00 UTC
Acquire-By-Hash: yes
Components: main contrib
SHA256:
 %s 1234 main/binary-amd64/Packages.xz
""" % (b"0" * 64)
PACKAGES = b"""Package: nvidia-driver
Source: nvidia-graphics-drivers (550.1-2)
Version: 550.1-2
Architecture: amd64
Depends: libc6 (>= 2.36), a | b (<< 2:3~x), nvidia-kernel-dkms (= 550.1-2)
Provides: nvidia-driver-any, v (= 2)
Filename: pool/n.deb
Size: 123
SHA256: %s

Package: dkms
Version: 3.2.2-1~deb13u1
Architecture: all
Filename: pool/d.deb
Size: 1
SHA256: %s
""" % (b"0" * 64, b"1" * 64)


def fetching(data: bytes) -> Any:
    return SimpleNamespace(small=lambda _: data)


def unsigned(document: bytes, **_: object) -> Signed:
    """In place of gpgv, which has tests of its own."""
    return Signed(document, ("A" * 40,))


def repomd(data: bytes) -> None:
    with mock.patch.object(rpm, "verify", unsigned):
        rpm.repomd(fetching(data), rpm.Repository("r", **REPOSITORY), now=NOW).index()


def release(data: bytes) -> None:
    repository = apt.Repository("r", suites=("trixie",), components=("main",), **REPOSITORY)
    with mock.patch.object(apt, "verify", unsigned):
        apt.release(fetching(data), repository, "trixie", now=NOW).index()


def package_list(data: bytes) -> None:
    found = packages.PackageList(
        data, packages.Origin("r", "trixie", "main", "debian", ("amd64", "all"), "https://r.example/Packages")
    )
    for name in list(found.names()):
        for candidate in found.named(name):
            found.stanza(candidate)
    found.providing("v")


def primary(data: bytes) -> None:
    listing, _, files = data.partition(b"\0\0\0")
    found = rpmprimary.Primary(
        listing, rpmprimary.Origin("r", ("x86_64", "noarch"), "https://r.example/p"), lambda: files
    )
    for name in list(found.names()):
        found.named(name)
    for name in ("nvidia-driver", "/usr/bin/nvidia", "/opt/x"):
        found.providing(name)


def module_metadata(data: bytes) -> None:
    found = Modules()
    found.add(data, "https://r.example/modules.yaml")
    found.enable({})


REPOSITORY_ERRORS = (RepositoryUnusable, RepositoryUntrusted)

READERS = (
    Reader("fleet.yml", seeds(*sorted((TESTS.parent / "examples").glob("*.yml"))), of_file("fleet.yml", load_fleet), (FleetInvalid,)),
    Reader("gdsdeploy.lock", locks, of_file("gdsdeploy.lock", lambda path: lockfile.read(path, warn=lambda _: None)), (LockInvalid,)),
    Reader("journal", journals, of_file("journal.sqlite", read_journal), (JournalUnusable,), damaged_journal),
    Reader("support bundle", bundles, of_file("case.tar.gz", read_bundle), (GdsError,), damaged_bundle),
    Reader("evidence, judged and reported", evidence, judged, (EvidenceFileError,), damaged_json),
    Reader("evidence: mode, explain, topology", evidence, explained, (EvidenceFileError, GdsError), damaged_json),
    Reader("expectation", seeds(EVIDENCE / "hosts/lab-vm.expectation.json"),
           lambda data: expectation.from_json(data.decode("utf-8", "replace")), (ValueError,), damaged_json),
    Reader("saved report (diff)", reports, compared, (ValueError,), damaged_json),
    Reader("golden topology", goldens, read_golden, (golden.GoldenError,), damaged_json),
    Reader("a host's raw answer", evidence, raw_answer, (HostUnfit, HostUnreachable), damaged_json),
    Reader("answer to plan", seeds(json.dumps({"variants": {"build": [RESULT], "keep": [RESULT]}}).encode()), plan_answer,
           (HostUnfit, HostUnreachable), damaged_json),
    Reader("answers to a rollout", rollout_answers, rollout_answer, (HostUnfit,), damaged_answer),
    Reader("event lines of Ansible", seeds(b"\n".join(json.dumps(item).encode() for item in EVENTS)), event, (), damaged),
    Reader("cufile.json", seeds(*sorted((TESTS / "golden/cufile").glob("*.json"))), cufile, ()),
    Reader("gdscheck parse", seeds(*sorted((EVIDENCE / "gdscheck").glob("*.txt"))), gdscheck, ()),
    Reader("kernel modules", modules, kernel_module, (ElfError,), damaged_module),
    Reader("repomd.xml", seeds(REPOMD), repomd, REPOSITORY_ERRORS),
    Reader("primary.xml, filelists.xml", seeds(PRIMARY + b"\0\0\0" + FILELISTS), primary, REPOSITORY_ERRORS),
    Reader("modules.yaml", seeds(MODULES), module_metadata, (RepositoryUnusable,)),
    Reader("Release", seeds(RELEASE), release, REPOSITORY_ERRORS),
    Reader("Packages", seeds(PACKAGES), package_list, (RepositoryUnusable,)),
)  # fmt: skip

#: Readers whose answers are not yet checked by their types where they are taken in; they join READERS when they are.
UNCHECKED = (Reader("gate record", gate_records, gate_record, (HostUnfit, HostUnreachable), damaged_json),)
