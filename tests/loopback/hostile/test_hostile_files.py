"""Fleet files and locks that others wrote: each text is refused with its place, or is data, whatever verb reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paramiko
import pytest
import yaml

from gdsdeploy import cli
from gdsdeploy.converge import ansible
from gdsdeploy.errors import FleetInvalid, LockInvalid
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.host.io.wording import HIDDEN
from gdsdeploy.lock import lockfile
from gdsdeploy.model.events import PAYLOADS, Kind
from gdsdeploy.model.lock import Lock, RefusedChoice
from gdsdeploy.model.rollout import Wave
from gdsdeploy.model.rollout_settings import Notify
from gdsdeploy.model.text import read
from gdsdeploy.rollout import journal
from gdsdeploy.rollout.notify import Notifier
from tests import commandline
from tests.loopback.hostile.hostile_server import Question, Server
from tests.loopback.hostile.test_hostile_verbs import HONEST, OF_HOSTS, as_sent, honest, served
from tests.loopback.loopback_fleet import LoopbackFleet
from tests.loopback.verbs import verbs
from tests.unit.hostile_words import WORDS, places, texts, with_value
from tests.unit.sample_rollouts import KEEPS, plan

#: Nearly every text that a fleet file can have.
WHOLE: dict[str, Any] = {
    "version": 1,
    "repositories": {
        "debian": {
            "kind": "apt", "uri": "https://x/y", "suites": ["trixie"], "components": ["main"], "keyring": "/k",
            "fingerprints": ["A" * 40], "signed_by": "/s", "max_age": "10d",
        },
    },
    "mirror": {"uri": "https://x/y", "keyring": "k"},
    "ssh": {"user": "root", "address": "::1", "identity_file": "i", "known_hosts": "k", "config": "c"},
    "profiles": {
        "gds": {
            "os": "debian-13", "arch": "x86_64", "repositories": ["debian"], "kernel": "newest",
            "driver": {"version": "550", "flavour": "open", "options": {"NVreg_X": "1"}},
            "nvidia_fs": "newest", "libcufile": "newest", "mode": "nvidia-fs", "rdma": "none",
            "companions": ["persistenced"], "cuda": ["cuda-x"], "doca": ["doca-x"], "gpu": "hopper",
            "cufile": {"logging": {"level": "ERROR"}}, "fit": {"addresses": "all", "family": "any"},
            "storage": [{"mount": "/mnt", "path": "direct"}],
            "topology": {"nvme": "PIX", "nic": "PIX", "golden": "g"},
            "gpus": {"count": 8, "model": "H100"}, "nics": {"count": 8, "driver": "mlx5_core"},
            "nvme": {"count": 4, "model": "P"},
            "signing": {"certificate": "/c", "signer": ["/bin/sign"]}, "builder": "build1",
            "gate": {"before": ["a.service"], "required_by": ["b.service"], "file": "/f", "metrics": "/m"},
        },
        "keyed": {"os": "debian-13", "signing": {"key": "/k"}},
    },
    "builders": {"build1": {"profile": "gds"}},
    "hosts": {"gpu1": {"profile": "gds", "port": 2222, "modules": "auto", "labels": {"rack": "r1"}}},
    "waivers": [{"check": "kernel.running", "until": "2099-12-31", "reason": "r", "hosts": ["*"]}],
    "rollout": {
        "canary": {"hosts": ["gpu1"], "labels": {"rack": "r1"}, "soak": "1m"},
        "batches": {"strategy": "fixed", "size": "25%", "largest": "25%", "soak": "1m"},
        "max_unavailable": "25%", "apart": ["rack"], "order": ["rack"], "skip": "s", "windows": ["22:00-05:00"],
        "timezone": "UTC", "failures": {"later": "5%"},
        "drain": {"by": "command", "timeout": "1h", "program": ["p"], "node": "n", "out": ["o"], "back": ["b"],
                  "idle": ["i"]},
        "on_failure": "rollback", "reboot_timeout": "10m", "power_cycle": ["p"],
        "notify": {"webhook": "https://x/y", "token_file": "t", "command": ["c"], "events": ["halted"]},
    },
}  # fmt: skip
#: What may say anything: names of files on this machine, commands of the site that a rollout starts, patterns of
#: hosts, values of cufile.json, and a reason for people.
FREE = {
    "mirror.keyring",
    "profiles.gds.topology.golden", "profiles.gds.signing.signer.0", "profiles.gds.cufile.logging.level",
    "waivers.0.reason", "rollout.canary.hosts.0", "rollout.timezone",
    "rollout.drain.program.0", "rollout.drain.node", "rollout.drain.out.0", "rollout.drain.back.0",
    "rollout.drain.idle.0", "rollout.power_cycle.0", "rollout.notify.token_file", "rollout.notify.command.0",

}  # fmt: skip
#: What may say anything in one line.
ONE_LINE = {
    "profiles.gds.driver.options.NVreg_X", "profiles.gds.storage.0.mount", "profiles.gds.gate.file",
    "profiles.gds.gate.metrics", "profiles.gds.signing.certificate", "profiles.keyed.signing.key",
    "repositories.debian.keyring", "repositories.debian.signed_by",
    "ssh.identity_file", "ssh.known_hosts", "ssh.config",
}  # fmt: skip
CONTROL = re.compile("[\x00-\x1f\x7f]")
TEMPLATE = WORDS[0]


def named(place: tuple[Any, ...]) -> str:
    return ".".join(map(str, place))


def with_text(whole: Any, place: tuple[Any, ...], word: str) -> Any:
    """A copy with the word behind the text at that place: what begins as it has to is refused the hardest."""
    value = whole
    for part in place:
        value = value[part]
    return with_value(whole, place, f"{value}{word}")


def refusal(path: Path, value: Any, read: Callable[[Path], object]) -> str:
    """Why a file with that value is refused; empty where it is not."""
    path.write_text(yaml.safe_dump(value))
    words = ""
    try:
        read(path)
    except (FleetInvalid, LockInvalid) as error:
        words = error.message
    assert not words or str(path) in words
    return words


def loaded(tmp_path: Path, value: Any) -> str:
    return refusal(tmp_path / "fleet.yml", value, load_fleet)


def text_places(value: Any) -> list[tuple[Any, ...]]:
    positions = []
    for place in places(value):
        inner = value
        for part in place:
            inner = inner[part]
        if isinstance(inner, str):
            positions.append(place)
    return positions


def accepted_places(whole: Any, refused: Callable[[Any], str]) -> tuple[set[str], set[str]]:
    """Places where a template is taken, with a line end and only without one."""
    free, one_line = set(), set()
    for place in text_places(whole):
        passed = {word for word in (TEMPLATE, "\nx: y") if not refused(with_text(whole, place, word))}
        if passed:
            (free if len(passed) == 2 else one_line).add(named(place))
    return free, one_line


def test_every_text_of_a_fleet_file(tmp_path: Path) -> None:
    assert loaded(tmp_path, WHOLE) == ""
    assert accepted_places(WHOLE, lambda value: loaded(tmp_path, value)) == (FREE, ONE_LINE)


@pytest.mark.parametrize("word", WORDS, ids=lambda word: ascii(word)[:12])
def test_every_word_in_a_fleet_file(tmp_path: Path, word: str) -> None:
    """At each place, keys too: never anything but the error of a fleet file."""
    for place in text_places(WHOLE):
        loaded(tmp_path, with_text(WHOLE, place, word))
    for place in places(WHOLE):
        inner: Any = WHOLE
        for part in place:
            inner = inner[part]
        if isinstance(inner, dict):
            loaded(tmp_path, with_value(WHOLE, place, {**inner, word: 1}))


def lock_value() -> dict[str, Any]:
    path = Path(__file__).parents[2] / "golden/lab/gdsdeploy.lock"
    value: dict[str, Any] = yaml.safe_load(path.read_text())
    target = value["targets"]["gds"]
    for part in ("packages", "indices", "refused", "rules"):
        target[part] = target[part][:1]
    target["modules"] = ["a:b"]
    return value


def test_every_text_of_a_lock(tmp_path: Path) -> None:
    """What becomes a word of a line, of a path or of a command on a host is one word."""

    def refused(value: dict[str, Any]) -> str:
        if value["digest"] == whole["digest"]:
            value = {**value, "digest": lockfile._digest(value)}
        return refusal(tmp_path / "gdsdeploy.lock", value, lockfile.read)

    whole = lock_value()
    assert refused(whole) == ""
    free, one_line = accepted_places(whole, refused)
    names = {"indices.0.date", "os", "packages.0.file", "refused.0.rule", "refused.0.what", "refused.0.words"}
    pins = {f"pins.{name}" for name in whole["targets"]["gds"]["pins"]}
    assert free == {f"targets.gds.{name}" for name in (*names, *pins, "rules.0")}
    paths = {"driver.source_tree", "nvidia_fs.source_tree", "indices.0.host_keyring"}
    assert one_line == {f"targets.gds.{name}" for name in paths}


@pytest.mark.parametrize("text", ["a\0b", "a\ud800b"])
def test_what_is_no_text_is_refused_with_its_place(tmp_path: Path, text: str) -> None:
    """YAML can write them: one ended the reading of a golden topology in a traceback."""
    place = ("profiles", "gds", "topology", "golden")
    assert "fleet.yml:" in loaded(tmp_path, with_value(WHOLE, place, text))


# --- verbs -----------------------------------------------------------------------------------------------------------

Run = Callable[..., tuple[int, str, str]]


class Poisoned(LoopbackFleet):
    """An honest host, of a fleet file and a lock that have every word wherever any text is taken."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.canary = folder / "canary"
        self.words = [
            word.replace("CANARY", str(self.canary)).replace("\0", "") for word in WORDS if "\ud800" not in word
        ]
        self.words.append("{{ playbook_dir }}")
        self.lines = [word for word in self.words if not CONTROL.search(word)]
        self.hostile = Server(folder, self._reply)
        super().__init__(folder, self.hostile, {HONEST: {"profile": "right"}})  # type: ignore[arg-type]
        value = yaml.safe_load(self.path.read_text())
        value["profiles"]["right"] |= {
            "own_kernel": False,
            "driver": {"options": {f"NVreg_{number}": word for number, word in enumerate(self.lines)}},
            "storage": [{"mount": f"/mnt/{word}", "path": "compat"} for word in self.lines],
            "gate": {"file": f"/run/{self.lines[0]}", "metrics": f"/run/{self.lines[1]}"},
            "cufile": {"logging": {"dir": f"/var/log/{self.lines[2]}"}},
        }
        value["waivers"] = [{"check": "kernel.running", "until": "2099-12-31", "reason": word} for word in self.words]
        value["rollout"] = {"canary": {"hosts": [HONEST]}}
        self.path.write_text(yaml.safe_dump(value))
        place = lockfile.beside(self.path)
        lock: Lock = lockfile.read(place)
        poison = {
            "rules": tuple(self.words),
            "refused": tuple(RefusedChoice(what=word, rule=word, words=word) for word in self.words),
        }
        targets = {name: target.model_copy(update=poison) for name, target in lock.targets.items()}
        lockfile.write(place, lockfile.build(targets))
        self.digest = lockfile.read(place).digest

    def _reply(self, question: Question, channel: paramiko.Channel) -> None:
        channel.sendall(as_sent(honest(question, self.digest)))

    def sent(self) -> list[str]:
        """Every text that came to the host since the last time."""
        received = [texts(json.loads(question.stdin)) for question in self.hostile.questions if question.stdin]
        self.hostile.questions.clear()
        inner = [part for listed in received for part in listed]
        # Contents of files are JSON themselves, some of them with comments.
        for text in list(inner):
            if text.startswith("{"):
                try:
                    inner += texts(json.loads(text))
                except ValueError:
                    continue
        return inner


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Poisoned]:
    yield from served(Poisoned, tmp_path, monkeypatch)


@pytest.fixture
def run(fleet: Poisoned, capsys: pytest.CaptureFixture[str]) -> Run:
    def start(*argv: object) -> tuple[int, str, str]:
        code = commandline.run(*argv)
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        assert [character for character in out + err if re.match(HIDDEN, character)] == []
        assert not fleet.canary.exists()
        return code, out, err

    return start


class Inventory(yaml.SafeLoader):
    """Reads the tag as Ansible does, and knows what Ansible would take for a template."""


def _plain(loader: Inventory, node: yaml.ScalarNode) -> str:
    text = str(loader.construct_scalar(node))
    assert not re.search(r"\{[{%#]", text.replace("{{ playbook_dir }}/", "")), text
    return text


Inventory.add_constructor("!unsafe", yaml.SafeLoader.construct_yaml_str)  # type: ignore[type-var]
Inventory.add_constructor("tag:yaml.org,2002:str", _plain)


def has(received: list[str], words: list[str]) -> None:
    assert [word for word in words if word not in received] == []


def test_validate(fleet: Poisoned, run: Run, tmp_path: Path) -> None:
    files = [word for name in ("html", "junit", "metrics") for word in (f"--{name}", tmp_path / name)]
    code, out, err = run("validate", fleet.path, "--json", *files)
    assert code in OF_HOSTS, err
    report = json.loads(out)
    has(texts(report), [f"storage.path:/mnt/{word}" for word in fleet.lines])
    has(texts(report), fleet.words)
    has(fleet.sent(), [f"/mnt/{word}" for word in fleet.lines])
    assert "<script>alert" not in (tmp_path / "html").read_text()
    assert run("validate", fleet.path)[0] == code
    assert run("validate", fleet.path, "--since-boot")[0] in OF_HOSTS


def test_plan(fleet: Poisoned, run: Run) -> None:
    code, _, err = run("plan", fleet.path, "--json")
    assert code in OF_HOSTS, err
    received = fleet.sent()
    has(received, fleet.lines)
    has(received, fleet.words)
    has(received, [f"/mnt/{word}" for word in fleet.lines])
    assert run("plan", fleet.path)[0] == code


@pytest.mark.parametrize("verb", ["provision", "remove"])
def test_what_changes_hosts(fleet: Poisoned, run: Run, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    played: list[str] = []

    def play(command: list[str], *_: object, **__: object) -> ansible.Outcome:
        played.append(Path(command[command.index("--inventory") + 1]).read_text())
        return ansible.Outcome(0, {HONEST: ansible.HostResult()})

    monkeypatch.setattr(ansible, "play", play)
    code, _, err = run(verb, fleet.path, "--limit", HONEST)
    assert code == 0, err
    (inventory,) = played
    values = yaml.load(inventory, Inventory)["all"]["children"]["hosts"]["hosts"][HONEST]
    has(texts(values["gds_driver_options"]), fleet.lines)
    has(texts(json.loads(values["gds_host_expectation"])), [f"/mnt/{word}" for word in fleet.lines])
    has(texts(json.loads(values["gds_gate_settings"])), fleet.words)
    assert values["gds_cufile_log_dir"] == f"/var/log/{fleet.lines[2]}"


def test_inventory(fleet: Poisoned, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("GDSDEPLOY_STATE_DIR", str(tmp_path / "state"))
    code, _, err = run("inventory", fleet.path, "--output", tmp_path / "out")
    assert code == 0, err
    variables: dict[str, Any] = {}
    for path in (tmp_path / "out").glob("host_vars/*/gdsdeploy.yml"):
        variables |= yaml.load(path.read_text(), Inventory)
    has(texts(variables["gds_driver_options"]), fleet.lines)
    has(texts(json.loads(variables["gds_gate_settings"])), fleet.words)


def test_what_shows_something_of_it(fleet: Poisoned, run: Run, tmp_path: Path) -> None:
    code, out, err = run("cufile", "render", fleet.path, HONEST)
    assert code == 0, err
    assert fleet.lines[2] in out
    for verb in (["topology", fleet.path], ["explain", HONEST, "--fleet", fleet.path]):
        # 1: explain says that what it explains isn't there.
        assert run(*verb)[0] in {*OF_HOSTS, 1}
        assert run(*verb, "--json")[0] in {*OF_HOSTS, 1}
    bundle = tmp_path / "bundle.tar.gz"
    assert run("support-bundle", fleet.path, "-o", bundle)[0] == 0
    code, _, err = run("validate", "--from", bundle, "--json")
    assert code in OF_HOSTS, err
    assert run("lock", fleet.path, "--check")[0] != 0
    assert run("lock", fleet.path, "--explain", "kernel")[0] != 0
    assert run("kmod", "builders", fleet.path)[0] == 0
    assert run("rollout", "start", fleet.path, "--dry-run")[0] in OF_HOSTS
    for verb in (["status"], ["history"], ["pause"], ["resume"], ["abort"], ["rollback", "--yes"]):
        run("rollout", verb[0], fleet.path, *verb[1:])


def test_what_hosts_said_in_a_rollout(fleet: Poisoned, run: Run, tmp_path: Path) -> None:
    """Its journal has their words in what a step found, in why one failed and in how a host ended."""
    hosts = [f"gpu{number}" for number in range(len(fleet.words))]
    planned = plan((Wave("canary", tuple(hosts), canary=True),), settings=KEEPS)
    events_file = tmp_path / "told"
    command = ["/bin/sh", "-c", f"cat >> {events_file}", "--", "{host}", "{kind}"]
    with (
        journal.writing(journal.path_of(fleet.path), doing="try it") as writer,
        Notifier(
            Notify(command=command, events=[str(kind) for kind in Kind if kind is not Kind.PLANNED]),
            rollout=planned.id,
            fleet=fleet.path,
            warn=pytest.fail,
        ) as tell,
    ):
        writer.begin(planned)
        for host, word in zip(hosts, fleet.words, strict=True):
            error = {"kind": "HostUnfit", "message": word, "hint": word}
            found = {word: word, "findings": [word], "reason": word}
            steps = [
                (kind, host, {"step": step, "data": found})
                for step in ("preflight", "drain", "snapshot")
                for kind in (Kind.BEGIN, Kind.END)
            ]
            for kind, name, data in (
                *steps,
                (Kind.BEGIN, host, {"step": "apply"}),
                (Kind.FAIL, host, {"step": "apply", "error": error}),
                (Kind.OUTCOME, host, {"outcome": "kept", "reason": word}),
                (Kind.NOTE, host, {"text": word}),
                (Kind.HALTED, "", {"reason": word}),
            ):
                tell(writer.append(read(PAYLOADS[kind], data), name))
    events = [json.loads(line) for line in events_file.read_text().splitlines()]
    has([part for event in events for part in texts(event["data"])], fleet.words)
    page = tmp_path / "rollout.html"
    code, out, err = run("rollout", "status", fleet.path, "--json", "--html", page)
    assert code in OF_HOSTS, err
    assert fleet.lines[4] in "".join(texts(json.loads(out)))
    assert "<script>alert" not in page.read_text()
    assert "<img src=x" not in page.read_text()
    assert run("rollout", "status", fleet.path)[0] == code
    assert run("rollout", "history", fleet.path)[0] == 0
    assert run("rollout", "history", fleet.path, "--json")[0] == 0


#: Verbs that neither ask hosts nor read a fleet file or a lock, and what tries them instead.
OTHERS = {
    "doctor": "fuzz/test_fuzz.py", "fits": "unit/cli/test_fits.py",
    "cufile check": "fuzz/test_fuzz.py", "diff": "fuzz/test_fuzz.py", "gdscheck parse": "unit/test_console.py",
    "kmod audit": "fuzz/test_fuzz.py", "kmod build": "kmod", "kmod sign": "kmod", "kmod keygen": "kmod",
    "kmod enrol": "kmod", "kmod unenrol": "loopback/host/kmod", "kmod trees": "kmod",
    "lab mokmanager": "lab/test_vm_secure_boot.py",
    "kmod cache list": "loopback/test_buildcache.py",
    "kmod cache prune": "loopback/test_buildcache.py", "kmod cache verify": "loopback/test_buildcache.py",
    # Builds in a throwaway root what the profile's pins, which are typed, say; needs repositories.
    "kmod preflight": "preflight", "prometheus alerts": "no input", "prometheus dashboard": "no input",
    # Reads a lock, and needs its repositories.
    "mirror": "repos",
    "help": "no input", "sudoers": "loopback/ssh/test_rights.py",
    **{f"lab {name}": "loopback/test_lab.py" for name in ("demo", "down", "list", "plug", "setup", "ssh", "up")},
}  # fmt: skip


def test_every_verb_is_tried_with_hostile_texts() -> None:
    """By the words of both suites: a new verb is tried here, or is one of the others."""
    tried = "".join(path.read_text() for path in Path(__file__).parent.glob("test_hostile_*.py"))
    quoted = set(re.findall(r'"([a-z-]+)"', tried))
    everything = set(verbs(cli.group))
    assert OTHERS.keys() <= everything
    assert {name for name in everything - OTHERS.keys() if not set(name.split()) <= quoted} == set()
