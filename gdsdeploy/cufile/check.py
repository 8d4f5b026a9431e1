"""Every problem of a cufile.json with its place, and what a release of libcufile would do with the file.

Pure: text, release and, optionally, the paths of this machine → findings, and the keys at which the library stops.  The
two differ on purpose: the library ignores a misspelt key, but here it is an error.

What the library refuses follows from keys.yml: ``limits``, and ``enforced`` where the library checks something else.
Both come from the libraries' own answers, which the differential tests in tests/cufile compare again.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from gdsdeploy.cufile import model
from gdsdeploy.cufile.document import Document, DocumentInvalid, Member, Node, Place, read
from gdsdeploy.cufile.model import (
    EXAMINED_RELEASES,
    NEWEST,
    Key,
    KeyPath,
    Limits,
    Release,
    Settings,
    keys,
    known_keys,
    relations,
    release_text,
    trapped,
)
from gdsdeploy.files import yamlfile
from gdsdeploy.host.io import reading
from gdsdeploy.host.subjects.cufile_json import LIST, key_name

#: The kind of a path on the machine where the library runs; "" means that nothing exists there.
What = Literal["folder", "block", "other", ""]
Look = Callable[[str], What]

_MAX_UINT32 = 2**32 - 1


@dataclass(frozen=True)
class Stop:
    """A key over which the library refuses the file, or (``aborts``) ends the process that reads it."""

    key: str
    reason: str
    aborts: bool = False


class _Refused(Exception):
    """The library takes no such value."""

    def __init__(self, reason: str = "wrong type", *, aborts: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.aborts = aborts


def everything_is_there(path: str) -> What:
    """For a file of another machine: every path is what it should be."""
    return "folder" if path.startswith("/") else ""


def _stops(root: Node, release: Release, look: Look) -> Iterator[Stop]:
    """Each key over which that release doesn't take the file; it names the one of them that it reads first."""
    release = min(release, NEWEST)
    values: dict[str, Any] = {}
    for name, key in keys(release).items():
        try:
            values[name] = _read(root, key, release, look)
        except _Refused as refused:
            yield Stop(name, refused.reason, refused.aborts)
    yield from _contradictions(values, release, slabs=_has_gpu_slabs(root, release))


def _contradictions(values: Mapping[str, Any], release: Release, *, slabs: bool) -> Iterator[Stop]:
    """Values that are right one by one.  The default of a key may be too large for the other key's value.

    slabs: slabs of GPU bounce buffers, which the library uses instead of one size.
    """
    settings = Settings(values, release)
    sizes, counts, buffer, largest = map(
        settings.effective, (model.SLAB_SIZES, model.SLAB_COUNTS, model.BUFFER, model.LARGEST)
    )
    if len(sizes) != len(counts):
        given = values.get(model.SLAB_COUNTS) is not None
        reason = f"{len(sizes)} sizes of slabs, and {len(counts)} counts"
        yield Stop(model.SLAB_COUNTS if given else model.SLAB_SIZES, reason, aborts=not given)
    elif any(count < 0 for count in counts):
        yield Stop(model.SLAB_COUNTS, "a negative count", aborts=True)
    if not slabs and buffer > largest and release >= (1, 13):
        yield Stop(model.BUFFER, f"{buffer} is more than max_direct_io_size_kb ({largest})")
    elif not slabs and buffer == 0:
        yield Stop(model.BUFFER, "a buffer of no size", aborts=True)


def _read(root: Node, key: Key, release: Release, look: Look) -> Any:
    """The value of the key in the file, or None if the file has no value that counts."""
    node = _find(root, key.key)
    # Slabs of GPU bounce buffers are never refused: see _has_gpu_slabs.
    if node is None or node.kind == "null" or key.key in _GPU_SLABS or not key.heeded_by(release):
        return None
    value = _value(node, key.type, key.bits)
    _enforce(value, key, key.enforced_for(release), look)
    return None if value == [] else value


def _find(root: Node, name: str) -> Node | None:
    """The value that counts under a dotted name; a parent that isn't an object ends the process."""
    node = root
    parts = name.split(".")
    for number, part in enumerate(parts):
        member = node.last(part)
        if member is None:
            return None
        node = member.value
        if number + 1 < len(parts):
            if node.kind == "null":
                return None
            if node.kind != "object":
                raise _Refused(f"{'.'.join(parts[: number + 1])} is not an object", aborts=True)
    return node


def _value(node: Node, kind: str, bits: int) -> Any:
    """A value as the library's accessor for that type of key gives it, which stops on another type."""
    value: Any = node.value
    match kind, node.kind:
        case ("bool", "bool") | ("text", "text"):
            return value
        case "uint", "bool":
            return int(value)
        case "uint", "real" if 0 <= value <= _MAX_UINT32:
            return int(value)
        case "uint", "int" if value >= 0:
            if bits == 32 and value > _MAX_UINT32:
                raise _Refused("more than 32 bits", aborts=True)
            return value
        # To the parser, a whole number above 31 bits is unsigned, which is another type.
        case "int", "int" if value < 2**31:
            if value < -(2**31):
                raise _Refused("more than 32 bits", aborts=True)
            return value % 2**bits if bits < 32 else value
        case (("texts" | "uints"), "array"):
            return [_value(element, "text" if kind == "texts" else "int", bits) for element in node.items]
        case "object", "object":
            return _table(node, bits)
    raise _Refused


def _table(node: Node, bits: int) -> dict[str, list[str]] | None:
    """Folder → addresses, of the rows of a mount table that have a list; None where the library drops the table."""
    rows = {member.name: member.value for member in node.members}
    if any(row.kind != "object" for row in rows.values()):
        raise _Refused
    lists = {name: given.value for name, row in rows.items() if (given := row.last(LIST))}
    table = {name: [] if given.kind == "null" else _value(given, "texts", bits) for name, given in lists.items()}
    # The library reads the rows in this order, and takes the last list for the table's own.
    last = max(rows, key=lambda name: name.encode("utf-8", "surrogatepass"), default="")
    return None if table.get(last) == [] else table


def _enforce(value: Any, key: Key, limits: Limits, look: Look) -> None:
    items = value if isinstance(value, list) else [value]
    # The library examines each mount, and only the result of the last one counts.
    for part in items[-1:] if key.key == "denylist.mounts" else items:
        if isinstance(part, int) and not isinstance(part, bool) and part not in limits.also:
            if (limits.min is not None and part < limits.min) or (limits.max is not None and part > limits.max):
                raise _Refused(f"{part} is out of range")
            if limits.multiple and part % limits.multiple:
                raise _Refused(f"{part} is not a multiple of {limits.multiple}")
        elif isinstance(part, str):
            _enforce_text(part, limits, look, folder=key.key == "logging.dir")
    if isinstance(value, dict) and any(look(folder) != "folder" for folder in value):
        raise _Refused("one of its mount points isn't a folder")


def _enforce_text(value: str, limits: Limits, look: Look, *, folder: bool) -> None:
    if limits.words and value not in limits.words:
        raise _Refused(f"{value!r} isn't one of its words")
    if limits.pattern and not re.fullmatch(limits.pattern, value):
        raise _Refused(f"{value!r} does not look like {limits.pattern}")
    if limits.form == "path":
        # In C a text ends at its first NUL.
        what = look(value.split("\0")[0])
        if not what or (folder and what != "folder"):
            raise _Refused(f"{value!r} isn't a folder" if what else f"{value!r} doesn't exist")


_GPU_SLABS = (model.GPU_SIZES, model.GPU_COUNTS)


def _has_gpu_slabs(root: Node, release: Release) -> bool:
    """Whether the library uses the file's slabs of GPU bounce buffers; it drops wrong ones without a refusal."""
    if not all(name in keys(release) for name in _GPU_SLABS):
        return False
    try:
        sizes, counts = (
            _value(node, "uints", known_keys()[name].bits) if (node := _find(root, name)) else [] for name in _GPU_SLABS
        )
    except _Refused:
        return False
    return (
        bool(sizes)
        and len(sizes) == len(counts)
        and all(size > 0 and size % 4 == 0 for size in sizes)
        and all(count > 0 for count in counts)
        and sorted(set(sizes)) == sizes
    )


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
    """``release``: the judged one.  ``stops``: where the library doesn't take the file: one of them is the key that it
    names; none: it takes the file; None: the file could not be read.
    """

    release: Release
    stops: tuple[Stop, ...] | None
    findings: tuple[Finding, ...]

    @property
    def accepted(self) -> bool | None:
        """Whether every cuFile call works as far as the configuration goes."""
        return None if self.stops is None else not self.stops

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
    try:
        document = read(text)
    except DocumentInvalid as invalid:
        kind = "too-deep" if invalid.aborts else "invalid-json"
        finding = _finding(kind, "", invalid.place, invalid.message)
        return Report(release, (Stop("", invalid.message, invalid.aborts),), (finding,))
    root = document.root
    if root.kind != "object":
        what = {"array": "a list", "null": "null"}.get(root.kind, repr(root.value))
        finding = _finding("not-an-object", "", document.place(root.start), f"expected an object (found {what})")
        # To the library's parser these two are objects without members.
        empty = root.kind == "null" or (root.kind == "array" and not root.items)
        return Report(release, () if empty else (Stop("", finding.message, aborts=True),), (finding,))
    places = _Places(document)
    findings = list(_findings(document, places, release, machine))
    stops = tuple(_stops(root, release, machine.look if machine else everything_is_there))
    if stops and not any(finding.severity == "error" for finding in findings):
        key = stops[0].key
        findings.append(_finding("refused", key, places.of(key), f"libcufile refuses it: {stops[0].reason}"))
    findings.sort(key=lambda finding: (finding.line, finding.column))
    return Report(release, stops, tuple(findings))


def unreadable(release: Release, message: str) -> Report:
    """The report on a file that could not be read."""
    return Report(release, None, (_finding("unreadable-file", "", Place(1, 1), message),))


def _findings(document: Document, places: _Places, release: Release, machine: MachineFacts | None) -> Iterator[Finding]:
    plain = _plain(document.root)
    assert isinstance(plain, dict)
    settings = model.settings_of(plain, release)
    # An older release accepts that one; the finding upgrade-trap reports it.
    excused = "buffer-exceeds-request" if trapped(settings) else None
    problems = [problem for problem in model.check(plain, release) if problem.id != excused]
    yield from (_problem(places, problem, release) for problem in problems)
    yield from _ignored(document)
    if (offset := document.ignored) is not None:
        yield _finding("text-after-end", "", document.place(offset), "this text is ignored")
    for kind, key, message in (
        *relations(settings, {problem.key for problem in problems}),
        *(_on(machine, settings.values) if machine else ()),
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


def _on(machine: MachineFacts, values: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Problems with paths and kernel of this machine."""
    for name, value in values.items():
        is_table = isinstance(value, dict)
        is_path = is_table or known_keys()[name].limits.form == "path"
        for path in (value if isinstance(value, (list, dict)) else [value]) if is_path else ():
            what = machine.look(path) if isinstance(path, str) else "block"
            if not what or (is_table and what != "folder"):
                what_not = "is not a folder" if what else "does not exist"
                yield "missing-path", name, f"{path} {what_not} on this machine"
            elif name == "denylist.devices" and what != "block":
                yield "not-a-block-device", name, f"{path} is not a block device"
        if name.endswith(_P2PDMA) and value is True and machine.p2pdma is False:
            yield "no-p2pdma", name, "this machine's kernel has no PCI peer-to-peer DMA (CONFIG_PCI_P2PDMA)"


def _members(node: Node, path: KeyPath = ()) -> Iterator[tuple[str, Member, Member]]:
    """key_name, member, and the member of that name that counts: of an object and of those in it that count."""
    last = {member.name: member for member in node.members}
    for member in node.members:
        here, counts = (*path, member.name), last[member.name]
        yield key_name(here), member, counts
        if counts is member and member.value.kind == "object" and len(here) <= _DEEP:
            yield from _members(member.value, here)


def _ignored(document: Document) -> Iterator[Finding]:
    """Members that don't count: earlier ones of the same name, and null."""
    for name, member, counts in _members(document.root):
        if counts is not member:
            message = f"line {document.place(counts.start).line} sets this key again, and counts"
            yield _finding("repeated-key", name, document.place(member.start), message)
        elif member.value.kind == "null" and any(f"{key}.".startswith(name + ".") for key in known_keys()):
            yield _finding("null-value", name, document.place(member.value.start), "null counts as a missing key")


def _plain(node: Node, path: KeyPath = ()) -> Any:
    """The values in Python; null members are left out, as in the library, which doesn't take null for a table's row."""
    if len(path) > _DEEP:
        return "…"
    if node.kind == "object":
        values = {member.name: _plain(member.value, (*path, member.name)) for member in node.members}
        is_table = key_name(path) in known_keys()
        return {name: value for name, value in values.items() if value is not None or is_table}
    return [_plain(element, (*path, "")) for element in node.items] if node.kind == "array" else node.value


class _Places:
    """The places of every key_name of a document and of its value; for a repeated name, the last."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.offsets = {name: (member.start, member.value.start) for name, member, _ in _members(document.root)}

    def of(self, key: str, *, value: bool = False) -> Place:
        """The place of a key, or of its value; for a known key that the file doesn't have, the place of its section."""
        section = key
        while section and section not in self.offsets:
            section = section.rpartition(".")[0]
        name, content = self.offsets.get(section, (self.document.root.start,) * 2)
        return self.document.place(content if value and section == key else name)


def _finding(kind: str, key: str, place: Place, message: str, hint: str | None = None) -> Finding:
    about = kinds()[kind]
    return Finding(kind, about.severity, key, place.line, place.column, message, hint or about.hint)


#: A cufile.json with every key is under 10 kB; a longer file is something else.
MAX_BYTES = 1 << 20
#: The kernel symbol that libcufile itself looks for.
_P2PDMA_SYMBOL = " pci_p2pdma_add_resource\n"


def look(path: str) -> What:
    """The kind of a path, from stat(2)."""
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - pathlib would normalise the path
    except (OSError, ValueError):
        return ""
    return "folder" if stat.S_ISDIR(mode) else "block" if stat.S_ISBLK(mode) else "other"


def p2pdma(boot: Path = Path("/boot"), symbols: Path = Path("/proc/kallsyms")) -> bool | None:
    """Whether the running kernel has PCI peer-to-peer DMA, by its configuration or its symbols; None: unknown."""
    with contextlib.suppress(OSError):
        config = (boot / f"config-{os.uname().release}").read_text(encoding="utf-8", errors="replace")
        return "\nCONFIG_PCI_P2PDMA=y\n" in config
    with contextlib.suppress(OSError):
        listed = symbols.read_text(encoding="utf-8", errors="replace")
        return _P2PDMA_SYMBOL in listed if listed else None
    return None


def file_content(file: str) -> bytes:
    """The content of a file, or of standard input for ``-``; raises OSError, also if it's far too long."""
    data = sys.stdin.buffer.read(MAX_BYTES + 1) if file == "-" else reading.beginning(file, MAX_BYTES)
    if len(data) > MAX_BYTES:
        raise OSError(0, f"longer than {MAX_BYTES // 2**20} MiB, so it isn't a configuration")
    return data
