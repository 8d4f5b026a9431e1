"""``gdsdeploy docs``."""

from __future__ import annotations

import re
from pathlib import Path

import click

from gdsdeploy import console, resources
from gdsdeploy.cli import options
from gdsdeploy.errors import did_you_mean

_COMMENT = re.compile(r"(?m)^<!-- .* -->\n\n?")


@click.command()
@click.argument("topic", required=False, shell_complete=lambda *words: [n for n in _pages() if n.startswith(words[2])])
@click.option("--man", type=options.FOLDER, metavar="DIR", help="Write the manual pages of all verbs into DIR instead.")
def command(topic: str | None, man: Path | None) -> None:
    """Show the page TOPIC of the documentation; without TOPIC, list the pages.

    The pages are Markdown and come with gdsdeploy, so they describe this version. docs/rollout.md in a hint is the
    topic rollout.

    \b
    Examples:
      gdsdeploy docs
      gdsdeploy docs rollout
      gdsdeploy docs checks | grep -A 3 modules.next-boot
      gdsdeploy docs --man ~/.local/share/man/man1 && man gdsdeploy-plan
    """
    if man is not None:
        options.require(topic is None, "--man goes without TOPIC")
        _write_manual(man)
        return
    pages = _pages()
    if topic is None:
        console.data("\n".join(f"{name:<20} {_title(path)}" for name, path in pages.items()))
        return
    name = topic.removeprefix("docs/").removesuffix(".md")
    if name not in pages:
        raise click.UsageError(f"No page {topic!r}{did_you_mean(name, pages)}\nTo list the pages: gdsdeploy docs")
    # Comments are for the tests that execute a page's commands.
    console.data(_COMMENT.sub("", pages[name].read_text(encoding="utf-8")).rstrip("\n"))


def _pages() -> dict[str, Path]:
    """Topic → page; those of a subfolder are named with it: ``howto/add-a-check``."""
    folder = resources.docs()
    return {str(path.relative_to(folder).with_suffix("")): path for path in sorted(folder.rglob("*.md"))}


def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.readline().lstrip("# ").strip()


def _write_manual(folder: Path) -> None:
    # It imports every verb.
    from gdsdeploy.cli import manual

    root = click.get_current_context().find_root().command
    assert isinstance(root, click.Group), "the program has verbs"
    try:
        written = manual.write(root, folder)
    except OSError as error:
        raise click.UsageError(f"--man {folder}: {error.strerror}") from None
    console.say(f"{len(written)} pages are in {folder}")
