"""A host with apt in a folder: programs are imitated, and what they are asked is written down."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import process
from gdsdeploy.host.apply import engine, registry
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.packages import managers
from gdsdeploy.host.errors import HostError
from gdsdeploy.host.process import Output
from tests.unit.host import expect

SHA = "a" * 64


@dataclass
class AptHost:
    """``packages``: name → version and dpkg's state; ``offered``: name=version → sha256 that apt-cache shows."""

    root: Path
    packages: dict[str, tuple[str, str]] = field(default_factory=dict)
    offered: dict[str, str] = field(default_factory=dict)
    candidates: dict[str, str] = field(default_factory=dict)
    #: what apt-cache pkgnames prints
    names: list[str] = field(default_factory=list)
    targets: str = ""
    #: what simulations print; None: what the words of the transaction say
    simulated: str | None = None
    #: name → further lines of its stanza, which apt-cache shows, and of its entry in dpkg's status
    stanzas: dict[str, str] = field(default_factory=dict)
    #: packages that count as dependencies
    automatic: set[str] = field(default_factory=set)
    #: beginning of a command → what it ends with
    failing: dict[str, Output] = field(default_factory=dict)
    #: beginnings of commands that fail the next time only
    failing_once: set[str] = field(default_factory=set)
    #: commands that change something
    changed: list[str] = field(default_factory=list)
    #: words of each simulated transaction, from the verb on
    simulations: list[str] = field(default_factory=list)
    environments: list[dict[str, Any]] = field(default_factory=list)

    def write(self, path: str, text: str) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def text(self, path: str) -> str:
        file = self.root / path.lstrip("/")
        return file.read_text() if file.is_file() else ""

    def run(self, argv: list[str], timeout: float, env: Any = None, **_: Any) -> Output:
        words = [str(word) for word in argv]
        line = " ".join(words)
        for beginning, done in self.failing.items():
            if line.startswith(beginning):
                return done
        for beginning in [beginning for beginning in self.failing_once if line.startswith(beginning)]:
            self.failing_once.remove(beginning)
            return Output(100, "", "E: Cache is out of sync, can't x-ref a package file")
        if words[:2] == ["dpkg-query", "--show"]:
            return Output(0, "".join(self._relations(name) for name in words[words.index("--") + 1 :]), "")
        if words == ["apt-mark", "showmanual"]:
            return Output(0, "".join(f"{name}\n" for name in sorted(self.packages.keys() - self.automatic)), "")
        if words[0] == "dpkg-query":
            everything = [(*n.partition(":")[::2], *state) for n, state in sorted(self.packages.items())]
            rows = [f"{n}\t{a or 'all'}\t{v}\t{s:3}\n" for n, a, v, s in everything]
            return Output(0, "".join(rows), "")
        if words[0] == "apt-cache" and "show" in words:
            return self._show(words[words.index("--") + 1 :])
        if words[:2] == ["apt-cache", "policy"]:
            rows = [f"{n}:\n  Installed: (none)\n  Candidate: {self.candidates.get(n, '(none)')}\n" for n in words[3:]]
            return Output(0, "".join(rows), "")
        if words == ["apt-cache", "pkgnames"]:
            return Output(0, "".join(f"{name}\n" for name in self.names), "")
        if words[:2] == ["apt-get", "indextargets"]:
            return Output(0, self.targets, "")
        if "--simulate" in words:
            self.simulations.append(" ".join(words[next(words.index(w) for w in ("install", "purge") if w in words) :]))
            return Output(0, self._simulate(words) if self.simulated is None else self.simulated, "")
        self.changed.append(line)
        self.environments.append(dict(env or {}))
        self._change(words)
        return Output(0, "", "")

    def _show(self, names: list[str]) -> Output:
        stanzas = [
            f"Package: {bare}\nArchitecture: {architecture}\nVersion: {version}\nSHA256: {self.offered[name]}\n"
            + self.stanzas.get(name, "")
            for name in names
            if name in self.offered
            for bare, architecture, version in re.findall("^([^:]*):?(.*)=(.*)$", name)
        ]
        return Output(0 if len(stanzas) == len(names) else 100, "\n".join(stanzas), "")

    def _relations(self, name: str) -> str:
        fields = dict(line.split(": ", 1) for line in self.stanzas.get(name, "").splitlines())
        bare, _, architecture = name.partition(":")
        return f"{bare}\t{architecture}\t{fields.get('Provides', '')}\t, {fields.get('Depends', '')}\n"

    def _simulate(self, words: list[str]) -> str:
        lines = []
        for word in words[max(words.index(w) for w in ("install", "purge") if w in words) + 1 :]:
            name, equals, version = word.partition("=")
            if equals:
                current = self.packages.get(name, ("", "un"))[0]
                lines.append(f"Inst {name} " + (f"[{current}] " if current else "") + f"({version} stack [all])")
            else:
                lines.append(f"Remv {name.rstrip('-')} [{self.packages[name.rstrip('-')][0]}]")
        return "\n".join(lines) + "\n"

    def _change(self, words: list[str]) -> None:
        if words[:2] in (["apt-mark", "hold"], ["apt-mark", "unhold"]):
            letter = "h" if words[1] == "hold" else "i"
            for name in words[2:]:
                self.packages[name] = (self.packages[name][0], letter + self.packages[name][1][1:])
        elif words[:2] == ["apt-mark", "auto"]:
            self.automatic.update(words[2:])
        elif "install" in words:
            for word in words[words.index("install") + 1 :]:
                name, equals, version = word.partition("=")
                if equals:
                    self.packages[name] = (version, "ii")
                    # apt marks what is asked for.
                    self.automatic.discard(name)
                else:
                    self.packages.pop(name.rstrip("-"))
        elif "purge" in words or "--purge" in words:
            for name in words[words.index("purge" if "purge" in words else "--purge") + 1 :]:
                self.packages.pop(name)
        elif "--configure" in words:
            self.packages = {n: (v, "ii" if s[1] in "UF" else s) for n, (v, s) in self.packages.items()}

    def prepare(self, given: dict[str, Any]) -> None:
        """Change what a case says: entries of mappings, null takes one out; all of everything else."""
        for path, text in given.get("files", {}).items():
            self.write(path, text)
        for name, value in given.items():
            if name == "files":
                continue
            if name == "packages":
                value = {key: state and tuple(state) for key, state in value.items()}
            if name == "failing":
                value = {key: Output(*words) for key, words in value.items()}
            if isinstance(value, dict):
                value = {**getattr(self, name), **value}
                value = {key: entry for key, entry in value.items() if entry is not None}
            setattr(self, name, value)

    # What a test does with it

    def items(self, *resources: dict[str, Any]) -> list[engine.DesiredResource]:
        return engine.read_resources({"version": 1, "resources": list(resources)})

    def check(self, *resources: dict[str, Any]) -> list[engine.Result]:
        return engine.run(ManagedHost(check=True, root=str(self.root)), self.items(*resources))

    def apply(self, *resources: dict[str, Any]) -> list[engine.Result]:
        self.changed.clear()
        self.environments.clear()
        return engine.run(ManagedHost(root=str(self.root)), self.items(*resources))


def packages(instance: str = "driver", **desired: Any) -> dict[str, Any]:
    """The resource ``packages`` in a document; lists are of NAME=VERSION."""
    lists = {
        key: [dict(zip(("package", "version"), word.split("="), strict=True)) for word in desired[key].split()]
        for key in ("packages", "dependents", "superseded")
        if key in desired
    }
    names = {key: desired[key].split() for key in ("locked", "removes") if key in desired}
    return {
        "resource": "packages",
        "instance": instance,
        "desired": {"manager": desired.get("manager", "apt"), **names, **lists},
    }


def short(results: list[engine.Result]) -> list[str]:
    """The changes in words, one each."""
    lines = []
    for result in results:
        assert not result.unknown, result.unknown
        for change in result.changes:
            versions = re.sub(r"^>|>$", "", f"{change.before}>{change.after}")
            lines.append(f"{change.kind} {change.subject} {versions} {change.reason}".strip())
    return lines


#: How a transaction of packages begins; cases write "apt-get … install".
TRANSACTION = (
    "apt-get --quiet --assume-yes --option=DPkg::Lock::Timeout=300 --option=Dpkg::Options::=--force-confdef "
    "--option=Dpkg::Options::=--force-confold --no-install-recommends --allow-downgrades --allow-change-held-packages "
    "install "
)
MADE = ("packages", "changed", "simulations")
Maker = Callable[[str, Any], dict[str, Any]]


def converges(apt: AptHost, *resources: dict[str, Any]) -> list[str]:
    """The changes that a check predicts, which are those that are made, and which leave nothing to do."""
    expected = short(apt.check(*resources))
    assert short(apt.apply(*resources)) == expected
    done = list(apt.changed)
    assert short(apt.check(*resources)) == []
    assert short(apt.apply(*resources)) == []
    assert apt.changed == []
    apt.changed = done
    return expected


def revert(apt: AptHost, *names: str, check: bool = False) -> list[str]:
    """What taking these resources back changes."""
    host = ManagedHost(check=check, root=str(apt.root))
    apt.changed.clear()
    changes = [change for name in names for change in registry.resource(name).revert(host)]
    return [f"{change.kind} {change.subject}" for change in changes]


def run_case(apt: AptHost, case: Any, make: Maker, *reverted: str) -> None:
    """A case of tests/cases/apply.  make: the document of a resource, by its name and what the case says of it."""
    steps = case if isinstance(case, list) else [case]
    assert set(steps[-1]) - {"given", "do", "resources"}, "the last step expects something"
    for number, step in enumerate(steps, 1):
        given, wanted = step.get("given", {}), {k: v for k, v in step.items() if k not in ("given", "do", "resources")}
        apt.prepare(given)
        resources = [make(name, value) for one in step.get("resources", []) for name, value in one.items()]
        found = _done(apt, step["do"], resources, reverted)
        assert ("error" in found) == ("error" in wanted), (number, found)
        found |= {name: getattr(apt, name) for name in MADE}
        found["packages"] = {name: list(state) for name, state in apt.packages.items()}
        found["changed"] = [line.replace(TRANSACTION, "apt-get … install ") for line in apt.changed]
        found["texts"] = {path: apt.text(path) for path in wanted.get("texts", {})}
        for key in ("packages", "changed"):
            assert key not in wanted or found[key] == wanted[key], (number, key, found[key])
        for difference in expect.differences(wanted, found, ""):
            pytest.fail(f"look {number}: {difference}", pytrace=False)


def _done(apt: AptHost, verb: str, resources: list[dict[str, Any]], reverted: Sequence[str]) -> dict[str, Any]:
    """What came of it: the changes in words, refusals, what is unknown, and the error."""
    if verb == "converge":
        return {"changes": converges(apt, *resources)}
    if verb.startswith("revert"):
        return {"changes": revert(apt, *reverted, check=verb.endswith("check"))}
    try:
        results = apt.check(*resources) if verb == "check" else apt.apply(*resources)
    except HostError as error:
        kind = getattr(error, "kind", "")
        return {"error": {"type": type(error).__name__, "kind": kind, "message": error.message, "hint": error.hint}}
    unknown = [reason for result in results for reason in result.unknown]
    changes = [] if unknown else [re.sub(r"sha256:[0-9a-f]{64} ", "", line) for line in short(results)]
    refusals = [vars(refusal) for result in results for refusal in result.refusals]
    return {"changes": changes, "refusals": refusals, "unknown": unknown}


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AptHost:
    """Nothing is installed, and nobody holds a lock."""
    host = AptHost(tmp_path / "root")
    host.write("/var/lib/dpkg/status", "")
    for folder in ("boot", "lib/modules", "var", "usr"):
        (host.root / folder).mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(process, "run", host.run)
    monkeypatch.setattr(managers.time, "sleep", lambda _: None)
    monkeypatch.setattr(managers, "_explain_build", lambda *_: None)
    return host
