"""Patterns of logs exist in the real programs, and libcufile's ERROR and WARN messages are classified.

The libraries are those of libraries.SOURCES; nvidia-fs and the open driver are Debian's source packages.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from re import _constants as codes, _parser as parser  # type: ignore[attr-defined]
from typing import Any

import pytest

from gdsdeploy.host.logs.parts import Sign, signs
from tests.cufile import libraries
from tests.cufile.messages import VALUE, messages

FAULTS = ("ERROR", "WARN")
#: Messages whose meaning isn't known, on purpose: the text of each, and why.
UNKNOWN = json.loads((Path(__file__).parent / "log_unknown.json").read_text())
#: Package → the version, the Debian release and the component that has its sources.
PACKAGES = {
    "nvidia-fs-dkms": (("2.13.5", "debian-12", "non-free"), ("2.19.7", "debian-13", "non-free")),
    "nvidia-open-kernel-dkms": (("550.163.01", "debian-13", "contrib"),),
}
#: A literal piece of a pattern that is shorter proves nothing.
LEAST = 5


@pytest.fixture(scope="module")
def logged() -> dict[str, set[str]]:
    """Each text that some release logs as a fault → the releases."""
    releases: dict[str, set[str]] = {}
    for version in libraries.SOURCES:
        for message in messages(libraries.library(version).path):
            if message.level in FAULTS and message.text.strip(VALUE + " "):
                releases.setdefault(message.text, set()).add(version)
    return releases


@pytest.fixture(scope="module")
def library_texts(logged: dict[str, set[str]]) -> str:
    """Every text in the libraries, one a line, with single blanks."""
    texts = set(logged)
    for version in libraries.SOURCES:
        path = libraries.library(version).path
        output = subprocess.run(["strings", "-n", "4", path], capture_output=True, text=True, check=True).stdout
        texts.update(" ".join(line.split()) for line in output.splitlines())
    return "\n".join(sorted(texts))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The C sources of nvidia-fs and of the driver's modules, with strings in one piece."""
    text = []
    for name, versions in PACKAGES.items():
        for version, os_name, component in versions:
            folder = tmp_path_factory.mktemp(name)
            unpacked = libraries.debian_package(name, version, os_name, folder, component)
            text += [path.read_text(errors="replace") for path in sorted(unpacked.rglob("*.[ch]"))]
    return re.sub(r'"\s*\n?\s*"', "", "\n".join(text))


def sign_of(text: str) -> Sign | None:
    """The first sign of the library's log that a message has, with values in their places."""
    filled = text.replace(VALUE, "0")
    return next((row for row in signs() if row.part == "cufile" and re.search(row.pattern, filled)), None)


def pieces(pattern: str) -> Iterator[str]:
    """The literal pieces of a pattern, those of each of its alternatives too."""

    def walk(tree: Any) -> Iterator[str]:
        piece = ""
        for code, value in tree:
            if code is codes.LITERAL:
                piece += chr(value)
                continue
            yield piece
            piece = ""
            if code is codes.SUBPATTERN:
                yield from walk(value[-1])
            elif code is codes.BRANCH:
                for choice in value[1]:
                    yield from walk(choice)
            elif code in (codes.MAX_REPEAT, codes.MIN_REPEAT):
                yield from walk(value[2])
        yield piece

    # Numbers are values, which the programs put in.
    words = (word.strip() for piece in walk(parser.parse(pattern)) for word in re.split(r"[-:]?\d+", piece))
    return (word for word in words if len(word) >= LEAST)


def test_faults_of_the_library_are_classified(logged: dict[str, set[str]]) -> None:
    unknown = {text for text in logged if sign_of(text) is None}
    assert unknown == set(UNKNOWN)
    assert len(unknown) <= 0.05 * len(logged)


def test_every_piece_of_the_library_s_patterns_is_in_a_library(library_texts: str) -> None:
    missing = {
        (row.id, piece)
        for row in signs()
        if row.part == "cufile"
        for piece in pieces(row.pattern)
        if piece not in library_texts
    }
    assert missing == set()


def test_every_other_pattern_is_in_the_sources_or_names_where_it_comes_from(sources: str, library_texts: str) -> None:
    missing = {
        (row.id, piece)
        for row in signs()
        if row.part != "cufile" and not row.source
        for piece in pieces(row.pattern)
        if piece not in sources and piece not in library_texts
    }
    assert missing == set()


def test_a_pattern_that_no_program_has_is_noticed(library_texts: str) -> None:
    assert [piece for piece in pieces("(?:NVMe Driver|no such message) not") if piece not in library_texts] == [
        "no such message"
    ]
