"""SSH to many hosts at once: one connection, one exec and one JSON document per host; nothing is installed there.

The program (a zipapp) travels on the standard input of ``python3 -c``; :mod:`gdsdeploy.zipapp.bootstrap` runs it.  It
is sent only when the host asks for it: most have it since an earlier call.
A host's key is always checked, and a host's failure is only its own answer.  A hostile host can't change that: what it
sends and its time are bounded below everything that reads its answer.  The format of known_hosts files, and how they
match names, is in sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT".
"""

from __future__ import annotations

import base64
import contextlib
import errno
import fnmatch
import hashlib
import hmac
import logging
import os
import queue
import secrets
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import paramiko

from gdsdeploy import cancel, console, paths
from gdsdeploy.errors import (
    NETWORK,
    ControllerUnfit,
    GdsError,
    HostKeyMismatch,
    HostUnfit,
    HostUnreachable,
    lack_of_controller,
)
from gdsdeploy.host.io import reading
from gdsdeploy.host.io.atomic import exposure
from gdsdeploy.host.io.wording import line
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.hostnames import words
from gdsdeploy.report.model import failures_in
from gdsdeploy.run import Dialled, dial
from gdsdeploy.ssh import endpoint, machines, sshconfig
from gdsdeploy.ssh.endpoint import Answer, Endpoint, Files, Installed, Output, document
from gdsdeploy.ssh.sshconfig import Reach
from gdsdeploy.zipapp import hostapp
from gdsdeploy.zipapp.bootstrap import request_of

#: Bytes of a file: keys of some hundred thousand hosts.
LIMIT: Final = 64 * 1024 * 1024


@dataclass(frozen=True)
class KnownKey:
    """One line that speaks about a host."""

    file: Path
    line: int
    #: e.g. ``ssh-ed25519``
    type: str
    blob: bytes
    #: empty, ``revoked`` or ``cert-authority``
    marker: str = ""

    def place(self) -> str:
        return f"{self.file}:{self.line}"


def record_name(host: Endpoint) -> str:
    """The name under which a host is on record: the port is part of it unless it is 22 or the name is an alias."""
    return host.host_key_alias or (host.address if host.port == 22 else f"[{host.address}]:{host.port}")


def known_keys(host: Endpoint) -> list[KnownKey]:
    """Every line of the known_hosts files about ``host``, in order.  Raises OSError for an unreadable file."""
    name = record_name(host).lower()
    return [key for file in host.known_hosts if file.exists() for key in _lines(file, name)]


def fingerprint(blob: bytes) -> str:
    """As ``ssh-keygen -l`` prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def is_recorded(keys: Sequence[KnownKey], blob: bytes) -> bool:
    """Whether exactly this key is on record and not revoked."""
    markers = {key.marker for key in keys if key.blob == blob}
    return "" in markers and "revoked" not in markers


def key_refusal(host: Endpoint, keys: Sequence[KnownKey], kind: str, blob: bytes) -> HostKeyMismatch:
    """Why the key that ``host`` presented is not accepted, where to look, and how to find out which one is right."""
    presented = f"{kind} {fingerprint(blob)}"
    word = next((word for word in ("ed25519", "ecdsa", "rsa") if word in kind), "*")
    verify = f"`ssh-keygen -l -f /etc/ssh/ssh_host_{word}_key.pub` on the host's own console"
    if revoked := [key for key in keys if key.blob == blob and key.marker == "revoked"]:
        words = f"{host.where()}: it presented the key {presented}, which {revoked[0].place()} revokes"
        return HostKeyMismatch(words, hint="Give the host new keys and put one of them on record")
    if others := [key for key in keys if key.type == kind and not key.marker]:
        return HostKeyMismatch(
            f"{host.where()}: its host key changed: it presented {presented}, "
            f"but {others[0].place()} has {fingerprint(others[0].blob)}",
            hint="Another machine may be in between. If the host was installed again, "
            f"compare with {verify}, then replace line {others[0].line} of {others[0].file}",
        )
    files = " or ".join(str(file) + ("" if file.exists() else " (no such file)") for file in host.known_hosts)
    places = ", ".join(f"{key.place()} ({key.marker or key.type})" for key in keys)
    line = f"{record_name(host)} {kind} {base64.b64encode(blob).decode()}"
    return HostKeyMismatch(
        f"{host.where()}: its host key is not known: {presented} is not in {files}"
        + (f"; for this host there is only {places}" if places else ""),
        hint=f"Compare with {verify}, then add this line to {host.known_hosts[0]}:\n  {line}",
    )


def _lines(file: Path, name: str) -> Iterator[KnownKey]:
    for number, text in enumerate(reading.whole(str(file), LIMIT).decode(errors="replace").splitlines(), start=1):
        fields = text.split()
        marker = fields.pop(0)[1:] if fields and fields[0].startswith("@") else ""
        if len(fields) < 3 or fields[0].startswith("#") or not _speaks_of(fields[0], name):
            continue
        try:
            blob = base64.b64decode(fields[2], validate=True)
        except ValueError:
            continue
        yield KnownKey(file, number, fields[1], blob, marker)


def _speaks_of(patterns: str, name: str) -> bool:
    if patterns.startswith("|1|"):
        return _hashed(patterns, name)
    matching = [pattern for pattern in patterns.lower().split(",") if _matches(pattern.removeprefix("!"), name)]
    return bool(matching) and not any(pattern.startswith("!") for pattern in matching)


def _hashed(text: str, name: str) -> bool:
    try:
        salt, digest = (base64.b64decode(part, validate=True) for part in text.split("|")[2:4])
    except ValueError:
        return False
    return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), digest)


def _matches(pattern: str, name: str) -> bool:
    """``*`` and ``?`` are the only wildcards; brackets belong to a name with a port."""
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))


#: Bytes of all hosts together that are not parsed yet; without room for more, hosts wait.
IN_FLIGHT = 256 * 2**20


class Room:
    """Memory that many share.  size: bytes."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        """Whether there was room, which then is taken."""
        with self._lock:
            fits = size <= self._left
            self._left -= size if fits else 0
        return fits

    def give(self, size: int) -> None:
        """Make room again."""
        with self._lock:
            self._left += size


_ROOM = Room(IN_FLIGHT)


class Meter:
    """A connection's socket, as an SSH library reads it: counts what the host sends and ends at ``limit`` bytes.

    The library keeps all that comes, also what a server sends before it is asked, or beyond the window that it has.
    """

    def __init__(self, limit: int, room: Room = _ROOM) -> None:
        self._socket: socket.socket
        self._limit, self._room = limit, room
        self._received = 0
        self._lock = threading.Lock()
        #: whether the host has sent more
        self.full = False

    def around(self, connected: socket.socket) -> Meter:
        """The same, for this socket."""
        self._socket = connected
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def recv(self, size: int) -> bytes:
        """As a socket's; raises TimeoutError, "nothing yet", where there is no room, and EOFError at the limit."""
        room, size = self._room, min(size, 1 << 16)
        if not room.take(size):
            time.sleep(0.05)
            raise TimeoutError
        data = b""
        try:
            data = self._socket.recv(size)
        finally:
            room.give(size - len(data))
            self._keep(len(data), room)
        self.full = self._received > self._limit
        if self.full:
            raise EOFError
        return data

    def done(self) -> None:
        """Release the room of what was received; nothing more is received."""
        with self._lock:
            self._room.give(self._received)
            self._room = Room(0)

    def _keep(self, size: int, room: Room) -> None:
        """Count what was received; the library's thread may still be at it when all is done."""
        with self._lock:
            self._received += size
            if self._room is not room:
                room.give(size)


#: Bytes that one host may send, everything counted; one that sends more is cut off.  Real evidence is below 1 MiB.
ANSWER_LIMIT = 8 * 2**20
#: Bytes kept of what a host writes to standard error: the end of it, which says why.
ERROR_LIMIT = 64 * 1024
#: Seconds for each of: the TCP connection, the server's greeting, the login.
CONNECT_TIMEOUT = 15.0

# What paramiko logs is an answer here; without a handler Python would print it.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


def fan_out(
    hosts: Sequence[Endpoint | Reach],
    program: bytes | Files,
    argv: Sequence[str],
    *,
    timeout: float,
    stdin: bytes | Mapping[str, bytes] = b"",
    workers: int | None = None,
    read_only: bool = False,
) -> Iterator[Answer]:
    """Run ``program`` (a zipapp) with ``argv`` as root on each host; yield each answer as it comes.

    program: or files, which are read instead, and neither take ``argv`` nor ``stdin``.
    timeout: seconds for each host, from its connection to the end of its answer.
    stdin: what the program reads on standard input, the same for all or by host.
    read_only: the question only reads: a host with ``reads_installed`` has its installed program answer it.
    workers: hosts that are talked to at the same time; None: as ``connections`` has it.
    KeyboardInterrupt, a request to stop (``cancel``), which raises Interrupted, and closing the iterator close every
    connection.
    """
    stop = cancel.current()
    stop.check()
    wanted = min(workers or endpoint.hosts_at_once(), len(hosts))
    workers = endpoint.allow_files(wanted)
    if workers < wanted:
        words = f"this machine has files for {workers} connections at the same time, not {wanted}"
        console.warn(f"{words}: raise its limit of open files (ulimit -Hn)")
    waiting = deque(hosts)
    answers: queue.SimpleQueue[Answer | Exception] = queue.SimpleQueue()
    opened = _Connections()
    # For hosts that are asked and for answers that wait: they may be judged more slowly than they come.
    places = threading.Semaphore(workers)

    def work() -> None:
        while places.acquire() and not opened.closed:
            try:
                host = waiting.popleft()
            except IndexError:
                return
            text = stdin if isinstance(stdin, bytes) else stdin.get(host.host, b"")
            try:
                answers.put(_reach_and_ask(host, program, argv, text, timeout, opened, read_only))
            except Exception as bug:  # noqa: BLE001 - raised again below; a thread cannot
                answers.put(bug)

    # Daemons: a thread that is stuck in a name look-up must not hold up the end of the process.
    for _ in range(workers):
        threading.Thread(target=work, daemon=True).start()
    try:
        for _ in hosts:
            # Also when a thread is stuck in a name look-up.
            answer = stop.take(answers)
            places.release()
            if isinstance(answer, Exception):
                raise answer
            yield answer
    finally:
        opened.close()
        places.release(workers)


class _Connections:
    """The open connections, so that another thread can close them all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[paramiko.SSHClient] = set()
        self.closed = False

    def add(self, client: paramiko.SSHClient) -> None:
        with self._lock:
            self._open.add(client)

    def done(self, client: paramiko.SSHClient) -> None:
        with self._lock:
            self._open.discard(client)
        client.close()

    def close(self) -> None:
        with self._lock:
            self.closed = True
            clients, self._open = self._open, set()
        for client in clients:
            client.close()


def _reach_and_ask(host: Endpoint | Reach, *question: Any) -> Answer:
    if isinstance(host, Endpoint):
        return _ask(host, *question)
    begin = time.monotonic()
    try:
        end = host.find()
    except (HostUnreachable, ControllerUnfit) as error:
        return Answer(host.host, None, error, time.monotonic() - begin)
    return _ask(end, *question)


def _ask(
    host: Endpoint,
    program: bytes | Files | Installed,
    argv: Sequence[str],
    stdin: bytes,
    timeout: float,
    opened: _Connections,
    read_only: bool,
) -> Answer:
    begin = time.monotonic()
    alone = read_only and host.reads_installed
    if alone and isinstance(program, bytes):
        program = Installed(hostapp.digest(program), hostapp.claim())
    other = None if isinstance(program, bytes) else program
    mark, payload, awaited = _payload(program, argv, stdin, timeout)
    client, meter = paramiko.SSHClient(), Meter(ANSWER_LIMIT)
    opened.add(client)
    # paramiko waits for some of a server's messages without a limit.
    late = threading.Timer(timeout + 1.0, client.close)
    late.daemon = True
    late.start()
    reply: dict[str, Any] | None = None
    error: GdsError | None = None
    proxy: Dialled | None = None
    try:
        proxy = dial(host.proxy, doing=f"connect to {host.host}") if host.proxy else None
        _connect(client, host, timeout, proxy, meter)
        words = command(host.user, other, alone=alone)
        output = _exec(client, words, mark, payload, awaited, begin + timeout)
        if not meter.full:
            reply = other.read(host, mark, output) if other else document(host, mark, output)
    except Exception as caught:  # noqa: BLE001 - whatever a host sets off is that host's failure
        error = _failure(host, caught, timeout, late=time.monotonic() - begin > timeout)
    finally:
        late.cancel()
        opened.done(client)
        meter.done()
        if proxy is not None:
            error = _with_complaint(error, proxy)
            proxy.close()
    if meter.full:
        words = f"{host.where()}: its answer is larger than {ANSWER_LIMIT // 2**20} MiB"
        error = HostUnfit(words, hint="Look at what the login shell of this user prints, and at the host's logs")
    return Answer(host.host, reply, error, time.monotonic() - begin)


def _failure(host: Endpoint, error: Exception, timeout: float, *, late: bool) -> GdsError:
    """What went wrong with a host.  late: after its time was up."""
    if lack := lack_of_controller(error, f"ask {host.where()}"):
        return lack
    broke = isinstance(error, (OSError, EOFError, paramiko.SSHException))
    if isinstance(error, TimeoutError) or (late and (broke or isinstance(error, HostUnreachable))):
        hint = f"Look at the host ({host.ssh()}), or give it more time with --timeout"
        return HostUnreachable(f"{host.where()}: no answer within {timeout:g} s", hint=hint)
    if isinstance(error, GdsError):
        return error
    if broke:
        why = line(str(error)) or type(error).__name__
        hint = "Run the command again; if it stays so, look at the host's sshd log (journalctl -u ssh)"
        return HostUnreachable(f"{host.where()}: the connection broke: {why}", hint=hint)
    words = f"{host.where()}: it could not be asked: {type(error).__name__}: {line(str(error))[:200]}"
    return HostUnfit(words, hint="The host didn't answer with valid SSH; look at what listens on that port")


def _connect(client: paramiko.SSHClient, host: Endpoint, timeout: float, proxy: Dialled | None, meter: Meter) -> None:
    limit = min(CONNECT_TIMEOUT, timeout)
    policy = _OnRecord(host, meter)
    client.set_missing_host_key_policy(policy)
    for file in host.identity_files:
        if not os.access(file, os.R_OK):
            words = f"{host.where()}: the identity file {file} does not exist, or this user may not read it"
            raise HostUnreachable(words, hint="identity_file in the fleet file is relative to that file")
        # A public key names one of the agent's.
        if file.suffix != ".pub" and (exposed := exposure(str(file), file.stat())):
            raise HostUnreachable(f"{host.where()}: the identity file {file} {exposed[0]}", hint=f"Run: {exposed[1]}")
    try:
        # As ssh does: one address after the other.
        ways = socket.create_connection((host.address, host.port), limit, all_errors=True) if proxy is None else None
        client.connect(
            host.address,
            port=host.port,
            username=host.user,
            # paramiko documents a list, too; its stubs do not know it.
            key_filename=[str(file) for file in host.identity_files],  # type: ignore[arg-type]
            look_for_keys=False,
            allow_agent=host.agent,
            timeout=limit,
            banner_timeout=limit,
            auth_timeout=limit,
            channel_timeout=limit,
            sock=proxy.socket if proxy else ways,
            transport_factory=policy.transport,
        )
    except (paramiko.SSHException, EOFError, OSError, ExceptionGroup) as caught:
        raise _no_session(client, host, caught) from None


def _no_session(client: paramiko.SSHClient, host: Endpoint, error: Exception) -> GdsError:
    """Why there is no session, or none that can be used.  A group has an error for each address of the host."""
    errors = error.exceptions if isinstance(error, ExceptionGroup) else (error,)
    where = f"connect to {host.where()}" if not isinstance(error, socket.gaierror) else f"look up {host.address}"
    lacks = [lack for each in errors if (lack := lack_of_controller(each, where))]
    if len(lacks) == len(errors):
        return lacks[0]
    if _is_cut_off(host, errors):
        return ControllerUnfit(f"this machine cannot {where}: {os.strerror(errno.ENETUNREACH)}", hint=NETWORK)
    match error:
        case paramiko.PasswordRequiredException():
            words = f"{host.where()}: the key {_keys(host)} needs a passphrase"
            return HostUnreachable(words, hint="Load it into an agent first: ssh-add")
        case socket.gaierror():
            words = f"{host.where()}: the name {host.address} cannot be resolved: {error.strerror}"
            return HostUnreachable(words, hint=f"Set hosts.{host.host}.address in the fleet file")
        case TimeoutError() | ConnectionError() | ExceptionGroup():
            silent = any(isinstance(each, TimeoutError) for each in errors)
            words = f"{host.where()}: cannot connect: {'no answer' if silent else 'connection refused or no route'}"
            hint = "Check that the host is up, that sshd listens on that port and that no firewall is in between"
            return HostUnreachable(words, hint=hint)
    transport = client.get_transport()
    # A session that is there without being usable means that the login failed: refused, or nothing to log in with.
    if isinstance(error, paramiko.AuthenticationException) or (transport is not None and transport.is_active()):
        words = f"{host.where()}: the login as {host.user} was refused with {_keys(host)}: {line(str(error))}"
        return HostUnreachable(words, hint=f"Try: {host.ssh()}; user and identity_file are set in the fleet file")
    words = f"{host.where()}: no SSH session: {line(str(error)) or 'the server closed the connection'}"
    return HostUnreachable(words, hint="Check that an SSH server answers on that port")


def _is_cut_off(host: Endpoint, errors: Sequence[Exception]) -> bool:
    """Whether this machine itself has no route to the host; a router on the way may say so of a host that is down."""
    if any(not isinstance(each, OSError) or each.errno != errno.ENETUNREACH for each in errors):
        return False
    for family, kind, _, _, place in socket.getaddrinfo(host.address, host.port, type=socket.SOCK_DGRAM):
        # Sends nothing.
        with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
            probe.connect(place)
            return False
    return True


def _with_complaint(error: GdsError | None, proxy: Dialled) -> GdsError | None:
    """Behind a proxy the reason why nothing came through is with the proxy."""
    complaint = proxy.complaint()
    if not isinstance(error, HostUnreachable) or not complaint:
        return error
    words = f"{error.message}; the command of its ProxyJump or ProxyCommand says: {line(complaint)}"
    return HostUnreachable(words, hint=error.hint)


def _keys(host: Endpoint) -> str:
    """The keys of a login, in words."""
    keys = [f"the key {file}" for file in host.identity_files]
    return " and ".join([*keys, *(["the keys of the agent"] if host.agent else [])]) or "no key at all"


class _OnRecord(paramiko.MissingHostKeyPolicy):
    """Accepts a host's key only when a known_hosts file has that very key for it.

    paramiko's own look-up asks the server for a key of the first recorded type only, knows no revoked keys and cannot
    name the line; so the client is given no keys at all, and every key comes here.
    """

    def __init__(self, host: Endpoint, meter: Meter) -> None:
        self._host, self._meter = host, meter
        try:
            self._known = known_keys(host)
        except OSError as caught:
            if lack := lack_of_controller(caught, f"check the key of {host.where()}"):
                raise lack from None
            words = f"{host.where()}: {caught.filename} cannot be read: {caught.strerror}"
            raise HostKeyMismatch(words, hint="Without it no host key can be checked") from None

    def transport(self, sock: Any, **options: Any) -> paramiko.Transport:
        """A transport that asks the server for a key of a type that is on record."""
        connection = paramiko.Transport(self._meter.around(sock), **options)  # type: ignore[arg-type]
        # It looks at least so often whether it was closed; ten looks a second would cost more than many answers do.
        sock.settimeout(1.0)
        security = connection.get_security_options()
        types = {key.type for key in self._known if not key.marker}
        types |= {"rsa-sha2-512", "rsa-sha2-256"} if "ssh-rsa" in types else set()
        security.key_types = sorted(security.key_types, key=lambda offered: offered not in types)
        return connection

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:  # noqa: ARG002
        """Raise HostKeyMismatch unless ``key`` is on record."""
        if not is_recorded(self._known, key.asbytes()):
            raise key_refusal(self._host, self._known, key.get_name(), key.asbytes())


def _payload(
    program: bytes | Files | Installed, argv: Sequence[str], stdin: bytes, timeout: float
) -> tuple[bytes, bytes, bytes]:
    """(mark, bytes for standard input, and the program that follows where the host asks for it).

    Before the mark, an answer has what the host's login scripts printed.
    """
    mark = f"\n{secrets.token_hex(16)}\n".encode()
    if isinstance(program, Files):
        return mark, mark, b""
    if isinstance(program, Installed):
        return mark, program.sent(argv, stdin, mark, int(timeout) + 5), b""
    # The host ends the program itself when its answer is no longer awaited.
    return mark, hostapp.sent(program, argv, stdin, mark, limit=int(timeout) + 5, waits=True), program


def command(user: str, other: Files | Installed | None = None, *, alone: bool = False) -> str:
    """What is executed on the host; without a character that any login shell reads in its own way.

    alone: sudo allows the installed program alone, so files are read without it.
    """
    start = other.start() if other else hostapp.start()
    return start if user == "root" or (alone and isinstance(other, Files)) else f"sudo -n {start}"


def _exec(
    client: paramiko.SSHClient, words: str, mark: bytes, payload: bytes, awaited: bytes, deadline: float
) -> Output:
    """Run ``words`` with ``payload`` as standard input; ``awaited``, the program, follows if the host asks for it."""
    transport = client.get_transport()
    if transport is None:
        raise EOFError
    channel = transport.open_session(timeout=max(0.1, deadline - time.monotonic()))
    channel.settimeout(max(0.1, deadline - time.monotonic()))
    channel.exec_command(words)  # nosec B601 # a fixed text
    channel.settimeout(0.0)
    stdout, stderr, rest = bytearray(), bytearray(), memoryview(payload)
    request, searched, grace = request_of(mark), 0, 0.0
    with selectors.DefaultSelector() as selector:
        selector.register(channel.fileno(), selectors.EVENT_READ)
        while True:
            rest = _send(channel, rest, is_last=not awaited)
            # Asked before taking what is there: nothing comes after the end, but the end may come after the taking.
            over = channel.closed or channel.eof_received
            has_more = _receive(channel, stdout, stderr)
            if awaited and has_more:
                if is_asked := stdout.find(request, searched) >= 0:
                    rest = memoryview(hostapp.framed(awaited))
                if is_asked or stdout.find(mark, searched) >= 0:
                    awaited = b""
                searched = max(0, len(stdout) - len(request))
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError
            if not has_more:
                if over:
                    break
                if channel.status_event.is_set():
                    # It ended, and something that it started holds its output open; what was written is here soon.
                    grace = grace or time.monotonic() + 2.0
                    if time.monotonic() > grace:
                        break
                # Room in the server's window makes no event; ask again soon while there is something to send.
                selector.select(min(remaining, 0.05) if rest else min(remaining, 1.0))
    return Output(bytes(stdout), stderr.decode(errors="replace"), _status(channel))


def _status(channel: paramiko.Channel) -> int | None:
    """The exit status; -1 for a signal; None when the connection ended before there was one.

    paramiko has -1 for the last two, and a lost connection takes a moment to be noticed.
    """
    if not channel.status_event.wait(5.0):
        return None
    if channel.exit_status != -1:
        return channel.exit_status
    channel.get_transport().join(0.5)
    return -1 if channel.get_transport().is_active() else None


def _send(channel: paramiko.Channel, rest: memoryview, *, is_last: bool) -> memoryview:
    """Send what fits; return the rest.  The host's input ends with the last bytes."""
    while rest:
        try:
            sent = channel.send(bytes(rest[:65536]))
        except TimeoutError:
            return rest
        except OSError:
            # It ended without reading: its status and its last words say why.
            return rest[:0]
        rest = rest[sent:]
    if is_last and not channel.eof_sent:
        channel.shutdown_write()
    return rest


def _receive(channel: paramiko.Channel, stdout: bytearray, stderr: bytearray) -> bool:
    """Take over what has arrived; False when nothing had."""
    if has_more := channel.recv_ready():
        stdout += channel.recv(1 << 20)
    if channel.recv_stderr_ready():
        stderr += channel.recv_stderr(1 << 16)
        del stderr[:-ERROR_LIMIT]
        has_more = True
    return has_more


T = TypeVar("T")


def ask(
    fleet: Fleet,
    fleet_path: Path,
    names: Sequence[str],
    argv: Sequence[str],
    judge: Callable[[Answer], T],
    *,
    timeout: float,
    stdin: bytes | Mapping[str, bytes] = b"",
    program: bytes | Files | None = None,
    read_only: bool = False,
) -> Iterator[tuple[Answer, T | GdsError]]:
    """Run the host program with ``argv`` on the machines ``names``; each answer with its result or error, as it comes.

    judge: makes the result; ``Answer.require_document`` takes the document as it is.  timeout: seconds for each.
    stdin: the same for all, or by machine.  program: the zipapp, where it was packed before;
    or files that are read without it.  read_only: of transport.fan_out.
    Raises what transport.fan_out raises, and FleetInvalid where two names are one endpoint, before it connects to the
    second of them.
    """
    distinct = machines.Distinct(names, fleet_path)

    def find(way: Reach) -> Endpoint:
        return distinct.add(way.find())

    ways = sshconfig.reaches(fleet, paths.folder_of(fleet_path).resolve(), names)
    hosts = [Reach(way.host, partial(find, way)) for way in ways]
    answers = fan_out(hosts, program or hostapp.build(), argv, timeout=timeout, stdin=stdin, read_only=read_only)
    return ((answer, judged(judge, answer)) for answer in _on_board(names, answers))


def _on_board(names: Sequence[str], answers: Iterator[Answer]) -> Iterator[Answer]:
    for name in names:
        console.board.begin(name, "hasn't answered yet,", timed=False)
    try:
        for answer in answers:
            console.board.end(answer.host)
            yield answer
    finally:
        for name in names:
            console.board.end(name)


def answer_line(answer: Answer, outcome: object) -> str:
    """One host's outcome as progress; the command that asks ends with its error, in words."""
    return f"  {'✗' if isinstance(outcome, GdsError) else '✓'} {answer.host} ({answer.seconds:.1f} s)"


def ask_all(
    fleet: Fleet, fleet_path: Path, names: Sequence[str], argv: Sequence[str], judge: Callable[[Answer], T],
    *, timeout: float, read_only: bool = False,
) -> dict[str, T | GdsError]:  # fmt: skip
    """Machine → result or error, in the order of ``names``; a step that shows each as it comes.  See ask."""
    outcomes: dict[str, T | GdsError] = {}
    say = console.say_each(len(names))
    with console.step(f"Asking {words(names)}") as step:
        for answer, outcome in ask(fleet, fleet_path, names, argv, judge, timeout=timeout, read_only=read_only):
            outcomes[answer.host] = outcome
            say(answer_line(answer, outcome))
        step.failure = failures_in(outcomes)
    return {name: outcomes[name] for name in names}


def judged(judge: Callable[[Answer], T], answer: Answer) -> T | GdsError:
    """The result that ``judge`` makes of an answer, or the error that it raises."""
    try:
        return judge(answer)
    except GdsError as error:
        return error
