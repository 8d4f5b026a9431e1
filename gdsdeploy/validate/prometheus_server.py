"""Queries to a Prometheus server, whose answers are data: bounded in size and time, and checked to be samples.

Any server with Prometheus' HTTP API will do (Thanos, Mimir, VictoriaMetrics): https://prometheus.io/docs/prometheus/latest/querying/api/
Its credentials come from files that a settings file names; that has the form of promtool's ``--http.config.file``.
"""

from __future__ import annotations

import ipaddress
import shlex
import ssl
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import urlsplit

import httpx
from pydantic import StringConstraints

from gdsdeploy import paths
from gdsdeploy.errors import PrometheusUnusable
from gdsdeploy.files import yamlfile
from gdsdeploy.files.secret import read_secret
from gdsdeploy.fleetfile.load import parse_document
from gdsdeploy.host.io import jsontext
from gdsdeploy.model.text import Model

#: Seconds: for a connection, for each part of an answer, for a whole answer.
CONNECT: Final = 5.0
PART: Final = 30.0
WHOLE: Final = 60.0
#: Bytes of an answer.  Five series of each of 10,000 hosts have 13 MB.
LIMIT: Final = 256 * 1024 * 1024
#: Characters that a message quotes of what a server says.
_WORDS = 300

_Text = Annotated[str, StringConstraints(min_length=1)]


class _BasicAuth(Model):
    username: _Text
    password_file: _Text


class _Authorization(Model):
    type: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9-]+$")] = "Bearer"
    credentials_file: _Text


class _Tls(Model):
    #: authorities in place of the system's
    ca_file: _Text | None = None
    #: of the client
    cert_file: _Text | None = None
    key_file: _Text | None = None


class _Settings(Model):
    basic_auth: _BasicAuth | None = None
    authorization: _Authorization | None = None
    tls_config: _Tls = _Tls()


class Sample(NamedTuple):
    """One series at the moment of the query."""

    labels: dict[str, str]
    value: float


class Server(AbstractContextManager["Server"]):
    """A server; use it as a context manager."""

    def __init__(
        self, url: str, settings: Path | None = None, *, warn: Callable[[str], None], whole: float = WHOLE
    ) -> None:
        """url: http or https, with the path where Prometheus is.  warn: takes what a server says beside its answer.

        whole: seconds for an answer.  Raises PrometheusUnusable for an address or settings that can't be used.
        """
        self.url, self._warn, self._whole = url.rstrip("/"), warn, whole
        _require_address(url)
        absent = ("no such file", "docs/prometheus.md has an example")
        content = None if settings is None else yamlfile.read(settings, error=PrometheusUnusable, absent=absent)
        chosen = _Settings() if content is None else parse_document(content, _Settings, error=PrometheusUnusable)
        folder = settings.absolute().parent if settings else Path()
        headers, auth = _credentials(chosen, folder)
        if (headers or auth) and urlsplit(url).scheme == "http" and not _is_loopback(urlsplit(url).hostname or ""):
            hint = "Use an https address: anybody between could read them"
            raise PrometheusUnusable(f"{self.url}: credentials are not sent over http", hint=hint)
        self._client = httpx.Client(
            verify=_authorities(chosen.tls_config, folder),
            headers={"User-Agent": "gdsdeploy", "Accept-Encoding": "identity", **headers},
            auth=auth,
            timeout=httpx.Timeout(min(PART, whole), connect=CONNECT),
        )

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def query(self, query: str, moment: float) -> list[Sample]:
        """The samples of an instant query at ``moment`` (seconds since 1970); raises PrometheusUnusable."""
        try:
            document = jsontext.loads(self._post(query, moment), limit=LIMIT)
            samples = [_sample(entry) for entry in _result(document)]
        except ValueError as error:
            raise self._unusable(query, f"its answer is malformed: {_plain(str(error))}") from None
        for words in document.get("warnings") or []:
            self._warn(f"{self.url}: {_plain(words)}")
        return samples

    def _post(self, query: str, moment: float) -> str:
        """The body of an answer with status 200."""
        form = {"query": query, "time": f"{moment:.3f}", "timeout": f"{self._whole:g}s"}
        body = bytearray()
        # It ends what reads, whether that waits for the head or for the body.
        timer = threading.Timer(self._whole, self._client.close)
        timer.start()
        try:
            # A redirection is not followed: the credentials are for this address.
            with self._client.stream("POST", f"{self.url}/api/v1/query", data=form) as answer:
                status = answer.status_code
                for chunk in answer.iter_raw():
                    body += chunk
                    if len(body) > LIMIT:
                        raise self._unusable(query, f"its answer has more than {LIMIT >> 20} MiB")
        except (httpx.HTTPError, httpx.InvalidURL, RuntimeError) as error:
            words = f"it cannot be reached: {_plain(str(error)) or type(error).__name__}"
            if isinstance(error, httpx.ReadTimeout) or self._client.is_closed:
                words = f"no whole answer within {self._whole:g} s"
            raise self._unusable(query, words) from None
        finally:
            timer.cancel()
        if status != httpx.codes.OK:
            raise self._unusable(query, f"it answers with status {status}{_reason(bytes(body))}")
        return body.decode(errors="replace")

    def _unusable(self, query: str, words: str) -> PrometheusUnusable:
        test = f"curl -sS --data-urlencode query={shlex.quote(query)} {shlex.quote(self.url + '/api/v1/query')}"
        return PrometheusUnusable(f"{self.url}: {words}\n  query: {query}", hint=f"Try: {test}")


def _require_address(url: str) -> None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        raise PrometheusUnusable("--prometheus: the address can't be read", hint="Write https://HOST:PORT") from None
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        words = "the address has a login, a query or a fragment"
        hint = "Write https://HOST:PORT/PATH, and a login into a file: see --prometheus-config in docs/prometheus.md"
        raise PrometheusUnusable(f"--prometheus: {words}", hint=hint)
    if not usable or not url.isascii() or not url.isprintable():
        hint = "Write https://HOST:PORT; --metrics FILE writes metrics"
        raise PrometheusUnusable(f"--prometheus: {_plain(url)} is not the address of a server", hint=hint)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _credentials(settings: _Settings, folder: Path) -> tuple[dict[str, str], httpx.BasicAuth | None]:
    """(headers, login)."""

    def secret(name: str, file: str) -> str:
        return read_secret(paths.locate(folder, file), name, PrometheusUnusable)

    basic, other = settings.basic_auth, settings.authorization
    if basic and other:
        raise PrometheusUnusable("--prometheus-config: basic_auth and authorization exclude each other")
    if basic:
        return {}, httpx.BasicAuth(basic.username, secret("basic_auth.password_file", basic.password_file))
    if other:
        token = secret("authorization.credentials_file", other.credentials_file)
        return {"Authorization": f"{other.type} {token}"}, None
    return {}, None


def _authorities(tls: _Tls, folder: Path) -> ssl.SSLContext:
    def find(file: str | None) -> str | None:
        return None if file is None else str(paths.locate(folder, file))

    authorities, certificate, key = map(find, (tls.ca_file, tls.cert_file, tls.key_file))
    try:
        context = ssl.create_default_context(cafile=authorities)
        if certificate:
            context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        words = f"--prometheus-config: tls_config: {authorities or certificate}: {error.strerror or error}"
        raise PrometheusUnusable(words, hint="ca_file, cert_file and key_file are files in PEM") from None
    return context


def _result(document: Any) -> list[Any]:
    data = document.get("data") if isinstance(document, dict) else None
    if not isinstance(data, dict) or document.get("status") != "success" or data.get("resultType") != "vector":
        raise ValueError("it is not a vector")
    result, warnings = data.get("result"), document.get("warnings") or []
    if not isinstance(result, list) or not _are_texts(warnings):
        raise ValueError("its result is not a list")
    return result


def _sample(entry: Any) -> Sample:
    labels, value = (entry.get("metric"), entry.get("value")) if isinstance(entry, dict) else (None, None)
    if not isinstance(labels, dict) or not _are_texts(list(labels.values())):
        raise ValueError("a sample has no labels")
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[1], str) or len(value[1]) > 40:
        raise ValueError("a sample has no value")
    # NaN and infinity are values there; who reads them decides.
    return Sample(labels, float(value[1]))


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(text, str) for text in values)


def _reason(body: bytes) -> str:
    """What a server says about an error; empty where it isn't Prometheus."""
    try:
        words = jsontext.loads(body[:LIMIT].decode(errors="replace"))["error"]
    except (ValueError, TypeError, KeyError):
        return ""
    return f": {_plain(words)}" if isinstance(words, str) else ""


def _plain(text: str) -> str:
    """A server's words as a message can have them."""
    return ascii(text)[1:-1][:_WORDS]
