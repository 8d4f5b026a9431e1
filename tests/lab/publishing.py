"""What hosts pull: a git repository with signed commits, and files, behind one HTTPS server with its own authority."""

from __future__ import annotations

import functools
import http.server
import os
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

WHO = "Release <release@fleet.example>"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


@dataclass(frozen=True)
class Published:
    """``checkout`` is where commits are made; ``served`` is the server's folder, which has repo.git."""

    folder: Path
    uri: str

    @property
    def checkout(self) -> Path:
        return self.folder / "checkout"

    @property
    def served(self) -> Path:
        return self.folder / "served"

    @property
    def authority(self) -> bytes:
        return (self.folder / "ca.pem").read_bytes()

    def key(self) -> bytes:
        """Of who signs commits."""
        return self._run("gpg", "--armor", "--export", WHO).stdout

    def commit(self, *, sign: bool = True) -> None:
        """Publish what is in the checkout."""
        self._git("add", "--all")
        self._git("commit", "--quiet", "--message=Render", *(["--gpg-sign"] if sign else []))
        self._git("push", "--quiet", "--force", str(self.served / "repo.git"), "HEAD:main")
        # What plain HTTP needs to be cloned from.
        self._run("git", "--git-dir", str(self.served / "repo.git"), "update-server-info")

    def undo(self) -> None:
        """Take the last commit back, in the repository too."""
        self._git("reset", "--quiet", "--hard", "HEAD~1")
        self._git("push", "--quiet", "--force", str(self.served / "repo.git"), "HEAD:main")
        self._run("git", "--git-dir", str(self.served / "repo.git"), "update-server-info")

    def _git(self, *words: str) -> None:
        self._run("git", "-C", str(self.checkout), *words)

    def _run(self, *argv: str) -> subprocess.CompletedProcess[bytes]:
        own = {"GNUPGHOME": "gnupg", "GIT_CONFIG_GLOBAL": "gitconfig"}
        env = {**os.environ, **{key: str(self.folder / name) for key, name in own.items()}, "GIT_CONFIG_NOSYSTEM": "1"}
        return subprocess.run(argv, env=env, check=True, capture_output=True, timeout=120)


@contextmanager
def published(folder: Path) -> Iterator[Published]:
    """An empty repository and a key, until the end."""
    folder.mkdir()
    (folder / "served").mkdir()
    (folder / "gnupg").mkdir(mode=0o700)
    (folder / "gitconfig").write_text(
        "[user]\nname = Release\nemail = release@fleet.example\nsigningkey = release@fleet.example\n"
    )
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         *names, "-out", folder / "ca.pem", "-keyout", folder / "ca.key"],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "ca.pem", folder / "ca.key")
    handler = functools.partial(_Quiet, directory=str(folder / "served"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        site = Published(folder, f"https://localhost:{server.server_address[1]}")
        try:
            site._run("gpg", "--batch", "--passphrase", "", "--quick-generate-key", WHO, "ed25519", "sign", "1d")
            site._run("git", "init", "--quiet", "--bare", "--initial-branch=main", str(site.served / "repo.git"))
            site._run("git", "init", "--quiet", "--initial-branch=main", str(site.checkout))
            yield site
        finally:
            server.shutdown()
            thread.join()
            subprocess.run(
                ["gpgconf", "--homedir", folder / "gnupg", "--kill", "all"], check=False, capture_output=True
            )
