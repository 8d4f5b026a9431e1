"""Move a cufile.json from one release of libcufile to another: changes of its text, and of its meaning.

Pure.  The text is edited in place: comments, layout and all other bytes stay.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gdsdeploy.cufile.check import Finding, check
from gdsdeploy.cufile.document import Document, DocumentInvalid, Member, Node, read
from gdsdeploy.cufile.model import (
    BUFFER,
    LARGEST,
    NVME_P2PDMA,
    P2PDMA,
    Key,
    Release,
    half_set_p2pdma,
    keys,
    known_keys,
    release_text,
)
from gdsdeploy.host.libcufile import p2pdma

#: renamed, removed, added, limited: an edit of the text.  default: the file doesn't set the key, whose
#: default changed.
Kind = Literal["renamed", "removed", "added", "limited", "default"]


@dataclass(frozen=True)
class Change:
    """``before`` and ``after`` are JSON, or empty; ``line`` counts in the original, 0 for a key that isn't in it."""

    kind: Kind
    key: str
    line: int
    before: str
    after: str
    message: str

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line else ""
        values = f" ({self.before or 'none'} → {self.after or 'none'})" if self.before != self.after else ""
        return f"{place}{self.kind}: {self.key}{values}: {self.message}"


@dataclass(frozen=True)
class Migration:
    """``problems``: errors of the new text for the target."""

    text: str
    changes: tuple[Change, ...]
    problems: tuple[Finding, ...]


#: (start, end, replacement)
_Edit = tuple[int, int, str]


def migrate(data: bytes, source: Release, target: Release) -> Migration:
    """The file for ``target``; raises DocumentInvalid when the text cannot be read at all."""
    document = read(data)
    if document.root.kind != "object":
        raise DocumentInvalid("expected an object", document.place(document.root.start), aborts=True)
    edits: list[_Edit] = []
    changes: list[Change] = []
    removals: list[tuple[Node, Member]] = []
    orphan = P2PDMA if _without_storage(document, source, target) else None
    for parent, member, name in _members(document.root, ""):
        change, edit = _change_of(document, member, name, source, target)
        if name == orphan:
            message = f"libcufile {release_text(target)} has no PCI P2PDMA to the storage that the file enables it for"
            change = Change("removed", name, document.place(member.start).line, "true", "", message)
        if change is not None:
            changes.append(change)
        if edit is not None:
            edits.append(edit)
        elif change is not None:
            removals.append((parent, member))
    additions = [*_sizes(document, source), *_storage_key(document, source, target)]
    changes += [change for change, _ in additions]
    edits += [edit for _, edit in additions]
    changes += _defaults(document, source, target)
    text = document.text
    for start, end, replacement in sorted([*edits, *_without(document, removals)], reverse=True):
        text = text[:start] + replacement + text[end:]
    report = check(text.encode("utf-8", "surrogateescape"), target)
    problems = tuple(finding for finding in report.findings if finding.severity == "error")
    return Migration(text, tuple(changes), problems)


def _members(node: Node, path: str) -> Iterator[tuple[Node, Member, str]]:
    """(object, member, dotted name) of every known key, repeated ones included."""
    for member in node.members:
        name = f"{path}{member.name}"
        if name in known_keys():
            yield node, member, name
        elif member.value.kind == "object" and any(key.startswith(name + ".") for key in known_keys()):
            yield from _members(member.value, name + ".")


def _change_of(
    document: Document, member: Member, name: str, source: Release, target: Release
) -> tuple[Change | None, _Edit | None]:
    """The change of a key and its edit; a change without an edit removes the key, (None, None) leaves it as it is."""
    key = known_keys()[name]
    line = document.place(member.start).line
    value = document.text[member.value.start : member.value.end]
    if not key.read_by(target):
        other = _other_name(key, target)
        if other is not None:
            parent = name.rsplit(".", 1)[0]
            exists = document.find(*other.split(".")) is not None
            if other.rsplit(".", 1)[0] == parent and not exists:
                quoted = json.dumps(other.rsplit(".", 1)[-1])
                after = f"{quoted}: {value}"
                change = Change("renamed", name, line, f'"{member.name}": {value}', after, f"it is {other} now")
                return change, (member.start, member.start + len(json.dumps(member.name)), quoted)
        when = f"up to {key.until}" if key.until and target > source else f"from {key.since} on"
        message = f"libcufile reads it {when}, and {release_text(target)} ignores it"
        return Change("removed", name, line, value, "", message), None
    limited = _limit_of(key, member.value, source, target)
    if limited is not None:
        message = f"libcufile {release_text(target)} accepts no greater value"
        change = Change("limited", name, line, value, str(limited), message)
        return change, (member.value.start, member.value.end, str(limited))
    return None, None


def _other_name(key: Key, target: Release) -> str | None:
    """The name of the same thing in the target."""
    same = (other for other in known_keys().values() if key.key == other.successor or other.key == key.successor)
    return next((other.key for other in same if other.read_by(target)), None)


def _limit_of(key: Key, node: Node, source: Release, target: Release) -> int | None:
    """The greatest value of the target, where the source accepted the present one and the target doesn't."""
    most = key.limits_for(target).max
    value = node.value
    if node.kind != "int" or not isinstance(value, int) or most is None or value <= most or not key.read_by(source):
        return None
    before = key.limits_for(source).max
    return most if before is None or value <= before else None


def _sizes(document: Document, source: Release) -> Iterator[tuple[Change, _Edit]]:
    """Write both max_direct_io_size_kb and per_buffer_cache_size_kb, the second no greater than the first."""
    largest, buffer = (document.find(*name.split(".")) for name in (LARGEST, BUFFER))
    why = "from 1.13 on libcufile refuses a buffer that is larger than a request"
    if largest is not None and buffer is not None:
        sizes = largest.value.value, buffer.value.value
        if type(sizes[0]) is int and type(sizes[1]) is int and sizes[1] > sizes[0]:
            change = Change("limited", BUFFER, document.place(buffer.start).line, str(sizes[1]), str(sizes[0]), why)
            yield change, (buffer.value.start, buffer.value.end, str(sizes[0]))
    elif largest is not None and type(largest.value.value) is int:
        size = min(_default(BUFFER, source), int(largest.value.value))
        yield _insertion(document, BUFFER, size, largest, why)
    elif buffer is not None and type(buffer.value.value) is int:
        size = max(_default(LARGEST, source), int(buffer.value.value))
        yield _insertion(document, LARGEST, size, buffer, f"keeps the present value; {why}")


def _default(name: str, release: Release) -> int:
    return int(known_keys()[name].default_for(release))


def _insertion(document: Document, name: str, value: int, beside: Member, why: str) -> tuple[Change, _Edit]:
    """A key before another one."""
    text = f'"{name.rsplit(".", 1)[-1]}": {value}'
    return Change("added", name, 0, "", str(value), why), _before(document, beside, text)


def _before(document: Document, beside: Member, text: str) -> _Edit:
    """``text`` as the member before another one, on a line of its own where that has one."""
    line_start = document.text.rfind("\n", 0, beside.start) + 1
    indent = document.text[line_start : beside.start]
    gap = "\n" + indent if line_start and not indent.strip() else " "
    return beside.start, beside.start, f"{text},{gap}"


def _storage_key(document: Document, source: Release, target: Release) -> Iterator[tuple[Change, _Edit]]:
    """Write the key of NVMe disks, the only storage that PCI P2PDMA had before each kind got its own key."""
    if not known_keys()[P2PDMA].read_by(source) or source >= p2pdma.OWN_KEYS_SINCE:
        return
    if any(problem.key == P2PDMA for problem in half_set_p2pdma(_values(document), target)):
        edit = _completion(document, NVME_P2PDMA.split("."), "true")
        if edit is not None:
            since = release_text(p2pdma.OWN_KEYS_SINCE)
            why = f"from {since} on NVMe disks need this key besides {P2PDMA}"
            yield Change("added", NVME_P2PDMA, 0, "", "true", why), edit


def _without_storage(document: Document, source: Release, target: Release) -> bool:
    """Whether the target reads no key of the storage for which the file enables P2PDMA; before 1.16 that is NVMe."""
    values = _values(document)
    if source < p2pdma.OWN_KEYS_SINCE or values.get(P2PDMA) is not True or any(half_set_p2pdma(values, source)):
        return False
    own = [row.name for row in p2pdma.keys_for(target)] or [NVME_P2PDMA]
    return not any(values.get(name) is True for name in own)


def _values(document: Document) -> dict[str, Any]:
    """Dotted name → the scalar that counts, for every known key of the file."""
    members = {name: document.find(*name.split(".")) for name in known_keys()}
    return {name: member.value.value for name, member in members.items() if member is not None}


def _completion(document: Document, path: Sequence[str], value: str) -> _Edit | None:
    """Add a key and its missing sections; None if the file has the key, or something else in place of a section."""
    node = document.root
    for number, name in enumerate(path):
        sections = path[number + 1 :]
        content = "".join(f'{{"{section}": ' for section in sections) + value + "}" * len(sections)
        member = node.last(name)
        if member is None and node.members:
            return _before(document, node.members[0], f'"{name}": {content}')
        if member is None:
            return node.start + 1, node.start + 1, f'"{name}": {content}'
        if member.value.kind == "null":
            return member.value.start, member.value.end, content
        if member.value.kind != "object":
            return None
        node = member.value
    return None


def _defaults(document: Document, source: Release, target: Release) -> Iterator[Change]:
    """Keys that the file doesn't set, and whose default changed."""
    old, new, pair = keys(source), keys(target), {LARGEST, BUFFER}
    for name in new:
        member = document.find(*name.split("."))
        if (member is not None and member.value.kind != "null") or name not in old:
            continue
        before, after = old[name].default_for(source), new[name].default_for(target)
        # Of the two sizes, the one was added where the file sets the other.
        sized = name in pair and any(document.find(*other.split(".")) for other in pair - {name})
        if before is None or after is None or before == after or sized:
            continue
        message = f"the default changed; write the key to keep {json.dumps(before)}"
        yield Change("default", name, 0, json.dumps(before), json.dumps(after), message)


def _without(document: Document, removals: list[tuple[Node, Member]]) -> Iterator[_Edit]:
    """Edits that remove members, with their commas and the lines that would be empty."""
    removed = {id(member) for _, member in removals}
    last_kept: dict[int, Member] = {}
    for parent, member in removals:
        comma = _comma(document, member)
        yield _whole_lines(document.text, member.start, member.value.end if comma is None else comma + 1)
        if comma is None:
            remaining = [other for other in parent.members if id(other) not in removed]
            if remaining:
                last_kept[id(parent)] = remaining[-1]
    for member in last_kept.values():
        comma = _comma(document, member)
        if comma is not None:
            yield comma, comma + 1, ""


def _comma(document: Document, member: Member) -> int | None:
    """The offset of the comma after a member."""
    place = document.next_token(member.value.end)
    return place if document.text[place : place + 1] == "," else None


def _whole_lines(text: str, start: int, end: int) -> _Edit:
    """The whole lines, if they hold nothing but the removed text and a comment about it."""
    line_start = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", end)
    rest = text[end : line_end if line_end >= 0 else len(text)].strip()
    comment = rest.startswith("//") or (rest.startswith("/*") and rest.find("*/") == len(rest) - 2)
    if line_end < 0 or text[line_start:start].strip() or (rest and not comment):
        return start, end, ""
    return line_start, line_end + 1, ""


def as_json(file: str, source: Release, target: Release, migration: Migration) -> dict[str, Any]:
    """The result for programs."""
    return {
        "file": file,
        "from": release_text(source),
        "to": release_text(target),
        "changes": [vars(change) for change in migration.changes],
        "text": migration.text,
    }
