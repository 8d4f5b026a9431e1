"""``gdsdeploy init`` against real SSH servers on loopback that lead to this machine, and the files that it writes."""

from __future__ import annotations

import errno
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path

import pytest

from gdsdeploy.errors import FleetInvalid, GdsError, HostUnfit, HostUnreachable
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.repo.repository import key_fingerprints
from tests.commandline import Run
from tests.loopback.loopback_sshd import ADDRESSES, SUDOER, Sshd, free_port

#: The head of a packet with a primary key of version 4 and three octets more.
PACKET = b"\xc6\x04\x04"
SYSTEM = f"debian-{platform.freedesktop_os_release()['VERSION_ID']}"


@pytest.fixture(autouse=True)
def _own_folder(own_folders: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write_config(folder: Path, server: Sshd, *names: str, user: str = "root") -> Path:
    """An ssh_config by which each name is another address of the server."""
    first, *rest = server.known_hosts.read_text().split()[:3]
    lines = [f"{first.replace(ADDRESSES[0], name)} {' '.join(rest)}\n" for name in ADDRESSES]
    server.known_hosts.write_text("".join(lines))
    blocks = [f"Host {name}\n  HostName {address}\n" for name, address in zip(names, ADDRESSES, strict=False)]
    common = f"Host *\n  User {user}\n  Port {server.port}\n  IdentityFile {server.identity}\n"
    path = folder / "ssh_config"
    path.write_text("".join(blocks) + f"{common}  UserKnownHostsFile {server.known_hosts}\n")
    return path


def test_hosts_become_a_fleet_file_with_one_profile_for_each_kind(
    sshd: Callable[..., Sshd], run: Run, tmp_path: Path
) -> None:
    config = write_config(tmp_path, sshd(), "gpu1", "gpu2")
    code, out, err = run("init", "gpu1", "gpu2", "--ssh-config", config)
    assert (code, "error" in err) == (0, False)
    fleet = load_fleet(tmp_path / "fleet.yml")
    (profile,) = fleet.profiles.values()
    assert profile.os == SYSTEM
    assert list(fleet.hosts) == ["gpu1", "gpu2"]
    assert fleet.ssh.config == "ssh_config"
    assert fleet.hosts["gpu1"].address is None, "the SSH configuration says that already"
    assert out.splitlines()[-1] == "Next: gdsdeploy lock fleet.yml"
    assert "Check first:" in out


def test_a_second_run_overwrites_nothing_and_asks_nobody(
    sshd: Callable[..., Sshd], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = sshd()
    config = write_config(tmp_path, server, "gpu1")
    (tmp_path / "fleet.yml").write_text("mine")
    code, _, err = run("init", "gpu1", "--ssh-config", config)
    assert code == GdsError.exit_code
    assert "overwrites none" in err
    assert (tmp_path / "fleet.yml").read_text() == "mine"
    code, _, err = run("init", "gpu1", "--ssh-config", config, "-o", "none/fleet.yml")
    assert (code, "none/fleet.yml: the folder none does not exist" in err) == (1, True)
    assert "Starting session" not in (server.folder / "log").read_text()
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
        code, _, err = run("init", "gpu1", "--ssh-config", config, "-o", "other.yml")
    assert (code, "other.yml: cannot be written: No space left" in err) == (1, True)
    assert not list(tmp_path.glob("*other*")), "nothing is left that init would not overwrite"
    assert run("init", "gpu1", "--ssh-config", config, "-o", "other.yml")[0] == 0


def test_a_host_that_does_not_answer_is_named_and_the_file_has_the_others(
    sshd: Callable[..., Sshd], run: Run, tmp_path: Path
) -> None:
    config = write_config(tmp_path, sshd(), "gpu1")
    config.write_text(f"Host gone\n  HostName 127.0.0.1\n  Port {free_port()}\n{config.read_text()}")
    code, out, err = run("init", "gpu1", "gone", "--ssh-config", config)
    assert code == HostUnreachable.exit_code
    assert "error: gone" in err
    assert "left out: gone" in out
    assert "# Left out: gone: (127.0.0.1:" in (tmp_path / "fleet.yml").read_text()
    assert list(load_fleet(tmp_path / "fleet.yml").hosts) == ["gpu1"]


def test_no_usable_host_writes_no_file(sshd: Callable[..., Sshd], run: Run, tmp_path: Path) -> None:
    server = sshd()
    config = write_config(tmp_path, server, "gpu1")
    server.cover("/etc/os-release", 'ID=plan9\nVERSION_ID="4"\n')
    code, _, err = run("init", "gpu1", "--ssh-config", config)
    assert code == HostUnfit.exit_code
    assert "'plan9-4' is not known" in err
    assert not (tmp_path / "fleet.yml").exists()


def test_stdout_and_json_write_no_file(sshd: Callable[..., Sshd], run: Run, tmp_path: Path) -> None:
    config = write_config(tmp_path, sshd(), "gpu1", user=SUDOER)
    code, out, _ = run("init", "gpu1", "--ssh-config", config, "-o", "-")
    assert code == 0
    (tmp_path / "printed.yml").write_text(out)
    printed = load_fleet(tmp_path / "printed.yml")
    code, out, _ = run("init", "gpu1", "--ssh-config", config, "-o", "-", "--json")
    value = json.loads(out)
    assert (code, value["file"], value["fleet"]["version"]) == (0, None, 1)
    assert list(value["fleet"]["profiles"]) == list(printed.profiles)
    assert value["hosts"]["gpu1"]["kind"]["os"] == SYSTEM
    assert sorted(path.name for path in tmp_path.glob("*.yml")) == ["printed.yml"]


def test_an_inventory_gives_hosts_and_how_they_are_reached(sshd: Callable[..., Sshd], run: Run, tmp_path: Path) -> None:
    server = sshd()
    config = write_config(tmp_path, server)
    inventory = tmp_path / "hosts.ini"
    inventory.write_text(
        f"[gpu]\ngpu1 ansible_host={ADDRESSES[0]}\ngpu2 ansible_host={ADDRESSES[1]}\n"
        f"[gpu:vars]\nansible_port={server.port}\nansible_user=root\nansible_ssh_private_key_file={server.identity}\n"
        "[other]\nweb ansible_connection=local\n[most]\ngpu1\ngpu2\nweb\n"
    )
    code, _, err = run("init", "--inventory", inventory, "--limit", "gpu*", "--ssh-config", config)
    assert (code, "error" in err) == (0, False)
    fleet = load_fleet(tmp_path / "fleet.yml")
    assert fleet.inventory is None
    assert fleet.hosts["gpu2"].address == ADDRESSES[1]
    assert fleet.hosts["gpu2"].port == server.port
    code, _, err = run("init", "--inventory", inventory, "--keep-inventory", "--ssh-config", config, "-o", "kept.yml")
    assert code == FleetInvalid.exit_code
    assert "web: ansible_connection is 'local'" in err
    reading = load_fleet(tmp_path / "kept.yml")
    assert reading.inventory is not None
    assert (reading.inventory.file, list(reading.inventory.groups)) == ("hosts.ini", ["gpu"])
    assert reading.hosts == fleet.hosts
    code, out, _ = run("topology", "kept.yml", "--limit", "gpu2", "--json")
    assert (code, list(json.loads(out))) == (0, ["gpu2"]), "another verb reaches the hosts of the inventory"


def test_keys_that_this_machine_lacks_come_from_the_hosts(sshd: Callable[..., Sshd], run: Run, tmp_path: Path) -> None:
    server = sshd()
    config = write_config(tmp_path, server, "gpu1")
    site = server.folder / "site.gpg"
    site.write_bytes(PACKET + b"one")
    text = "Types: deb\nURIs: https://mirror.example/debian\nSuites: bookworm\nComponents: main contrib\n"
    server.place("/etc/apt/sources.list.d/site.sources", f"{text}Signed-By: {site}\n")
    if Path("/etc/apt/sources.list").exists():
        server.cover("/etc/apt/sources.list", "")
    assert run("init", "gpu1", "--ssh-config", config)[0] == 0
    keyring = tmp_path / "keys" / "debian.gpg"
    assert keyring.read_bytes() == PACKET + b"one"
    entry = load_fleet(tmp_path / "fleet.yml").repositories["debian"]
    assert (entry.uri, entry.keyring, entry.signed_by) == ("https://mirror.example/debian", str(keyring), str(site))
    assert entry.fingerprints == key_fingerprints(keyring.read_bytes())
    site.write_bytes(PACKET + b"two")
    code, _, err = run("init", "gpu1", "--ssh-config", config, "-o", "other.yml")
    assert code == GdsError.exit_code
    assert "keys/debian.gpg: this file exists with other content" in err
    assert keyring.read_bytes() == PACKET + b"one"
    assert not (tmp_path / "other.yml").exists()
    assert run("init", "gpu1", "--ssh-config", config, "-o", "-")[0] == 0, "nothing is written"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ((), "name hosts, or an inventory"),
        (("gpu1", "--inventory", "x"), "name hosts, or an inventory"),
        (("gpu1", "--limit", "x"), "--limit needs --inventory"),
        (("-x",), "No such option"),
        (("a b",), "HOST is a name"),
        (("--", "-oProxyCommand=touch x"), "HOST is a name"),
    ],
)
def test_a_wrong_command_line(argv: tuple[str, ...], words: str, run: Run) -> None:
    code, _, err = run("init", *argv)
    assert code == 2
    assert words in err
