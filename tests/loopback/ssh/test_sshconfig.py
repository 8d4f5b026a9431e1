"""Hosts are reached as OpenSSH's configuration says, with the fleet file before it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gdsdeploy.errors import HostKeyMismatch, HostUnreachable
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.ssh import sshconfig, transport
from gdsdeploy.ssh.endpoint import Endpoint
from tests.loopback.loopback_sshd import Sshd
from tests.loopback.ssh.test_transport import ask, refusal

Start = Callable[..., Sshd]


def fleet(ssh: dict[str, object], **host: object) -> Fleet:
    return Fleet.model_validate(
        {
            "version": 1,
            "ssh": ssh,
            "profiles": {"gds": {"os": "debian-13"}},
            "hosts": {"gpu1": {"profile": "gds", **host}},
        }
    )


def endpoint(folder: Path, ssh: dict[str, object], **host: object) -> Endpoint:
    (end,) = transport.endpoints(fleet(ssh, **host), folder, ["gpu1"])
    return end


def test_the_fleet_file_comes_first(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("Host *\n  User nobody\n  Port 1\n  HostName 192.0.2.9\n  HostKeyAlias other\n")
    ssh = {"user": "admin", "identity_file": "keys/id", "known_hosts": "known_hosts", "config": "config"}
    end = endpoint(tmp_path, ssh, port=2201, address="192.0.2.1")
    assert end == Endpoint(
        "gpu1",
        "192.0.2.9",
        2201,
        "admin",
        (tmp_path / "keys/id",),
        (tmp_path / "known_hosts",),
        host_key_alias="other",
    )


def test_without_any_configuration_ssh_s_defaults_hold(tmp_path: Path) -> None:
    end = endpoint(tmp_path, {"config": "/dev/null"})
    assert (end.address, end.port, end.proxy, end.agent) == ("gpu1", 22, (), True)
    assert end.user == subprocess.run(["id", "-un"], check=True, capture_output=True, text=True).stdout.strip()
    assert [file.name for file in end.known_hosts] == [
        "known_hosts", "known_hosts2", "ssh_known_hosts", "ssh_known_hosts2",
    ]  # fmt: skip


def test_what_ssh_g_prints() -> None:
    text = (
        "host gpu1\nuser admin\nhostname 10.0.0.1\nport 2222\nidentitiesonly yes\nidentityfile /nonexistent/key\n"
        "userknownhostsfile /a /b\nglobalknownhostsfile none\nhostkeyalias node1\nproxycommand nc -X %% %h %p %r %n\n"
    )
    end = sshconfig.parse(text)
    assert (end.address, end.port, end.user, end.host_key_alias) == ("10.0.0.1", 2222, "admin", "node1")
    assert (end.identity_files, end.agent) == ((), False)
    assert end.known_hosts == (Path("/a"), Path("/b"))
    assert end.proxy[1:] == ("-c", "exec nc -X % 10.0.0.1 2222 admin gpu1")


@pytest.mark.parametrize(
    ("jump", "options", "last"),
    [
        ("bastion", (), "ssh://bastion"),
        ("a,me@b:23", ("-J", "a"), "ssh://me@b:23"),
        ("a,b,ssh://c:24", ("-J", "a,b"), "ssh://c:24"),
    ],
)
def test_jump_hosts(jump: str, options: tuple[str, ...], last: str) -> None:
    end = sshconfig.parse(f"host gpu1\nhostname 10.0.0.1\nport 22\nproxyjump {jump}\n", Path("/f"))
    assert end.proxy[0] == "ssh"
    assert "StrictHostKeyChecking=yes" in end.proxy
    assert end.proxy[-3 - len(options) :] == (*options, "-W", "[10.0.0.1]:22", last)
    assert end.proxy[5:7] == ("-F", "/f")


def test_an_error_in_the_configuration_is_said_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("Host gpu1\n  Prot 22\n")
    with pytest.raises(HostUnreachable, match=r"config: line 2: Bad configuration option: prot") as caught:
        endpoint(tmp_path, {"config": "config"})
    assert caught.value.hint == "Try: ssh -G gpu1"


def config_of(server: Sshd, folder: Path, more: str) -> Path:
    file = folder / "config"
    file.write_text(
        f"Host jump gpu1\n  HostName 127.0.0.1\n  Port {server.port}\n  User root\n  IdentitiesOnly yes\n"
        f"  IdentityFile {server.identity}\n  UserKnownHostsFile {server.known_hosts}\n{more}"
    )
    return file


def test_a_host_that_only_the_configuration_knows(sshd: Start, tmp_path: Path) -> None:
    config_of(sshd(), tmp_path, "")
    (answer,) = ask(endpoint(tmp_path, {"config": "config"}))
    assert answer.error is None


def test_a_host_behind_another(sshd: Start, tmp_path: Path) -> None:
    server = sshd()
    config_of(server, tmp_path, "Host gpu1\n  ProxyJump jump\n")
    before = (server.folder / "log").read_text().count("Accepted publickey")
    host = endpoint(tmp_path, {"config": "config"})
    (answer,) = ask(host, main="print('{\"all\": \"' + 'x' * 5_000_000 + '\"}')")
    assert answer.error is None
    assert answer.document is not None
    assert len(answer.document["all"]) == 5_000_000
    assert (server.folder / "log").read_text().count("Accepted publickey") == before + 2
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    assert not [pid for pid in children if b"-W" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_a_jump_host_whose_key_is_not_on_record(sshd: Start, tmp_path: Path) -> None:
    server = sshd()
    (tmp_path / "empty").touch()
    config_of(server, tmp_path, "  GlobalKnownHostsFile /dev/null\nHost gpu1\n  ProxyJump jump\n")
    text = (tmp_path / "config").read_text()
    (tmp_path / "config").write_text(text.replace(str(server.known_hosts), str(tmp_path / "empty"), 1))
    host = replace(endpoint(tmp_path, {"config": "config"}), known_hosts=(server.known_hosts,))
    assert "Host key verification failed" in refusal(host, HostUnreachable).message


def test_a_key_behind_a_jump_host_is_checked_too(sshd: Start, tmp_path: Path) -> None:
    config_of(sshd(), tmp_path, "Host gpu1\n  ProxyJump jump\n")
    refusal(replace(endpoint(tmp_path, {"config": "config"}), known_hosts=(tmp_path / "none",)), HostKeyMismatch)


def test_a_proxy_that_ends_at_once(sshd: Start, tmp_path: Path) -> None:
    config_of(sshd(), tmp_path, "Host gpu1\n  ProxyCommand echo no route to %h >&2; exit 1\n")
    begin = time.monotonic()
    message = refusal(endpoint(tmp_path, {"config": "config"}), HostUnreachable).message
    assert "no route to 127.0.0.1" in message
    assert time.monotonic() - begin < 10


def test_a_proxy_that_hangs_is_ended(sshd: Start, tmp_path: Path) -> None:
    config_of(sshd(), tmp_path, f"Host gpu1\n  ProxyCommand echo $$ > {tmp_path / 'pid'}; sleep 600\n")
    refusal(endpoint(tmp_path, {"config": "config"}), HostUnreachable, timeout=2)
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


def test_a_proxy_that_is_not_there(sshd: Start) -> None:
    host = replace(sshd().endpoint(), proxy=("/nonexistent/proxy",))
    (answer,) = ask(host)
    assert answer.error is not None
    assert "/nonexistent/proxy is not installed" in answer.error.message
