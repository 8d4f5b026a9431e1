"""The nodes of a fleet file as YAML with comments, and as plain data.

All values and keys are written by yaml's own emitter.  A comment may have words of hosts: it has no line end, no
control character, and a limit.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import yaml
from yaml.reader import Reader

from gdsdeploy.host.io.wording import line
from gdsdeploy.proposal.model import Entry, Node, Remark

#: Characters of a comment, and of a line with one at its end.
_LONGEST, _WIDTH = 400, 110
_PLAIN = re.compile(r"[ -~]*")


class _Dumper(yaml.SafeDumper):
    """Writes each text in one line, whatever is in it."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - as PyYAML calls it
        """The same value twice is written twice."""
        return True

    def represent_text(self, text: str) -> yaml.Node:
        """In double quotes, with escapes, where it has more than printable ASCII."""
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=None if _PLAIN.fullmatch(text) else '"')


_Dumper.add_representer(str, _Dumper.represent_text)


def text(nodes: Sequence[Node]) -> str:
    """The YAML document."""
    return "\n".join(_lines(nodes, "")) + "\n"


def data(nodes: Sequence[Node]) -> Any:
    """The same as plain values: what a reader of the YAML document gets."""
    entries = [node for node in nodes if isinstance(node, Entry) and not node.off]
    if entries and not entries[0].key:
        return [_value(entry) for entry in entries]
    return {entry.key: _value(entry) for entry in entries}


def comment(words: str) -> str:
    """``words`` as a comment may have them: one line, printable, not too long."""
    clean = Reader.NON_PRINTABLE.sub("?", line(words)).strip()
    return clean if len(clean) <= _LONGEST else clean[: _LONGEST - 1] + "…"


def _value(entry: Entry) -> Any:
    return data(entry.value) if _is_block(entry.value) else entry.value


def _is_block(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and isinstance(value[0], Entry | Remark)


def _lines(nodes: Sequence[Node], indent: str) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, Remark):
            yield from _remark(node.text, indent)
            continue
        block = _is_block(node.value)
        begin = f"{_flow(node.key)}:" if node.key else "-"
        words = begin if block else f"{begin} {_flow(node.value)}"
        mark = "# " if node.off else ""
        yield from _with_comment(f"{indent}{mark}{words}", node.comment, indent)
        if block:
            below = list(_lines(node.value, indent + "  "))
            yield from (f"{indent}# {each[len(indent) :]}" for each in below) if node.off else below


def _with_comment(words: str, remark: str, indent: str) -> Iterator[str]:
    """Behind the words where there is room, else above them."""
    clean = comment(remark)
    if clean and len(words) + len(clean) + 4 > _WIDTH:
        yield from _remark(clean, indent)
        clean = ""
    yield f"{words}  # {clean}" if clean else words


def _remark(words: str, indent: str) -> Iterator[str]:
    for part in textwrap.wrap(comment(words), _WIDTH - len(indent), break_on_hyphens=False) or [""]:
        yield f"{indent}# {part}".rstrip()


def _flow(value: Any) -> str:
    """A value in one line."""
    plain = list(value) if isinstance(value, tuple) else value
    dumped = yaml.dump(plain, Dumper=_Dumper, default_flow_style=True, sort_keys=False, width=1 << 30)
    return str(dumped).removesuffix("\n").removesuffix("\n...").strip()
