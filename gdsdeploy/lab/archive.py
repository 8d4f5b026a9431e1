"""Where this machine gets Debian's packages from, so that the lab's hosts get theirs from the same place.

A root made by mmdebstrap knows nothing of the outer machine: whatever apt needs here (address, keyring, proxy,
CA bundle, validity settings) has to be carried into the guests.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gdsdeploy import run
from gdsdeploy.errors import LabUnavailable

#: The keyring that Debian's own sources name, on any Debian machine.
DEBIAN_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
#: CA bundle that apt uses unless told otherwise.
SYSTEM_CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
#: Suites that Debian's own archive has, by name or by role; derived ones carry a suffix.
_SUITE = re.compile(
    r"(bullseye|bookworm|trixie|forky|duke|sid|oldoldstable|oldstable|stable|testing|unstable)(-updates)?/?"
)
_SECURITY_SUITE = re.compile(r"(bullseye|bookworm|trixie|forky|duke|oldoldstable|oldstable|stable|testing)-security/?")
#: apt settings without which a guest could not use the same archive; nothing that lowers verification.
_CARRIED = re.compile(r"acquire::(check-valid-until|check-date|max-futuretime|https?::pipeline-depth)", re.I)
_PROXY = re.compile(r"acquire::(http|https)::proxy(::.+)?", re.I)


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


@dataclass(frozen=True)
class Source:
    """One apt source: ``uri`` × ``suites`` × ``components``, signed by ``keyring``; ``file`` names it in errors."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    keyring: str | None
    file: str


def controller_archive(root: Path = Path("/")) -> Archive:
    """The Debian archive that this machine's own apt configuration names.

    root: where to find etc/apt; another one than / is for tests.
    Raises LabUnavailable when no Debian archive is configured.
    """
    sources = list(read_sources(root))
    main = _choose(sources, _SUITE, "debian")
    if main is None:
        raise LabUnavailable(
            "no Debian archive in this machine's apt configuration (/etc/apt/sources.list, /etc/apt/sources.list.d)",
            hint="Add a source with component main of a Debian release; the lab's hosts are made from it.",
        )
    security = _choose(sources, _SECURITY_SUITE, "debian-security")
    settings = apt_settings(run.run(["apt-config", "dump"], doing="read apt's configuration").stdout)
    uris = [source.uri for source in (main, security) if source]
    proxy = _proxies(settings, os.environ, uris)
    return Archive(
        uri=main.uri,
        security_uri=security.uri if security else None,
        keyring=Path(main.keyring) if main.keyring and main.keyring.startswith("/") else DEBIAN_KEYRING,
        proxy=proxy,
        options={name: value for name, value in settings.items() if _CARRIED.fullmatch(name) and value},
        ca_bundle=_ca_bundle(settings, [*uris, *proxy.values()]),
    )


def read_sources(root: Path) -> Iterator[Source]:
    """All enabled binary sources of the apt configuration below ``root``, in apt's order of files."""
    apt = root / "etc/apt"
    files = [apt / "sources.list"] if (apt / "sources.list").is_file() else []
    if (apt / "sources.list.d").is_dir():
        files += sorted(p for p in (apt / "sources.list.d").iterdir() if p.suffix in (".list", ".sources"))
    for path in files:
        text = path.read_text(errors="replace")
        parse = parse_deb822 if path.suffix == ".sources" else parse_one_line
        for source in parse(text, path.as_posix()):
            uri = _first_mirror(source.uri, root)
            if uri:
                yield Source(uri.rstrip("/"), source.suites, source.components, source.keyring, source.file)


def parse_one_line(text: str, file: str) -> Iterator[Source]:
    """Sources of a ``sources.list`` (sources.list(5), one-line style)."""
    for line in text.splitlines():
        content = line.split("#", 1)[0].strip()
        match = re.fullmatch(r"deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)(?:\s+(.*))?", content)
        if not match:
            continue
        options = dict(word.split("=", 1) for word in (match[1] or "").split() if "=" in word)
        yield Source(match[2], (match[3],), tuple((match[4] or "").split()), options.get("signed-by"), file)


def parse_deb822(text: str, file: str) -> Iterator[Source]:
    """Sources of a ``.sources`` file (sources.list(5), deb822 style)."""
    for stanza in re.split(r"\n\s*\n", "\n".join(ln for ln in text.splitlines() if not ln.startswith("#"))):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.splitlines():
            if line[:1].isspace():
                fields[name] = f"{fields.get(name, '')}\n{line.strip()}"
            elif ":" in line:
                name, value = line.split(":", 1)
                name = name.strip().lower()
                fields[name] = value.strip()
        enabled = fields.get("enabled", "yes").lower() not in ("no", "false", "without", "off", "disable")
        if not enabled or "deb" not in fields.get("types", "").split():
            continue
        for uri in fields.get("uris", "").split():
            yield Source(
                uri,
                tuple(fields.get("suites", "").split()),
                tuple(fields.get("components", "").split()),
                fields.get("signed-by", "").strip() or None,
                file,
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
    """Debian's own source among ``sources``.

    Third parties name their suites after Debian's too, so a suite alone proves nothing: the keyring or the
    archive's customary folder has to agree.
    """
    best: tuple[int, Source] | None = None
    for source in sources:
        if not any(suite.fullmatch(name) for name in source.suites) or "main" not in source.components:
            continue
        score = 2 * ("debian-archive" in (source.keyring or "")) + (source.uri.rsplit("/", 1)[-1] == folder)
        if score and (best is None or score > best[0]):
            best = (score, source)
    return best[1] if best else None


def _first_mirror(uri: str, root: Path) -> str | None:
    """``uri``, or the first mirror of the list that a ``mirror+file:`` address names."""
    if not uri.startswith("mirror+file:"):
        return uri if uri.startswith(("http://", "https://")) else None
    listing = root / uri.removeprefix("mirror+file:").lstrip("/")
    if not listing.is_file():
        return None
    for line in listing.read_text(errors="replace").splitlines():
        words = line.split("#", 1)[0].split()
        if words and words[0].startswith(("http://", "https://")):
            return words[0]
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
