"""Repository files over HTTP(S) or from disk: bounded, retried, and cached by content.

A file whose sha256 a signed index names is cached under that digest and never fetched twice.  Proxies and extra
authorities come from apt's configuration, then from the environment; server certificates are always verified.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import ssl
import stat
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final
from urllib.parse import quote, unquote, urlsplit

import certifi
import httpx

from gdsdeploy import atomic
from gdsdeploy import paths as folders
from gdsdeploy.errors import ProgramFailed, RepositoryUntrusted, RepositoryUnusable
from gdsdeploy.host.rootdir import open_file
from gdsdeploy.repo import names
from gdsdeploy.repo.credentials import Logins
from gdsdeploy.run import run

TRIES: Final = 3
#: Seconds for a connection and for each read.
TIMEOUT: Final = httpx.Timeout(20.0, connect=10.0)
#: Seconds for a whole answer, and bytes per second beyond them: a server that sends a byte at a time ends.
PATIENCE: Final = 120.0
SLOWEST: Final = 32 * 1024
REDIRECTS: Final = 20
#: Bytes; a Release file of Debian's has 0.4 MB.
SMALL: Final = 16 * 1024 * 1024
#: Files that no lock has used for this long are removed.
KEEP_DAYS: Final = 30
_CHUNK: Final = 1 << 20
#: The next step when a file differs from what the signed index names.
BETWEEN_UPDATES: Final = "The mirror may be between two updates: try again in some minutes, or use another mirror"


class MissingFile(Exception):
    """The repository answered that it has no such file."""


def address(base: str, file: str) -> str:
    """The address of a package file, whose name in an index is a path, not an address: ``%3a`` isn't a colon in it."""
    return base.rstrip("/") + "/" + quote(file, safe="/~+:@!$&'()*,;=")


def cache_dir() -> Path:
    """Where fetched files are kept: ``$GDSDEPLOY_CACHE_DIR/repo`` or the user's cache folder."""
    return folders.cache() / "repo"


class Fetcher:
    """Fetches repository files; safe to share between threads.  Use as a context manager."""

    def __init__(
        self,
        cache: Path | None = None,
        *,
        apt: dict[str, str] | None = None,
        logins: Logins | None = None,
        within: Path | None = None,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """cache: folder for files of known content.  apt: Acquire settings; default: apt_settings().

        logins: of the servers that want one.  within: a folder out of which no link of a ``file://`` repository leads.
        """
        self._within = within
        self.cache = cache or cache_dir()
        self._sleep = sleep
        settings = apt_settings() if apt is None else apt
        authorities = _authorities(settings.get("Acquire::https::CAInfo"), _client_certificates(settings).get(""))
        try:
            self._client = httpx.Client(
                verify=authorities,
                mounts=_certified(settings, _proxies(settings, authorities)),
                auth=logins,
                transport=transport,
                timeout=TIMEOUT,
                headers={"User-Agent": "gdsdeploy", "Accept-Encoding": "identity"},
            )
        except (ValueError, ImportError, httpx.InvalidURL) as error:
            raise RepositoryUnusable(
                f"this machine's proxy settings cannot be used: {error}",
                hint="See `apt-config dump Acquire` and the variables http_proxy, https_proxy and all_proxy",
            ) from error

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._client.close()

    def small(self, uri: str, *, limit: int = SMALL) -> bytes:
        """The content of ``uri``, fetched again each time.

        Raises NotThere when the repository has no such file, RepositoryUnusable when it can't be fetched.
        """
        with tempfile.TemporaryFile() as sink:
            self._fetch(uri, sink, limit)
            sink.seek(0)
            return sink.read()

    def file(self, uri: str, *, sha256: str, size: int) -> Path:
        """The path of a cached file with exactly this content, fetched from ``uri`` if it isn't cached yet.

        Raises NotThere and RepositoryUnusable as ``small`` does, RepositoryUntrusted when the content differs.
        """
        cached_path = self.find_cached(sha256, size)
        if cached_path is not None:
            return cached_path
        path = self._place(sha256)
        with _writing(path):
            return self._store(uri, path, sha256, size)

    def find_cached(self, sha256: str, size: int) -> Path | None:
        """The path of a cached file with exactly this content, if there is one."""
        path = self._place(sha256)
        if not path.is_file() or path.stat().st_size != size or _sha256(path) != sha256:
            return None
        os.utime(path)
        return path

    def keep(self, data: bytes, sha256: str) -> None:
        """Cache ``data``, the unpacked content of a fetched file, if it has this sha256."""
        if hashlib.sha256(data).hexdigest() != sha256:
            return
        path = self._place(sha256)
        with _writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic.write(path, data, mode=0o600)

    def _place(self, sha256: str) -> Path:
        return self.cache / sha256[:2] / names.sha256(sha256)

    def has(self, uri: str) -> bool:
        """Whether the repository has the file behind ``uri``, without fetching it; raises as ``small`` does."""
        try:
            if urlsplit(uri).scheme == "file":
                return self._local(uri).is_file()
            self._retrying(uri, lambda: _in_time(uri, PATIENCE, lambda: self._head(uri)))
        except MissingFile:
            return False
        return True

    def _head(self, uri: str) -> None:
        with _translated_errors(uri), self._answer("HEAD", uri):
            pass

    @contextmanager
    def _answer(self, method: str, uri: str) -> Iterator[httpx.Response]:
        """The answer that is no redirect; httpx itself would read a redirect's body to its end, into memory."""
        request = self._client.build_request(method, uri)
        logins: Any = httpx.USE_CLIENT_DEFAULT
        for _ in range(REDIRECTS + 1):
            with contextlib.closing(self._client.send(request, stream=True, auth=logins)) as answer:
                if answer.next_request is None:
                    _check_status(uri, answer.status_code)
                    yield answer
                    return
                # A server can't have logins sent to another one; to itself, the header stays.
                request, logins = answer.next_request, None
        raise RepositoryUnusable(f"{uri}: more than {REDIRECTS} redirects")

    def _store(self, uri: str, path: Path, sha256: str, size: int) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._prune()
        # Written beside its final name and renamed: an interrupted run leaves nothing that looks complete.
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".part-", delete=False) as sink:
            part = Path(sink.name)
            try:
                self._fetch(uri, sink.file, size)
                sink.close()
                digest = _sha256(part)
                if part.stat().st_size != size or digest != sha256:
                    raise RepositoryUntrusted(
                        f"{uri}: this is not the file that the signed index names\n"
                        f"  expected {size} bytes, sha256 {sha256}\n"
                        f"  found    {part.stat().st_size} bytes, sha256 {digest}",
                        hint=BETWEEN_UPDATES,
                    )
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)
        return path

    def _fetch(self, uri: str, sink: IO[bytes], limit: int) -> None:
        scheme = urlsplit(uri).scheme
        if scheme == "file":
            self._copy(uri, sink, limit)
            return
        if scheme not in ("http", "https"):
            raise RepositoryUnusable(f"{uri}: cannot fetch {scheme}: addresses", hint="Use http, https or file")
        self._retrying(uri, lambda: _in_time(uri, PATIENCE + limit / SLOWEST, lambda: self._get(uri, sink, limit)))

    def _retrying(self, uri: str, request: Callable[[], None]) -> None:
        for attempt in range(1, TRIES + 1):
            try:
                request()
            except _RetryableError as error:
                if attempt == TRIES:
                    raise RepositoryUnusable(
                        f"{uri}: {error} ({TRIES} tries)",
                        hint="Check the address, the network and the proxy settings of this machine",
                    ) from error
                self._sleep(0.5 * 2 ** (attempt - 1))
            else:
                return

    def _get(self, uri: str, sink: IO[bytes], limit: int) -> None:
        # An earlier try may have left a part.
        sink.seek(0)
        sink.truncate()
        with _translated_errors(uri), self._answer("GET", uri) as answer:
            # Raw: a Packages.gz served as "Content-Encoding: gzip" has to stay what was signed.
            _pour(answer.iter_raw(), sink, limit, uri)

    def _local(self, uri: str) -> Path:
        """Raises RepositoryUnusable where a link leads out."""
        path = Path(unquote(urlsplit(uri).path))
        if self._within is not None and "\0" not in str(path) and folders.leads_out(self._within, path):
            words = f"{uri}: is a link that leads out of {self._within.absolute()}, so it isn't read"
            raise RepositoryUnusable(words, hint="If you trust it, allow it for one run: --allow-file-repositories")
        return path

    def _copy(self, uri: str, sink: IO[bytes], limit: int) -> None:
        try:
            # A pipe would be waited for, and a device never ends.
            with open_file(str(self._local(uri))) as source:
                if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
                    raise RepositoryUnusable(f"{uri}: not a regular file")
                _pour(iter(lambda: source.read(_CHUNK), b""), sink, limit, uri)
        except FileNotFoundError as error:
            raise MissingFile(f"{uri}: no such file") from error
        except (OSError, ValueError) as error:
            raise RepositoryUnusable(f"{uri}: {getattr(error, 'strerror', error)}") from error

    def _prune(self) -> None:
        oldest = time.time() - KEEP_DAYS * 86400
        for path in self.cache.glob("??/*"):
            # Another run may remove the same file first.
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < oldest:
                    path.unlink()


class _RetryableError(Exception):
    """Worth another try."""


def _in_time(uri: str, seconds: float, request: Callable[[], None]) -> None:
    """Do ``request``; raises what it raises, and RepositoryUnusable if it hasn't ended after so many seconds.

    What waits for a name server or for the next byte of a header can't be interrupted: its thread is left behind.
    """
    outcome: Future[None] = Future()

    def work() -> None:
        try:
            request()
            outcome.set_result(None)
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            outcome.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    if not wait([outcome], seconds).done:
        raise RepositoryUnusable(
            f"{uri}: not here after {seconds:.0f} seconds", hint="Use a faster server, or ask why this one is slow"
        )
    outcome.result()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Report errors of the cache as RepositoryUnusable."""
    try:
        yield
    except OSError as error:
        raise RepositoryUnusable(
            f"{path}: cannot be written: {error.strerror}",
            hint="Free some space, or set GDSDEPLOY_CACHE_DIR to a folder with enough",
        ) from error


@contextmanager
def _translated_errors(uri: str) -> Iterator[None]:
    """Report the client's errors as RepositoryUnusable, or as worth another try."""
    try:
        yield
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise RepositoryUnusable(f"{uri}: {error}") from error
    except httpx.HTTPError as error:
        raise _RetryableError(str(error) or type(error).__name__) from error


def _check_status(uri: str, status: int) -> None:
    if status in (404, 410):
        raise MissingFile(f"{uri}: the repository has no such file (status {status})")
    if status >= 500 or status in (408, 429):
        raise _RetryableError(f"the server answered with status {status}")
    if status in (401, 403):
        hint = "If it wants a login, write it into the file that `credentials` of the fleet file names"
        raise RepositoryUnusable(f"{uri}: the server answered with status {status}", hint=hint)
    if status != 200:
        raise RepositoryUnusable(f"{uri}: the server answered with status {status}")


def _pour(chunks: Iterator[bytes], sink: IO[bytes], limit: int, uri: str) -> None:
    written = 0
    for chunk in chunks:
        written += len(chunk)
        if written > limit:
            raise RepositoryUntrusted(f"{uri}: longer than the {limit} bytes it may have")
        sink.write(chunk)
    sink.flush()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_SETTING = re.compile(r'^(Acquire::(?:http|https)::[^ ]+) "([^"]*)";$')


def apt_settings() -> dict[str, str]:
    """Read the ``Acquire::http`` and ``Acquire::https`` settings of this machine; empty where there is no apt."""
    if shutil.which("apt-config") is None:
        return {}
    try:
        text = run(["apt-config", "dump"], doing="read apt's configuration", timeout=30).stdout
    except ProgramFailed as error:
        raise RepositoryUnusable(error.message, hint="Check the files in /etc/apt/apt.conf.d") from error
    matches = (_SETTING.match(line) for line in text.splitlines())
    return {m[1]: m[2] for m in matches if m and m[2]}


def _proxies(settings: dict[str, str], authorities: ssl.SSLContext) -> dict[str, httpx.BaseTransport | None]:
    """Apt's proxies as httpx mounts; DIRECT means no proxy.  The environment decides for the others."""
    mounts: dict[str, httpx.BaseTransport | None] = {}
    for key, value in settings.items():
        _, scheme, name, *host = key.split("::")
        if name != "Proxy":
            continue
        pattern = f"{scheme}://{host[0]}" if host else f"{scheme}://"
        mounts[pattern] = httpx.HTTPTransport(proxy=None if value == "DIRECT" else value, verify=authorities)
    return mounts


def _client_certificates(settings: dict[str, str]) -> dict[str, tuple[str, str | None]]:
    """Host, or "" for all hosts → files of the client's certificate and key; see apt-transport-https(1)."""
    files: dict[str, dict[str, str]] = {}
    for key, value in settings.items():
        _, scheme, name, *host = key.split("::")
        if scheme == "https" and name.lower() in ("sslcert", "sslkey"):
            files.setdefault(host[0] if host else "", {})[name.lower()] = value
    return {host: (pair["sslcert"], pair.get("sslkey")) for host, pair in files.items() if "sslcert" in pair}


def _certified(
    settings: dict[str, str], mounts: dict[str, httpx.BaseTransport | None]
) -> dict[str, httpx.BaseTransport | None]:
    """``mounts`` and those of hosts that require their own client certificate, through their usual proxy."""
    certified = dict(mounts)
    for host, pair in _client_certificates(settings).items():
        if not host:
            continue
        context = _authorities(settings.get("Acquire::https::CAInfo"), pair)
        keys = (f"Acquire::https::Proxy::{host}", "Acquire::https::Proxy")
        proxy = next((settings[key] for key in keys if key in settings), None)
        if proxy is None and not urllib.request.proxy_bypass(host):
            proxy = urllib.request.getproxies().get("https")
        certified[f"https://{host}"] = httpx.HTTPTransport(proxy=None if proxy == "DIRECT" else proxy, verify=context)
    return certified


def _authorities(extra: str | None, client: tuple[str, str | None] | None = None) -> ssl.SSLContext:
    """The system's certificate authorities (SSL_CERT_FILE and SSL_CERT_DIR included) and apt's own."""
    context = ssl.create_default_context()
    paths = ssl.get_default_verify_paths()
    if not paths.cafile and not paths.capath:
        context.load_verify_locations(cafile=certifi.where())
    problem = f"{extra}: not a file of certificate authorities (apt's CAInfo)"
    try:
        if extra:
            context.load_verify_locations(cafile=extra)
        if client:
            problem = f"{client[0]}: not a client's certificate with its key (apt's SSLCert and SSLKey)"
            context.load_cert_chain(*client)
    except (OSError, ssl.SSLError) as error:
        raise RepositoryUnusable(f"{problem}: {error}") from error
    return context
