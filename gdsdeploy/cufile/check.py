"""Every problem of a cufile.json with its place, and what a release of libcufile would do with the file.

Pure: text, release and, optionally, the paths of this machine → findings.  The two answers differ on purpose: the
library ignores a misspelt key, but here it is an error.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from gdsdeploy.cufile import model
from gdsdeploy.cufile.document import Document, DocumentInvalid, Node, Place, read
from gdsdeploy.cufile.model import EXAMINED_RELEASES, Release, known_keys, release_text
from gdsdeploy.cufile.relations import Settings, relations, trapped
from gdsdeploy.cufile.verdict import Look, everything_is_there, judge
from gdsdeploy.files import yamlfile

Severity = Literal["error", "warning"]

_P2PDMA = ".use_pci_p2pdma"
#: Every value below this depth is wrong: no key lies deeper.
_DEEP = 6


class Kind(BaseModel):
    """The meaning of a finding id."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    severity: Severity
    meaning: str
    hint: str


@functools.cache
def kinds() -> dict[str, Kind]:
    """Every finding id, in the order of the documentation."""
    text = resources.files(__package__).joinpath("findings.yml").read_text(encoding="utf-8")
    return {name: Kind.model_validate(row) for name, row in yamlfile.shipped(text).items()}


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
class MachineFacts:
    """The facts of a machine for the check.  p2pdma: whether its kernel has PCI peer-to-peer DMA; None: unknown."""

    look: Look
    p2pdma: bool | None


@dataclass(frozen=True)
class Report:
    """``release``: the judged one; ``accepted``: None if the file could not be read; ``aborts``: the library ends the
    process that reads the file.
    """

    release: Release
    accepted: bool | None
    findings: tuple[Finding, ...]
    aborts: bool = False

    @property
    def errors(self) -> int:
        return sum(finding.severity == "error" for finding in self.findings)


def judged_release(version: str) -> tuple[Release, str | None]:
    """The known release that is closest to a version, and why it's another one (None: it isn't).

    Raises ValueError if ``version`` isn't a version, or is older than every known release.
    """
    release = model.release_of(version)
    if release in EXAMINED_RELEASES:
        return release, None
    if release < model.OLDEST:
        raise ValueError(f"libcufile {version} is older than 1.4, the oldest release whose keys are known")
    nearest = max(candidate for candidate in EXAMINED_RELEASES if candidate < release)
    why = "is newer than any examined release" if release > model.NEWEST else "was not examined"
    return nearest, f"libcufile {release_text(release)} {why}; it is judged as {release_text(nearest)}"


def check(text: bytes, release: Release, machine: MachineFacts | None = None) -> Report:
    """Judge the content of a file for a release, and for ``machine`` if it is there."""
    verdict = judge(text, release, machine.look if machine else everything_is_there)
    try:
        document = read(text)
    except DocumentInvalid as invalid:
        kind = "too-deep" if invalid.aborts else "invalid-json"
        return Report(release, False, (_finding(kind, "", invalid.place, invalid.message),), verdict.aborts)
    if document.root.kind != "object":
        message = f"expected an object (found {_words(document.root)})"
        finding = _finding("not-an-object", "", document.place(document.root.start), message)
        return Report(release, verdict.accepted, (finding,), verdict.aborts)
    places = _Places(document)
    findings = list(_findings(document, places, release, machine))
    if not verdict.accepted and not any(finding.severity == "error" for finding in findings):
        key = verdict.key or ""
        findings.append(_finding("refused", key, places.of(key), f"libcufile refuses it: {verdict.reason}"))
    findings.sort(key=lambda finding: (finding.line, finding.column))
    return Report(release, verdict.accepted, tuple(findings), verdict.aborts)


def unreadable(release: Release, message: str) -> Report:
    """The report on a file that could not be read."""
    return Report(release, None, (_finding("unreadable-file", "", Place(1, 1), message),))


def _findings(document: Document, places: _Places, release: Release, machine: MachineFacts | None) -> Iterator[Finding]:
    plain = _plain(document.root, 0)
    assert isinstance(plain, dict)
    values = {name: value for name in model.keys(release) if (value := model.get(plain, name)) is not None}
    settings = Settings(values, release)
    # An older release accepts that one; the finding upgrade-trap reports it.
    excused = "buffer-exceeds-request" if trapped(settings) else None
    problems = [problem for problem in model.check(plain, release) if problem.id != excused]
    yield from (_problem(places, problem, release) for problem in problems)
    yield from _ignored(document, document.root, "")
    if (offset := document.ignored()) is not None:
        yield _finding("text-after-end", "", document.place(offset), "this text is ignored")
    for kind, key, message in (
        *relations(settings, {problem.key for problem in problems}),
        *(_on(machine, values) if machine else ()),
    ):
        yield _finding(kind, key, places.of(key), message)


def _problem(places: _Places, problem: model.Problem, release: Release) -> Finding:
    key = known_keys().get(problem.key)
    kind, message = problem.id, problem.message
    if kind == "wrong-type" and any(name.startswith(problem.key + ".") for name in known_keys()):
        kind = "not-an-object"
    if kind == "out-of-range" and key is not None and key.clamped:
        kind, message = "clamped", f"{message}; libcufile uses the nearest of these"
    hint = f"Write {problem.near}" if problem.near else None
    if kind == "renamed-key" and problem.near in places.offsets:
        hint = f"Remove the key: the file has {problem.near} too"
    if kind == "buffer-exceeds-request" and release < (1, 13):
        message += ", which libcufile enforces from 1.13 on"
    about_value = kind not in {"unknown-key", "newer-key", "dropped-key", "renamed-key", "not-written"}
    return _finding(kind, problem.key, places.of(problem.key, value=about_value), message, hint)


def _on(machine: MachineFacts, values: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Problems with paths and kernel of this machine."""
    for name in ("logging.dir", "miscellaneous.static_routing_filepath", "miscellaneous.static_config_filepath"):
        if isinstance(values.get(name), str) and not machine.look(values[name]):
            yield "missing-path", name, f"{values[name]} does not exist on this machine"
    for name in ("denylist.mounts", "denylist.devices"):
        paths = values.get(name)
        for path in paths if isinstance(paths, list) else ():
            what = machine.look(path) if isinstance(path, str) else "block"
            if not what:
                yield "missing-path", name, f"{path} does not exist on this machine"
            elif name.endswith("devices") and what != "block":
                yield "not-a-block-device", name, f"{path} is not a block device"
    for name, value in values.items():
        if name.endswith(".mount_table") and isinstance(value, dict):
            for path in value:
                if machine.look(path) != "folder":
                    yield "missing-path", name, f"{path} is not a folder on this machine"
        if name.endswith(_P2PDMA) and value is True and machine.p2pdma is False:
            yield "no-p2pdma", name, "this machine's kernel has no PCI peer-to-peer DMA (CONFIG_PCI_P2PDMA)"


def _ignored(document: Document, node: Node, path: str) -> Iterator[Finding]:
    """Members that don't count: earlier ones of the same name, and null."""
    last = {member.name: member for member in node.members}
    for member in node.members:
        name, counts = f"{path}{member.name}", last[member.name]
        if counts is not member:
            message = f"line {document.place(counts.start).line} sets this key again, and counts"
            yield _finding("repeated-key", name, document.place(member.start), message)
        elif member.value.kind == "null" and any(f"{key}.".startswith(name + ".") for key in known_keys()):
            yield _finding("null-value", name, document.place(member.value.start), "null counts as a missing key")
        elif member.value.kind == "object" and name.count(".") < _DEEP:
            yield from _ignored(document, member.value, name + ".")


def _plain(node: Node, depth: int) -> Any:
    """The values in Python; null members are left out, as in the library."""
    if depth > _DEEP:
        return "…"
    if node.kind == "object":
        values = {member.name: _plain(member.value, depth + 1) for member in node.members}
        return {name: value for name, value in values.items() if value is not None}
    return [_plain(element, depth + 1) for element in node.items] if node.kind == "array" else node.value


class _Places:
    """The places of every dotted name of a document and of its value; for a repeated name, the last."""

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
        """The place of a key, or of its value; for a key that the file doesn't have, the place of its section."""
        section = key
        while section and section not in self.offsets:
            section = section.rpartition(".")[0]
        name, content = self.offsets.get(section, (self.document.root.start,) * 2)
        return self.document.place(content if value and section == key else name)


def _finding(kind: str, key: str, place: Place, message: str, hint: str | None = None) -> Finding:
    about = kinds()[kind]
    return Finding(kind, about.severity, key, place.line, place.column, message, hint or about.hint)


def _words(node: Node) -> str:
    return {"array": "a list", "null": "null"}.get(node.kind, repr(node.value))
