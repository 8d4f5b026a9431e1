"""Keys, known hosts and what a failed connection is called."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gdsdeploy.errors import HostKeyMismatch, HostUnreachable
from gdslab import ssh


def test_known_hosts_names_port_and_key_without_comment() -> None:
    keys = {22011: "ssh-ed25519 BBBB gpu1 of lab dev\n", 22001: "ssh-ed25519 AAAA\n"}
    assert ssh.known_hosts(keys) == "[127.0.0.1]:22001 ssh-ed25519 AAAA\n[127.0.0.1]:22011 ssh-ed25519 BBBB\n"


def test_config_is_what_openssh_understands(tmp_path: Path) -> None:
    lab = tmp_path / "with space"
    lab.mkdir()
    (lab / "ssh_config").write_text(ssh.config(lab, "admin", {"build1": 22001, "gpu1": 22011}))
    done = subprocess.run(["ssh", "-G", "-F", lab / "ssh_config", "gpu1"], capture_output=True, text=True, check=True)
    settings = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    assert (settings["hostname"], settings["port"], settings["user"]) == ("127.0.0.1", "22011", "admin")
    assert settings["stricthostkeychecking"] == "true"
    assert settings["identityfile"] == f"{lab}/id_ed25519"
    assert settings["userknownhostsfile"] == f"{lab}/known_hosts"
    assert settings["connecttimeout"] == "15"
    assert settings["globalknownhostsfile"] == "/dev/null"


def test_words_arrive_as_they_are() -> None:
    argv = ssh.command(Path("/l/ssh_config"), "gpu1", ["sh", "-c", "echo $HOME; id"])
    assert argv == ["ssh", "-F", "/l/ssh_config", "gpu1", "--", "sh -c 'echo $HOME; id'"]
    assert ssh.command(Path("/l/ssh_config"), "gpu1", []) == ["ssh", "-F", "/l/ssh_config", "gpu1"]


def test_key_is_made_once_and_private(tmp_path: Path) -> None:
    ssh.make_key(tmp_path / "id", "lab")
    first = (tmp_path / "id").read_text()
    assert (tmp_path / "id").stat().st_mode & 0o077 == 0
    ssh.make_key(tmp_path / "id", "lab")
    assert (tmp_path / "id").read_text() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["id", "id.pub"]


@pytest.mark.parametrize(
    ("stderr", "error"),
    [
        ("@@@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @@@\nHost key verification failed.", HostKeyMismatch),
        (
            "No ED25519 host key is known for [127.0.0.1]:1.\nHost key verification failed.",
            HostKeyMismatch,
        ),
        ("ssh: connect to host 127.0.0.1 port 1: Connection refused", HostUnreachable),
        ("admin@127.0.0.1: Permission denied (publickey).", HostUnreachable),
        ("", HostUnreachable),
    ],
)
def test_failed_connection_has_a_name(stderr: str, error: type[Exception]) -> None:
    assert type(ssh.connection_error("gpu1", stderr)) is error


@pytest.mark.parametrize("says", [b"HTTP/1.0 400 Bad Request\r\n", b"", None])
def test_what_is_no_ssh_server_does_not_greet(says: bytes | None) -> None:
    """Something else; something that hangs up, as QEMU for a guest without sshd; something that stays silent."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(says or b"")
                if says is None:
                    connection.recv(1)

        thread = threading.Thread(target=answer)
        thread.start()
        assert not ssh.greets(server.getsockname()[1], patience=0.5)
        thread.join()


def test_only_an_ssh_server_greets(sshd: Callable[..., object]) -> None:
    server = sshd()
    assert ssh.greets(server.port)  # type: ignore[attr-defined]
    server.stop()  # type: ignore[attr-defined]
    assert not ssh.greets(server.port, patience=0.5)  # type: ignore[attr-defined]
