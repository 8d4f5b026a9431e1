"""The readers: what each is given, how it is called, and the errors that it may raise."""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import itertools
import json
import lzma
import sqlite3
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import yaml

from gdsdeploy.converge import ansible, plan_fleet
from gdsdeploy.cufile import check
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
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.host import doctor
from gdsdeploy.host.archive import archive, pack, provenance
from gdsdeploy.host.archive.archive import FORMAT
from gdsdeploy.host.archive.provenance import Builder
from gdsdeploy.host.errors import ElfError, PackError, SymversError
from gdsdeploy.host.facts import Unknown, as_dict, document, facts_from
from gdsdeploy.host.facts.document import Document, EvidenceFileError
from gdsdeploy.host.facts.unknown import known
from gdsdeploy.host.gate import gate
from gdsdeploy.host.gdscheck import document as gdscheck_document, reader
from gdsdeploy.host.kmod.driver import requests_of
from gdsdeploy.host.kmod.files import sha256
from gdsdeploy.host.kmod.kernel import read_symvers
from gdsdeploy.host.kmod.module import read_module
from gdsdeploy.host.libcufile import counters
from gdsdeploy.host.model import expectation
from gdsdeploy.host.subjects import trees
from gdsdeploy.host.subjects.cufile_json import CufileFacts
from gdsdeploy.host.subjects.mechanisms import choose
from gdsdeploy.host.watch.document import document as watch_document
from gdsdeploy.host.watch.look import Entry, Look
from gdsdeploy.lock import lockfile
from gdsdeploy.model.events import RolloutPaused, StepBegun
from gdsdeploy.model.lock import Lock
from gdsdeploy.model.rollout import Plan, Wave
from gdsdeploy.repo import credentials
from gdsdeploy.report import formats, html
from gdsdeploy.report.model import Report, Trouble
from gdsdeploy.rollout import journal, machine, progress
from gdsdeploy.ssh import endpoint, transport
from gdsdeploy.ssh.endpoint import Answer, Endpoint, Output
from gdsdeploy.validate import fleet_validation, support_bundle
from gdsdeploy.validate.facts import explain_facts
from gdsdeploy.validate.redact import Redactor
from gdsdeploy.validate.support_bundle import Bundle, judge
from gdsdeploy.validate.watch import Watched
from tests.fuzz import logs, repositories
from tests.fuzz.campaign import Reader
from tests.fuzz.mutation import changed, damaged, damaged_json
from tests.unit.host.kmod.kmod_elf import SIGNATURE, module_bytes
from tests.unit.host.kmod.test_kmod_unreadable import zst
from tests.unit.host.test_counters import segment
from tests.unit.host.test_watch import program

TESTS = Path(__file__).parents[1]
EVIDENCE = TESTS / "evidence"
HOSTS = ("h100-libcufile-1.20.0", "lab-vm-provisioned", "light-pinned")
#: Files of readers that take a path are in memory where the machine has such a folder.
_PLACE = tempfile.TemporaryDirectory(prefix="gds-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
FOLDER = Path(_PLACE.name)


def of_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """A reader of bytes from a reader of a file."""

    def from_file(data: bytes) -> object:
        path = FOLDER / name
        path.write_bytes(data)
        return read(path)

    return from_file


def read_logins(path: Path) -> object:
    path.chmod(0o600)
    return credentials.read(path)


def seeds(*files: Path | bytes) -> Callable[[], list[bytes]]:
    return functools.cache(lambda: [file if isinstance(file, bytes) else file.read_bytes() for file in files])


def read_lock(path: Path) -> None:
    lockfile.read(path, warn=lambda _: None)


def read_expectation(data: bytes) -> None:
    expectation.from_json(data.decode("utf-8", "replace")).to_json()


def loads(data: bytes) -> Any:
    """JSON as it is after a transport has taken it in; readers of documents get nothing else."""
    return json.loads(data.decode("utf-8", "replace"))


# ── intent and lock ──────────────────────────────────────────────────────────────────────────────────────────────


@functools.cache
def locks() -> list[bytes]:
    from tests.unit.lock.test_lockfile import LOCK

    newer = LOCK.model_dump(mode="json") | {"lock_version": "1.9"}
    newer["digest"] = lockfile._digest(newer)
    return [lockfile.render(LOCK).encode(), lockfile.render(Lock(**newer)).encode()]


def damaged_lock(data: bytes, random: Random) -> bytes:
    """Half of them with a matching digest, as an attacker could compute it."""
    if random.random() < 0.5:
        return damaged(data, random)
    value = changed(yaml.load(data, Loader=yaml.CSafeLoader), random)
    with contextlib.suppress(TypeError, AttributeError):
        value["digest"] = lockfile._digest(value)
    return json.dumps(value).encode()


# ── journals ─────────────────────────────────────────────────────────────────────────────────────────────────────


@functools.cache
def journals() -> list[bytes]:
    path = FOLDER / "seed.sqlite"
    plan = Plan("20261121T1054-7f3a", "/fleet.yml", "sha256:1", "sha256:2", (Wave("canary", ("a", "b"), soak=60),), {})
    with journal.writing(path, doing="test", wall=lambda: 1.0) as writer:
        writer.begin(plan)
        writer.append_many([(host, StepBegun("preflight", 1)) for host in "ab"])
        writer.append(RolloutPaused("x"))
    return [path.read_bytes()]


_EDITS = (
    *("DELETE FROM event", "DROP TABLE event", "DELETE FROM event WHERE number = 1"),
    *("UPDATE rollout SET id = x'ff'", "UPDATE rollout SET id = ''"),
)


def damaged_journal(data: bytes, random: Random) -> bytes:
    """Bytes of the file, or what an editor of SQL would do."""
    if random.random() < 0.5:
        return damaged(data, random) if random.random() < 0.3 else flip(data, random)
    path = FOLDER / "edited.sqlite"
    path.write_bytes(data)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as shell, contextlib.suppress(sqlite3.Error):
        shell.executescript(
            "PRAGMA synchronous=OFF; DROP TRIGGER event_stays; DROP TRIGGER event_keeps; DROP TRIGGER rollout_stays"
        )
        value = random.choice([
            *(b"\xff", None, 0, -1, 1e308, 2**62, "", "x", "\x1b", "null", "[" * 5000, "{}", "paused"),
            *('{"step":[]}', '{"step":"drain","attempt":"x"}', '{"until":{}}', '{"wave":[],"outcome":1}'),
        ])  # fmt: skip
        column = random.choice(["rollout", "number", "time", "kind", "host", "data", "digest"])
        shell.execute("PRAGMA foreign_keys = OFF")
        shell.execute(f"UPDATE event SET {column} = ? WHERE number = ?", (value, random.randint(1, 10)))
        if random.random() < 0.3:
            shell.execute(random.choice(_EDITS))
        if random.random() < 0.5:
            redigest(shell)
    return path.read_bytes()


def redigest(shell: sqlite3.Connection) -> None:
    """With recomputed digests, as an attacker could do it."""
    for key, number, at, kind, host, data in shell.execute(
        "SELECT rollout, number, time, kind, host, data FROM event"
    ).fetchall():
        digest = journal._digest("20261121T1054-7f3a", number, at, kind, host, data)
        shell.execute("UPDATE event SET digest = ? WHERE rollout IS ? AND number IS ?", (digest, key, number))


def flip(data: bytes, random: Random) -> bytes:
    content = bytearray(data)
    for _ in range(random.randint(1, 20)):
        content[random.randrange(len(content))] = random.randrange(256)
    return bytes(content)


def read_journal(path: Path) -> None:
    with journal.reading(path) as reader:
        for summary in reader.rollouts():
            with contextlib.suppress(ValueError):  # the first is no plan, which history says as a warning
                progress.lines(machine.fold(reader.events(summary.id)), now=1e9, width=80, live=False)
            reader.plan(summary.id)
        reader.newest()


# ── evidence, reports and bundles ────────────────────────────────────────────────────────────────────────────────


@functools.cache
def expected() -> expectation.Expectation:
    return expectation.from_json((EVIDENCE / "hosts/lab-vm.expectation.json").read_text())


def report_in_a_format(report: Report, number: int) -> None:
    """In one of the formats: each takes longer than all the rest."""
    writers: list[Callable[[Report], object]] = [
        formats.json_pieces, html.stream, formats.junit_xml, formats.metrics, formats.details, formats.fleet_table,
    ]  # fmt: skip
    document = writers[number % len(writers)](report)
    if isinstance(document, Iterator | str):
        "".join(document).encode()


def read_judgement(data: bytes) -> None:
    evidence = document.document("x", data.decode("utf-8", "replace"))
    host = fleet_validation.host_report(expected(), evidence, fleet_validation.ValidateOptions(day="2026-11-22"), ())
    report_in_a_format(Report("f.yml", "", "2026-11-22T00:00:00Z", (host,)), len(data))


def explain_host(data: bytes) -> None:
    facts = facts_from(document.document("x", data.decode("utf-8", "replace")))
    as_dict(facts)
    choose(facts)
    doctor.render(doctor.diagnose(facts))
    explain_facts(facts, "")
    if not isinstance(known(lambda: facts.topology), Unknown):
        trees.text(facts.topology)
        json.dumps(trees.document(facts.topology))
        trees.differences(trees.golden(facts.topology, "x"), facts.topology)


@functools.cache
def evidence() -> list[bytes]:
    return [(EVIDENCE / f"hosts/{name}.json").read_bytes() for name in HOSTS]


@functools.cache
def bundles() -> list[bytes]:
    hosts = {
        "g": support_bundle.BundleHost(expected(), loads(evidence()[-1])),
        "lost": support_bundle.BundleHost(expected(), None, Trouble("HostUnfit", "m", "h", 22)),
    }
    return [gzip.decompress(support_bundle.pack(Bundle("f.yml", "0", "2026-11-22T00:00:00Z", hosts), {}))]


def damaged_bundle(data: bytes, random: Random) -> bytes:
    """Damage to one of its files, or to the archive."""
    if random.random() < 0.3:
        data = flip(data, random) if random.random() < 0.5 else damaged(data, random)
        return data if random.random() < 0.5 else damaged(gzip.compress(data, 1), random)
    archive = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(data)) as old, tarfile.open(fileobj=archive, mode="w") as new:
        names = [name for name in old.getnames() if name.endswith(".json")]
        chosen = random.choice(names)
        for name in names:
            content = old.extractfile(name).read()  # type: ignore[union-attr]
            content = damaged_json(content, random) if name == chosen else content
            info = tarfile.TarInfo(name)
            info.size = len(content)
            new.addfile(info, io.BytesIO(content))
    return archive.getvalue()


def read_bundle(path: Path) -> None:
    report_in_a_format(judge(support_bundle.read(path), progress=lambda _: None), path.stat().st_size // 512)


def compare_reports(data: bytes) -> None:
    text = "".join(formats.json_pieces(judge(Bundle("f", "0", "2026-11-22T00:00:00Z", {}), progress=lambda _: None)))
    good = formats.report_from(io.StringIO(text))
    differences = formats.compare(good, formats.report_from(io.StringIO(data.decode("utf-8", "replace"))))
    formats.changes_text(differences)
    formats.changes_json(differences)


@functools.cache
def reports() -> list[bytes]:
    host = fleet_validation.host_report(
        expected(), loads(evidence()[0]), fleet_validation.ValidateOptions(day="2026-11-22"), ()
    )
    return ["".join(formats.json_pieces(Report("f.yml", "", "2026-11-22T00:00:00Z", (host,)))).encode()]


@functools.cache
def goldens() -> list[bytes]:
    return [trees.to_json(trees.golden(facts_from(loads(data)).topology, "x")).encode() for data in evidence()[:1]]


def read_golden(data: bytes) -> None:
    expectation = trees.from_json(data.decode("utf-8", "replace"))
    trees.differences(expectation, facts_from(loads(evidence()[0])).topology)


# ── what hosts say ───────────────────────────────────────────────────────────────────────────────────────────────

HOST = Endpoint("gpu1", "192.0.2.1", 22, "root", (), ())


def raw_answer(data: bytes) -> Any:
    return endpoint.document(HOST, b"MARK", Output(b"motd\nMARK" + data, "", 0))


@functools.cache
def secrets() -> list[bytes]:
    probes = json.loads((TESTS / "unit/files/secret_probes.json").read_text()).values()
    texts = sorted(probe if isinstance(probe, str) else probe[0] for probe in probes)
    return ["\n".join(random.sample(texts, 20)).encode() for random in map(Random, range(5))]


def redact_and_read(data: bytes) -> None:
    Redactor().text(data.decode("utf-8", "replace"))


def keys_on_record(path: Path) -> None:
    host = replace(HOST, known_hosts=(path,))
    recorded_keys = transport.known_keys(host)
    transport.is_recorded(recorded_keys, b"key")
    transport.key_refusal(host, recorded_keys, "ssh-ed25519", b"key")


KNOWN_HOSTS = b"""# comment
192.0.2.1,gpu1 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKtleQ==
@revoked *.2.?,!192.0.2.9,[192.0.2.1]:2222 ecdsa-sha2-nistp256 a2V5
|1|F1E1KeoE/eEWhi10WpGv4OdiO6Y=|3988QV0VE8wmZL7suNrYQLITLCg= ssh-rsa AAAAB3NzaC1yc2E=
@cert-authority * ssh-ed25519 AAAA
"""


def plan_answer(data: bytes) -> None:
    plan_fleet.require_variants(Answer("gpu1", raw_answer(data), None, 0.0), {"variants": {}})


def gate_record(data: bytes) -> None:
    answer = Answer("gpu1", raw_answer(data), None, 0.0)
    host = fleet_validation.recorded(
        answer, expected().profile, expected().lock_digest, fleet_validation.ValidateOptions(day="2026-11-22"), ()
    )
    report_in_a_format(Report("f.yml", "", "2026-11-22T00:00:00Z", (host,)), len(data))


@functools.cache
def gate_records() -> list[bytes]:
    finding = {"check": "kernel.running", "verdict": "pass", "title": "t", "expected": "e", "found": "f", "hint": "",
               "evidence": ["x"], "waiver": {"until": "2026-12-01", "reason": "r", "was": "fail"}}  # fmt: skip
    record = gate.Record("open", "all passed", "pass", "b", "2026-11-22T00:00:00Z", 1.0, "gpu1", "gds", "sha256:1", "x",
                         [["kernel", "6.12"]], [finding], ["gap"])  # fmt: skip
    return [json.dumps({"boot_id": "b", "reason": "", "record": json.loads(record.to_json())}).encode()]


def rollout_answer(data: bytes) -> None:
    question, document = loads(data)
    from tests.loopback.rollout.test_steps import QUESTIONS

    QUESTIONS[tuple(question)].read("gpu1", document)


@functools.cache
def rollout_answers() -> list[bytes]:
    from tests.loopback.rollout.test_steps import WHOLE

    return [json.dumps([question, document]).encode() for question, document in WHOLE.items()]


def damaged_answer(data: bytes, random: Random) -> bytes:
    question, document = loads(data)
    return json.dumps([question, changed(document, random)]).encode()


CHANGE = {"kind": "install", "subject": "nvidia-driver", "after": "550", "disruption": "reboot"}
REFUSAL = {"id": "os", "message": "no", "hint": "h"}
RESULT = {"name": "packages", "changes": [CHANGE], "refusals": [REFUSAL], "unknown": ["x"], "report": {"a": 1}}
TASK = {"host": "a", "role": "r", "task": "t"}
DETAIL = {"msg": "m", "stderr": "e", "rc": 1, "cmd": ["a"], "gds_error": {"kind": "busy", "message": "m", "hint": "h"}}
EVENTS = (
    {"event": "play", "name": "all"},
    {"event": "long", **TASK},
    {
        "event": "result",
        **TASK,
        "status": "ok",
        "seconds": 1.5,
        "changed": True,
        "said": json.dumps({"changes": [CHANGE]}),
    },
    {
        "event": "result",
        **TASK,
        "status": "failed",
        "seconds": 1,
        "changed": False,
        "said": json.dumps({"detail": DETAIL}),
    },
)


def event(data: bytes) -> None:
    outcome = ansible.Outcome(status=0)
    for line in data.decode("utf-8", "replace").splitlines():
        ansible._event(line, ansible.MARK, outcome, (lambda _: None, lambda _: None), FOLDER / "log")


# ── cufile.json, gdscheck, modules ───────────────────────────────────────────────────────────────────────────────


def cufile(data: bytes) -> None:
    check.check(data, release_of("1.20.0"))
    as_dict(CufileFacts(Document({"files": {"/etc/cufile.json": data.decode("utf-8", "replace")}})))


def gdscheck(data: bytes) -> None:
    result = reader.read_recording(data)
    json.dumps(gdscheck_document.document(result, "x"))
    gdscheck_document.text(result, "x")


@functools.cache
def modules() -> list[bytes]:
    good = module_bytes(
        info=[("parm", "a:b"), ("gdsdeploy_tree", "x")],
        imports={"kfree": 5, "memcpy": None},
        exports={"a": (1, True), "b": (2, False)},
        extended={"c": 3},
        texts=["nvme_v1_register_nvfs_dma_ops"],
        build_id=b"12345678901234567890",
        signature=SIGNATURE,
    )
    return [good, good, good, lzma.compress(good), gzip.compress(good), zst(good)]


def kernel_module(data: bytes) -> None:
    """By the ending that its first bytes belong to."""
    endings = {b"\xfd7": ".xz", b"\x1f\x8b": ".gz", b"(\xb5": ".zst"}
    # Each has a name of its own: what was unpacked once is kept by name, size and time.
    path = FOLDER / f"{next(_number)}.ko{endings.get(data[:2], '')}"
    path.write_bytes(data)
    try:
        requests_of(read_module(str(path)))
    except ElfError as error:
        if str(path) not in error.message:
            raise AssertionError(error.message) from error
        raise
    finally:
        path.unlink()


_number = itertools.count()
SYMVERS = "".join(f"0x0000000{n}\tsymbol_{n}\tvmlinux\tEXPORT_SYMBOL_GPL\tNS\n" for n in range(8)).encode()


def damaged_module(data: bytes, random: Random) -> bytes:
    return flip(data, random) if random.random() < 0.7 else damaged(data, random)


# ── signed statements ────────────────────────────────────────────────────────────────────────────────────────────

BUILDER = Builder("build1", bytes(32), run="r")


@functools.cache
def archives() -> list[bytes]:
    module = FOLDER / "nvidia.ko"
    module.write_bytes(module_bytes())
    row = {"name": "nvidia", "file": module.name, "sha256": sha256(str(module)), "size": module.stat().st_size}
    manifest = {"format": FORMAT, "kernel_release": "6.1", "vermagic": "v", "symvers": "s", "compiler": "c",
                "driver": {}, "nvidia_fs": {}, "key": {"driver": "550"}, "modules": [row]}  # fmt: skip
    archive = io.BytesIO()
    pack.write_archive(archive, manifest, [str(module)], BUILDER)
    return [archive.getvalue()]


@functools.cache
def origin() -> provenance.Origin:
    return provenance.Origin(BUILDER.name, provenance.public_pem(BUILDER.seed))


def signed_archive(path: Path) -> None:
    archive.verify(str(path), origin())


# ── all of them ──────────────────────────────────────────────────────────────────────────────────────────────────

REPOSITORY_ERRORS = (RepositoryUnusable, RepositoryUntrusted)

EXAMPLES = TESTS.parent / "examples"
EXPECTATION = EVIDENCE / "hosts/lab-vm.expectation.json"
PLAN = json.dumps({"variants": {"build": [RESULT], "keep": [RESULT]}}).encode()
LINES = b"\n".join(ansible.MARK.encode() + json.dumps(event).encode() for event in EVENTS)

LOGINS = b"# ours\nmachine a.example login x password y\nmachine http://[::1]:81/b\n  login x password z\n"
SHARED = b"""       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      atime \
     dtime      ctime                   rss                  swap
      1902          0  2644                 31144  1902  1902      0     0     0     0     0 1795700665 1795700665 \
1795700665                 32768                     0
"""


@functools.cache
def statistics() -> list[bytes]:
    return [bytes(segment(layout)) for layout in counters.layouts().values()]


def read_statistics(data: bytes) -> None:
    """They never make a host's answer one that the controller refuses."""
    result = counters.decode(data)
    way = counters.route(counters.Observed(result))
    Watched.model_validate(watch_document(Look(1.8e9, (Entry(program(counters=result), way),), None, 0)))


def read_shared_memory(data: bytes) -> None:
    counters.listed(data.decode("ascii", "replace"))


READERS = (
    Reader("fleet.yml", seeds(*sorted(EXAMPLES.glob("*.yml"))), of_file("fleet.yml", load_fleet), (FleetInvalid,)),
    Reader("logins", seeds(LOGINS), of_file("logins.conf", read_logins), (FleetInvalid,)),
    Reader("gdsdeploy.lock", locks, of_file("gdsdeploy.lock", read_lock), (LockInvalid,), damaged_lock),
    Reader("journal", journals, of_file("journal.sqlite", read_journal), (JournalUnusable,), damaged_journal),
    Reader("support bundle", bundles, of_file("case.tar.gz", read_bundle), (GdsError,), damaged_bundle),
    Reader("evidence, judged and reported", evidence, read_judgement, (EvidenceFileError,), damaged_json),
    Reader("evidence: mode, explain, topology", evidence, explain_host, (EvidenceFileError, GdsError), damaged_json),
    Reader("expectation", seeds(EXPECTATION), read_expectation, (ValueError,), damaged_json),
    Reader("saved report (diff)", reports, compare_reports, (ValueError,), damaged_json),
    Reader("golden topology", goldens, read_golden, (trees.GoldenError,), damaged_json),
    Reader("a host's raw answer", evidence, raw_answer, (HostUnfit, HostUnreachable), damaged_json),
    Reader("answer to plan", seeds(PLAN), plan_answer, (HostUnfit, HostUnreachable), damaged_json),
    Reader("gate record", gate_records, gate_record, (HostUnfit, HostUnreachable), damaged_json),
    Reader("answers to a rollout", rollout_answers, rollout_answer, (HostUnfit,), damaged_answer),
    Reader("text with secrets, masked", secrets, redact_and_read, ()),
    Reader("known_hosts", seeds(KNOWN_HOSTS), of_file("known_hosts", keys_on_record), ()),
    Reader("event lines of Ansible", seeds(LINES), event, ()),
    Reader("cufile.json", seeds(*sorted((TESTS / "golden/cufile").glob("*.json"))), cufile, ()),
    Reader("pasted logs", logs.seeds, logs.read, (), logs.mixture),
    Reader("gdscheck parse", seeds(*sorted((EVIDENCE / "gdscheck").glob("*.txt"))), gdscheck, ()),
    Reader("kernel modules", modules, kernel_module, (ElfError,), damaged_module),
    Reader(
        "Module.symvers",
        seeds(SYMVERS),
        of_file("Module.symvers", lambda path: read_symvers(str(path))),
        (SymversError,),
    ),
    Reader("archive of modules", archives, of_file("modules.tar", signed_archive), (PackError,), damaged_module),
    Reader("repomd.xml", seeds(repositories.REPOMD), repositories.repomd, REPOSITORY_ERRORS),
    Reader("primary.xml, filelists.xml", seeds(repositories.LISTS), repositories.primary, REPOSITORY_ERRORS),
    Reader("modules.yaml", seeds(repositories.MODULES), repositories.module_metadata, REPOSITORY_ERRORS),
    Reader("Release", seeds(repositories.RELEASE), repositories.release, REPOSITORY_ERRORS),
    Reader("Packages", seeds(repositories.PACKAGES), repositories.package_list, REPOSITORY_ERRORS),
    Reader("order of versions", seeds(repositories.VERSIONS), repositories.version_order, ()),
    Reader(
        "packed lists",
        seeds(*repositories.PACKED),
        of_file("packed", repositories.unpacked),
        REPOSITORY_ERRORS,
        lambda data, random: (damaged if random.random() < 0.5 else flip)(data, random),
    ),
    Reader("statistics of libcufile", statistics, read_statistics, (), damaged_module),
    Reader("list of shared memory", seeds(SHARED), read_shared_memory, ()),
)
