from __future__ import annotations

import io
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.errors import ControllerUnfit, GdsError, HostKeyMismatch, HostUnfit, HostUnreachable
from gdsdeploy.ssh import endpoint, transport
from gdsdeploy.ssh.endpoint import Answer, Endpoint
from gdsdeploy.validate import fleet_validation
from gdsdeploy.zipapp import bootstrap, hostapp
from tests.loopback.loopback_sshd import PLAIN, SUDOER, Sshd, free_port, keygen
from tests.patience import SURELY, wait_for, with_time

Start = Callable[..., Sshd]

ECHO = """
import glob, json, os, sys
import part
print(json.dumps({
    "argv": sys.argv[1:], "stdin": sys.stdin.read(), "uid": os.getuid(), "part": part.NAME, "pid": os.getpid(),
    "file": sys.argv[0], "cwd": os.getcwd(),
}))
"""


def zipapp(main: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("__main__.py", main)
        archive.writestr("part.py", "NAME = 'imported from the archive'\n")
    return buffer.getvalue()


def ask(
    *hosts: Endpoint, main: str = ECHO, argv: tuple[str, ...] = (), timeout: float = 600, **more: Any
) -> list[Answer]:
    return list(transport.fan_out(hosts, zipapp(main), argv, timeout=timeout, **more))


def refusal(host: Endpoint, kind: type[GdsError], **more: Any) -> GdsError:
    """The one answer of a host that has to fail; every error names the host and its address, and has a next step."""
    (answer,) = ask(host, **more)
    assert answer.document is None
    assert type(answer.error) is kind, answer
    assert f"{host.host} ({host.address}:{host.port})" in answer.error.message
    assert answer.error.hint
    return answer.error


def test_a_program_runs_once_with_its_arguments_and_its_input(sshd: Start) -> None:
    server = sshd()
    argv = ("evidence", "--json", 'it\'s "quoted" $HOME !x ü')
    (answer,) = ask(server.endpoint(), argv=argv, stdin="grüße".encode())
    assert answer.error is None
    assert answer.document is not None
    document = answer.document
    assert document["argv"] == list(argv)
    assert document["stdin"] == "grüße"
    assert document["uid"] == 0
    assert document["part"] == "imported from the archive"
    assert document["file"].startswith("/run/gdsdeploy/program-")
    assert not server.has_process(document["pid"])
    assert answer.seconds < SURELY
    sessions = [
        line for line in (server.folder / "log").read_text().splitlines() if "Starting session: command" in line
    ]
    assert len(sessions) == 1


def test_a_large_program_and_a_large_answer(sshd: Start) -> None:
    main = ECHO + "\n#" + os.urandom(3_000_000).hex() + "\n"
    (answer,) = ask(sshd().endpoint(), main=main.replace("sys.stdin.read()", "'x' * 5_000_000"), stdin=b"y" * 3_000_000)
    assert answer.error is None
    assert answer.document is not None
    assert len(answer.document["stdin"]) == 5_000_000


@pytest.mark.parametrize(
    ("change", "is_sent"),
    [
        ("true", False),
        ("rm -r {}", True),
        ("rm {}/__main__.py", True),
        ("chmod 777 {}", True),
        ("chown 64001 {}", True),
        ("mv {0} {0}.moved && ln -s {0}.moved {0}", True),
    ],
)
@pytest.mark.parametrize("user", ["root", SUDOER])
def test_a_host_gets_the_program_only_if_it_has_none(
    sshd: Start, monkeypatch: pytest.MonkeyPatch, user: str, change: str, is_sent: bool
) -> None:
    """Nor one that others could have changed."""
    # No other test's, of which the same folder would be.
    program = zipapp(f"{ECHO}# {os.urandom(16).hex()}")
    server, framed, parts = sshd(), hostapp.framed, list[bytes]()
    monkeypatch.setattr(hostapp, "framed", lambda part: parts.append(part) or framed(part))
    place = f"{bootstrap.FOLDER}/{bootstrap.name_of(program)}"
    try:
        for expected, after in ((True, change), (is_sent, "true")):
            (answer,) = transport.fan_out([server.endpoint(user=user)], program, ["a"], timeout=600, stdin=b"text")
            assert answer.error is None
            assert answer.document is not None
            assert (answer.document["argv"], answer.document["stdin"]) == (["a"], "text")
            assert (program in parts) == expected
            parts.clear()
            server.run(after.format(place))
    finally:
        server.run(f"rm -rf {place} {place}.moved")


#: Asks for the program twice at once, and again once it has it.
GREEDY = """
f = open(0, "rb", closefd=False)
exec(f.read({size}))
size_in(f)
mark = [part(f) for _ in range(6)][0]
os.write(1, request_of(mark) * 2)
program = part(f)
os.write(1, request_of(mark))
os.write(1, mark + json.dumps({{"sizes": [len(program), len(f.read())]}}).encode())
"""


def test_a_host_gets_the_program_once_however_often_it_asks(sshd: Start, tmp_path: Path) -> None:
    script = f"#!{sys.executable} -I{GREEDY.format(size=len(hostapp._bootstrap()))}"
    (answer,) = ask(sshd(f"SetEnv PATH={bin_with(tmp_path, python3=script)}").endpoint())
    assert answer.document == {"sizes": [len(zipapp(ECHO)), 0]}


def test_what_a_login_script_prints_does_not_matter(sshd: Start) -> None:
    noise = 'ForceCommand echo \'{"not": "ours"}\'; echo noise >&2; eval "$SSH_ORIGINAL_COMMAND"; echo bye'
    (answer,) = ask(sshd(noise).endpoint())
    assert answer.document is not None
    assert answer.document["part"]


def test_many_hosts_at_once_and_one_of_each_fault(sshd: Start) -> None:
    good, closed = sshd(), free_port()
    hosts = [good.endpoint(f"gpu{n}") for n in range(12)]
    bad = [
        replace(good.endpoint("closed"), port=closed),
        replace(good.endpoint("nowhere"), address="no-such-host.invalid"),
        good.endpoint("stranger", known_hosts=Path("/dev/null")),
    ]
    answers = {a.host: a for a in ask(*hosts[:6], *bad, *hosts[6:], workers=5)}
    assert len(answers) == 15
    assert [name for name, a in answers.items() if a.error is None and a.document] == pytest.approx(
        [name for name in answers if name.startswith("gpu")]
    )
    assert {name: type(a.error) for name, a in answers.items() if a.error} == {
        "closed": HostUnreachable,
        "nowhere": HostUnreachable,
        "stranger": HostKeyMismatch,
    }


# --- reaching a host -------------------------------------------------------------------------------------------------


def test_a_closed_port(sshd: Start) -> None:
    error = refusal(replace(sshd().endpoint(), port=free_port()), HostUnreachable)
    assert "connection refused" in error.message


def test_a_name_that_does_not_resolve(sshd: Start) -> None:
    error = refusal(replace(sshd().endpoint(), address="no-such-host.invalid"), HostUnreachable)
    assert "cannot be resolved" in error.message
    assert error.hint == "Set hosts.gpu1.address in the fleet file"


def test_a_login_that_is_refused(sshd: Start, tmp_path: Path) -> None:
    host = replace(sshd().endpoint(), identity_files=(keygen(tmp_path / "other"),))
    assert "the login as root was refused" in refusal(host, HostUnreachable).message


def test_a_key_with_a_passphrase(sshd: Start, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", locked], check=True)
    error = refusal(replace(sshd().endpoint(), identity_files=(locked,)), HostUnreachable)
    assert "needs a passphrase" in error.message
    assert "ssh-add" in (error.hint or "")


def test_a_key_that_others_can_read_is_not_used(sshd: Start) -> None:
    host = sshd().endpoint()
    (key,) = host.identity_files
    key.chmod(0o644)
    error = refusal(host, HostUnreachable)
    assert f"the identity file {key} can be read by others than its owner (mode 0644)" in error.message
    assert error.hint == f"Run: chmod 0600 {key}"


def test_a_key_in_an_agent(sshd: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, listening = sshd(), tmp_path / "agent"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    host = replace(server.endpoint(), identity_files=())
    assert "the login as root was refused" in refusal(host, HostUnreachable).message
    with subprocess.Popen(["ssh-agent", "-D", "-a", listening], stdout=subprocess.DEVNULL) as agent:
        try:
            monkeypatch.setenv("SSH_AUTH_SOCK", str(listening))
            # It listens a moment after its socket is there.
            while subprocess.run(["ssh-add", "-q", server.identity], check=False, stderr=subprocess.DEVNULL).returncode:
                assert agent.poll() is None
                time.sleep(0.05)
            assert ask(host)[0].error is None
        finally:
            agent.terminate()


def test_an_identity_file_that_does_not_exist(sshd: Start, tmp_path: Path) -> None:
    error = refusal(replace(sshd().endpoint(), identity_files=(tmp_path / "none",)), HostUnreachable)
    assert f"{tmp_path / 'none'} does not exist" in error.message


def test_a_server_that_is_not_ssh(sshd: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def greet() -> None:
            peer, _ = server.accept()
            with peer:
                peer.sendall(b"220 mail.example ESMTP\r\n" * 100)
                peer.shutdown(socket.SHUT_WR)
                peer.recv(100)

        threading.Thread(target=greet, daemon=True).start()
        assert "no SSH session" in refusal(replace(sshd().endpoint(), port=port), HostUnreachable, timeout=5).message


# --- what this machine lacks -----------------------------------------------------------------------------------------

#: In a network of its own that leads nowhere: asks the host at an address, and prints the error's class and words.
CUT_OFF = """\
import sys
from pathlib import Path
from gdsdeploy.ssh import transport
from gdsdeploy.ssh.endpoint import Endpoint
host = Endpoint("gpu1", sys.argv[1], int(sys.argv[2]), "root", (), ())
(answer,) = transport.fan_out([host], b"", [], timeout=20)
print(type(answer.error).__name__, answer.error)
"""


#: Makes a router that has no way to the host, and says so, as where each host announces its own address and is down.
ROUTER = """
ip link add name v0 type veth peer name v1
unshare --net sleep 60 >/dev/null 2>&1 &
trap "kill $!" EXIT
until [ "$(readlink /proc/$!/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do sleep 0.1; done
ip link set dev v1 netns $!
router() { nsenter --net --target $! "$@"; }
router ip address add 10.9.0.2/24 dev v1
router ip link set dev v1 up
router sysctl -q net.ipv4.ip_forward=1
ip address add 10.9.0.1/24 dev v0
ip link set dev v0 up
ip route add default via 10.9.0.2
"""


@pytest.mark.parametrize(
    ("up", "address", "expected"),
    [
        ("true", "192.0.2.1", "ControllerUnfit this machine cannot connect to gpu1 (192.0.2.1:22): Network is unre"),
        ("true", "gpu1.example", "ControllerUnfit this machine cannot look up gpu1.example: Temporary failure in"),
        ("ip link set lo up", "127.0.0.1", "HostUnreachable gpu1 (127.0.0.1:22): cannot connect: connection refused"),
        (ROUTER, "10.0.0.1", "HostUnreachable gpu1 (10.0.0.1:22): cannot connect: connection refused or no route"),
    ],
    ids=["no network", "no name server", "a closed port", "no route to the host"],
)  # fmt: skip
def test_a_machine_that_is_cut_off_is_no_silence_of_a_host(up: str, address: str, expected: str) -> None:
    argv = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", f'{up}\n"$@"', "sh"]
    argv += [sys.executable, "-c", CUT_OFF, address, "22"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.stdout.startswith(expected), done.stdout + done.stderr


def test_a_machine_without_files_is_no_silence_of_a_host(sshd: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it runs out of them: at the socket, a pipe, or the file of the host's key."""
    monkeypatch.setattr(endpoint, "allow_files", lambda number: number)
    host, before = sshd().endpoint(), resource.getrlimit(resource.RLIMIT_NOFILE)
    assert ask(host)[0].error is None
    answers = []
    for left in range(12):
        taken = [os.dup(0) for _ in range(100)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken[-1] + 1 + left, before[1]))
        try:
            answers += ask(host)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            for number in taken:
                os.close(number)
    errors = [answer.error for answer in answers]
    assert {type(error) for error in errors} == {ControllerUnfit, type(None)}, list(map(str, errors))
    assert all("ulimit -n" in str(error.hint) for error in errors if error)


def test_fewer_hosts_at_once_where_this_machine_allows_few_files(sshd: Start) -> None:
    """The soft limit is raised for all of them; where the hard one is too low, fewer are asked at the same time."""
    end = repr(sshd("MaxStartups 200").endpoint()).replace("PosixPath", "Path")
    script = f"""\
import resource, sys
from pathlib import Path
from gdsdeploy.ssh import transport
from gdsdeploy.ssh.endpoint import Endpoint
from tests.loopback.ssh.test_transport import zipapp
resource.setrlimit(resource.RLIMIT_NOFILE, (64, int(sys.argv[1])))
answers = list(transport.fan_out([{end}] * 40, zipapp("print('{{}}')"), [], timeout=60))
print([answer.error for answer in answers if answer.error])
"""
    for hard, word in ((4096, ""), (280, "warning: this machine has files for 3 connections at the same time, not 40")):
        argv = [sys.executable, "-c", script, str(hard)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.stdout == "[]\n", done.stdout + done.stderr
        assert done.stderr.startswith(word) if word else not done.stderr


# --- host keys -------------------------------------------------------------------------------------------------------


def test_an_unknown_key_is_refused_before_the_login(sshd: Start, tmp_path: Path) -> None:
    server = sshd()
    error = refusal(server.endpoint(known_hosts=tmp_path / "known_hosts"), HostKeyMismatch)
    assert f"is not in {tmp_path / 'known_hosts'} (no such file)" in error.message
    assert "ssh-keygen -l -f /etc/ssh/ssh_host_ed25519_key.pub" in (error.hint or "")
    assert server.known_hosts.read_text().strip() in (error.hint or "")
    assert "Accepted publickey" not in (server.folder / "log").read_text()


def test_a_changed_key_is_refused_and_the_line_named(sshd: Start, tmp_path: Path) -> None:
    server = sshd()
    other = keygen(tmp_path / "other").with_suffix(".pub").read_text().split()
    record = tmp_path / "known_hosts"
    record.write_text(f"# a comment\nelsewhere ssh-ed25519 AAAA\n[127.0.0.1]:{server.port} {other[0]} {other[1]}\n")
    error = refusal(server.endpoint(known_hosts=record), HostKeyMismatch)
    assert "its host key changed" in error.message
    assert f"{record}:3 has SHA256:" in error.message
    assert f"replace line 3 of {record}" in (error.hint or "")
    assert "Accepted publickey" not in (server.folder / "log").read_text()


def test_a_revoked_key_is_refused_even_where_it_is_on_record(sshd: Start, tmp_path: Path) -> None:
    server = sshd()
    kind, blob = server.known_hosts.read_text().split()[1:3]
    record = tmp_path / "known_hosts"
    record.write_text(f"{server.known_hosts.read_text()}@revoked * {kind} {blob}\n")
    assert f"which {record}:2 revokes" in refusal(server.endpoint(known_hosts=record), HostKeyMismatch).message


def test_a_key_of_another_type_does_not_count(sshd: Start, tmp_path: Path) -> None:
    server = sshd()
    other = keygen(tmp_path / "other", "ecdsa").with_suffix(".pub").read_text().split()
    record = tmp_path / "known_hosts"
    record.write_text(f"[127.0.0.1]:{server.port} {other[0]} {other[1]}\n")
    error = refusal(server.endpoint(known_hosts=record), HostKeyMismatch)
    assert f"there is only {record}:1 (ecdsa-sha2-nistp256)" in error.message


def test_the_type_on_record_is_asked_for(sshd: Start, tmp_path: Path) -> None:
    """A server with several keys, of which a type that is not the first choice is on record."""
    rsa = keygen(tmp_path / "rsa", "rsa")
    server = sshd(f"HostKey {rsa}")
    kind, blob = rsa.with_suffix(".pub").read_text().split()[:2]
    record = tmp_path / "known_hosts"
    record.write_text(f"[127.0.0.1]:{server.port} {kind} {blob}\n")
    (answer,) = ask(server.endpoint(known_hosts=record))
    assert answer.error is None


# --- hosts that cannot work ------------------------------------------------------------------------------------------


def bin_with(tmp_path: Path, **programs: str) -> str:
    folder = tmp_path / "bin"
    folder.mkdir(parents=True)
    for name, text in programs.items():
        path = folder / name
        path.write_text(text)
        path.chmod(0o755)
    folder.chmod(0o755)
    return str(folder)


#: Says that it is 3.6; that the bootstrap's text compiles there, tests/unit/test_python_starts.py shows.
OLD_PYTHON = f'#!/bin/sh\nexec {sys.executable} -I -c "import sys; sys.version_info = (3, 6, 8); $4"\n'


@pytest.mark.parametrize(
    ("line", "user", "main", "words", "hint"),
    [
        ("SetEnv PATH={empty}", "root", ECHO, ("there is no python3 on it", "not found"), "python3-minimal"),
        ("SetEnv PATH={old}", "root", ECHO, ("its python3 is 3.6; 3.9 or newer is needed",), ""),
        ("SetEnv PATH={empty}", PLAIN, ECHO, ("sudo is not installed",), ""),
        ("", PLAIN, ECHO, (f"{PLAIN} cannot become root without a password", "sudo: "), f"{PLAIN} ALL=(ALL) NOPASSWD"),
        ("ForceCommand echo closed for today >&2; exit 9", "root", ECHO, ("status 9", "| closed for today"), ""),
        ("", "root", "import sys; sys.exit('no space left')", ("status 1 and gave no answer", "| no space left"), ""),
        ("", "root", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", ("was killed by signal 9",), ""),
        ("", "root", "print([1, 2])", (), ""),
    ],
)  # fmt: skip
def test_a_host_that_cannot_work(
    sshd: Start, tmp_path: Path, line: str, user: str, main: str, words: tuple[str, ...], hint: str
) -> None:
    empty, old = bin_with(tmp_path / "empty"), bin_with(tmp_path / "old", python3=OLD_PYTHON)
    server = sshd(*filter(None, [line.format(empty=empty, old=old)]))
    error = refusal(server.endpoint(user=user), HostUnfit, main=main)
    assert [each for each in words if each not in error.message] == []
    assert hint in (error.hint or "")


def test_a_user_with_sudo(sshd: Start) -> None:
    (answer,) = ask(sshd().endpoint(user=SUDOER))
    assert answer.error is None
    assert (answer.document or {})["uid"] == 0


def test_root_by_sudo_without_python(sshd: Start, tmp_path: Path) -> None:
    server = sshd()
    sudoers = server.folder / "sudoers"
    sudoers.chmod(0o640)
    sudoers.write_text(sudoers.read_text() + f'Defaults secure_path="{bin_with(tmp_path)}"\n')
    sudoers.chmod(0o440)
    assert "there is no python3 on it" in refusal(server.endpoint(user=SUDOER), HostUnfit).message


def test_the_status_of_a_program_that_answers_does_not_matter(sshd: Start) -> None:
    (answer,) = ask(sshd().endpoint(), main="import sys; print('{\"a\": 1}'); sys.exit(30)")
    assert answer.document == {"a": 1}


# --- hosts that behave badly -----------------------------------------------------------------------------------------


def test_a_host_that_hangs_does_not_hold_up_the_others(sshd: Start) -> None:
    server = sshd()
    main = "import sys, time\nif sys.stdin.read() == 'hang': time.sleep(600)\nprint('{}')"
    hosts = [server.endpoint(name) for name in ("a", "stuck", "b")]
    answers = with_time(
        lambda limit: ask(*hosts, main=main, timeout=limit, stdin={"stuck": b"hang"}),
        lambda answers: answers[1].error is None,
    )
    assert [answer.host for answer in answers][-1] == "stuck"
    assert answers[0].error is None
    assert answers[1].error is None
    error = answers[2].error
    assert isinstance(error, HostUnreachable)
    assert re.search(r"no answer within \d+ s", error.message)
    assert answers[2].seconds < SURELY


@pytest.mark.parametrize("handler", ["default_int_handler", "SIG_IGN"])
def test_a_program_that_nobody_waits_for_ends(sshd: Start, tmp_path: Path, handler: str) -> None:
    """It reads and writes nothing, and nothing is left of it soon after the connection is gone."""
    note = tmp_path / "pid"
    main = (
        f"import os, signal, time\nsignal.signal(signal.SIGINT, signal.{handler})\n"
        f"open({str(note)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)"
    )
    server = sshd()
    with_time(
        lambda limit: refusal(server.endpoint(), HostUnreachable, main=main, timeout=limit),
        lambda _: note.exists() and note.read_text(),
    )
    pid = int(note.read_text())
    assert wait_for(lambda: not server.has_process(pid)), "the program outlived its connection"


def test_the_host_itself_ends_a_program_after_its_time(tmp_path: Path) -> None:
    """The connection is still there, and nobody reads."""
    mark = b"\nmark\n"
    payload = hostapp.sent(zipapp("import time; time.sleep(600)"), [], b"", mark, limit=2)
    argv = ["sh", "-c", transport.command("root")]
    begin = time.monotonic()
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(payload)
        process.stdin.close()
        assert process.stdout.read() == mark
    assert 1 < time.monotonic() - begin < SURELY


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_host_that_floods(sshd: Start, monkeypatch: pytest.MonkeyPatch, stream: str) -> None:
    monkeypatch.setattr(transport, "ANSWER_LIMIT", 4 * 1024 * 1024)
    main = f"import sys\nwhile True: sys.{stream}.write('x' * 65536)"
    begin = time.monotonic()
    assert "larger than 4 MiB" in refusal(sshd().endpoint(), HostUnfit, main=main).message
    assert time.monotonic() - begin < SURELY


def test_an_endless_answer_before_the_program_begins(sshd: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "ANSWER_LIMIT", 1024 * 1024)
    assert "larger than 1 MiB" in refusal(sshd("ForceCommand yes").endpoint(), HostUnfit).message


def test_a_connection_that_breaks(sshd: Start) -> None:
    """The server's process for this connection is killed while the program runs."""
    main = (
        "import os, signal, time\np = os.getppid()\n"
        "while 'sshd' not in open(f'/proc/{p}/comm').read():\n"
        "    p = int(open(f'/proc/{p}/stat').read().rsplit(')')[-1].split()[1])\n"
        "os.kill(p, signal.SIGKILL)\ntime.sleep(5)"
    )
    error = refusal(sshd().endpoint(), HostUnreachable, main=main)
    assert "connection was closed" in error.message or "connection broke" in error.message


def test_output_held_open_by_a_child_does_not_hold_up_the_answer(sshd: Start) -> None:
    main = (
        "import os, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(600); os._exit(0)\n"
        "print('{\"a\": 1}', flush=True)"
    )
    begin = time.monotonic()
    (answer,) = ask(sshd().endpoint(), main=main)
    assert answer.document == {"a": 1}
    assert time.monotonic() - begin < SURELY


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A process that a shell started in its background ignores SIGINT; Python then leaves it so."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_interrupt_closes_all_and_says_so(sshd: Start) -> None:
    server = sshd()
    hosts = [server.endpoint(f"gpu{n}") for n in range(4)]
    answers = transport.fan_out(hosts, zipapp("import time; time.sleep(600)"), [], timeout=600)
    timer = threading.Timer(2.0, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        pytest.fail(f"{time.monotonic() - begin:.1f} s: {next(answers)}")
    assert time.monotonic() - begin < SURELY


def test_a_bug_is_not_swallowed(sshd: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(transport, "_payload", broken)
    with pytest.raises(ZeroDivisionError):
        ask(sshd().endpoint())


def test_the_command_line_is_the_same_for_every_shell() -> None:
    for user in ("root", "admin"):
        text = transport.command(user)
        assert not set("!$`\\\n~*?") & set(text)
        assert text.startswith("python3" if user == "root" else "sudo -n python3")
    assert json.dumps(transport.command("root"))
    for user, start in (("root", "cat - /"), ("admin", "sudo -n cat - /")):
        text = transport.command(user, fleet_validation.GATE_FILES)
        assert text.startswith(start)
        assert re.fullmatch(r"[a-z_/. -]+", text)
