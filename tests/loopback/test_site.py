"""The documentation: its site is built and loads nothing from elsewhere, and its commands do what the pages say."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from docs import gen
from tests.loopback import docs_room
from tests.unit import docs_blocks
from tests.unit.docs_blocks import Command, executed
from tests.unit.docs_pages import text

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
#: Seconds of processor time that the build may take.
SECONDS = 25
#: What users read: pages, and texts in the code.
READ = [
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "changelogs",
    "docs",
    "extensions",
    "gdsdeploy",
    "roles",
    "plugins",
]
#: Words that the dictionary takes for mistakes: names of other programs, a part of a pattern, and a typo in a message
#: of NVIDIA's.
DICTIONARY_EXCEPTIONS = "fpr,intoto,parm,parms,reenable,requiest,upport"


class Page(HTMLParser):
    """What a page of the site loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        address = values.get("src") or (values.get("href") if tag == "link" else None)
        if address and tag in ("script", "link", "img", "iframe", "source", "video", "audio", "embed"):
            self.loaded.append(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "site"
    argv = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    without_network = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--map-root-user"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run([*without_network, *argv], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stdout + done.stderr
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < SECONDS
    return folder


def test_the_site_is_built_without_a_network(site: Path) -> None:
    pages = {path.parent.relative_to(site).as_posix() for path in site.rglob("index.html")}
    assert pages >= {".", "tutorial", "cli", "guides/slurm", "adr", "project/contributing", "glossary"}
    assert pages >= {name.removesuffix(".md") for name in gen.PAGES}
    assert (site / gen.SCHEMA).read_text() == gen.text(gen.SCHEMA)
    assert (site / "examples" / "debian-12.yml").is_file()
    assert not list(site.rglob("*.py"))


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        elsewhere = [address for address in Page(path.read_text()).loaded if re.match(r"(https?:)?//", address)]
        assert elsewhere == [], path
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert not re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", styles)


def test_spelling() -> None:
    argv = [
        BIN / "codespell",
        "--ignore-words-list",
        DICTIONARY_EXCEPTIONS,
        "--skip",
        "*.json,*.pyz,__pycache__",
        *READ,
    ]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# -- Commands of pages are executed: each ends as its page says, and prints what its page shows. ``tests/newcomer``
# executes those of the tutorial. A comment before a block marks what can't run here: docs_blocks.py.


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
