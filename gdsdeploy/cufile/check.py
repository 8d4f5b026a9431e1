"""Every problem of a cufile.json with its place, and what a release of libcufile would do with the file.

Pure: text, release and (only when asked) what lies under the paths of this machine → findings.  The two answers differ
on purpose: the library takes a misspelt key and ignores it, and here it is an error.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict

from gdsdeploy.cufile import model
from gdsdeploy.cufile.document import Document, DocumentInvalid, Node, Place, read
from gdsdeploy.cufile.model import ASKED, NEWEST, OLDEST, Problem, Release, known_keys, release_of
from gdsdeploy.cufile.verdict import BUFFER, LARGEST, Look, everything_is_there, judge

Severity = Literal["error", "warning"]

#: Keys that need another one: key → (the other, the value that it needs; None: any).
_NEEDS = {
    "properties.rdma_dynamic_routing_order": ("properties.rdma_dynamic_routing", True),
    "miscellaneous.static_routing_filepath": ("miscellaneous.enable_static_routing", True),
    "miscellaneous.static_config_filepath": ("miscellaneous.enable_static_config", True),
    "miscellaneous.enable_static_routing": ("miscellaneous.static_routing_filepath", None),
    "miscellaneous.enable_static_config": ("miscellaneous.static_config_filepath", None),
    "properties.rdma_max_backup_devices": ("properties.rdma_multipath_enabled", True),
}
_GPU_SIZES = "properties.gpu_bounce_buffer_slab_config.slab_size_kb"
_FORCE = "properties.force_compat_mode"
_P2PDMA = ".use_pci_p2pdma"
#: A value that lies deeper than any key is wrong whatever it is.
_DEEP = 6


class Kind(BaseModel):
    """What a finding id stands for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    severity: Severity
    meaning: str
    hint: str


@functools.cache
def kinds() -> dict[str, Kind]:
    """Every finding id, in the order of the documentation."""
    text = resources.files(__package__).joinpath("findings.yml").read_text(encoding="utf-8")
    return {name: Kind.model_validate(row) for name, row in yaml.safe_load(text).items()}


@dataclass(frozen=True)
class Finding:
    """One problem: line and column count from 1; ``key`` is dotted, or empty for the text as a whole."""

    id: str
    severity: Severity
    key: str
    line: int
    column: int
    message: str
    hint: str


@dataclass(frozen=True)
class Machine:
    """What of a machine the check looks at.  p2pdma: whether its kernel has PCI peer-to-peer DMA; None: not known."""

    look: Look
    p2pdma: bool | None


@dataclass(frozen=True)
class Report:
    """``release``: the one whose behaviour was judged; ``accepted``: None when the file could not be read at all;
    ``aborts``: the library ends the process that reads the file.
    """

    release: Release
    accepted: bool | None
    findings: tuple[Finding, ...]
    aborts: bool = False

    @property
    def errors(self) -> int:
        return sum(finding.severity == "error" for finding in self.findings)


def judged_release(version: str) -> tuple[Release, str | None]:
    """The release whose behaviour is known best for that version, and why it is another one (None: it is not).

    Raises ValueError for what is no version, or older than every known release.
    """
    release = release_of(version)
    if release in ASKED:
        return release, None
    if release < OLDEST:
        raise ValueError(f"libcufile {version} is older than 1.4, the oldest release whose keys are known")
    nearest = max(asked for asked in ASKED if asked < release)
    why = "is newer than any that was asked" if release > NEWEST else "was never to be had"
    return nearest, f"libcufile {release[0]}.{release[1]} {why}; it is judged as {nearest[0]}.{nearest[1]}"


def check(text: bytes, release: Release, machine: Machine | None = None) -> Report:
    """Judge the content of a file for a release; with ``machine``, for that machine too."""
    verdict = judge(text, release, machine.look if machine else everything_is_there)
    try:
        document = read(text)
    except DocumentInvalid as invalid:
        kind = "too-deep" if invalid.aborts else "invalid-json"
        return Report(release, False, (_finding(kind, "", invalid.place, invalid.message),), verdict.aborts)
    if document.root.kind != "object":
        message = f"expected an object (found {_words(document.root)})"
        found = [_finding("not-an-object", "", document.place(document.root.start), message)]
        return Report(release, verdict.accepted, tuple(found), verdict.aborts)
    places = _Places(document)
    found = list(_findings(document, places, release, machine))
    if not verdict.accepted and not any(finding.severity == "error" for finding in found):
        key = verdict.key or ""
        found.append(_finding("refused", key, places.of(key), f"libcufile refuses it: {verdict.reason}"))
    found.sort(key=lambda one: (one.line, one.column))
    return Report(release, verdict.accepted, tuple(found), verdict.aborts)


def unreadable(release: Release, message: str) -> Report:
    """The report on a file that could not be read."""
    return Report(release, None, (_finding("unreadable-file", "", Place(1, 1), message),))


def _findings(document: Document, places: _Places, release: Release, machine: Machine | None) -> Iterator[Finding]:
    plain = _plain(document.root, 0)
    assert isinstance(plain, dict)
    given = {name: value for name in model.keys(release) if (value := model.get(plain, name)) is not None}
    for problem in model.check(plain, release):
        if problem.id == "buffer-exceeds-request" and _trap(given, release):
            continue
        yield _problem(places, problem, release)
    yield from _ignored(document, document.root, "")
    if (offset := document.ignored()) is not None:
        yield _finding("text-after-end", "", document.place(offset), "this text is ignored")
    for kind, key, message in _relations(given, release):
        yield _finding(kind, key, places.of(key), message)
    if machine is not None:
        for kind, key, message in _on(machine, given):
            yield _finding(kind, key, places.of(key), message)


def _problem(places: _Places, problem: Problem, release: Release) -> Finding:
    key = known_keys().get(problem.key)
    kind, message = problem.id, problem.message
    if kind == "wrong-type" and any(name.startswith(problem.key + ".") for name in known_keys()):
        kind = "not-an-object"
    if kind == "out-of-range" and key is not None and key.clamped:
        kind, message = "clamped", f"{message}; libcufile takes it to the nearest of these"
    hint = f"Write {problem.near}" if problem.near else None
    if kind == "buffer-exceeds-request" and release < (1, 13):
        message += ", which libcufile enforces from 1.13 on"
    values = kind not in {"unknown-key", "newer-key", "dropped-key", "renamed-key", "not-written"}
    return _finding(kind, problem.key, places.of(problem.key, value=values), message, hint)


def _relations(given: dict[str, Any], release: Release) -> Iterator[tuple[str, str, str]]:
    """(kind, key, message) of what two keys say together, beyond what is wrong for rendering too."""
    if _trap(given, release):
        yield "upgrade-trap", LARGEST, "with per_buffer_cache_size_kb not given this is fatal from libcufile 1.13 on"
    if given.get(_FORCE) is True:
        for name in given:
            if name.endswith(_P2PDMA) and given[name] is True:
                yield "p2pdma-contradiction", name, "contradicts force_compat_mode: true, which wins"
    for name, (other, wanted) in _NEEDS.items():
        if name not in given or given[name] is False:
            continue
        if other not in given or (wanted is not None and given[other] is not wanted):
            value = "" if wanted is None else f": {str(wanted).lower()}"
            yield "no-effect", name, f"does nothing without {other}{value}"
    sizes = given.get(_GPU_SIZES)
    if isinstance(sizes, list) and all(type(size) is int for size in sizes) and sizes != sorted(set(sizes)):
        yield "slab-order", _GPU_SIZES, f"must ascend (found {', '.join(map(str, sizes))})"


def _trap(given: dict[str, Any], release: Release) -> bool:
    """A request size that newer releases refuse because their buffer is larger by default."""
    largest = given.get(LARGEST)
    return release < (1, 13) and BUFFER not in given and type(largest) is int and largest < 1024


def _on(machine: Machine, given: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """What this machine has to say."""
    for name in ("logging.dir", "miscellaneous.static_routing_filepath", "miscellaneous.static_config_filepath"):
        if isinstance(given.get(name), str) and not machine.look(given[name]):
            yield "missing-path", name, f"{given[name]} does not exist on this machine"
    for name in ("denylist.mounts", "denylist.devices"):
        paths = given.get(name)
        for path in paths if isinstance(paths, list) else ():
            what = machine.look(path) if isinstance(path, str) else "block"
            if not what:
                yield "missing-path", name, f"{path} does not exist on this machine"
            elif name.endswith("devices") and what != "block":
                yield "not-a-block-device", name, f"{path} is not a block device"
    for name, value in given.items():
        if name.endswith(".mount_table") and isinstance(value, dict):
            for path in value:
                if machine.look(path) != "folder":
                    yield "missing-path", name, f"{path} is not a folder on this machine"
        if name.endswith(_P2PDMA) and value is True and machine.p2pdma is False:
            yield "no-p2pdma", name, "this machine's kernel has no PCI peer-to-peer DMA (CONFIG_PCI_P2PDMA)"


def _ignored(document: Document, node: Node, path: str) -> Iterator[Finding]:
    """Members that do not count: those given again, and null."""
    last = {member.name: member for member in node.members}
    for member in node.members:
        name, counts = f"{path}{member.name}", last[member.name]
        if counts is not member:
            message = f"given again in line {document.place(counts.start).line}, which counts"
            yield _finding("repeated-key", name, document.place(member.start), message)
        elif member.value.kind == "null" and any(f"{key}.".startswith(name + ".") for key in known_keys()):
            yield _finding("null-value", name, document.place(member.value.start), "null is as if it were not given")
        elif member.value.kind == "object" and name.count(".") < _DEEP:
            yield from _ignored(document, member.value, name + ".")


def _plain(node: Node, depth: int) -> Any:
    """Values as Python has them; what is null where a key stands is left out, as the library does."""
    if depth > _DEEP:
        return "…"
    if node.kind == "object":
        values = {member.name: _plain(member.value, depth + 1) for member in node.members}
        return {name: value for name, value in values.items() if value is not None}
    return [_plain(item, depth + 1) for item in node.items] if node.kind == "array" else node.value


class _Places:
    """Where every dotted name of a document stands, and its value; of repeated names the last."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.offsets: dict[str, tuple[int, int]] = {}
        self._add(document.root, "")

    def _add(self, node: Node, path: str) -> None:
        for member in node.members:
            name = f"{path}{member.name}"
            self.offsets[name] = member.start, member.value.start
            if member.value.kind == "object" and name.count(".") < _DEEP:
                self._add(member.value, name + ".")

    def of(self, key: str, *, value: bool = False) -> Place:
        """The place of a key, or of its value; of what the file does not have, the place of what is around it."""
        here = key
        while here and here not in self.offsets:
            here = here.rpartition(".")[0]
        name, content = self.offsets.get(here, (self.document.root.start,) * 2)
        return self.document.place(content if value and here == key else name)


def _finding(kind: str, key: str, place: Place, message: str, hint: str | None = None) -> Finding:
    about = kinds()[kind]
    return Finding(kind, about.severity, key, place.line, place.column, message, hint or about.hint)


def _words(node: Node) -> str:
    return {"array": "a list", "null": "null"}.get(node.kind, repr(node.value))
