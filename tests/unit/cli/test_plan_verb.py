"""``gdsdeploy plan`` and what provision makes of it, against real SSH servers on loopback that lead to this machine."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from loopback_fleet import LoopbackFleet
from loopback_sshd import Sshd, free_port

from gdsdeploy import converge, planning
from gdsdeploy.errors import ChangesPending, ChecksUnknown, GdsError, HostUnfit, HostUnreachable
from gdsdeploy.host.evidence import managed
from gdsdeploy.host.evidence.managed import collect_survey
from gdsdeploy.host.facts import Unknown
from gdsdeploy.host.facts.managed import Entry, managed_facts
from gdsdeploy.host.survey import Survey
from gdsdeploy.plan import Action, HostPlan
from gdsdeploy.provision import only_converges
from tests import commandline

RIGHT = {"profile": "right"}
#: The fleet is locked for Debian 13, which this machine need not run.
REFUSED = platform.freedesktop_os_release().get("VERSION_ID") != "13"
Make = Callable[..., LoopbackFleet]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def made(sshd: Callable[..., Sshd], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("GDSDEPLOY_STATE_DIR", str(tmp_path / "state"))

    def make(**hosts: dict[str, Any]) -> LoopbackFleet:
        return LoopbackFleet(tmp_path, sshd(), hosts)

    return make


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return lambda *argv: (commandline.run(*argv), *capsys.readouterr())


def test_each_host_is_asked_once_and_a_lost_one_keeps_nobody_back(made: Make, run: Run) -> None:
    fleet = made(gpu1=RIGHT, gpu2=RIGHT, gone={**RIGHT, "port": free_port()})
    code, out, err = run("plan", fleet.path, "--limit", "gpu*,gone")
    assert code == (HostUnreachable if REFUSED else ChangesPending).exit_code
    assert fleet.sessions() == 2
    table = out.splitlines()[:4]
    assert [line.split()[0] for line in table] == ["host", "gone", "gpu1", "gpu2"]
    assert "  - write /usr/lib/gdsdeploy/gdsdeploy-host.pyz (put the host program in place)\n      found missing" in out
    assert "! gone:" in out
    assert out.rstrip().endswith("1 not asked")
    assert ("error:" in err) == REFUSED, "pending changes are no error"
    assert not Path("/usr/lib/gdsdeploy").exists(), "a plan touches nothing"


def test_json_has_every_action_with_reason_and_disruption(made: Make, run: Run) -> None:
    fleet = made(gpu1=RIGHT)
    code, out, _ = run("plan", fleet.path, "--limit", "gpu1", "--json")
    assert code == (HostUnfit if REFUSED else ChangesPending).exit_code
    (host,) = json.loads(out)["hosts"].values()
    assert host["state"] == ("refused" if REFUSED else "changes")
    assert all(set(action) == {"role", "what", "found", "wanted", "disruption"} for action in host["actions"])
    assert {"gds_host", "gds_cufile", "gds_modules"} <= {action["role"] for action in host["actions"]}


def test_what_the_user_gave_is_wrong(made: Make, run: Run) -> None:
    fleet = made(gpu1=RIGHT)
    code, _, err = run("plan", fleet.path, "--limit", "gpu7")
    assert code == 10
    assert "no host 'gpu7'" in err
    code, _, _ = run("plan", fleet.path.with_name("none.yml"))
    assert code == 10
    assert fleet.sessions() == 0


ACTION = Action("gds_cufile", "write /etc/cufile.json", "other content", "sha256 …")


@pytest.mark.parametrize(
    ("plans", "code"),
    [
        ([HostPlan("a"), HostPlan("b")], 0),
        ([HostPlan("a", (ACTION,)), HostUnreachable("x")], ChangesPending.exit_code),
        ([HostPlan("a", unknown=("why",)), HostUnreachable("x")], HostUnreachable.exit_code),
        ([HostPlan("a", (ACTION,), refusal="it runs another system")], HostUnfit.exit_code),
        ([HostPlan("a"), HostPlan("b", unknown=("why",))], ChecksUnknown.exit_code),
    ],
)
def test_exit_codes(
    plans: list[HostPlan | GdsError], code: int, made: Make, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = planning.Planned({f"h{i}": item for i, item in enumerate(plans)}, {})
    monkeypatch.setattr("gdsdeploy.cli.plan.plan_fleet", lambda *_, **__: found)
    ended, out, err = run("plan", made(gpu1=RIGHT).path)
    assert ended == code
    assert "Traceback" not in err
    assert f"of {len(plans)} hosts: nothing to do" in out


# --- provision -------------------------------------------------------------------------------------------------------


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replaces the look at the hosts, and Ansible, which ends the run by saying what it was started with."""

    def replace(**plans: HostPlan | GdsError) -> None:
        def play(command: list[str], *_: object, **__: object) -> None:
            raise GdsError(f"played {command[command.index('--limit') + 1]}")

        found = planning.Planned(plans, {})
        monkeypatch.setattr("gdsdeploy.provision.plan_fleet", lambda *_, **__: found)
        monkeypatch.setattr(converge, "play", play)

    return replace


def test_hosts_that_have_nothing_to_change_start_no_ansible(made: Make, run: Run, planned: Callable[..., None]) -> None:
    fleet = made(gpu1=RIGHT, gpu2=RIGHT)
    planned(gpu1=HostPlan("gpu1"), gpu2=HostPlan("gpu2"))
    code, out, err = run("provision", fleet.path, "--limit", "gpu*", "--json")
    assert code == 0, err
    assert "Nothing to change" in err
    found = json.loads(out)
    assert found["satisfied"] == ["gpu1", "gpu2"]
    assert found["log"] is None


@pytest.mark.parametrize(
    "lacking", [HostPlan("gpu2", (ACTION,)), HostPlan("gpu2", unknown=("why",)), HostPlan("gpu2", refusal="why")]
)
def test_only_hosts_that_lack_something_are_converged(
    lacking: HostPlan, made: Make, run: Run, planned: Callable[..., None]
) -> None:
    planned(gpu1=HostPlan("gpu1"), gpu2=lacking)
    _, _, err = run("provision", made(gpu1=RIGHT, gpu2=RIGHT).path, "--limit", "gpu*")
    assert "played gpu2" in err.splitlines()[-1]


def test_a_lost_host_is_said_and_keeps_nobody_back(made: Make, run: Run, planned: Callable[..., None]) -> None:
    planned(gpu1=HostPlan("gpu1"), gpu2=HostUnreachable("gpu2: gone"))
    code, _, err = run("provision", made(gpu1=RIGHT, gpu2=RIGHT).path, "--limit", "gpu*")
    assert code == HostUnreachable.exit_code
    assert "gpu1: nothing to change" in err


@pytest.mark.parametrize("flag", ["--force-roles", "--check", "--tags=x"])
def test_flags_that_ask_for_the_roles_get_them(flag: str, made: Make, run: Run, planned: Callable[..., None]) -> None:
    planned(gpu1=HostPlan("gpu1"))
    _, _, err = run("provision", made(gpu1=RIGHT).path, "--limit", "gpu1", flag)
    assert "played gpu1" in err


@pytest.mark.parametrize(
    ("flags", "harmless"),
    [
        ([], True), (["-v"], True), (["-vvv", "--forks", "4"], True), (["--forks=4", "-T", "9"], True),
        (["-f10"], True), (["--check"], False), (["-C"], False), (["-D"], False), (["-e", "a=b"], False),
        (["--forks", "4", "-t", "x"], False), (["--skip-tags=x"], False), (["--list-tasks"], False), (["-vC"], False),
    ],
)  # fmt: skip
def test_which_flags_leave_it_at_converging(flags: list[str], harmless: bool) -> None:
    assert only_converges(flags) is harmless


# --- the host's side -------------------------------------------------------------------------------------------------


def test_a_survey_of_this_machine(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("abc")
    text.chmod(0o640)
    paths = [str(text), str(tmp_path), str(tmp_path / "none"), str(text / "below")]
    commands = {"__gds_x": ["echo", "one"], "__gds_y": ["/nowhere/program"]}
    survey = Survey("0.0.0-none", paths, commands, ["dpkg"], True, ["nvidia"], "/nowhere.tar", ["nvidia/1"], True, "1")
    facts = managed_facts(json.loads(json.dumps(collect_survey(survey))))
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert facts.path(paths[0]) == Entry("file", "0640", os.geteuid(), os.getegid(), digest)
    folder = facts.path(paths[1])
    assert isinstance(folder, Entry)
    assert (folder.kind, folder.sha256) == ("folder", "")
    assert facts.path(paths[2]) is None
    assert facts.path(paths[3]) is None
    assert isinstance(facts.path("/never/asked"), Unknown)
    said = facts.commands["__gds_x"]
    assert not isinstance(said, Unknown)
    assert said.stdout == "one\n"
    assert isinstance(facts.commands["__gds_y"], Unknown)
    assert not isinstance(facts.packages.installed, Unknown)
    assert "dpkg" in facts.packages.installed
    for question in ("boot-default", "modules", "audit"):
        assert isinstance(facts.answer(question), Unknown), question
    running = facts.answer("reboot")
    assert not isinstance(running, Unknown)
    assert running["needed"] is True
    assert facts.answer("dkms") == {"installed": []}
    assert facts.gaps == ()


def test_dkms_has_installed_what_it_built_and_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "nvidia-fs" / "2.19.7" / "6.12" / "x86_64" / "module"
    folder.mkdir(parents=True)
    there: dict[str, list[str]] = {}
    monkeypatch.setattr(managed, "DKMS", str(tmp_path))
    monkeypatch.setattr(managed, "_kernel", lambda _: SimpleNamespace(by_name=there))
    survey = Survey("6.12", [], {}, [], False, [], "", ["nvidia-fs/2.19.7"])

    def installed() -> object:
        answer = managed_facts(collect_survey(survey)).answer("dkms")
        assert not isinstance(answer, Unknown)
        return answer["installed"]

    assert installed() == [], "nothing is built"
    for name in ("nvidia-fs.ko.xz", "other.ko"):
        (folder / name).touch()
    there["nvidia_fs"] = ["updates/dkms/nvidia-fs.ko.xz"]
    assert installed() == [], "one of two was taken away"
    there["other"] = ["updates/dkms/other.ko"]
    assert installed() == ["nvidia-fs/2.19.7"]
