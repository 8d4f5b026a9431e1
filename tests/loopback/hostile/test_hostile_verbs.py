"""Every verb that asks hosts, over hosts that answer what they like: each liar is named, and the honest host beside
them is reported as if it were alone.  Nothing is run, nothing is hung, and no verb ends in a traceback.
"""

from __future__ import annotations

import json
import random
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import paramiko
import pytest
import yaml

from gdsdeploy.converge import ansible
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.host.gate.gate import Record
from gdsdeploy.host.io.wording import HIDDEN
from gdsdeploy.host.libcufile import counters
from gdsdeploy.host.subjects.stack import STACK
from gdsdeploy.host.watch.document import document
from gdsdeploy.host.watch.look import Entry, Look
from gdsdeploy.lock import lockfile
from gdsdeploy.ssh import sshconfig
from gdsdeploy.zipapp import hostapp
from tests import commandline
from tests.loopback.hostile.hostile_server import Question, Server
from tests.loopback.loopback_fleet import LoopbackFleet
from tests.patience import SURELY
from tests.unit.host.programs import running
from tests.unit.hostile_words import VALUES, WORDS, places, spoiled, texts, with_value
from tests.unit.rdma_host import host as rdma_host
from tests.unit.rollout.asked import status

EVIDENCE = rdma_host()
HONEST = "honest"
#: What a liar makes of an honest answer before it is sent.
Lie = Callable[[Any], bytes]
#: Exit codes that say something of hosts; see docs/exit-codes.md.
OF_HOSTS = {0, 20, 22, 30, 31, 32, 50}


def as_sent(value: Any) -> bytes:
    return json.dumps(value).encode()


def changed_at_random(seed: int) -> Lie:
    """Another value at some places, the same ones each time."""

    def lie(answer: Any) -> bytes:
        chance = random.Random(seed)
        for _ in range(4):
            place = chance.choice(list(places(answer)))
            answer = with_value(answer, place, chance.choice((*VALUES, *WORDS)))
        return as_sent(answer)

    return lie


def spoiled_by(word: str) -> Lie:
    return lambda answer: as_sent(spoiled(answer, word))


def renamed(answer: Any, old: str, new: str) -> Any:
    """The same, with another name for one thing, in what programs print, too."""
    if isinstance(answer, str):
        return new if answer == old else answer.replace(json.dumps(old), json.dumps(new))
    if isinstance(answer, list):
        return [renamed(value, old, new) for value in answer]
    return {key: renamed(value, old, new) for key, value in answer.items()} if isinstance(answer, dict) else answer


#: Lies that no verb takes for an answer, whatever it asked.
REFUSED = {"deep", "empty", "list", "cut", "twice", "infinite"}
LIES: Mapping[str, Lie] = {
    "deep": lambda _: b'{"a":' + b"[" * 50_000,
    "empty": lambda _: b"",
    "list": lambda _: b"[]",
    "object": lambda _: b"{}",
    "cut": lambda answer: as_sent(answer)[:-9],
    "twice": lambda answer: as_sent(answer)[:-1] + b',"version":1,"version":1}',
    "infinite": lambda answer: as_sent(answer)[:-1] + b',"seconds":1e999}',
    "nulls": lambda answer: as_sent(dict.fromkeys(answer)),
    **{f"word-{number}": spoiled_by(word) for number, word in enumerate(WORDS[::2])},
    "error": lambda _: as_sent({"error": {"kind": [], "message": "x" * 4_000_000, "hint": {"a": 1}}}),
    "keys": lambda answer: as_sent(spoiled(answer, WORDS[0], keys=True)),
    "interface": lambda answer: as_sent(renamed(answer, "ens1", WORDS[0])),
    # Of an address of version 6, whatever follows a % is a zone.
    "address": lambda answer: as_sent(renamed(answer, "2001:db8:1::2", "2001:db8:1::2%{{ cycler }}")),
    "half": lambda answer: as_sent(spoiled(answer, "x\ud800")),
    **{f"random-{seed}": changed_at_random(seed) for seed in range(3)},
}  # fmt: skip


def boot_id_of(question: Question) -> str:
    """Two hosts with the id of one boot would be one machine."""
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, question.host))


def is_record(question: Question) -> bool:
    return question.argv[-1].endswith("gate.json")


def honest(question: Question, digest: str) -> Any:
    """What an honest host answers."""
    boot_id = boot_id_of(question)
    if question.argv[0] == "evidence":
        return {**EVIDENCE, "files": {**EVIDENCE["files"], "/proc/sys/kernel/random/boot_id": boot_id + "\n"}}
    if is_record(question):
        record = Record("open", "all passed", "pass", boot_id, "2026-11-21T08:00:00Z", 1.5, HONEST, "right", digest)
        findings = [{"check": "kernel.running", "verdict": "pass", "title": "t", "expected": "e", "found": "e",
                     "hint": "", "evidence": [], "waiver": None}]  # fmt: skip
        return {**json.loads(record.to_json()), "findings": findings, "stack": [[name, "1"] for name in STACK]}
    if question.argv[0] == "watch":
        return watched()
    if question.argv[:2] == ("rollout", "status"):
        return status()
    if question.argv[:2] == ("apply", "--check"):
        return {"error": None, "variants": {name: [result(resource) for resource in listed]
                for name, listed in json.loads(question.stdin)["variants"].items()}}  # fmt: skip
    return {"python": "3.11.2", "uid": 0, "kernel": "6.1", "machine": "x86_64"}


def result(resource: Mapping[str, Any]) -> dict[str, Any]:
    name = resource["resource"] + (f".{resource['instance']}" if resource["instance"] else "")
    change = {"kind": "write", "subject": f"/etc/{name}", "before": "", "after": "sha256:1", "reason": "missing",
              "disruption": "none", "resource": name}  # fmt: skip
    report = {"dkms": [], "key": {"arch": "x86_64"}, "received": {}, "archive": ""} if name == "modules" else {}
    return {"name": name, "changes": [change], "refusals": [], "unknown": [], "report": report, "diffs": []}


def watched() -> dict[str, Any]:
    """One process whose statistics are off."""
    program = running(
        pid=4711, name="python", unit="/system.slice/train.service", container=False, variables={}, base={},
        libraries={"/usr/lib/libcufile.so.1.15.1": "1.15.1"}, base_path="/etc/cufile.json", overlay=None,
        counters=counters.STATISTICS_OFF,
    )  # fmt: skip
    return document(Look(1.8e9, (Entry(program, counters.route(counters.Observed(program.counters))),), None, 0))


class Fleet(LoopbackFleet):
    """A fleet of an honest host and of liars, each behind the same server under its own name."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.canary = folder / "canary"
        self.hostile = Server(folder, self._reply)
        liars = {f"liar-{name}": {"profile": "right"} for name in LIES}
        super().__init__(folder, self.hostile, {HONEST: {"profile": "right"}, **liars})  # type: ignore[arg-type]
        value = yaml.safe_load(self.path.read_text())
        value["profiles"]["right"] |= {"own_kernel": False}
        self.path.write_text(yaml.safe_dump(value))
        self.liars = list(liars)
        self.digest = lockfile.read(lockfile.beside(self.path)).digest

    def fit(self) -> None:
        """Have each host's cufile.json name its interfaces, which hosts name themselves."""
        value = yaml.safe_load(self.path.read_text())
        value["profiles"]["right"]["fit"] = {"addresses": "all"}
        self.path.write_text(yaml.safe_dump(value))

    def _reply(self, question: Question, channel: paramiko.Channel) -> None:
        answer = honest(question, self.digest)
        if not question.host.startswith("liar-"):
            sent = as_sent(answer)
        else:
            sent = LIES[question.host.removeprefix("liar-")](answer)
        if sent and is_record(question):
            sent = f"{boot_id_of(question)}\n".encode() + sent
        channel.sendall(sent.replace(b"CANARY", str(self.canary).encode()))


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    yield from served(Fleet, tmp_path, monkeypatch)


def served(make: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A fleet whose hosts the hostile server answers for; in the end nothing of theirs was run."""
    monkeypatch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("GDSDEPLOY_STATE_DIR", str(tmp_path / "state"))
    fleet = make(tmp_path / "fleet")
    monkeypatch.setattr(hostapp, "build", lambda path=None: b"program")
    monkeypatch.setattr(hostapp, "keep", lambda folder: program(folder))
    # ssh -G for each host of each verb is another test's subject.
    monkeypatch.setattr(
        sshconfig,
        "reaches",
        lambda _f, _d, names: [sshconfig.Reach(name, partial(fleet.hostile.endpoint, name)) for name in names],
    )
    yield fleet
    fleet.hostile.close()
    assert not fleet.canary.exists()


def program(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "program.pyz"
    path.write_bytes(b"program")
    return path


@pytest.fixture
def run(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def start(*argv: object) -> tuple[int, str, str]:
        begin = time.monotonic()
        code = commandline.run(*argv)
        assert time.monotonic() - begin < SURELY
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    return start


Run = Callable[..., tuple[int, str, str]]


def steady(value: Any) -> Any:
    """Without what differs from run to run."""
    return {key: inner for key, inner in value.items() if key not in {"seconds", "when"}}


@pytest.mark.parametrize("since_boot", [False, True], ids=["now", "since-boot"])
def test_validate(fleet: Fleet, run: Run, tmp_path: Path, since_boot: bool) -> None:
    flags = ["--since-boot"] if since_boot else []
    files = {name: tmp_path / f"report.{name}" for name in ("html", "junit", "metrics")}
    written = [word for name, path in files.items() for word in (f"--{name}", path)]
    _, alone, _ = run("validate", fleet.path, "--limit", HONEST, "--json", *flags)
    code, out, err = run("validate", fleet.path, "--json", *flags, *written)
    assert code in OF_HOSTS, err
    hosts = json.loads(out)["hosts"]
    assert steady(hosts[HONEST]) == steady(json.loads(alone)["hosts"][HONEST])
    assert hosts[HONEST]["error"] is None
    assert set(hosts) == {HONEST, *fleet.liars}
    refused = {name for name, host in hosts.items() if host["error"]}
    assert {
        f"liar-{name}" for name in ("deep", "empty", "list", "object", "cut", "twice", "infinite", "nulls")
    } <= refused
    assert all(hosts[name]["error"]["message"].startswith(name) for name in refused)
    for path in files.values():
        assert HONEST in path.read_text(encoding="utf-8")
    page = files["html"].read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    ET.parse(files["junit"])
    # Another day, the same report is compared.
    report = tmp_path / "report.json"
    report.write_text(out)
    assert run("diff", report, report)[0] == 0
    code, out, _ = run("validate", fleet.path, "--verbose", *flags)
    assert code in OF_HOSTS
    # Numbered names are folded.
    assert {name for name in hosts if name.rstrip("0123456789") not in out} == set()


def test_plan(fleet: Fleet, run: Run) -> None:
    _, alone, _ = run("plan", fleet.path, "--limit", HONEST, "--json")
    code, out, err = run("plan", fleet.path, "--json", "--limit", ",".join([HONEST, *fleet.liars]))
    assert code in OF_HOSTS, err
    hosts = json.loads(out)["hosts"]
    assert set(hosts) == {HONEST, *fleet.liars}
    assert all(len(host["error"]["message"]) < 20_000 for host in hosts.values() if "error" in host)
    assert steady(hosts[HONEST])["actions"] == steady(json.loads(alone)["hosts"][HONEST])["actions"] != []
    code, out, err = run("plan", fleet.path, "--limit", "honest,liar-*")
    assert code in OF_HOSTS
    assert all(name in out for name in hosts)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], str]]:
    """(hosts, inventory) that Ansible would have been started with."""
    plays: list[tuple[list[str], str]] = []

    def play(command: list[str], *_: object, **__: object) -> ansible.Outcome:
        inventory = Path(command[command.index("--inventory") + 1]).read_text()
        plays.append((command[command.index("--limit") + 1].split(","), inventory))
        return ansible.Outcome(0, {name: ansible.HostResult() for name in plays[-1][0]})

    monkeypatch.setattr(ansible, "play", play)
    return plays


@pytest.mark.parametrize("verb", ["provision", "remove"])
def test_what_changes_hosts(fleet: Fleet, run: Run, played: list[tuple[list[str], str]], verb: str) -> None:
    fleet.fit()
    code, out, err = run(verb, fleet.path, "--limit", "honest,liar-*", "--json")
    assert code in OF_HOSTS, err
    ((hosts, inventory),) = played
    assert HONEST in hosts
    hosts_report = json.loads(out)["hosts"]
    assert hosts_report[HONEST]["error"] is None
    assert {"liar-deep", "liar-empty", "liar-cut", "liar-twice"} <= {
        name for name, entry in hosts_report.items() if entry["error"]
    }
    # Of no host anything stands in the inventory that could be a template.
    assert "cycler" not in inventory
    assert "lookup" not in inventory


@pytest.mark.parametrize("verb", [["topology"], ["topology", "--json"]], ids=" ".join)
def test_what_hosts_are(fleet: Fleet, run: Run, verb: list[str]) -> None:
    argv = [verb[0], fleet.path, *verb[1:]]
    _, alone, _ = run(*argv, "--limit", HONEST)
    code, out, err = run(*argv)
    assert code in {20, 22}, err
    if "--json" in verb:
        assert json.loads(out)[HONEST] == json.loads(alone)[HONEST]
    else:
        # Hosts that are alike are shown once.
        assert alone.strip().removeprefix(HONEST) in out
    assert {name for name in (*REFUSED, "object") if f"liar-{name}" not in err} == set()


@pytest.mark.parametrize("flags", [[], ["--json"]], ids=["text", "json"])
def test_what_processes_do(fleet: Fleet, run: Run, flags: list[str]) -> None:
    code, out, err = run("watch", fleet.path, "--once", "--every", "0.2", *flags)
    assert code in {20, 22}, err
    if flags:
        documents = [json.loads(line) for line in out.splitlines()]
        assert {document["host"] for document in documents} == {HONEST, *fleet.liars}
        (alone,) = [document for document in documents if document["host"] == HONEST]
        assert alone["processes"][0]["reason"] == counters.STATISTICS_OFF
        refused = {document["host"] for document in documents if "error" in document}
        assert {f"liar-{name}" for name in (*REFUSED, "object")} <= refused
    else:
        (line,) = [line for line in out.splitlines() if line.startswith(f"{HONEST} ")]
        assert "not counted (statistics-off)" in line
        assert not re.search(HIDDEN, out)


def test_the_first_fleet_file(fleet: Fleet, run: Run, tmp_path: Path) -> None:
    """The loader accepts it, and the honest host is in it as if it were alone."""
    _, alone, _ = run("init", HONEST, "-o", "-", "--json")
    code, out, err = run("init", HONEST, *fleet.liars, "-o", tmp_path / "first.yml", "--json")
    assert code in {20, 22}, err
    value, first = json.loads(out), load_fleet(tmp_path / "first.yml")
    assert set(first.hosts) | set(value["left_out"]) == {HONEST, *fleet.liars}
    assert {f"liar-{name}" for name in REFUSED} <= set(value["left_out"])
    single = json.loads(alone)
    assert value["hosts"][HONEST] == single["hosts"][HONEST]
    (profile,) = single["fleet"]["profiles"].values()
    assert value["fleet"]["profiles"][first.hosts[HONEST].profile]["driver"] == profile["driver"]


@pytest.mark.parametrize(
    "name", ["deep", "half", "keys", "nulls", "object", "word-0", "word-3", "random-1", "random-2"]
)
def test_explain(fleet: Fleet, run: Run, name: str) -> None:
    code, _, err = run("explain", f"liar-{name}", "--fleet", fleet.path)
    assert code in {0, 1, 20, 22}
    assert not code or f"liar-{name}" in err or "mount" in err


def test_a_file_that_is_fitted_to_a_host(fleet: Fleet, run: Run) -> None:
    """Its comment names the interfaces of the host, which is how a host's word once came to be a template."""
    fleet.fit()
    for name in (HONEST, "liar-word-0", "liar-word-2", "liar-interface", "liar-address", "liar-keys"):
        code, out, err = run("cufile", "render", fleet.path, name)
        assert "cycler" not in out
        assert "lookup" not in out
        if name == HONEST:
            assert code == 0, err
            assert "ens1 (mlx5_0)" in out
        else:
            assert code == 22
            assert err.count(name) >= 1


def test_support_bundle(fleet: Fleet, run: Run, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.tar.gz"
    code, _, err = run("support-bundle", fleet.path, "-o", bundle)
    assert code == 0, err
    code, out, err = run("validate", "--from", bundle, "--json")
    assert code in OF_HOSTS, err
    hosts = json.loads(out)["hosts"]
    assert hosts[HONEST]["error"] is None
    assert hosts["liar-deep"]["error"]["kind"] == "HostUnfit"


def test_rollouts(fleet: Fleet, run: Run) -> None:
    code, out, err = run("rollout", "start", fleet.path, "--dry-run")
    assert code in {0, 50}, err
    assert "liar-deep" in out + err
    code, out, err = run("rollout", "start", fleet.path, "--yes")
    assert code == 50, err
    assert "liar-deep" in out + err
    assert run("rollout", "status", fleet.path)[0] != 0
    assert run("rollout", "rollback", fleet.path, "--yes")[0] != 0


def test_what_was_tried_reaches_every_text_of_an_answer() -> None:
    """The liars do lie: an answer without a text that was changed would prove nothing."""
    for number, word in enumerate(WORDS[::2]):
        assert word in texts(json.loads(LIES[f"word-{number}"](EVIDENCE)))
    assert LIES["interface"](EVIDENCE).count(b"popen") > 1
    assert LIES["address"](EVIDENCE).count(b"cycler") == 1
