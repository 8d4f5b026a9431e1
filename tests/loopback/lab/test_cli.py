"""The lab's command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gdsdeploy.errors import NameUnknown
from gdslab import cli as cli
from gdslab.errors import LabUnavailable
from gdslab.state import Lab


@pytest.fixture
def lab(home: Path) -> Lab:
    dev = Lab("dev")
    dev.write({"release": "trixie", "hosts": [], "accelerator": "kvm"})
    dev.add_hosts("light", 1, Path("/c/light/root"))
    dev.add_hosts("vm", 1, Path("/c/vm/disk.qcow2"))
    return dev


def test_list(lab: Lab) -> None:
    build1, gpu1 = lab.hosts()
    done = CliRunner().invoke(cli.command, ["list"])
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["dev", "(debian-13)", str(lab.fleet_path)],
        ["build1", "light", "systemd-nspawn", str(build1.port), "stopped"],
        ["gpu1", "vm", "kvm", str(gpu1.port), "stopped"],
    ]


def test_list_as_json(lab: Lab) -> None:
    (only,) = json.loads(CliRunner().invoke(cli.command, ["list", "--json"]).stdout)
    assert (only["name"], only["os"], only["fleet"]) == ("dev", "debian-13", str(lab.fleet_path))
    assert (only["release"], only["repositories"]) == ("trixie", None)
    assert [(host["name"], host["kind"], host["running"]) for host in only["hosts"]] == [
        ("build1", "light", False),
        ("gpu1", "vm", False),
    ]


def test_ssh_becomes_the_client(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr(cli.run, "become", lambda argv, doing: became.append(argv))
    for words in ([], ["--", "uname", "-r"], ["--", "dmesg | tail"]):
        assert CliRunner().invoke(cli.command, ["ssh", "--lab", "dev", "gpu1", *words]).exit_code == 0
    begin = ["ssh", "-F", str(lab.ssh_config), "gpu1"]
    assert became == [begin, [*begin, "--", "uname -r"], [*begin, "--", "sh -c 'dmesg | tail'"]]


def test_question_without_a_terminal_names_the_option(home: Path) -> None:
    with pytest.raises(LabUnavailable) as caught:
        cli.confirm("Install qemu?")
    assert "--yes" in str(caught.value.hint)


def test_down_of_nothing_says_so(home: Path) -> None:
    done = CliRunner().invoke(cli.command, ["down", "--lab", "dev"])
    assert done.exit_code == 0
    assert not (home / "state").exists()


def test_down_of_a_mistyped_lab_names_the_one_beside_it(lab: Lab) -> None:
    done = CliRunner().invoke(cli.command, ["down", "--lab", "dve"])
    assert isinstance(done.exception, NameUnknown)
    assert str(done.exception) == "there is no lab dve; did you mean 'dev'?"
    assert lab.directory.exists()
