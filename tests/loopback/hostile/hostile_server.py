"""An SSH server on loopback that never runs anything: what each of its hosts answers is up to the test."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko

from gdsdeploy.ssh.endpoint import Endpoint
from gdsdeploy.zipapp import hostapp


@dataclass(frozen=True)
class Question:
    """What one host was asked."""

    host: str
    argv: tuple[str, ...]
    stdin: bytes


#: What a host sends behind its mark.  Closing the channel ends it.
Reply = Callable[[Question, paramiko.Channel], None]


class Server:
    """Every user name is a host; ``reply`` answers for all of them."""

    def __init__(self, folder: Path, reply: Reply) -> None:
        self._reply, self.questions = reply, list[Question]()
        self._key, identity = paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate()
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listening.getsockname()[1]
        self.identity, self.known_hosts = folder / "id", folder / "known_hosts"
        identity.write_private_key_file(str(self.identity))
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {self._key.get_name()} {self._key.get_base64()}\n")
        #: whether a host answers a request to run something at all
        self.runs = True
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def endpoint(self, host: str) -> Endpoint:
        return Endpoint(host, "127.0.0.1", self.port, host, (self.identity,), (self.known_hosts,), agent=False)

    def close(self) -> None:
        # Closing alone doesn't end accept: the port would still answer, whoever has its number next.
        self._listening.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        transport = paramiko.Transport(peer)
        transport.add_server_key(self._key)
        with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
            transport.start_server(server=_Host(self))
            channel = transport.accept(20)
            while channel is not None and transport.is_active():
                # Until the client is gone.
                transport.join(1.0)

    def answer(self, host: str, command: bytes, channel: paramiko.Channel) -> None:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException, struct.error):
            stream = channel.makefile("rb")
            if b"cat -" in command:
                mark, question = stream.read(), Question(host, tuple(command.decode().split()), b"")
            else:
                stream.read(len(hostapp._bootstrap()) + 8)
                mark, argv, _, stdin = (stream.read(struct.unpack(">Q", stream.read(8))[0]) for _ in range(4))
                question = Question(host, tuple(json.loads(argv)), stdin)
            self.questions.append(question)
            channel.sendall(mark)
            self._reply(question, channel)
            channel.send_exit_status(0)
        with contextlib.suppress(OSError, EOFError):
            channel.close()


class _Host(paramiko.ServerInterface):
    def __init__(self, server: Server) -> None:
        self._server, self._name = server, ""

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        self._name = username
        return paramiko.common.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.common.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        if not self._server.runs:
            threading.Event().wait(600)
        threading.Thread(target=self._server.answer, args=(self._name, command, channel), daemon=True).start()
        return True


def text(value: Any) -> Reply:
    """The reply that is this text, or this value as JSON."""
    data = value if isinstance(value, bytes) else (value if isinstance(value, str) else json.dumps(value)).encode()
    return lambda _, channel: channel.sendall(data)


def endless(data: bytes, pause: float = 0.0) -> Reply:
    """The reply that goes on until nobody listens.  pause: seconds after each part."""

    def reply(_: Question, channel: paramiko.Channel) -> None:
        while not channel.closed:
            channel.sendall(data)
            threading.Event().wait(pause)

    return reply
