"""Each kind of foreign install: found with its evidence, and a near miss of it that isn't."""

from __future__ import annotations

import copy
import json
import shlex
from pathlib import Path

import pytest

from gdsdeploy.host import foreign
from gdsdeploy.host.foreign import RECOGNIZERS, ForeignInstall, Locked, Trace, findings, install_from, kinds
from tests.unit.host import cases
from tests.unit.host.foreign.foreign_hosts import (
    ADDRESS,
    CLEAN,
    RELEASE,
    Host,
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
    from gdsdeploy.host.facts.document import Document
    from gdsdeploy.host.facts.packages import foreign_facts

    host = ubuntu_receives(tmp_path)
    for name in (
        "a run file's driver", "a library that programs get", "a pin that forbids the locked version",
        "a driver's container", "an edited cufile.json", "another repository", "a module that wins",
        "a tree in DKMS, added", "a run file's toolkit",
    ):  # fmt: skip
        host.do(CASES[name]["do"])
    value = host.document(monkeypatch).value
    locked = Locked(RELEASE, host.locked, (ADDRESS,))
    whole = {one.kind for one in findings(foreign_facts(Document(value)), locked)[0]}
    assert len(whole) == 9
    for section in ("files", "listings", "excerpts", "commands", "links", "modulefiles", "owners", "dkms"):
        for key in value[section]:
            less = copy.deepcopy(value)
            del less[section][key]
            installs, unknown = findings(foreign_facts(Document(less)), locked)
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


def test_a_finding_goes_through_json() -> None:
    installs = ForeignInstall("pin", (Trace("/etc/apt/preferences", "x"),), True)
    assert install_from(json.loads(json.dumps(installs.to_json()))) == installs


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"kind": "no-such", "breaks": True, "traces": []},
        {"kind": "pin", "breaks": "yes", "traces": []},
        {"kind": "pin", "breaks": True, "traces": [{"name": 1, "detail": ""}]},
        {"kind": "pin", "breaks": True, "traces": ["x"]},
        {"kind": ["pin"], "breaks": True, "traces": []},
    ],
)
def test_what_is_no_finding_is_an_error(value: object) -> None:
    with pytest.raises(ValueError, match="foreign: "):
        install_from(value)
