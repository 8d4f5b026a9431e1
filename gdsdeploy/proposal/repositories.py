"""The package repositories of a host, in the words of a fleet file.  Pure.

A key of a host is one that its root trusts, so its fingerprint is proposed where no vendor's preset has one.
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pydantic import ValidationError

from gdsdeploy.host.apply.packages.aptsources import Source, SourcesError, parse_sources
from gdsdeploy.host.facts.document import Document
from gdsdeploy.host.paths import APT_PARTS, APT_SOURCES, DNF_PARTS, DNF_VARIABLES
from gdsdeploy.model.repository import Repository
from gdsdeploy.platform import Preset, StackPlatform
from gdsdeploy.proposal.model import ObservedRepository
from gdsdeploy.repo.repository import key_fingerprints

NVIDIA, EPEL = "nvidia", "epel"
#: Keys of a keyring that are proposed; Debian's has 9.
_MOST = 32
#: Why the index of EPEL may be unsigned, as its entry says.
_UNSIGNED = "EPEL signs its packages, not its index"


class _Place(NamedTuple):
    """Where a host has a repository: the part of its address before the preset's path, and the file of its keys."""

    uri: str
    keyring: str


@dataclass(frozen=True)
class Repositories:
    """Those of a host that a profile can list, in the order of the profile; and what is to know."""

    listed: tuple[ObservedRepository, ...]
    notes: tuple[str, ...]


def repositories(
    document: Document,
    platform: StackPlatform,
    arch: str,
    *,
    distributions_driver: bool,
    has_file: Callable[[Path], bool],
) -> Repositories:
    """What a host's evidence has, with the presets that its system needs besides.

    distributions_driver: whether the host's driver is the distribution's own.
    has_file: whether the controller has a file.
    """
    notes: list[str] = []
    is_apt = platform.kind == "apt"
    find = _apt(document, notes) if is_apt else _rpm(document, notes)
    has_sources = any(path.startswith((APT_SOURCES, APT_PARTS, DNF_PARTS)) for path in document.paths("files"))
    if not has_sources:
        notes.append("its package repositories were not looked at")
    own, vendors = platform.presets(), platform.vendor_presets()
    listed: list[ObservedRepository] = []
    for name, preset in own.items():
        place = find(preset, arch)
        if place is None and is_apt and listed and has_sources:
            notes.append(f"it has no repository {name}")
            continue
        listed.append(_observed(name, preset, place, document, platform, arch, has_file))
    if not any(each.entry or each.key or each.remark for each in listed):
        # A group stands for its members.
        groups = dict.fromkeys(own[each.name].group or each.name for each in listed)
        listed = [ObservedRepository(group, {}, {}) for group in groups]
    if not own:
        notes.append(f"{platform.os} has no presets: add its repositories (docs/repositories.md)")
    others: list[ObservedRepository] = []
    for name, preset in vendors.items():
        place = find(preset, arch)
        # Debian's own archive has the whole stack; the others need NVIDIA's repository, and RHEL's equals EPEL's dkms.
        if place is not None or platform.family != "debian":
            others.append(_observed(name, preset, place, document, platform, arch, has_file))
    nvidia = [each for each in others if each.name == NVIDIA]
    rest = [each for each in others if each.name != NVIDIA]
    first = is_apt and not distributions_driver
    chosen = [*nvidia, *listed, *rest] if first else [*listed, *rest, *nvidia]
    return Repositories(tuple(chosen), tuple(notes))


def _observed(
    name: str,
    preset: Preset,
    place: _Place | None,
    document: Document,
    platform: StackPlatform,
    arch: str,
    has_file: Callable[[Path], bool],
) -> ObservedRepository:
    """The entry for one repository: what the preset has is left out of it, and is in ``whole``."""
    remarks: list[str] = []
    uri = _address(place, remarks)
    entry: dict[str, Any] = {"uri": uri} if uri and uri != preset.uri else {}
    path = place.keyring if place and place.keyring else str(preset.keyring or "")
    key = _key(document, path)
    own = key_fingerprints(key)[:_MOST]
    foreign = bool(own) and not set(own) & set(preset.fingerprints)
    lacks = preset.keyring is None or not has_file(preset.keyring)
    word = "fingerprints"
    if name == EPEL:
        entry |= {"metadata": "unsigned", "why": _UNSIGNED}
        word = "package_keys"
    if foreign:
        entry[word] = list(own)
        words = "isn't the vendor's published one" if preset.fingerprints else "has no published fingerprint here"
        remarks.append(f"the key that the hosts trust {words}: compare it with its source")
    if place is None and name in (NVIDIA, EPEL):
        remarks.append("not on these hosts, but the stack needs it")
    if lacks and not own:
        remarks.append(f"this machine needs its keys: {preset.keyring or 'name the keyring and fingerprints'}")
    if own and (lacks or foreign) and platform.kind == "apt" and _is_valid(signed_by=path):
        entry["signed_by"] = path
    base = uri or preset.uri or (preset.arm_uri if arch == "aarch64" else "")
    full = preset.path.format(arch=arch, sbsa="sbsa" if arch == "aarch64" else arch)
    whole = {
        "kind": platform.kind,
        "uri": f"{base}/{full}" if full else base,
        **({"suites": list(preset.suites)} if preset.suites else {}),
        **({"components": list(preset.components)} if preset.components else {}),
        "keyring": str(preset.keyring),
        word: list(own if foreign else preset.fingerprints),
        **({"signed_by": path} if platform.kind == "apt" and preset.known_as and _is_valid(signed_by=path) else {}),
        **{key: value for key, value in entry.items() if key not in ("uri", word)},
    }
    return ObservedRepository(name, entry, whole, key if own and (lacks or foreign) else b"", "; ".join(remarks))


def _address(place: _Place | None, remarks: list[str]) -> str:
    """The address as the fleet file may have it; empty where it can't be written there."""
    uri = place.uri if place else ""
    if not uri:
        return ""
    try:
        if urlsplit(uri).username is not None:
            remarks.append("its address on the hosts has a login in it, which was left out: add a mirror's uri")
            return ""
    except ValueError:
        uri = ""
    if not _is_valid(uri=uri):
        remarks.append("its address on the hosts is none that a fleet file can have: add a mirror's uri")
        return ""
    if uri.startswith("file:"):
        remarks.append("its address is a folder of the hosts, which this machine needs, too")
    return uri


def _is_valid(**values: str) -> bool:
    """Whether a repository of a fleet file can have these values."""
    try:
        Repository.model_validate(values)
    except ValidationError:
        return False
    return all(values.values())


def _key(document: Document, path: str) -> bytes:
    value = document.binary(path) if path else None
    try:
        return bytes.fromhex(value) if isinstance(value, str) else b""
    except ValueError:
        return b""


Find = Callable[[Preset, str], _Place | None]


def _apt(document: Document, notes: list[str]) -> Find:
    sources: list[Source] = []
    for path in sorted(path for path in document.paths("files") if path.startswith((APT_SOURCES, APT_PARTS))):
        text = document.text(path)
        try:
            sources += parse_sources(text, path) if isinstance(text, str) else []
        except SourcesError as error:
            notes.append(f"an apt source can't be read: {error.message}")

    def find(preset: Preset, arch: str) -> _Place | None:
        path = preset.path.format(arch=arch, sbsa="sbsa" if arch == "aarch64" else arch)
        fitting = [source for source in sources if "deb" in source.types and _fits(source, preset, path)]
        # Other vendors use a distribution's names of suites, too: its own key decides, then the number of components.
        fitting.sort(key=lambda source: (source.signed_by != str(preset.keyring), -len(_common(source, preset))))
        if not fitting:
            return None
        keyring = fitting[0].signed_by or ""
        uri = fitting[0].uri.rstrip("/")
        return _Place(uri.removesuffix("/" + path) if path else uri, keyring if keyring.startswith("/") else "")

    return find


def _fits(source: Source, preset: Preset, path: str) -> bool:
    if preset.known_as is None:
        return bool(path) and source.uri.rstrip("/").endswith("/" + path)
    least = 1 if source.signed_by in (None, str(preset.keyring)) else 2
    return bool(preset.known_as.fullmatch(source.suite)) and len(_common(source, preset)) >= least


def _common(source: Source, preset: Preset) -> set[str]:
    return set(source.components) & set(preset.components)


def _rpm(document: Document, notes: list[str]) -> Find:
    sections = list(_sections(document, notes))

    def find(preset: Preset, arch: str) -> _Place | None:
        path = preset.path.format(arch=arch, sbsa="sbsa" if arch == "aarch64" else arch)
        for address, keyring in sections:
            if path and address.endswith("/" + path):
                return _Place(address.removesuffix("/" + path), keyring)
        # With a list of mirrors in place of an address, only the file of the keys tells whose it is.
        named = [keyring for _, keyring in sections if keyring == str(preset.keyring)]
        return _Place("", named[0]) if named else None

    return find


def _sections(document: Document, notes: list[str]) -> Iterator[tuple[str, str]]:
    """(address, file of keys) of each repository of dnf that is in use; empty where it names none."""
    variables = _variables(document)
    for path in sorted(path for path in document.paths("files") if path.startswith(DNF_PARTS)):
        text = document.text(path)
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read_string(text if isinstance(text, str) else "")
        except configparser.Error as error:
            notes.append(f"{path} can't be read: {error}")
            continue
        for section in parser.sections():
            values = dict(parser.items(section))
            if values.get("enabled", "1").strip().lower() in ("0", "false", "no", "off"):
                continue
            address = _filled(_first(values.get("baseurl", "").split()), variables)
            key = next((word for word in re.split(r"[\s,]+", values.get("gpgkey", "")) if word.startswith("file:")), "")
            yield address.rstrip("/"), _filled(key.removeprefix("file://"), variables)


def _variables(document: Document) -> dict[str, str]:
    release = re.search(r'(?m)^VERSION_ID="?([0-9]+)', str(document.text("/etc/os-release")))
    machine = document.host("uname", "machine")
    variables = {"releasever": release[1] if release else "", "basearch": machine if isinstance(machine, str) else ""}
    for path in document.paths("files"):
        value = document.line(path) if path.startswith(DNF_VARIABLES + "/") else None
        if isinstance(value, str):
            variables[path.rpartition("/")[2]] = value
    return variables


def _filled(text: str, variables: dict[str, str]) -> str:
    return re.sub(r"\$(\w+)|\$\{(\w+)\}", lambda match: variables.get(match[1] or match[2], match[0]), text)


def _first(words: Sequence[str]) -> str:
    return words[0] if words else ""
