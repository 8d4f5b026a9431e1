"""Where dnf resolves nothing, nothing changes; and its list of locks; dnf is imitated, and real in tests/pins."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import process
from gdsdeploy.host.apply import engine
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.packages import managers
from gdsdeploy.host.apply.packages.dnf import CONFLICT, LOCKS, METADATA, MISSING, Dnf, merge_locks
from gdsdeploy.host.errors import ApplyError
from gdsdeploy.host.process import Output
from tests.unit.host.apply.apt_host import packages


@dataclass
class DnfHost:
    """``moves``: what dnf resolves; ``answers``: what it prints in their place, in order."""

    root: Path
    packages: dict[str, str] = field(default_factory=dict)
    moves: list[list[Any]] = field(default_factory=list)
    answers: list[Output] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)

    def run(self, argv: list[str], *_: Any, **__: Any) -> Output:
        words = [str(word) for word in argv]
        if words[0] == "rpm":
            rows = [
                f"{name}\t{os.uname().machine}\t{v}\tii \n" for name, vs in self.packages.items() for v in vs.split()
            ]
            return Output(0, "".join(rows), "")
        if words[1:3] == ["-I", "-c"]:
            self.requests.append(json.loads(words[-1]))
            answer = json.dumps({"moves": self.moves, "erases": False})
            return self.answers.pop(0) if self.answers else Output(0, answer, "")
        if "repoquery" in words:
            return Output(0, "driver\n", "")
        self.changed.append(" ".join(words))
        for kind, name, _before, after, *_ in self.moves:
            if kind == "remove":
                self.packages.pop(name, None)
            else:
                self.packages[name] = after.removeprefix("0:")
        return Output(0, "", "")

    def check(self, *resources: dict[str, Any]) -> list[engine.Result]:
        return engine.run(ManagedHost(check=True, root=str(self.root)), self.read(*resources))

    def apply(self, *resources: dict[str, Any]) -> list[engine.Result]:
        return engine.run(ManagedHost(root=str(self.root)), self.read(*resources))

    def read(self, *resources: dict[str, Any]) -> list[engine.DesiredResource]:
        return engine.read_resources({"version": 1, "resources": list(resources)})


@pytest.fixture
def dnf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DnfHost:
    host = DnfHost(tmp_path / "root")
    for folder in ("boot", "lib/modules", "var/lib/rpm", "usr", "etc/yum.repos.d"):
        (host.root / folder).mkdir(parents=True)
    monkeypatch.setattr(process, "run", host.run)
    monkeypatch.setattr(managers, "_explain_build", lambda *_: None)
    return host


DRIVER = packages(manager="dnf", packages="driver=3:2-1")
UPGRADE = ["upgrade", "driver", "3:1-1", "3:2-1", "", ""]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Output(0, json.dumps({"problem": "conflict", "text": "\n Problem: a conflicts\n  with b"}), ""), "refused"),
        (Output(0, json.dumps({"problem": "metadata", "text": "no answer"}), ""), "failed"),
        (Output(0, json.dumps({"problem": "unheard of", "text": ""}), ""), "io"),
        (Output(1, "", "ModuleNotFoundError: No module named 'dnf'"), "io"),
        (Output(0, "[]", ""), "io"),
        (Output(0, json.dumps({"moves": [["explode", "a", "1", "2", "", ""]], "erases": False}), ""), "io"),
        (Output(0, json.dumps({"moves": [["install", "a"]], "erases": False}), ""), "io"),
        (Output(0, json.dumps({"moves": []}), ""), "io"),
    ],
)
def test_without_a_solution_nothing_changes(dnf: DnfHost, answer: Output, kind: str) -> None:
    dnf.packages = {"driver": "3:1-1"}
    dnf.answers = [answer] * 9
    (result,) = dnf.check(DRIVER)
    assert (result.changes, len(result.unknown)) == ([], 1)
    assert result.report == {"removals": {"known": False, "why": result.unknown[0]}}
    with pytest.raises(ApplyError) as caught:
        dnf.apply(DRIVER)
    assert (caught.value.kind, dnf.changed) == (kind, [])
    assert "\n" not in caught.value.message


def test_dnf_is_not_asked_where_it_would_wait_at_a_pipe(dnf: DnfHost) -> None:
    dnf.packages = {"driver": "3:1-1"}
    os.mkfifo(dnf.root / "etc/yum.repos.d/other.repo")
    assert dnf.check(DRIVER)[0].unknown == ["/etc/yum.repos.d/other.repo: is not a file"]
    assert dnf.requests == []


INDEX = {"repository": "x", "uri": "http://x", "suite": "", "components": [], "host_keyring": "/etc/pki/rpm-gpg/K"}
PINS = {"pins": [{"package": "driver", "version": "3:2-1"}], "indices": [INDEX]}


def test_a_look_loads_nothing(dnf: DnfHost) -> None:
    dnf.packages, dnf.moves = {"driver": "3:1-1"}, [UPGRADE]
    dnf.check(DRIVER)
    dnf.apply(DRIVER)
    assert [request["cached"] for request in dnf.requests] == [True, False]


def test_problems_of_both_programs_have_the_same_names() -> None:
    from gdsdeploy.host.apply.packages import dnf_child

    kinds = (dnf_child.MISSING, dnf_child.CONFLICT, dnf_child.METADATA)
    assert kinds == (MISSING, CONFLICT, METADATA)


OTHERS = b"# of ours, f\xfcr Test\ntzdata-0:2024a-1.el9.*\n"
#: As of two locks.
PINS_OF = {
    version: {**PINS, "pins": [{"package": "driver", "version": version}], "deny": ["other"]}
    for version in ("3:2-1", "3:3-1")
}


@pytest.fixture
def pinned(dnf: DnfHost, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An administrator's list: a link, to a file with a group, attributes, and bytes that aren't UTF-8."""
    monkeypatch.setattr(Dnf, "verify_pins", lambda *_: None)
    for name in ("etc/dnf/plugins", "etc/dnf/modules.d", "opt/site"):
        (dnf.root / name).mkdir(parents=True, exist_ok=True)
    (dnf.root / "etc/dnf/plugins/versionlock.conf").touch()
    place = dnf.root / "opt/site/locks"
    place.write_bytes(OTHERS)
    place.chmod(0o640)
    os.setxattr(place, "user.site", b"managed")
    (dnf.root / LOCKS.lstrip("/")).symlink_to("/opt/site/locks")
    return place


def pin(dnf: DnfHost, version: str) -> list[str]:
    desired = {"manager": "dnf", "modules": [], "indices": [], **PINS_OF[version]}
    desired["modules"] = []
    resources = dnf.read({"resource": "pins", "desired": desired})
    changes = engine.run(ManagedHost(root=str(dnf.root)), resources)[0].changes
    assert engine.run(ManagedHost(root=str(dnf.root)), resources)[0].changes == []
    return [change.kind for change in changes]


def state(place: Path) -> tuple[object, ...]:
    status = place.stat()
    return place.read_bytes(), status.st_mode, status.st_uid, status.st_gid, os.getxattr(place, "user.site")


def unpin(dnf: DnfHost) -> None:
    predicted = Dnf().unpin(ManagedHost(check=True, root=str(dnf.root)))
    assert Dnf().unpin(ManagedHost(root=str(dnf.root))) == predicted
    assert Dnf().unpin(ManagedHost(root=str(dnf.root))) == []
    assert (dnf.root / LOCKS.lstrip("/")).is_symlink()


def test_a_list_of_locks_comes_back_exactly(dnf: DnfHost, pinned: Path) -> None:
    pinned.write_bytes(OTHERS.rstrip(b"\n"))
    before = state(pinned)
    assert pin(dnf, "3:2-1") == ["write"]
    assert b"driver-3:2-1.*\nother-0:0-0.none\n" in pinned.read_bytes()
    unpin(dnf)
    assert state(pinned) == before


def test_what_others_have_changed_since_a_killed_run_stays(dnf: DnfHost, pinned: Path) -> None:
    """It had recorded the list, and hadn't written it yet; a removal would put back what is on record."""
    ManagedHost(root=str(dnf.root)).record.remember("/opt/site/locks")
    pinned.write_bytes(OTHERS + b"own-0:1-1.*\n")
    unpin(dnf)
    assert pinned.read_bytes() == OTHERS + b"own-0:1-1.*\n"
    assert ManagedHost(root=str(dnf.root)).record.paths == {}


def test_our_locks_are_known_without_their_marks(dnf: DnfHost, pinned: Path) -> None:
    """`dnf versionlock delete` writes back only what is no remark."""
    pin(dnf, "3:2-1")
    lines = pinned.read_bytes().splitlines(keepends=True)
    own = b"own-0:1-1.*\ndriver-3:1-1.*\n"
    pinned.write_bytes(b"".join(line for line in lines if not line.startswith(b"#")) + own)
    pin(dnf, "3:3-1")
    assert b"3:2-1" not in pinned.read_bytes()
    unpin(dnf)
    assert pinned.read_bytes() == b"tzdata-0:2024a-1.el9.*\n" + own


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("a\n# BEGIN gdsdeploy\nx\nb\n# BEGIN gdsdeploy\nx\n# END gdsdeploy\nc\n", "a\nx\nb\nc\n"),
        ("x\n# BEGIN gdsdeploy\nx\n# END gdsdeploy\nc\n", "x\nc\n"),
        ("x\na\nx\nb\n", "x\na\nb\n"),
        ("a\n# END gdsdeploy\nx\nb", "a\nb"),
    ],
    ids=["a mark without its other one", "a line that others have, too", "the last of both", "an end alone"],
)
def test_lines_of_others_stay(text: str, rest: str) -> None:
    assert merge_locks(text, [], ["x"]) == rest
    again = merge_locks(merge_locks(text, ["y"], ["x"]), [], ["y"])
    assert again == rest
