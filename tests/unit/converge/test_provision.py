"""A run has an id by which hosts know it, and lets them go when it ends, whatever it ended in."""

from __future__ import annotations

import getpass
import json
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.converge import ansible, provision
from gdsdeploy.converge.diff import HostPlan
from gdsdeploy.converge.machine import RunFiles
from gdsdeploy.converge.plan_fleet import FleetPlan
from gdsdeploy.errors import HostUnreachable, Interrupted, NotProvisioned
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.lock import lockfile
from gdsdeploy.ssh import transport

LAB = Path(__file__).parents[2] / "golden" / "lab"


pytestmark = pytest.mark.usefixtures("own_folders")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], list[str]]]:
    """(hosts, arguments) of every call of the host program; none of them is answered."""
    runs: list[tuple[list[str], list[str]]] = []

    def fan_out(endpoints: Sequence[Any], _program: bytes, argv: Sequence[str], **_: Any) -> Iterator[Any]:
        runs.append(([endpoint.host for endpoint in endpoints], list(argv)))
        raise HostUnreachable("gone")
        yield  # it is a generator, as the real one

    monkeypatch.setattr(transport, "fan_out", fan_out)
    return runs


def provisioned(
    monkeypatch: pytest.MonkeyPatch, play: Any, flags: ansible.Flags = ansible.NO_FLAGS
) -> provision.ProvisionRun:
    plans = {"build1": HostPlan("build1"), "gpu1": HostPlan("gpu1", unknown=("why",))}
    path = LAB / "fleet.yml"
    # Whose bytes are the host program doesn't matter.
    files = RunFiles(LAB, program=path)
    monkeypatch.setattr(provision, "plan_fleet", lambda *_, **__: FleetPlan(plans, {}, files))
    monkeypatch.setattr(ansible, "play", play)
    lock = lockfile.read(LAB / "gdsdeploy.lock")
    return provision.provision(load_fleet(path), lock, path, names=list(plans), flags=flags, progress=lambda _: None)


def ended(*_: Any, **__: Any) -> ansible.Outcome:
    return ansible.Outcome(status=0, hosts={"gpu1": ansible.HostResult()})


def interrupted(*_: Any, **__: Any) -> ansible.Outcome:
    raise Interrupted("Ctrl-C")


def test_a_run_lets_go_of_the_hosts_that_it_worked_on(
    monkeypatch: pytest.MonkeyPatch, calls: list[tuple[list[str], list[str]]], tmp_path: Path
) -> None:
    run = provisioned(monkeypatch, ended)
    assert run.failures() == {}, "a host that isn't reached is free when the lease ends"
    ((hosts, argv),) = calls
    assert hosts == ["gpu1"], "the satisfied host was left alone"
    assert argv[:3] == ["apply", "--json", "--release"]
    inventory = (tmp_path / "state" / "runs" / "inventory.yml").read_text()
    assert f'gds_run: !unsafe "{argv[3]}"' in inventory
    assert ': provision"' in inventory


def test_also_when_it_was_interrupted(
    monkeypatch: pytest.MonkeyPatch, calls: list[tuple[list[str], list[str]]]
) -> None:
    with pytest.raises(Interrupted):
        provisioned(monkeypatch, interrupted)
    assert len(calls) == 1


def test_a_check_keeps_no_host(monkeypatch: pytest.MonkeyPatch, calls: list[tuple[list[str], list[str]]]) -> None:
    provisioned(monkeypatch, ended, ansible.Flags(("-DC",), frozenset({"check", "diff"})))
    assert calls == []


def test_a_host_without_a_result_is_not_provisioned(
    monkeypatch: pytest.MonkeyPatch, calls: list[tuple[list[str], list[str]]]
) -> None:
    run = provisioned(monkeypatch, ended, ansible.Flags(("--tags", "x"), frozenset({"tags"})))
    assert calls[0][0] == ["build1", "gpu1"]
    ((name, failure),) = run.failures().items()
    assert (name, type(failure)) == ("build1", NotProvisioned)
    assert "build1: not played" in failure.message
    assert "not played" in json.loads(provision.summary(run))["hosts"]["build1"]["error"]


def test_who_runs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "alice")
    monkeypatch.setattr(socket, "gethostname", lambda: "controller")
    one, other = provision.Identity.of("provision"), provision.Identity.of("provision")
    assert one.who == "alice@controller: provision"
    assert one.run != other.run


def test_a_user_without_a_name_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr(getpass, "getuser", unknown)
    assert provision.Identity.of("remove").who.partition("@")[0].isdigit()
