"""Files with pasted text, read within bounds: what is no text is one plain error."""

from __future__ import annotations

import codecs
import gc
import os
import re
import shlex
import sys
from typing import List, Sequence, Tuple

from ..errors import UsageError
from ..gdscheck.reader import plain
from ..io import reading
from .answer import Answer
from .judge import judge
from .parts import split

__all__ = ["LIMIT", "STDIN", "answer_to", "is_text", "plain", "read_texts"]

STDIN = "-"
#: Most bytes of one file.
LIMIT = 32 * 1024 * 1024
#: Bytes that are looked at to tell whether a file is text, and the largest share of others in a text.
_SAMPLE, _SHARE = 65536, 0.1
_NO_TEXT = re.compile("[\x01-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f\ufffd]")
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_texts(names: Sequence[str]) -> List[Tuple[str, bytes]]:
    """(name, content) of each file; ``-`` is standard input.

    Raises UsageError for what is no text or can't be read.
    """
    return [(name, _content(name)) for name in names]


def answer_to(contents: Sequence[Tuple[str, bytes]]) -> Answer:
    """The answer to all files together."""
    # A hundred thousand lines make no garbage, and looking for it would take as long as all the rest.
    enabled = gc.isenabled()
    gc.disable()
    try:
        return judge([part for name, data in contents for part in split(data, name)])
    finally:
        if enabled:
            gc.enable()


def _content(name: str) -> bytes:
    try:
        data = sys.stdin.buffer.read(LIMIT + 1) if name == STDIN else reading.beginning(name, LIMIT)
    except IsADirectoryError:
        hint = f"name the files in it: {shlex.quote(os.path.join(name, ''))}*"
        raise UsageError(f"{name} is a folder; {hint}") from None
    except OSError as error:
        raise UsageError(f"{name} can't be read: {error.strerror or error}") from None
    shown = "standard input" if name == STDIN else name
    if len(data) > LIMIT:
        cut = f"tail -c {LIMIT // 2} {shlex.quote(name)} | gdsdeploy explain --log"
        raise UsageError(f"{shown} has more than {LIMIT // 1024 // 1024} MiB; give its end: {cut}")
    if not data.strip(b"\0 \t\r\n"):
        raise UsageError(f"{shown} is empty")
    if not is_text(data):
        raise UsageError(f"{shown} is no text; unpack an archive first, and name the log in it")
    return data


def is_text(data: bytes) -> bool:
    """Whether the beginning is text; a log may have zeros where a host crashed."""
    sample = data[:_SAMPLE]
    if sample.startswith(_UTF16):
        return True
    rest = sample.replace(b"\0", b"")
    text = rest.decode("utf-8", "replace")
    return 2 * len(rest) >= len(sample) and len(_NO_TEXT.findall(text)) <= _SHARE * len(text)
