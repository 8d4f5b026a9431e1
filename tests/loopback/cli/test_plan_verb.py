"""``gdsdeploy plan`` and what provision makes of it, against real SSH servers on loopback that lead to this machine."""

from __future__ import annotations

import dataclasses
import json
import platform
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy import resources
from gdsdeploy.converge import ansible, plan_fleet
from gdsdeploy.converge.diff import HostPlan
from gdsdeploy.converge.machine import RunFiles
from gdsdeploy.errors import ChangesPending, ChecksUnknown, FleetInvalid, GdsError, HostUnfit, HostUnreachable
from gdsdeploy.host.apply.model import Change, Refusal
from gdsdeploy.host.paths import IMEX_NODES
from gdsdeploy.lock import lockfile
from gdsdeploy.model.lock import Package
from tests.commandline import Run
from tests.loopback.loopback_fleet import LoopbackFleet
from tests.loopback.loopback_sshd import free_port

RIGHT = {"profile": "right"}
IMEX = Package(
    package="nvidia-imex", version="550.1-1", architecture="amd64", part="companion", needed_by="host",
    file="pool/nvidia-imex.deb", size=1, sha256="0" * 64, repository="cuda", suite="", component="",
)  # fmt: skip
#: The fleet is locked for Debian 13, which this machine need not run.
REFUSED = platform.freedesktop_os_release().get("VERSION_ID") != "13"
Make = Callable[..., LoopbackFleet]


pytestmark = pytest.mark.usefixtures("own_folders")


def test_a_lost_host_keeps_no_other_back(make_fleet: Make, run: Run) -> None:
    fleet = make_fleet(gpu1=RIGHT, gpu2=RIGHT, gone={**RIGHT, "port": free_port()})
    code, out, err = run("plan", fleet.path, "--limit", "gpu*,gone")
    assert code == (HostUnreachable if REFUSED else ChangesPending).exit_code
    # Their builder isn't in this run, so each says in a second session what building would change.
    assert fleet.sessions() == 4
    first, _, *table = out.splitlines()[:5]
    assert first.endswith("1 not asked")
    assert [line.split()[0] for line in table] == ["host", "gone", "gpu[1-2]"]
    assert "  - write /usr/lib/gdsdeploy/gdsdeploy-host.pyz: found missing" in out
    assert "! gone:" in out
    assert ("error:" in err) == REFUSED, "pending changes are no error"
    assert not Path("/usr/lib/gdsdeploy").exists(), "a plan touches nothing"


def test_a_link_to_the_fleet_file_stands_for_it(make_fleet: Make, run: Run, tmp_path: Path) -> None:
    """Its lock, its rules and its relative names are those in the file's own folder, for every reader."""
    fleet = make_fleet(gpu1=RIGHT)
    value = fleet.path.read_text()
    for place in (fleet.server.identity, fleet.server.known_hosts):
        shutil.copy(place, tmp_path)
        value = value.replace(str(place), place.name)
    fleet.path.write_text(value)
    (tmp_path / "fleet.compat.yml").write_text("rules: 7\n")
    link = tmp_path / "mounted" / "production.yml"
    link.parent.mkdir()
    link.symlink_to("../fleet.yml")
    code, _, err = run("plan", link, "--limit", "gpu1")
    assert (code, f"{tmp_path / 'fleet.compat.yml'}:1" in err) == (FleetInvalid.exit_code, True)
    (tmp_path / "fleet.compat.yml").unlink()
    (code, out, err), (same, direct, _) = (
        run("plan", path, "--limit", "gpu1", "--json") for path in (link, fleet.path)
    )
    assert (code, json.loads(out)["hosts"].keys()) == (same, json.loads(direct)["hosts"].keys()), err
    own = re.compile(r"\bfleet(_path|_file)?(\.resolve\(\))?\.parent\b")
    sources = [path for path in resources.package().rglob("*.py") if path.name != "paths.py"]
    assert [str(path) for path in sources if own.search(path.read_text())] == [], "paths.folder_of is for that"


def test_json_has_every_action_with_reason_and_disruption(make_fleet: Make, run: Run) -> None:
    fleet = make_fleet(gpu1=RIGHT)
    code, out, _ = run("plan", fleet.path, "--limit", "gpu1", "--json")
    assert code == (HostUnfit if REFUSED else ChangesPending).exit_code
    (host,) = json.loads(out)["hosts"].values()
    assert host["state"] == ("refused" if REFUSED else "changes")
    words, data = {"role", "what", "found", "wanted"}, {field.name for field in dataclasses.fields(Change)}
    assert all(set(action) == words | data for action in host["actions"])
    assert {"gds_host", "gds_cufile", "gds_modules"} <= {action["role"] for action in host["actions"]}


def test_imex_without_nodes_is_refused_and_a_domain_is_planned(make_fleet: Make, run: Run) -> None:
    """Before anything is installed, and not by a service that fails after the reboot."""

    def planned(**host: Any) -> tuple[set[str], set[str]]:
        fleet = make_fleet(gpu1={**RIGHT, **host})
        locked = lockfile.read(lockfile.beside(fleet.path)).targets
        pins = {name: {**target.pins, "companions": "imex"} for name, target in locked.items()}
        targets = {n: t.model_copy(update={"packages": (IMEX,), "pins": pins[n]}) for n, t in locked.items()}
        lockfile.write(lockfile.beside(fleet.path), lockfile.build(targets))
        text = fleet.path.read_text().replace("os: debian-13", "os: debian-13\n    companions: [imex]")
        fleet.path.write_text(text)
        _, out, _ = run("plan", fleet.path, "--limit", "gpu1", "--json")
        (answer,) = json.loads(out)["hosts"].values()
        return {one["id"] for one in answer["refusals"]}, {one["subject"] for one in answer["actions"]}

    refusals, subjects = planned()
    assert "imex-nodes" in refusals
    assert IMEX_NODES not in subjects
    refusals, subjects = planned(imex={"domain": "rack1", "address": "10.0.0.1"})
    assert "imex-nodes" not in refusals
    assert IMEX_NODES in subjects
    assert not Path(IMEX_NODES).exists(), "a plan touches nothing"


CHANGE = Change("write", "/etc/cufile.json", "sha256:1", "sha256:2", "content", resource="cufile")


@pytest.mark.parametrize(
    ("plans", "code"),
    [
        ([HostPlan("a"), HostPlan("b")], 0),
        ([HostPlan("a", (CHANGE,)), HostUnreachable("x")], ChangesPending.exit_code),
        ([HostPlan("a", unknown=("why",)), HostUnreachable("x")], HostUnreachable.exit_code),
        ([HostPlan("a", (CHANGE,), refusals=(Refusal("os", "it runs another system"),))], HostUnfit.exit_code),
        ([HostPlan("a"), HostPlan("b", unknown=("why",))], ChecksUnknown.exit_code),
    ],
)
def test_exit_codes(
    plans: list[HostPlan | GdsError], code: int, make_fleet: Make, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet_plan = plan_fleet.FleetPlan({f"h{i}": plan for i, plan in enumerate(plans)}, {})
    monkeypatch.setattr("gdsdeploy.cli.provision.plan_fleet", lambda *_, **__: fleet_plan)
    ended, out, err = run("plan", make_fleet(gpu1=RIGHT).path)
    assert ended == code
    assert "Traceback" not in err
    assert f"of {len(plans)} hosts: nothing to do" in out


def test_what_isnt_known_of_a_lock_is_said_once_for_all_of_its_profiles(
    make_fleet: Make, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gdsdeploy.cli.provision.plan_fleet", lambda *_, **__: plan_fleet.FleetPlan({}, {}))
    fleet = make_fleet(gpu1=RIGHT, gpu2={"profile": "wrong"})
    right = lockfile.read(lockfile.beside(fleet.path)).targets["right"]
    target = right.model_copy(update={"judged": {"cuda": "99.1", "driver": "550.1"}})
    lockfile.write(lockfile.beside(fleet.path), lockfile.build({"right": target, "wrong": target}))
    _, _, err = run("plan", fleet.path)
    assert err.count("[cuda-newer]") == 1, err
    assert "profiles right, wrong: [cuda-newer] No source about CUDA after" in " ".join(err.split())
    _, out, _ = run("plan", fleet.path, "--limit", "gpu1", "--json")
    warnings = {(each["profile"], each["rule"], each["verdict"]) for each in json.loads(out)["warnings"]}
    assert ("right", "cuda-newer", "unknown") in warnings
    assert {profile for profile, _, _ in warnings} == {"right"}


def test_errors_of_every_kind_name_the_fleet_file(make_fleet: Make, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise HostUnfit("gpu1: x", hint="Run: gdsdeploy topology FLEET --limit gpu1")

    monkeypatch.setattr("gdsdeploy.cli.provision.plan_fleet", fail)
    fleet = make_fleet(gpu1=RIGHT).path
    assert run("plan", fleet)[2].endswith(f"hint: Run: gdsdeploy topology {fleet} --limit gpu1\n")


# --- provision -------------------------------------------------------------------------------------------------------


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replaces the look at the hosts, and Ansible, which ends the run by saying what it was started with."""

    def replace(**plans: HostPlan | GdsError) -> None:
        def play(command: list[str], *_: object, **__: object) -> None:
            raise GdsError(f"played {command[command.index('--limit') + 1]}")

        fleet_plan = plan_fleet.FleetPlan(plans, {}, RunFiles(program=Path(__file__)))
        monkeypatch.setattr("gdsdeploy.converge.provision.plan_fleet", lambda *_, **__: fleet_plan)
        monkeypatch.setattr(ansible, "play", play)
        monkeypatch.setattr("gdsdeploy.converge.provision.release", lambda *_: None)

    return replace


def test_hosts_that_have_nothing_to_change_start_no_ansible(
    make_fleet: Make, run: Run, planned: Callable[..., None]
) -> None:
    fleet = make_fleet(gpu1=RIGHT, gpu2=RIGHT)
    planned(gpu1=HostPlan("gpu1"), gpu2=HostPlan("gpu2"))
    code, out, err = run("provision", fleet.path, "--limit", "gpu*", "--json")
    assert code == 0, err
    assert "Nothing to change" in err
    report = json.loads(out)
    assert report["satisfied"] == ["gpu1", "gpu2"]
    assert report["log"] is None


def test_a_host_that_would_lose_packages_is_not_touched(
    make_fleet: Make, run: Run, planned: Callable[..., None]
) -> None:
    """Its own refusal would come after its repositories and pins were written."""
    refusal = Refusal("removals", "decode would leave", "run on it: dnf remove decode")
    fleet = make_fleet(gpu1=RIGHT, gpu2=RIGHT).path
    planned(gpu1=HostPlan("gpu1", (CHANGE,)), gpu2=HostPlan("gpu2", (CHANGE,), refusals=(refusal,)))
    _, _, err = run("provision", fleet, "--limit", "gpu*")
    assert "  gpu2: refused\n" in err
    assert "played gpu1" in err.splitlines()[-1]
    planned(gpu2=HostPlan("gpu2", (CHANGE,), refusals=(refusal,)))
    code, _, err = run("provision", fleet, "--limit", "gpu2")
    assert code == HostUnfit.exit_code
    assert err.endswith("error: gpu2: decode would leave\nhint: run on it: dnf remove decode\n")


@pytest.mark.parametrize(
    "lacking",
    [
        HostPlan("gpu2", (CHANGE,)),
        HostPlan("gpu2", unknown=("why",)),
        HostPlan("gpu2", refusals=(Refusal("os", "why"),)),
    ],
)
def test_only_hosts_that_lack_something_are_converged(
    lacking: HostPlan, make_fleet: Make, run: Run, planned: Callable[..., None]
) -> None:
    planned(gpu1=HostPlan("gpu1"), gpu2=lacking)
    _, _, err = run("provision", make_fleet(gpu1=RIGHT, gpu2=RIGHT).path, "--limit", "gpu*")
    assert "played gpu2" in err.splitlines()[-1]


def test_a_lost_host_is_said_and_keeps_nobody_back(make_fleet: Make, run: Run, planned: Callable[..., None]) -> None:
    planned(gpu1=HostPlan("gpu1"), gpu2=HostUnreachable("gpu2: gone"))
    code, _, err = run("provision", make_fleet(gpu1=RIGHT, gpu2=RIGHT).path, "--limit", "gpu*")
    assert code == HostUnreachable.exit_code
    assert "gpu1: nothing to change" in err


@pytest.mark.parametrize("verb", ["provision", "remove"])
def test_a_flag_that_nobody_has_is_refused_before_any_host_is_asked(verb: str, make_fleet: Make, run: Run) -> None:
    fleet = make_fleet(gpu1=RIGHT)
    code, _, err = run(verb, fleet.path, "--limit", "gpu1", "--cheque")
    assert code == 2
    assert "--cheque: neither gdsdeploy nor ansible-playbook has this flag; did you mean '--check'?" in err
    assert "go to ansible-playbook" in err
    assert fleet.sessions() == 0


@pytest.mark.parametrize("flag", ["--force-roles", "--check", "--tags=x"])
def test_flags_that_ask_for_the_roles_get_them(
    flag: str, make_fleet: Make, run: Run, planned: Callable[..., None]
) -> None:
    planned(gpu1=HostPlan("gpu1"))
    _, _, err = run("provision", make_fleet(gpu1=RIGHT).path, "--limit", "gpu1", flag)
    assert "played gpu1" in err


@pytest.mark.parametrize("flags", [["-l", "gpu1"], ["-lgpu1"], ["--lim", "gpu1"], ["-vl", "gpu1", "--check"]])
def test_ansibles_limit_is_ours(flags: list[str], make_fleet: Make, run: Run, planned: Callable[..., None]) -> None:
    planned(gpu1=HostPlan("gpu1", unknown=("why",)))
    path = make_fleet(gpu1=RIGHT, gpu2=RIGHT).path
    assert "played gpu1" in run("provision", path, *flags)[2].splitlines()[-1]
    code, _, err = run("provision", path, *flags, "--limit", "gpu2")
    assert (code, "--limit is given twice: gpu2 and gpu1" in err) == (2, True)


def test_remove_needs_a_limit_in_one_spelling(make_fleet: Make, run: Run, planned: Callable[..., None]) -> None:
    path = make_fleet(gpu1=RIGHT, gpu2=RIGHT).path
    assert "Missing option '--limit'" in run("remove", path)[2]
    planned()
    assert "played gpu2" in run("remove", path, "-l", "gpu2")[2].splitlines()[-1]
