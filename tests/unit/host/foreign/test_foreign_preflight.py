"""A host with foreign installs before a provision: what refuses it, what the plan has, and that nothing changes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import process
from gdsdeploy.host.apply import engine
from gdsdeploy.host.apply.engine import Result
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.errors import ApplyError
from gdsdeploy.host.foreign import NOTE, REFUSE, TAKE_OVER
from tests.unit.host.apply.apply_tree import tree
from tests.unit.host.foreign.foreign_hosts import ADDRESS, CLEAN, RELEASE, Host, rocky_builds, ubuntu_receives
from tests.unit.host.foreign.test_foreign_kinds import FOUND

OS = {"dpkg": ("ubuntu-24.04", 'ID=ubuntu\nVERSION_ID="24.04"\n'), "rpm": ("rocky-9", 'ID=rocky\nVERSION_ID="9.5"\n')}


def document(host: Host, **changed: Any) -> Any:
    name, text = OS[host.manager]
    host.write("/etc/os-release", text)
    desired = {
        "os": name,
        "arch": os.uname().machine,
        "manager": "apt" if host.manager == "dpkg" else "dnf",
        "kernel_release": RELEASE,
        "versions": host.locked,
        "repositories": [ADDRESS],
        **changed,
    }
    return {"version": 1, "resources": [{"resource": "preflight", "desired": desired}]}


def check(host: Host, monkeypatch: pytest.MonkeyPatch, **changed: Any) -> Result:
    desired = document(host, **changed)
    host.finish()
    monkeypatch.setattr(process, "run", host.run)
    before = tree(host.root)
    (result,) = engine.run(ManagedHost(check=True, root=str(host.root)), engine.read_resources(desired))
    assert tree(host.root) == before, "a look changes nothing"
    assert result.unknown == []
    return result


@pytest.mark.parametrize("make", [ubuntu_receives, rocky_builds])
def test_a_provisioned_host_is_let_in(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = check(make(tmp_path), monkeypatch)
    assert (result.refusals, result.report["foreign"]) == ([], {"installs": [], "unknown": []})


@pytest.mark.parametrize("name", [name for name in FOUND if not FOUND[name]["host"].startswith("debian")])
def test_only_what_would_win_refuses(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = FOUND[name]
    host, ident = CLEAN[case["host"]](tmp_path), case["finds"]["kind"]
    host.do(case["do"])
    result = check(host, monkeypatch)
    (install,) = result.report["foreign"]["installs"]
    assert (install["kind"], install["breaks"]) == (ident, install["answer"] == REFUSE)
    refused = [refusal.id for refusal in result.refusals]
    assert refused == ([f"foreign.{ident}"] if install["breaks"] else [])
    assert all(case["finds"]["trace"] in refusal.message and refusal.hint for refusal in result.refusals)


def test_the_exact_command_is_in_the_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = ubuntu_receives(tmp_path)
    host.do(FOUND["a run file's driver"]["do"])
    resources = engine.read_resources(document(host))
    host.finish()
    monkeypatch.setattr(process, "run", host.run)
    with pytest.raises(ApplyError, match="run file installed a driver") as caught:
        engine.run(ManagedHost(root=str(host.root)), resources)
    assert caught.value.kind == "refused"
    assert "run: /usr/bin/nvidia-uninstall --silent. It removes" in caught.value.hint


def test_without_a_kernel_of_the_lock_nothing_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = ubuntu_receives(tmp_path)
    host.do(FOUND["a run file's driver"]["do"])
    assert check(host, monkeypatch, kernel_release="").refusals == []
    assert "ldconfig" not in host.runs


def test_what_is_not_known_is_said_and_refuses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = rocky_builds(tmp_path)
    (tmp_path / "etc/dnf/dnf.conf").unlink()
    (tmp_path / "etc/dnf/dnf.conf").mkdir()
    result = check(host, monkeypatch)
    assert result.refusals == []
    assert result.report["foreign"]["unknown"] == ["what /etc/dnf/dnf.conf keeps out is not known"]


def test_answers_that_are_not_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = ubuntu_receives(tmp_path)
    for name in ("a tree in DKMS, added", "an edited cufile.json", "another repository"):
        host.do(FOUND[name]["do"])
    installs = check(host, monkeypatch).report["foreign"]["installs"]
    answers = {install["kind"]: install["answer"] for install in installs}
    assert answers == {"dkms-by-hand": NOTE, "repository": NOTE, "cufile-json": TAKE_OVER}
