"""Repository files over HTTP(S) or from disk: bounded, retried, and cached by content.

A file whose sha256 a signed index names is cached under that digest and never fetched twice.  Proxies, client
certificates and extra authorities come from the configuration of apt, looked up as apt does, or of dnf, then from the
environment.  Server certificates are always verified.
"""

from __future__ import annotations

import configparser
import contextlib
import hashlib
import os
import shutil
import ssl
import stat
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final
from urllib.parse import quote, unquote, urlsplit

import certifi
import httpx

from gdsdeploy import atomic, cancel, paths as folders
from gdsdeploy.errors import GdsError, ProgramFailed, RepositoryUntrusted, RepositoryUnusable, translated
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


class Fetcher(contextlib.AbstractContextManager["Fetcher"]):
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
        """cache: folder for files of known content; default: ``repo`` in the user's cache.
        apt: its settings; default: machine_settings().

        logins: of the servers that want one.  within: a folder out of which no link of a ``file://`` repository leads.
        """
        self._within = within
        self.cache = cache or folders.cache() / "repo"
        self._sleep = sleep
        self._client = httpx.Client(
            auth=logins,
            transport=transport or _Routes(machine_settings() if apt is None else apt),
            timeout=TIMEOUT,
            headers={"User-Agent": "gdsdeploy", "Accept-Encoding": "identity"},
        )

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._client.close()

    def small(self, uri: str, *, limit: int = SMALL) -> bytes:
        """The content of ``uri``, fetched again each time.

        Raises MissingFile when the repository has no such file, RepositoryUnusable when it can't be fetched.
        """
        with tempfile.TemporaryFile() as sink:
            self._fetch(uri, sink, limit)
            sink.seek(0)
            return sink.read()

    def file(self, uri: str, *, sha256: str, size: int, optional: bool = False) -> Path:
        """The path of a cached file with exactly this content, fetched from ``uri`` if it isn't cached yet.

        optional: it may be elsewhere instead, so a server that refuses it has no such file.
        Raises MissingFile and RepositoryUnusable as ``small`` does, RepositoryUntrusted when the content differs.
        """
        cached_path = self.find_cached(sha256, size)
        if cached_path is not None:
            return cached_path
        path = self._place(sha256)
        with _writing(path):
            return self._store(uri, path, sha256, size, optional=optional)

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
        # As apt asks for indices: a proxy's older copy would be refused, or be taken for a replayed one.
        headers = {} if uri.endswith((".deb", ".rpm")) else {"Cache-Control": "max-age=0"}
        request = self._client.build_request(method, uri, headers=headers)
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

    def _store(self, uri: str, path: Path, sha256: str, size: int, *, optional: bool) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._prune()
        # Written beside its final name and renamed: an interrupted run leaves nothing that looks complete.
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".part-", delete=False) as sink:
            part = Path(sink.name)
            try:
                self._fetch(uri, sink.file, size, optional=optional)
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

    def _fetch(self, uri: str, sink: IO[bytes], limit: int, *, optional: bool = False) -> None:
        scheme = urlsplit(uri).scheme
        if scheme == "file":
            self._copy(uri, sink, limit)
            return
        if scheme not in ("http", "https"):
            raise RepositoryUnusable(f"{uri}: cannot fetch {scheme}: addresses", hint="Use http, https or file")
        seconds = PATIENCE + limit / SLOWEST
        self._retrying(uri, lambda: _in_time(uri, seconds, lambda: self._get(uri, sink, limit)), optional=optional)

    def _retrying(self, uri: str, request: Callable[[], None], *, optional: bool = False) -> None:
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
            except _RefusedError as error:
                refusal = _refusal(uri, error.status)
                raise (MissingFile(refusal.message) if optional else refusal) from error
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


@dataclass
class _RefusedError(Exception):
    """The server won't give a file.  Some say so of files that they lack, such as S3 without the right to list."""

    status: int


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
    end = time.monotonic() + seconds
    while not wait([outcome], min(1.0, max(0.0, end - time.monotonic()))).done:
        cancel.current().check()
        if time.monotonic() < end:
            continue
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
    if 400 <= status < 500 and status not in (401, 407):
        raise _RefusedError(status)
    if status != 200:
        raise _refusal(uri, status)


def _refusal(uri: str, status: int) -> RepositoryUnusable:
    hint = "If it wants a login, write it into the file that `credentials` of the fleet file names"
    return RepositoryUnusable(
        f"{uri}: the server answered with status {status}", hint=hint if status in (401, 403) else None
    )


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


def machine_settings() -> dict[str, str]:
    """Name → value of apt's settings on this machine that aren't empty; without apt, dnf's under apt's names."""
    if shutil.which("apt-config") is None:
        return dnf_settings()
    try:
        # Each value in one line, percent-encoded.
        argv = ["apt-config", "dump", "--format", "%f%N%V%n"]
        text = run(argv, doing="read apt's configuration", timeout=30).stdout
    except ProgramFailed as error:
        raise RepositoryUnusable(error.message, hint="Check the files in /etc/apt/apt.conf.d") from error
    settings = (line.partition("\t") for line in text.splitlines())
    return {name: unquote(value) for name, _, value in settings if value}


def dnf_settings(path: Path = Path("/etc/dnf/dnf.conf")) -> dict[str, str]:
    """What dnf.conf(5) says for all repositories, under apt's names; nothing where there is no such file."""
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read(path, encoding="utf-8")
        main = dict(parser["main"]) if parser.has_section("main") else {}
        proxy = urlsplit(main.get("proxy", ""))
    except (configparser.Error, OSError, ValueError) as error:
        # Its own words may quote a password.
        words = f"{path}: {type(error).__name__}: its [main] cannot be read"
        raise RepositoryUnusable(words, hint="`dnf repolist` says what is wrong with it") from None
    if proxy.hostname and "proxy_username" in main:
        login = ":".join(quote(main.get(f"proxy_{each}", ""), safe="") for each in ("username", "password"))
        proxy = proxy._replace(netloc=f"{login}@{proxy.netloc}")
    certificates = {"CAInfo": "sslcacert", "SSLCert": "sslclientcert", "SSLKey": "sslclientkey"}
    found = {f"Acquire::https::{name}": main.get(key, "") for name, key in certificates.items()}
    return {name: value for name, value in {**found, "Acquire::http::Proxy": proxy.geturl()}.items() if value}


class _Routes(httpx.BaseTransport):
    """Sends each request the way that apt's method for its scheme and host would take, by these settings.

    A route is found at the first request for its host, and its errors are RepositoryUnusable.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        """settings: apt's, whose names have no case; empty where there is no apt."""
        self._settings = {name.lower(): value for name, value in settings.items()}
        self._routes: dict[tuple[str, str], httpx.HTTPTransport] = {}
        self._finding = threading.Lock()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        key = request.url.scheme, request.url.host
        with self._finding:
            if key not in self._routes:
                self._routes[key] = self._route(request.url)
        return self._routes[key].handle_request(request)

    def close(self) -> None:
        for route in self._routes.values():
            route.close()

    def _route(self, url: httpx.URL) -> httpx.HTTPTransport:
        cert = self._of_host(url, "SSLCert")
        client = (cert, self._of_host(url, "SSLKey") or None) if cert and url.scheme == "https" else None
        authorities = _authorities(self._of_host(url, "CAInfo"), client)
        try:
            return httpx.HTTPTransport(proxy=self._proxy(url), verify=authorities)
        except (ValueError, ImportError, httpx.InvalidURL) as error:
            raise RepositoryUnusable(
                f"this machine's proxy settings cannot be used: {error}",
                hint="See `apt-config dump Acquire` and the variables http_proxy, https_proxy and all_proxy",
            ) from error

    def _of_host(self, url: httpx.URL, name: str) -> str:
        """A setting for this host, else for all; those for https are those for http unless they are given.

        apt looks for certificates in ``https::HOST::NAME``, its manual has ``https::NAME::HOST``; proxies are in both.
        """
        schemes = ("https", "http") if url.scheme == "https" else ("http",)
        prefixes = [*(f"{scheme}::{url.host}" for scheme in schemes), *schemes]
        names = (f"Acquire::{prefix}::{each}" for each in (f"{name}::{url.host}", name) for prefix in prefixes)
        return next(filter(None, (self._settings.get(each.lower()) for each in names)), "")

    def _proxy(self, url: httpx.URL) -> str | None:
        """The address of the proxy; what has no host in it, such as ``DIRECT``, means none (apt-transport-http(1))."""
        if urllib.request.proxy_bypass(url.host):
            return None
        proxy = self._detected(url) or self._of_host(url, "Proxy")
        if not proxy:
            named = urllib.request.getproxies()
            # apt alone takes the proxy of http for that of https.
            schemes = (url.scheme, "all", "http") if "apt::architecture" in self._settings else (url.scheme, "all")
            return next(filter(None, map(named.get, schemes)), None)
        return proxy if urlsplit(proxy).hostname else None

    def _detected(self, url: httpx.URL) -> str:
        """What apt's program for it answers; empty where there is none, it doesn't know, or the host's proxy is set."""
        prefix = f"acquire::{url.scheme}::proxy"
        program = self._settings.get(f"{prefix}-auto-detect") or self._settings.get(f"{prefix}autodetect")
        if not program or f"{prefix}::{url.host}" in self._settings:
            return ""
        try:
            answer = run([program, str(url)], doing=f"find the proxy for {url.host}", timeout=30).stdout
        except GdsError as error:
            raise RepositoryUnusable(error.message, hint="apt's Proxy-Auto-Detect names this program") from error
        return answer.partition("\n")[0].strip()


def _authorities(extra: str, client: tuple[str, str | None] | None) -> ssl.SSLContext:
    """The system's certificate authorities (SSL_CERT_FILE and SSL_CERT_DIR included) and apt's own."""
    context = ssl.create_default_context()
    paths = ssl.get_default_verify_paths()
    if not paths.cafile and not paths.capath:
        context.load_verify_locations(cafile=certifi.where())
    problem = f"{extra}: not a file of certificate authorities (apt's CAInfo)"
    with translated((OSError, ssl.SSLError), lambda error: RepositoryUnusable(f"{problem}: {error}")):
        if extra:
            context.load_verify_locations(cafile=extra)
        if client:
            problem = f"{client[0]}: not a client's certificate with its key (apt's SSLCert and SSLKey)"
            context.load_cert_chain(*client)
    return context
