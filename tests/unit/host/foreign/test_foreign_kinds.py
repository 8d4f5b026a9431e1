"""Each kind of foreign install: found with its evidence, with a near miss of it, and what refuses a provision."""

from __future__ import annotations

import copy
import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import process
from gdsdeploy.host.apply import engine
from gdsdeploy.host.apply.engine import Result
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.errors import ApplyError
from gdsdeploy.host.facts.document import Document
from gdsdeploy.host.subjects import foreign
from gdsdeploy.host.subjects.foreign import (
    NOTE,
    RECOGNIZERS,
    REFUSE,
    TAKE_OVER,
    Locked,
    findings,
    kinds,
)
from gdsdeploy.host.subjects.foreign_files import ForeignFacts
from tests.unit.host import cases
from tests.unit.host.apply.apply_tree import tree
from tests.unit.host.foreign.foreign_hosts import (
    ADDRESS,
    CLEAN,
    RELEASE,
    Host,
    rocky_builds,
    ubuntu_receives,
)

OTHER = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/x86_64/"


@pytest.mark.parametrize("name", CLEAN)
def test_a_host_that_gdsdeploy_has_provisioned_has_none(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = CLEAN[name](tmp_path)
    assert host.installs(monkeypatch) == {}
    assert set(host.runs) <= {"dpkg-query", "rpm", "ldconfig"}, "programs that evidence runs anyway"


def test_a_host_without_anything_of_the_stack_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(tmp_path, "dpkg")
    for path in ("/proc/modules", "/proc/self/mountinfo"):
        host.write(path)
    assert host.installs(monkeypatch) == {}


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


CASES = cases.load("foreign/kinds")
#: Those in which one is found.
FOUND = {name: case for name, case in CASES.items() if case["finds"]}


@pytest.mark.parametrize("name", CASES)
def test_case(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    assert set(case) == {"host", "do", "finds"}
    host = CLEAN[case["host"]](tmp_path)
    host.do(case["do"])
    installs = host.installs(monkeypatch)
    if case["finds"] is None:
        assert installs == {}
        return
    (one,) = installs.values()
    assert {"kind": one.kind, "answer": one.answer, "breaks": one.breaks, "trace": case["finds"]["trace"]} == case[
        "finds"
    ]
    assert case["finds"]["trace"] in [trace.name for trace in one.traces]
    if case["host"].startswith("debian"):
        return
    # Only what would win refuses a provision.
    result = check(host, monkeypatch)
    (install,) = result.report["foreign"]["installs"]
    assert (install["kind"], install["breaks"]) == (one.kind, install["answer"] == REFUSE)
    assert [refusal.id for refusal in result.refusals] == ([f"foreign.{one.kind}"] if install["breaks"] else [])
    assert all(case["finds"]["trace"] in refusal.message and refusal.hint for refusal in result.refusals)


def test_every_kind_has_a_recognizer_and_a_case() -> None:
    assert set(RECOGNIZERS) == set(kinds()) == {case["finds"]["kind"] for case in FOUND.values()}


def test_a_tree_that_installs_itself_breaks_where_the_locked_kernel_is_still_to_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(tmp_path, "dpkg")
    for path in ("/proc/modules", "/proc/self/mountinfo"):
        host.write(path)
    host.package("bash", "5")
    host.dkms("nvidia", "570.10")
    assert host.installs(monkeypatch)["dkms-by-hand"].breaks


def test_what_is_left_out_of_the_evidence_is_unknown_and_never_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host with a driver of every kind; without one record, each kind is found or not decided."""
    host = ubuntu_receives(tmp_path)
    for name in (
        "a run file's driver", "a library that programs get", "a pin that forbids the locked version",
        "a driver's container", "an edited cufile.json", "another repository", "a module that wins",
        "a tree in DKMS, added", "a run file's toolkit",
    ):  # fmt: skip
        host.do(CASES[name]["do"])
    value = host.document(monkeypatch).value
    locked = Locked(RELEASE, host.locked, (ADDRESS,))
    whole = {one.kind for one in findings(ForeignFacts(Document(value)), locked)[0]}
    assert len(whole) == 9
    for section in ("files", "listings", "excerpts", "commands", "links", "modulefiles", "owners", "dkms"):
        for key in value[section]:
            less = copy.deepcopy(value)
            del less[section][key]
            installs, unknown = findings(ForeignFacts(Document(less)), locked)
            assert whole == {one.kind for one in installs} or unknown or key in ONLY_WORDS, (section, key)


#: Records that only add words, or without which a file counts as foreign.
ONLY_WORDS = ("/var/log/nvidia-installer.log", "/var/lib/dpkg/status")


def test_names_of_a_host_are_quoted_and_never_templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = ubuntu_receives(tmp_path)
    name = "nvidia$(touch x){release}\x1b[31m"
    host.dkms(name, "1; reboot")
    host.module("updates/aaa {commands}/nvidia.ko", "nvidia")
    installs = host.installs(monkeypatch)
    text = foreign.way_out(installs["dkms-by-hand"], RELEASE)
    assert "\x1b" not in text + foreign.sentence(installs["dkms-by-hand"])
    command = text.partition("run: ")[2].partition("; then")[0]
    assert shlex.split(command) == ["dkms", "remove", "nvidia$(touch x){release}\\u001b[31m/1; reboot", "--all"]
    assert "'/lib/modules/" in foreign.way_out(installs["module-without-record"], RELEASE)
    assert "{commands}" in foreign.way_out(installs["module-without-record"], RELEASE)


def test_a_password_in_an_address_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = ubuntu_receives(tmp_path)
    host.write("/etc/apt/sources.list.d/o.list", f"deb {OTHER.replace('://', '://me:secret@')} /\n")
    host.write("/etc/apt/sources.list.d/site.list", "deb https://me:hidden@mirror.example/debian bookworm main\n")
    document = host.document(monkeypatch)
    assert "hidden" not in json.dumps(document.value), "only lines about a driver's repository are kept"
    assert "secret" not in str(host.installs(monkeypatch))


@pytest.mark.parametrize("make", [ubuntu_receives, rocky_builds])
def test_a_provisioned_host_is_let_in(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = check(make(tmp_path), monkeypatch)
    assert (result.refusals, result.report["foreign"]) == ([], {"installs": [], "unknown": []})


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
