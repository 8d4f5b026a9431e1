"""Text as people paste it: bytes of any encoding, colours of a terminal, marks of Markdown."""

from __future__ import annotations

import codecs
import re

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
#: ``> `` of a quoted mail or comment.
_QUOTED = re.compile(r"(?m)^(?:[ \t]*> ?)+")
#: Bold words: ``**NVMe : Supported**``; pointers in C have no such pairs.
_BOLD = re.compile(r"(?<![*\w])\*\*(?=[^\s*])([^*\n]*[^\s*])\*\*(?![*\w])")
_ENTITIES = (("&gt;", ">"), ("&lt;", "<"), ("&quot;", '"'), ("&amp;", "&"))


def plain(data: bytes) -> str:
    """The text with line ends as ``\\n``, and without colours, quotation marks of Markdown and bold lines."""
    utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    text = data.decode("utf-16" if utf16 else "utf-8-sig", "replace")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if ">" in text:
        text = _QUOTED.sub("", text)
    if "**" in text:
        text = _BOLD.sub(r"\1", text)
    for entity, character in _ENTITIES:
        if entity in text:
            text = text.replace(entity, character)
    return text
