"""Commands of pages are executed: each ends as its page says, and prints what its page shows.

``tests/newcomer`` executes those of the tutorial.  A comment before a block marks what can't run here: docs_blocks.py.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable

import pytest

from tests.loopback import docs_room
from tests.unit import docs_blocks
from tests.unit.docs_blocks import Command, executed
from tests.unit.docs_pages import text

PAGES = [page for page in docs_blocks.pages() if page != "docs/tutorial.md" and executed(text(page))]
#: Commands that write files, which later ones of their page may need.  Of all others that several pages show, once is
#: enough.
WRITERS = re.compile(r">|\btar |^openssl |--output|--sign")

Follow = Callable[[list[Command], str], list[str]]


@pytest.fixture(scope="module")
def follow(tmp_path_factory: pytest.TempPathFactory) -> Follow:
    """Execute the commands of a page in a room with new files; what differs from the page."""
    folder = tmp_path_factory.mktemp("docs")
    room, template = folder / "room", folder / "template"
    docs_room.furnish(room)
    room.rename(template)

    def in_a_new_room(commands: list[Command], page: str) -> list[str]:
        # Journals and fleet files have its path.
        shutil.rmtree(room, ignore_errors=True)
        shutil.copytree(template, room, symlinks=True)
        return docs_room.follow(room, commands, page)

    return in_a_new_room


@pytest.fixture(scope="module")
def finished() -> set[tuple[str, int]]:
    """Commands that were executed for another page, with their exit codes."""
    return set()


@pytest.mark.parametrize("page", PAGES)
def test_commands_do_what_the_page_says(follow: Follow, finished: set[tuple[str, int]], page: str) -> None:
    commands = []
    for command in executed(text(page)):
        words = re.sub(r"\s+# .*", "", command.text)
        if command.shown or WRITERS.search(words) or (words, command.status) not in finished:
            commands.append(command)
        finished.add((words, command.status))
    problems = follow(commands, page)
    assert not problems, "\n".join(problems)


def test_a_command_that_does_something_else_is_reported(follow: Follow) -> None:
    commands = [
        Command("gdsdeploy explain --error 5027", line=3),
        Command("gdsdeploy explain --error 5027", ("no such line",), line=4),
        Command("gdsdeploy diff before.json after.json", line=5),
        Command("gdsdeploy lokc fleet.yml", line=6),
        # No network but the shell's own.
        Command('test -z "$(ip -oneline address show scope global)"', line=7),
        Command("exit 0", line=9),
        Command("gdsdeploy help", line=10),
    ]
    problems = follow(commands, "page.md")
    assert [problem.partition("\n")[0] for problem in problems] == [
        "page.md:4: gdsdeploy explain --error 5027: the page shows a line that wasn't printed: no such line",
        "page.md:5: gdsdeploy diff before.json after.json: exit code 33; the page says 0",
        "page.md:6: gdsdeploy lokc fleet.yml: exit code 2; the page says 0",
        "page.md:9: exit 0: the shell ended",
    ]
