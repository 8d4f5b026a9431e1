"""Hosts are reached as OpenSSH's configuration says, with the fleet file before it."""

from __future__ import annotations

import base64
import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.errors import HostKeyMismatch, HostUnreachable
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.ssh import sshconfig, transport
from gdsdeploy.ssh.endpoint import Answer, Endpoint
from gdsdeploy.ssh.transport import KnownKey, ask as fleet_ask, fingerprint, is_recorded, known_keys, record_name
from tests.loopback.loopback_sshd import Sshd
from tests.loopback.ssh.test_transport import ask, refusal
from tests.patience import SURELY, with_time

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
    (end,) = sshconfig.endpoints(fleet(ssh, **host), folder, ["gpu1"])
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
    end = sshconfig.parse(text, "gpu1")
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
    end = sshconfig.parse(f"host gpu1\nhostname 10.0.0.1\nport 22\nproxyjump {jump}\n", "gpu1", Path("/f"))
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


def test_a_host_through_an_older_ssh(sshd: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 9.2, ssh doesn't say for which host it was asked."""
    (tmp_path / "ssh").write_text('#!/bin/sh\n/usr/bin/ssh "$@" | grep -v "^host "\n')
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    config_of(sshd(), tmp_path, "")
    (answer,) = ask(endpoint(tmp_path, {"config": "config"}))
    assert (answer.host, answer.error) == ("gpu1", None)


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
    assert time.monotonic() - begin < SURELY


def test_a_proxy_that_hangs_is_ended(sshd: Start, tmp_path: Path) -> None:
    config_of(sshd(), tmp_path, f"Host gpu1\n  ProxyCommand echo $$ > {tmp_path / 'pid'}; sleep 600\n")
    note = tmp_path / "pid"
    with_time(
        lambda limit: refusal(endpoint(tmp_path, {"config": "config"}), HostUnreachable, timeout=limit),
        lambda _: note.exists() and note.read_text(),
    )
    assert not Path("/proc", note.read_text().strip()).exists()


def test_a_proxy_that_is_not_there(sshd: Start) -> None:
    host = replace(sshd().endpoint(), proxy=("/nonexistent/proxy",))
    (answer,) = ask(host)
    assert answer.error is not None
    assert "/nonexistent/proxy is not installed" in answer.error.message


# --- how often ssh is asked -----------------------------------------------------------------------------------------

NAMES = ("gpu1", "gpu2", "gpu3", "gpu4")


def many(folder: Path, config: str, **changed: dict[str, Any]) -> list[Endpoint]:
    """The endpoints of four hosts, some of which have their own settings."""
    (folder / "config").write_text(config)
    hosts = {name: {"profile": "gds", **changed.get(name, {})} for name in NAMES}
    value = {"version": 1, "profiles": {"gds": {"os": "debian-13"}}, "ssh": {"config": "config"}, "hosts": hosts}
    return sshconfig.endpoints(Fleet.model_validate(value), folder, NAMES)


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that ssh is asked about; it answers as always."""
    names: list[str] = []
    real = sshconfig.run

    def run(argv: Sequence[str | Path], **options: Any) -> Any:
        names.append(str(argv[-1]))
        return real(argv, **options)

    monkeypatch.setattr(sshconfig, "run", run)
    return names


ALIKE = {
    "nothing": "",
    "all hosts": "User ops\nHost *\n  Port 2200\n  IdentitiesOnly=yes\n# Host gpu1\n",
    "match all": "Match all\n  HostKeyAlias one\n",
    "a proxy": "Host *\n  ProxyJump me@bastion:23\n",
    "tokens of a proxy": "Host *\n  ProxyCommand nc %h %p\n  ControlPath ~/.ssh/%C\n",
    "another file": "Include {folder}/mo*\n",
}
DIFFERENT = {
    "a host": "Host gpu1\n  Port 2200\n",
    "a pattern": "Host gpu[1\n  Port 1\nHost gp*\n  User x\n",
    "all but one": "Host * !gpu1\n  Port 2200\n",
    "an equals sign": "hOsT=gpu2\n  Port 2200\n",
    "quotes": 'Host "gpu2"\n  Port 2200\n',
    "match": "Match host gpu3\n  User x\n",
    "a name": "HostName %h.example.com\n",
    "a token": "UserKnownHostsFile /keys/%h\n",
    "a variable": "IdentityFile /keys/${HOME}\n",
    "another file": "Include {folder}/different\n",
}


def place(folder: Path, config: str) -> str:
    (folder / "more").write_text("Host *\n  Port 2201\n")
    (folder / "different").write_text("Host gpu4\n  Port 2201\n")
    return config.replace("{folder}", str(folder))


@pytest.mark.parametrize("config", ALIKE.values(), ids=ALIKE)
def test_ssh_is_asked_once_where_all_hosts_are_alike(tmp_path: Path, questions: list[str], config: str) -> None:
    changed: dict[str, dict[str, Any]] = {
        "gpu2": {"port": 2222},
        "gpu3": {"user": "admin", "address": "10.0.0.3"},
        "gpu4": {"address": "fe80::4"},
    }
    ends = many(tmp_path, place(tmp_path, config), **changed)
    assert len(questions) == 1
    for name, end in zip(NAMES, ends, strict=True):
        own = changed.get(name, {})
        ssh = {"port": own.get("port"), "user": own.get("user"), "config": tmp_path / "config"}
        assert end == replace(sshconfig.ask(own.get("address", name), **ssh), host=name)


@pytest.mark.parametrize("config", DIFFERENT.values(), ids=DIFFERENT)
def test_ssh_is_asked_about_each_host_where_one_may_differ(tmp_path: Path, questions: list[str], config: str) -> None:
    ends = many(tmp_path, place(tmp_path, config))
    assert sorted(questions) == [*NAMES]
    assert ends == [replace(sshconfig.ask(n, port=None, user=None, config=tmp_path / "config"), host=n) for n in NAMES]


@pytest.mark.parametrize(
    ("config", "address"),
    [("Host *\n  ProxyJump gpu2:2200\n", "gpu2"), ("", "GPU2"), ("", "fe80::1%lo")],
)
def test_ssh_is_asked_about_a_name_that_it_changes_or_that_occurs(
    tmp_path: Path, questions: list[str], config: str, address: str
) -> None:
    ends = many(tmp_path, config, gpu2={"address": address})
    assert len(questions) == 2, questions
    assert address in questions
    assert ends[1] == replace(sshconfig.ask(address, port=None, user=None, config=tmp_path / "config"), host="gpu2")


def test_another_ssh_may_read_others(tmp_path: Path, questions: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ssh").write_text('#!/bin/sh\nexec /usr/bin/ssh "$@"\n')
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    many(tmp_path, "")
    assert sorted(questions) == [*NAMES]


def test_the_system_s_and_the_user_s_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "system").write_text("Include system.d/*\nHost *\n")
    assert sshconfig.common_text(None) is not None, "the files of this machine treat hosts alike"
    monkeypatch.setattr(sshconfig, "_SYSTEM", (tmp_path / "system",))
    assert sshconfig.common_text(None) == "include system.d/*\nhost *"
    (tmp_path / "system.d").mkdir()
    (tmp_path / "system.d" / "one").write_text("Host gpu1\n")
    assert sshconfig.common_text(None) is None


def test_a_file_that_includes_itself_ends(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(f"Include {tmp_path}/config\n")
    assert sshconfig.common_text(tmp_path / "config") is None


def test_ssh_runs_in_the_threads_that_connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host is connected to while ssh has still to be asked about another one."""
    connected, threads = threading.Event(), []

    def answer(name: str, **_: object) -> str:
        threads.append(threading.current_thread())
        if name == "gpu2":
            assert connected.wait(300)
        return f"host {name}\nhostname {name}\nport 22\nuser root\n"

    def connect(host: Endpoint, *_: object) -> Answer:
        connected.set()
        return Answer(host.host, {}, None, 0.0)

    monkeypatch.setattr(sshconfig, "_answer", answer)
    monkeypatch.setattr(transport, "_ask", connect)
    (tmp_path / "config").write_text("Host gpu1\n  Port 22\n")
    value = {"gpu1": {"profile": "gds"}, "gpu2": {"profile": "gds"}}
    both = Fleet.model_validate(
        {"version": 1, "profiles": {"gds": {"os": "debian-13"}}, "ssh": {"config": "config"}, "hosts": value}
    )
    answers = fleet_ask(
        both, tmp_path / "fleet.yml", ["gpu1", "gpu2"], [], Answer.require_document, timeout=30, program=b""
    )
    assert {answer.host for answer, _ in answers} == {"gpu1", "gpu2"}
    assert threading.main_thread() not in threads
    assert len(threads) == 2


def test_an_error_of_the_configuration_is_that_hosts_own(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("Host gpu1\n  Prot 22\n")
    broken = fleet({"config": "config"})
    ((answer, error),) = fleet_ask(
        broken, tmp_path / "fleet.yml", ["gpu1"], [], Answer.require_document, timeout=30, program=b""
    )
    assert answer.host == "gpu1"
    assert isinstance(error, HostUnreachable)
    assert "Bad configuration option: prot" in error.message


# -- Known hosts.


def host(address: str, port: int, *files: Path, alias: str = "") -> Endpoint:
    return Endpoint("one", address, port, "root", (), files, host_key_alias=alias)


BLOB = base64.b64encode(b"\x00\x00\x00\x0bssh-ed25519 and so on").decode()


@pytest.mark.parametrize(
    ("names", "address", "port", "expected"),
    [
        ("gpu1", "gpu1", 22, True),
        ("gpu1", "GPU1", 22, True),
        ("gpu1", "gpu1", 2222, False),
        ("[gpu1]:2222", "gpu1", 2222, True),
        ("[gpu1]:2222", "gpu1", 22, False),
        ("other,gpu1,10.0.0.1", "10.0.0.1", 22, True),
        ("*.example", "gpu1.example", 22, True),
        ("*.example", "gpu1-example", 22, False),
        ("gpu?", "gpu1", 22, True),
        ("gpu?", "gpu10", 22, False),
        ("*,!gpu1", "gpu1", 22, False),
        ("*,!gpu1", "gpu2", 22, True),
        ("[*]:2222", "gpu1", 2222, True),
        ("2001:db8::1", "2001:db8::1", 22, True),
        ("|1|not base64|x", "gpu1", 22, False),
    ],
)
def test_names(tmp_path: Path, names: str, address: str, port: int, expected: bool) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"{names} ssh-ed25519 {BLOB} a comment\n")
    assert bool(known_keys(host(address, port, file))) is expected


def test_an_alias_stands_for_the_host_whatever_its_port(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"node7 ssh-ed25519 {BLOB}\n[10.0.0.7]:2222 ssh-rsa {BLOB}\n")
    assert [key.type for key in known_keys(host("10.0.0.7", 2222, file, alias="node7"))] == ["ssh-ed25519"]


def test_lines_markers_and_what_is_no_entry(tmp_path: Path) -> None:
    first, second = tmp_path / "one", tmp_path / "two"
    first.write_text(f"# gpu1 ssh-rsa {BLOB}\n\ngpu1\n@revoked gpu1 ssh-rsa {BLOB}\ngpu1 ssh-rsa ***\n")
    second.write_text(f"gpu1 ssh-ed25519 {BLOB}\n@cert-authority * ssh-rsa {BLOB}\n")
    keys = known_keys(host("gpu1", 22, first, tmp_path / "none", second))
    assert [(key.place(), key.type, key.marker) for key in keys] == [
        (f"{first}:4", "ssh-rsa", "revoked"),
        (f"{second}:1", "ssh-ed25519", ""),
        (f"{second}:2", "ssh-rsa", "cert-authority"),
    ]


@pytest.mark.parametrize(
    ("markers", "accepted"),
    [([""], True), ([], False), (["cert-authority"], False), (["", "revoked"], False), (["revoked"], False)],
)
def test_a_key_counts_only_when_it_is_there_plainly(markers: list[str], accepted: bool) -> None:
    keys = [KnownKey(Path("f"), 1, "ssh-rsa", b"blob", marker) for marker in markers]
    assert is_recorded([*keys, KnownKey(Path("f"), 2, "ssh-rsa", b"other")], b"blob") is accepted


def test_openssh_agrees(tmp_path: Path) -> None:
    """ssh-keygen finds the same entries, hashed ones included, and prints the same fingerprint."""
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    kind, blob = key.with_suffix(".pub").read_text().split()[:2]
    file = tmp_path / "known_hosts"
    file.write_text(f"{record_name(host('gpu1', 2222))} {kind} {blob}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", file], check=True, capture_output=True)
    (record,) = known_keys(host("gpu1", 2222, file))
    shown = subprocess.run(["ssh-keygen", "-l", "-f", key], check=True, capture_output=True, text=True).stdout
    assert fingerprint(record.blob) in shown
    assert known_keys(host("gpu1", 22, file)) == []
