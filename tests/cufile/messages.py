"""The messages that a libcufile can log, read from its machine code.

Every call of its logger has the level, the place in the source and the pieces of the text as constants.

``python -m tests.cufile.messages [VERSION…]`` prints the number of messages by level.
"""

from __future__ import annotations

import collections
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gdsdeploy import console
from tests.cufile import libraries

#: The number of each level, as the library compares it with its setting.
LEVELS = {0: "TRACE", 1: "DEBUG", 2: "INFO", 3: "WARN", 4: "ERROR", 5: "NOTICE"}
#: What stands for a value between the constant pieces.
VALUE = "{}"
#: ``cufio-fs:204``: where in the library's source a message comes from.
_PLACE = re.compile(r"[\w.+-]+:\d+")
#: Registers of arguments after the level and the place, in their order.
_ARGUMENTS = ("rdx", "rcx", "r8", "r9")
_LEA = re.compile(r"\tlea +.*\(%rip\),%(\w+) +# ([0-9a-f]+)")
_LEVEL = re.compile(r"\tmov +\$0x([0-9a-f]),%edi")
_PUSH = re.compile(r"\tpush +%?(\w+)")
_STORE = re.compile(r"\tmov +%(\w+),(0x[0-9a-f]+)?\(%rsp\)")
_OTHER = re.compile(r"\t(?:mov|lea|movslq|movl|movq|xor) +.*,%(\w+)$")


@dataclass(frozen=True)
class Message:
    """``text``: its pieces as the log joins them, with VALUE for each run of values."""

    level: str
    place: str
    text: str


class _Constants:
    """The constant texts of a library, by address."""

    def __init__(self, path: Path) -> None:
        table = subprocess.run(["readelf", "-SW", path], capture_output=True, text=True, check=True).stdout
        section = re.search(r"\.rodata\s+PROGBITS\s+([0-9a-f]+) ([0-9a-f]+) ([0-9a-f]+)", table)
        assert section, f"{path} has no .rodata"
        self._address, self._offset, self._size = (int(number, 16) for number in section.groups())
        self._content = path.read_bytes()

    def at(self, address: int | None) -> str | None:
        if address is None or not self._address <= address < self._address + self._size:
            return None
        start = self._offset + address - self._address
        return self._content[start : self._content.index(b"\0", start)].decode("ascii", "replace")


def messages(path: Path) -> Iterator[Message]:
    """Every message that the library at ``path`` can log."""
    constants = _Constants(path)
    registers: dict[str, int | None] = {}
    pushed: list[int | None] = []
    stored: dict[int, int | None] = {}
    argv = ["objdump", "--disassemble", "--no-show-raw-insn", "--section=.text", str(path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        for line in program.stdout:
            if "\tcall " in line:
                level, place = registers.get("edi"), constants.at(registers.get("rsi"))
                if level in LEVELS and place is not None and _PLACE.fullmatch(place):
                    addresses = [registers.get(name) for name in _ARGUMENTS]
                    addresses += [*reversed(pushed), *(stored[offset] for offset in sorted(stored))]
                    yield Message(LEVELS[level], place, _text([constants.at(address) for address in addresses]))
                registers, pushed, stored = {}, [], {}
            elif match := _LEA.search(line):
                registers[match[1]] = int(match[2], 16)
            elif match := _LEVEL.search(line):
                registers["edi"] = int(match[1], 16)
            elif match := _PUSH.search(line):
                pushed.append(registers.get(match[1]))
            elif match := _STORE.search(line):
                stored[int(match[2] or "0", 16)] = registers.get(match[1])
            elif match := _OTHER.search(line):
                registers[match[1]] = None


def _text(pieces: list[str | None]) -> str:
    while pieces and pieces[-1] is None:
        pieces.pop()
    joined = " ".join(VALUE if piece is None else piece for piece in pieces)
    return " ".join(re.sub(r"\{\}(?: \{\})+", VALUE, joined).split())


if __name__ == "__main__":
    for version in sys.argv[1:] or libraries.SOURCES:
        counts = collections.Counter(message.level for message in messages(libraries.library(version).path))
        console.data(f"{version} {dict(counts)}")
