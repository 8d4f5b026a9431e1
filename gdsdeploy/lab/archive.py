"""Where this machine gets Debian's packages from, so that the lab's hosts get theirs from the same place.

A root made by mmdebstrap knows nothing of the outer machine: whatever apt needs here (address, keyring, proxy,
CA bundle, validity settings) has to be carried into the guests.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from gdsdeploy import run
from gdsdeploy.errors import LabUnavailable
from gdsdeploy.host.apply.packages.aptsources import Source
from gdsdeploy.repo.aptsources import controller_sources

#: The keyring that Debian's own sources name, on any Debian machine.
DEBIAN_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
#: CA bundle that apt uses unless told otherwise.
SYSTEM_CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
#: Suites that Debian's own archive has, by name or by role; derived ones carry a suffix.
_SUITE = re.compile(
    r"(bullseye|bookworm|trixie|forky|duke|sid|oldoldstable|oldstable|stable|testing|unstable)(-updates)?"
)
_SECURITY_SUITE = re.compile(r"(bullseye|bookworm|trixie|forky|duke|oldoldstable|oldstable|stable|testing)-security")
#: apt settings without which a guest could not use the same archive; nothing that lowers verification.
_CARRIED = re.compile(r"acquire::(check-valid-until|check-date|max-futuretime|https?::pipeline-depth)", re.IGNORECASE)
_PROXY = re.compile(r"acquire::(http|https)::proxy(::.+)?", re.IGNORECASE)


@dataclass(frozen=True)
class Archive:
    """The Debian archive as this machine reaches it.

    uri, security_uri: archive roots without a trailing slash; security_uri is None where none is configured.
    keyring: file with the keys that sign it.
    proxy: apt option name → address, such as ``{"Acquire::http::Proxy": "http://proxy.example:3128"}``.
    options: further apt options, name → value, that this machine needed for it.
    ca_bundle: PEM file that apt verifies HTTPS with here, or None when nothing of it uses HTTPS.
    """

    uri: str
    security_uri: str | None
    keyring: Path
    proxy: Mapping[str, str]
    options: Mapping[str, str]
    ca_bundle: Path | None


def controller_archive(etc: Path = Path("/etc/apt")) -> Archive:
    """The Debian archive that this machine's own apt configuration (``etc``) names.

    Raises LabUnavailable when no Debian archive is configured, RepositoryUnusable when apt could not read its
    configuration either.
    """
    sources = controller_sources(etc)
    main = _choose(sources, _SUITE, "debian")
    if main is None:
        raise LabUnavailable(
            "no Debian archive in this machine's apt configuration (/etc/apt/sources.list, /etc/apt/sources.list.d)",
            hint="Add a source with component main of a Debian release; the lab's hosts are made from it.",
        )
    security = _choose(sources, _SECURITY_SUITE, "debian-security")
    settings = apt_settings(run.run(["apt-config", "dump"], doing="read apt's configuration").stdout)
    uris = [found.uri for found in (main, security) if found]
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
    """Name → value of ``apt-config dump``; of a list, the last item."""
    settings: dict[str, str] = {}
    for line in dump.splitlines():
        name, _, rest = line.partition(" ")
        values = shlex.split(rest.rstrip(";")) if rest else []
        settings[name.rstrip(":")] = values[0] if values else ""
    return settings


def loopback_port(address: str) -> int | None:
    """The TCP port of ``address`` when it lies on this machine's loopback, else None.

    A virtual machine has a loopback of its own, so such a port has to be forwarded into it.
    """
    parts = urlsplit(address)
    if parts.hostname in ("localhost", "::1") or re.fullmatch(r"127\.\d+\.\d+\.\d+", parts.hostname or ""):
        return parts.port or (443 if parts.scheme == "https" else 80)
    return None


def _choose(sources: Iterable[Source], suite: re.Pattern[str], folder: str) -> Source | None:
    """Debian's own source among ``sources``, with an address that can be fetched from.

    Third parties name their suites after Debian's too, so a suite alone proves nothing: the keyring or the
    archive's customary folder has to agree.
    """
    best: tuple[int, Source] | None = None
    for source in sources:
        uri = _first_mirror(source.uri)
        if not uri or "deb" not in source.types or "main" not in source.components:
            continue
        score = 2 * ("debian-archive" in (source.signed_by or "")) + (uri.rsplit("/", 1)[-1] == folder)
        if suite.fullmatch(source.suite) and score and (best is None or score > best[0]):
            best = (score, replace(source, uri=uri))
    return best[1] if best else None


def _first_mirror(uri: str) -> str | None:
    """``uri`` without a trailing slash, or the first mirror of the list that a ``mirror+file:`` address names."""
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
    """Proxy options as apt has them here; its fallback, the environment's variables, made explicit."""
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
