"""Nothing that people and timers do with apt moves the stack; without our preferences, each of these does."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.apply.packages.aptsources import TARGET_FORMAT, exclusive
from gdsdeploy.host.apply.packages.managers import Index
from tests.pins import cudarepo
from tests.pins.aptmachine import AptMachine
from tests.pins.inplace import in_place
from tests.pins.rendering import preferences
from tests.repos.archive import Key, Server

OURS = "00-gdsdeploy.pref"
#: What people type, by what they read on the web.
COMMANDS = (
    "dist-upgrade",
    "upgrade",
    "install cuda",
    "install cuda-13-0",
    "install cuda-12-4",
    "install cuda-drivers",
    "install nvidia-open",
    "install nvidia-driver",
    "install nvidia-gds",
    "install nvidia-fs",
    "install nvidia-smi",
    "install libcufile-13-0",
)


@pytest.fixture
def stack(variables: dict[str, Any]) -> set[str]:
    return {pin["package"] for pin in variables["gds_repo_pins"]}


def index(uri: str, suite: str = "", *, exclusive: bool = False) -> Index:
    return Index("any", uri, suite, [], "/any.gpg", exclusive)


def moves(machine: AptMachine, command: str, stack: set[str]) -> dict[str, str]:
    """What of the stack a command would move, and what it would bring that belongs to another one."""
    simulated = machine.simulate(*command.split())
    foreign = re.compile(r"nvidia|libcu(da|file)|gds-tools|linux-image-6|linux-headers-6")
    return {name: version for name, version in simulated.items() if name in stack or foreign.match(name)}


@pytest.mark.parametrize("command", COMMANDS)
def test_with_the_pins_nothing_moves(
    command: str, with_cuda: AptMachine, variables: dict[str, Any], stack: set[str]
) -> None:
    assert moves(with_cuda, command, stack) != {}, "without the pins, this would not be worth a test"
    with_cuda.preferences(OURS, preferences(with_cuda, variables))
    assert moves(with_cuda, command, stack) == {}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_repository_that_is_added_later_moves_nothing_of_an_installed_stack(
    command: str, machine: AptMachine, served: Server, signing_key: Key, variables: dict[str, Any], stack: set[str]
) -> None:
    machine.preferences(OURS, preferences(machine, variables))
    machine.run("apt-mark", "hold", *stack)
    machine.source("cuda", f"deb [signed-by={signing_key.keyring}] {served.uri}/cuda ./")
    machine.run("apt-get", "update")
    assert stack.isdisjoint(moves(machine, command, stack))


def test_a_host_without_nvidias_repository_keeps_its_stack(
    machine: AptMachine, variables: dict[str, Any], stack: set[str]
) -> None:
    assert stack <= moves(machine, "dist-upgrade", stack).keys()
    machine.preferences(OURS, preferences(machine, variables))
    assert moves(machine, "dist-upgrade", stack) == {}
    others = machine.simulate("dist-upgrade")
    assert "libc6" in others, "what is not of the stack gets its security updates"
    assert "linux-image-amd64" not in others


@pytest.mark.parametrize("name", ["nvidia-driver-pinning-580", "zz-site", "gpu.pref"])
def test_no_other_file_of_preferences_wins(
    name: str, with_cuda: AptMachine, variables: dict[str, Any], stack: set[str]
) -> None:
    with_cuda.preferences(name, cudarepo.PIN_BRANCH)
    assert with_cuda.candidate("nvidia-smi").startswith("580.")
    with_cuda.preferences(OURS, preferences(with_cuda, variables))
    assert moves(with_cuda, "dist-upgrade", stack) == {}
    assert with_cuda.candidate("nvidia-smi") == "550.163.01-2"


def test_toolkits_may_still_be_installed_from_a_repository_of_the_administrators(
    with_cuda: AptMachine, variables: dict[str, Any]
) -> None:
    with_cuda.preferences(OURS, preferences(with_cuda, variables))
    assert with_cuda.simulate("install", "cuda-toolkit-12-4") == {"cuda-toolkit-12-4": "12.4.1-1"}


def test_the_container_toolkit_may_be_installed_and_no_other_piece_of_a_driver(
    with_cuda: AptMachine, variables: dict[str, Any]
) -> None:
    drivers = ("libnvidia-cfg1", "libnvidia-common", "libnvidia-compute-580")
    assert {with_cuda.candidate(name) for name in drivers} == {cudarepo.FULL}
    with_cuda.preferences(OURS, preferences(with_cuda, variables))
    match = with_cuda.simulate("install", "nvidia-container-toolkit")
    assert match == dict.fromkeys(
        ("nvidia-container-toolkit", "libnvidia-container-tools", "libnvidia-container1"), "1.18.0-1"
    )
    assert {with_cuda.candidate(name) for name in drivers} == {""}


def test_a_repository_of_ours_offers_nothing_but_the_stack(
    machine: AptMachine, served: Server, signing_key: Key, variables: dict[str, Any]
) -> None:
    (machine.root / "etc/apt/sources.list.d/gdsdeploy.sources").write_text(
        f"Types: deb\nURIs: {served.uri}/cuda\nSuites: ./\nSigned-By: {signing_key.keyring}\n"
    )
    machine.run("apt-get", "update")
    targets = machine.run("apt-get", "indextargets", "--format", TARGET_FORMAT, "Created-By: Packages").splitlines()
    match = exclusive(targets, [index(f"{served.uri}/cuda", exclusive=True)])
    assert [names for _, names in match] == ["o=NVIDIA CUDA,l=NVIDIA CUDA"]
    pin = {"package": "nvidia-persistenced", "version": cudarepo.FULL, "sha256": "0" * 64}
    changed = {**variables, "gds_repo_pins": [*variables["gds_repo_pins"], pin]}
    machine.preferences("cuda-repository-pin-600", cudarepo.PIN_600)
    assert machine.candidate("cuda-toolkit-12-4") == "12.4.1-1"
    machine.preferences(OURS, preferences(machine, changed, tuple(match)))
    assert machine.candidate("cuda-toolkit-12-4") == ""
    assert machine.candidate("nvidia-persistenced") == cudarepo.FULL


def test_only_sources_of_ours_are_closed(served: Server) -> None:
    theirs = f"/etc/apt/sources.list.d/cuda.list:1|{served.uri}/cuda/|NVIDIA|NVIDIA CUDA"
    ours = f"/etc/apt/sources.list.d/gdsdeploy.sources:1|{served.uri}/debian/|Debian|Debian"
    indices = [index(f"{served.uri}/cuda", exclusive=True), index(f"{served.uri}/debian")]
    assert exclusive([theirs, ours, "garbage", ""], indices) == []


def test_another_release_of_the_system_is_closed_without_closing_the_system(served: Server) -> None:
    uri = f"{served.uri}/debian"
    ours = "/etc/apt/sources.list.d/gdsdeploy.sources"
    system = f"/etc/apt/sources.list.d/debian.sources:1|{uri}/|Debian|Debian|trixie|trixie"
    lacking = f"{ours}:1|{uri}/|Debian|Debian|trixie|trixie"
    older = f"{ours}:2|{uri}/|Debian|Debian|bookworm|bookworm"
    indices = [index(uri, "trixie"), index(uri, "bookworm", exclusive=True)]
    assert exclusive([system, lacking, older], indices) == [(f"{uri}/ bookworm", "o=Debian,l=Debian,n=bookworm")]
    # A Release file without any names, as that of a local installer.
    nameless = f"{ours}:1|file:/var/repo/|$(ORIGIN)|$(LABEL)||$(CODENAME)"
    assert exclusive([nameless], [index("file:///var/repo", "/", exclusive=True)]) == []
    # Without its own name, it can't be distinguished from the system's.
    assert exclusive([line.rpartition("|")[0] + "|" for line in (system, lacking, older)], indices) == []


def test_a_hold_keeps_a_package_that_others_want_removed(
    machine: AptMachine, variables: dict[str, Any], stack: set[str]
) -> None:
    """And the role's own way past its holds still works."""
    machine.preferences(OURS, preferences(machine, variables))
    assert machine.simulate("remove", "libcufile0")["libcufile0"] == "removed"
    machine.run("apt-mark", "hold", *sorted(stack))
    assert machine.simulate("remove", "libcufile0") == {}
    assert moves(machine, "dist-upgrade", stack) == {}
    version = next(p["version"] for p in variables["gds_repo_pins"] if p["package"] == "libcufile0") + "+deb13u9"
    command = ("install", f"libcufile0={version}", f"gds-tools={version}")
    assert machine.simulate(*command) == {}
    assert machine.simulate("--allow-change-held-packages", *command)["libcufile0"] == version


def test_unattended_upgrades_leave_the_stack_alone(
    machine: AptMachine, variables: dict[str, Any], stack: set[str], tmp_path: Path
) -> None:
    """The real program, unpacked and not installed: its package would switch it on for this machine."""
    subprocess.run(
        ["apt-get", "--quiet", "download", "unattended-upgrades"], cwd=tmp_path, check=True, capture_output=True
    )
    (package,) = tmp_path.glob("unattended-upgrades_*.deb")
    subprocess.run(["dpkg-deb", "--extract", package, tmp_path / "unpacked"], check=True)
    before = unattended_upgrade(machine, tmp_path)
    assert {"libc6", "libcuda1", "linux-image-amd64"} <= before
    machine.preferences(OURS, preferences(machine, variables))
    after = unattended_upgrade(machine, tmp_path)
    assert "libc6" in after
    assert after & (stack | {"linux-image-amd64"}) == set()


#: The program insists on the machine's own folders, so it gets the imitated ones in their place.
IN_PLACE = """
for folder in etc/apt var/lib/apt var/lib/dpkg var/cache/apt var/log run; do mount --bind "$1/$folder" "/$folder"; done
exec /usr/bin/python3 "$2" --dry-run --debug
"""


def unattended_upgrade(machine: AptMachine, tmp_path: Path) -> set[str]:
    """What an unattended upgrade would upgrade."""
    (machine.root / "etc/apt/apt.conf.d/99test").write_text(
        'Unattended-Upgrade::Origins-Pattern { "origin=Debian"; };\nUnattended-Upgrade::SyslogEnable "false";\n'
        'APT::Architecture "amd64";\nAPT::Architectures { "amd64"; };\nAPT::Sandbox::User "root";\n'
        'Acquire::http::Proxy "DIRECT";\n'
    )
    program = tmp_path / "unpacked/usr/bin/unattended-upgrade"
    argv = in_place(IN_PLACE, machine.root, program)
    done = subprocess.run(
        argv, env={**os.environ, "LC_ALL": "C"}, capture_output=True, text=True, check=False, timeout=300
    )
    output = done.stdout + done.stderr
    # Then it fetches them, which these imitations are not worth.
    match = re.search(r"^pkgs that look like they should be upgraded: *((?:\S+\n)+)", output, re.MULTILINE)
    assert match, output
    return set(match[1].split())
