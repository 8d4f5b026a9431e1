"""Playbooks and Ansible's commands that pages show."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml
from markdown_it.token import Token

from tests.unit import docs_pages

#: What makes a list of mappings a playbook.
_PLAY = {"hosts", "import_playbook", "ansible.builtin.import_playbook"}
#: A command of Ansible's at the beginning of a line or a code span.
_COMMAND = re.compile(r"^(?:\$ )?(ansible-(?:doc|playbook)\b[^#|]*)")


@dataclass(frozen=True)
class Playbook:
    """A playbook on a page."""

    place: str
    text: str

    @property
    def roles(self) -> list[str]:
        return [role["role"] for play in yaml.safe_load(self.text) for role in play.get("roles", [])]


def all_pages() -> list[str]:
    """The documentation: paths from the root of the repository."""
    return list(docs_pages.pages())


def _tokens(page: str) -> Iterator[Token]:
    for token in docs_pages.parse(docs_pages.text(page)):
        yield token
        yield from token.children or []


def blocks(page: str) -> Iterator[tuple[str, str, str]]:
    """(place, language, text) of each block of code; the language may be empty."""
    for token in _tokens(page):
        if token.type in ("fence", "code_block") and token.map:
            yield f"{page}:{token.map[0] + 1}", token.info.strip(), token.content


def is_playbook(text: str) -> bool:
    """Whether a block of code has plays; a page may leave its language out."""
    try:
        value: Any = yaml.safe_load(text)
    except yaml.YAMLError:
        return False
    return isinstance(value, list) and any(isinstance(play, dict) and not _PLAY.isdisjoint(play) for play in value)


@cache
def playbooks() -> list[Playbook]:
    """Every playbook of every page."""
    return [Playbook(place, text) for page in all_pages() for place, _, text in blocks(page) if is_playbook(text)]


@cache
def commands() -> list[tuple[str, list[str]]]:
    """(page, words) of each ``ansible-doc`` and ``ansible-playbook`` with an argument, in blocks and code spans."""
    return [(page, words) for page in all_pages() for words in _commands(page)]


def _commands(page: str) -> Iterator[list[str]]:
    for token in _tokens(page):
        if token.type in ("fence", "code_block", "code_inline"):
            for match in filter(None, map(_COMMAND.match, token.content.splitlines())):
                words = shlex.split(match[1])
                if any(not word.startswith("-") for word in words[1:]):
                    yield words
