"""The Debian archive of this machine, with all that apt needs to reach it; the lab's hosts use the same one."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gdsdeploy import run
from gdsdeploy.host.apply.packages.aptsources import Source
from gdsdeploy.repo.repository import controller_sources
from gdslab.errors import LabUnavailable

#: The keyring that Debian's own sources name.
DEBIAN_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
#: apt's default CA bundle.
SYSTEM_CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
#: Suites of Debian's own archive; the suites of derived systems have a suffix.
_SUITE = re.compile(
    r"(bullseye|bookworm|trixie|forky|duke|sid|oldoldstable|oldstable|stable|testing|unstable)(-updates)?"
)
_SECURITY_SUITE = re.compile(r"(bullseye|bookworm|trixie|forky|duke|oldoldstable|oldstable|stable|testing)-security")
#: apt settings that a guest needs for the same archive; none lowers verification.
_CARRIED = re.compile(r"acquire::(check-valid-until|check-date|max-futuretime|https?::pipeline-depth)", re.IGNORECASE)
_PROXY = re.compile(r"acquire::(http|https)::proxy(::.+)?", re.IGNORECASE)


@dataclass(frozen=True)
class Archive:
    """The Debian archive as this machine reaches it.

    uri, security_uri: archive roots without a trailing slash; security_uri is None where none is configured.
    proxy, options: apt options, name → value.  ca_bundle: PEM file for HTTPS, None without HTTPS.
    """

    uri: str
    security_uri: str | None
    keyring: Path
    proxy: Mapping[str, str]
    options: Mapping[str, str]
    ca_bundle: Path | None


def controller_archive(etc: Path = Path("/etc/apt")) -> Archive:
    """The Debian archive in this machine's apt configuration ``etc``.

    Raises LabUnavailable when there is none, RepositoryUnusable when apt can't read its configuration.
    """
    sources = controller_sources(etc)
    main = _choose(sources, _SUITE, "debian")
    if main is None:
        raise LabUnavailable(
            "no Debian archive in this machine's apt configuration (/etc/apt/sources.list, /etc/apt/sources.list.d)",
            hint="Add a Debian source with the component main: gdsdeploy makes the lab's hosts from it",
        )
    security = _choose(sources, _SECURITY_SUITE, "debian-security")
    settings = apt_settings(run.run(["apt-config", "dump"], doing="read apt's configuration").stdout)
    uris = [source.uri for source in (main, security) if source]
    proxy = _proxies(settings, os.environ, uris)
    return Archive(
        uri=main.uri,
        security_uri=security.uri if security else None,
        keyring=Path(main.signed_by) if main.signed_by and main.signed_by.startswith("/") else DEBIAN_KEYRING,
        proxy=proxy,
        options={name: value for name, value in settings.items() if _CARRIED.fullmatch(name) and value},
        ca_bundle=_ca_bundle(settings, [*uris, *proxy.values()]),
    )


def apt_settings(dump: str) -> dict[str, str]:
    """Name → value of ``apt-config dump``; for a list, its last element."""
    settings: dict[str, str] = {}
    for line in dump.splitlines():
        name, _, rest = line.partition(" ")
        values = shlex.split(rest.rstrip(";")) if rest else []
        settings[name.rstrip(":")] = values[0] if values else ""
    return settings


def loopback_port(address: str) -> int | None:
    """The TCP port of ``address`` on this machine's loopback, else None; a VM needs such a port forwarded."""
    parts = urlsplit(address)
    if parts.hostname in ("localhost", "::1") or re.fullmatch(r"127\.\d+\.\d+\.\d+", parts.hostname or ""):
        return parts.port or (443 if parts.scheme == "https" else 80)
    return None


def _choose(sources: Iterable[Source], suite: re.Pattern[str], folder: str) -> Source | None:
    """Debian's own source among ``sources``, with an address to fetch from.

    Third parties name their suites after Debian's, so the keyring or the archive's usual folder has to agree.
    """

    def score(source: Source) -> int:
        return 2 * ("debian-archive" in (source.signed_by or "")) + (source.uri.rsplit("/", 1)[-1] == folder)

    candidates = (
        source._replace(uri=uri)
        for source in sources
        if "deb" in source.types and "main" in source.components and suite.fullmatch(source.suite)
        if (uri := _first_mirror(source.uri))
    )
    best = max(candidates, key=score, default=None)
    return best if best and score(best) else None


def _first_mirror(uri: str) -> str | None:
    """``uri`` without a trailing slash; for ``mirror+file:``, the first mirror of the list."""
    if not uri.startswith("mirror+file:"):
        return uri.rstrip("/") if uri.startswith(("http://", "https://")) else None
    listing = Path(uri.removeprefix("mirror+file:").replace("//", "", 1))
    if not listing.is_file():
        return None
    for line in listing.read_text(errors="replace").splitlines():
        words = line.split("#", 1)[0].split()
        if words and words[0].startswith(("http://", "https://")):
            return words[0].rstrip("/")
    return None


def _proxies(settings: Mapping[str, str], environ: Mapping[str, str], uris: list[str]) -> dict[str, str]:
    """Proxy options; apt's fallback, the environment's variables, becomes explicit."""
    proxy = {name: value for name, value in settings.items() if _PROXY.fullmatch(name) and value}
    for scheme in {urlsplit(uri).scheme for uri in uris}:
        name = f"Acquire::{scheme}::Proxy"
        inherited = environ.get(f"{scheme}_proxy") or environ.get(f"{scheme.upper()}_PROXY")
        if inherited and name not in proxy:
            proxy[name] = inherited
    return proxy


def _ca_bundle(settings: Mapping[str, str], addresses: Iterable[str]) -> Path | None:
    configured = settings.get("Acquire::https::CAInfo") or settings.get("Acquire::https::CaInfo")
    if configured:
        return Path(configured)
    if any(address.startswith("https://") for address in addresses) and SYSTEM_CA_BUNDLE.is_file():
        return SYSTEM_CA_BUNDLE
    return None
