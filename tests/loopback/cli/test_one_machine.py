"""Two names that are one machine, against a real SSH server on loopback: every verb refuses before any change."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from gdsdeploy.converge import ansible
from gdsdeploy.errors import FleetInvalid
from tests import commandline
from tests.loopback.loopback_fleet import LoopbackFleet
from tests.loopback.loopback_sshd import ADDRESSES

VERBS = [
    ("validate",),
    ("validate", "--since-boot"),
    ("plan", "--limit", "gpu*"),
    ("provision", "--limit", "gpu*"),
    ("provision", "--limit", "gpu*", "--force-roles"),
    ("rollout", "start", "--dry-run"),
]
RIGHT = {"profile": "right"}
#: Reach the same server without any difference that the fleet file shows.
ONE, SAME = {**RIGHT, "address": ADDRESSES[0]}, {**RIGHT, "address": "localhost"}

Make = Callable[..., LoopbackFleet]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], own_folders: None, monkeypatch: pytest.MonkeyPatch) -> Run:
    def played(*_: object, **__: object) -> None:
        raise AssertionError("Ansible was started")

    monkeypatch.setattr(ansible, "play", played)

    def verb(words: tuple[str, ...], fleet: LoopbackFleet) -> tuple[int, str, str]:
        first = 2 if words[0] == "rollout" else 1
        return commandline.run(*words[:first], fleet.path, *words[first:]), *capsys.readouterr()

    return verb


def lines_of(fleet: LoopbackFleet) -> list[str]:
    """``file:line`` of gpu1 and gpu2."""
    lines = fleet.path.read_text().splitlines()
    return [f"{fleet.path}:{lines.index(f'  {name}:') + 1}" for name in ("gpu1", "gpu2")]


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_the_same_address_is_refused_before_any_connection(words: tuple[str, ...], make_fleet: Make, run: Run) -> None:
    fleet = make_fleet(gpu1=ONE, gpu2=ONE)
    code, _, err = run(words, fleet)
    assert code == FleetInvalid.exit_code
    for name in ("gpu1", "gpu2"):
        assert re.search(rf"{fleet.path}:\d+:\d+: hosts\.{name}: gpu1 and gpu2 are one machine", err)
    assert fleet.sessions() == 0


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_an_alias_of_ssh_config_is_refused_before_the_second_connection(
    words: tuple[str, ...], make_fleet: Make, run: Run, tmp_path: Path
) -> None:
    config = tmp_path / "ssh_config"
    config.write_text(f"Host alias\n  HostName {ADDRESSES[0]}\n")
    other = {**RIGHT, "address": "alias", "config": str(config)}
    fleet = make_fleet(gpu1=ONE, gpu2=other)
    code, _, err = run(words, fleet)
    assert code == FleetInvalid.exit_code
    assert f"gpu1 and gpu2 are one machine: both are root@{ADDRESSES[0]}, port {fleet.server.port}" in err
    assert all(place in err for place in lines_of(fleet))
    assert "Remove one of the names from the fleet file" in err
    # The first name may have been asked by then; ssh is asked about each name by the thread that connects to it.
    assert fleet.sessions() <= 1


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_one_boot_behind_two_addresses_is_refused_before_any_change(
    words: tuple[str, ...], make_fleet: Make, run: Run
) -> None:
    fleet = make_fleet(gpu1=ONE, gpu2=SAME)
    code, out, err = run(words, fleet)
    assert code == FleetInvalid.exit_code, err
    text = out + err
    assert "gpu1 and gpu2 are one machine: both answer from the boot" in text
    assert all(place in text for place in lines_of(fleet))
    if words[0] == "validate":
        assert out.count("gpu1 and gpu2 are one machine") == 2, "each of them has the reason"
        assert "0 of 2 hosts pass, 2 UNREACHABLE" in out


def test_a_cloned_machine_id_is_a_warning(make_fleet: Make, run: Run) -> None:
    fleet = make_fleet(gpu1={**RIGHT, "address": ADDRESSES[1]}, gpu2={**RIGHT, "address": ADDRESSES[2]})
    clone = fleet.server.folder / f"machine-{ADDRESSES[1]}"
    (fleet.server.folder / f"machine-{ADDRESSES[2]}").write_text(clone.read_text())
    for words in (("validate", "--check", "kernel.running"), ("plan", "--limit", "gpu*")):
        _, _, err = run(words, fleet)
        assert "warning: cloned machine id: gpu[1-2] have the same /etc/machine-id" in err
        assert "one machine:" not in err
        assert clone.read_text().strip() not in err
