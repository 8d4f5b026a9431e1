"""How many hosts are talked to at once; names that are one machine, and machine ids that images brought along."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gdsdeploy.cli import group
from gdsdeploy.errors import FleetInvalid
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.ssh import endpoint, machines, transport
from gdsdeploy.ssh.endpoint import Answer, Endpoint
from gdsdeploy.ssh.machines import Identity


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    endpoint.limit_connections(endpoint.AT_ONCE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(files[0], files[1]), files[1]))


def hosts(number: int) -> Sequence[Endpoint]:
    return [Endpoint(f"gpu{n}", "192.0.2.1", 22, "root", (), ()) for n in range(number)]


@pytest.mark.parametrize(("option", "most"), [(None, 128), (1, 1), (5, 5), (200, 150)])
def test_as_many_as_the_option_says(monkeypatch: pytest.MonkeyPatch, option: int | None, most: int) -> None:
    lock, full, now, counts = threading.Lock(), threading.Event(), 0, []

    def ask(host: Endpoint, *_: object) -> Answer:
        """Answer once as many hosts as there may be are asked, and a moment later, in which there may be more."""
        nonlocal now
        with lock:
            now += 1
            counts.append(now)
            if now >= most:
                full.set()
        assert full.wait(300)
        time.sleep(0.1)
        with lock:
            now -= 1
        return Answer(host.host, {}, None, 0.0)

    monkeypatch.setattr(transport, "_ask", ask)
    if option is not None:
        endpoint.limit_connections(option)
    number = min(150, most * 3)
    assert len(list(transport.fan_out(hosts(number), b"", [], timeout=300))) == number
    assert max(counts) == most


VERBS = {
    "validate": (),
    "plan": (),
    "provision": (),
    "topology": (),
    "support-bundle": ("--output", "x.tar.gz"),
    "rollout start": (),
}


@pytest.mark.parametrize(("verb", "more"), VERBS.items(), ids=VERBS)
def test_every_verb_that_asks_many_hosts_has_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, more: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words, expected in (("--connections", "7"), 7), ((), 128):
        CliRunner().invoke(group, [*verb.split(), "fleet.yml", *more, *words])
        assert endpoint.hosts_at_once() == expected
    for number in ("0", "1025", "x"):
        assert CliRunner().invoke(group, [*verb.split(), "fleet.yml", *more, "--connections", number]).exit_code == 2
    assert "Hosts to talk to at the same time." in " ".join(
        CliRunner().invoke(group, [*verb.split(), "--help"]).output.split()
    )


def test_a_process_may_open_the_files_that_its_connections_need() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        assert hard >= 2048, "this machine allows too few open files for the test"
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    endpoint.allow_files(8)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (512, hard)
    endpoint.allow_files(128)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (1280, hard)
    endpoint.allow_files(8)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (1280, hard)


FLEET = """\
version: 1
profiles:
  gds: {os: debian-13}
hosts:
  gpu1: {profile: gds, address: a.example}
  gpu2: {profile: gds, address: b.example}
  gpu3: {profile: gds, address: c.example}
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yml"
    path.write_text(FLEET)
    return path


def end(host: str, **changes: Any) -> Endpoint:
    values = {"address": f"{host}.example", "port": 22, "user": "root", "identity_files": (), "known_hosts": ()}
    return Endpoint(host=host, **{**values, **changes})


def each_way(ends: list[Endpoint], fleet: Path) -> None:
    distinct = machines.Distinct([one.host for one in ends], fleet)
    for one in ends:
        distinct.add(one)


def test_the_same_way_in_is_refused_with_the_place_of_both_names(fleet: Path) -> None:
    ends = [end("gpu1", address="A.example"), end("gpu2"), end("gpu3", address="a.example")]
    with pytest.raises(FleetInvalid) as refused:
        each_way(ends, fleet)
    assert refused.value.message == (
        f"gpu1 and gpu3 are one machine: both are root@A.example, port 22\n  {fleet}:5: gpu1\n  {fleet}:7: gpu3"
    )
    assert refused.value.hint == "Remove one of the names from the fleet file, or correct its address"


@pytest.mark.parametrize("changes", [{"port": 23}, {"user": "ops"}, {"proxy": ("ssh", "-W", "a:22", "jump2")}])
def test_another_port_login_or_proxy_may_be_another_machine(changes: dict[str, Any], fleet: Path) -> None:
    each_way([end("gpu1", address="a"), end("gpu2", address="a", **changes)], fleet)


def test_one_boot_is_one_machine(fleet: Path) -> None:
    identities = {"gpu1": Identity("x"), "gpu2": Identity("y"), "gpu3": Identity("x"), "none1": Identity()}
    assert list(machines.same_boot({**identities, "none2": Identity()}, fleet)) == [("gpu1", "gpu3")]
    with pytest.raises(FleetInvalid, match="gpu1 and gpu3 are one machine: both answer from the boot x\n"):
        machines.require_machines(identities, fleet, pytest.fail)


def test_three_names_are_named_together_also_without_the_file(tmp_path: Path) -> None:
    identities = {name: Identity("x") for name in ("a", "b", "c")}
    with pytest.raises(FleetInvalid, match="a and b and c are one machine: all answer from the boot x\n  a\n  b\n  c"):
        machines.require_machines(identities, tmp_path / "gone.yml", pytest.fail)


def test_a_cloned_machine_id_is_a_warning_and_not_one_machine(fleet: Path) -> None:
    identities = {"gpu1": Identity("x", "id"), "gpu2": Identity("y", "id"), "gpu3": Identity("z", "")}
    words: list[str] = []
    machines.require_machines(identities, fleet, words.append)
    assert [text.partition(";")[0] for text in words] == ["cloned machine id: gpu[1-2] have the same /etc/machine-id"]
    assert machines.clones({"gpu1": Identity("x", "id"), "gpu2": Identity("x", "id")}) == []


@pytest.mark.parametrize("value", [None, [], "x", {"boot_id": 1, "machine_id": ["x"]}, {"boot_id": "x" * 65}])
def test_an_odd_answer_is_no_identity(value: object) -> None:
    assert machines.identity_from(value) == Identity()


def test_a_fleet_file_with_two_names_for_one_address_is_refused_where_both_are(fleet: Path) -> None:
    fleet.write_text(FLEET.replace("c.example", "A.EXAMPLE"))
    with pytest.raises(FleetInvalid) as refused:
        load_fleet(fleet)
    first, second = refused.value.message.splitlines()
    assert first.startswith(f"{fleet}:5:")
    assert second.startswith(f"{fleet}:7:")
    assert "gpu1 and gpu3 are one machine" in first
    fleet.write_text(FLEET.replace("c.example", "A.EXAMPLE, port: 23"))
    assert load_fleet(fleet).hosts["gpu3"].port == 23
