"""Hooks of MkDocs for the documentation site: ``mkdocs.yml`` names this file.

GitHub shows the same pages. So anchors are GitHub's, and files outside of docs/ that pages link to join the site: pages
at the repository's root below ``project/``, examples as files. Other links that leave docs/ become plain text. Pages
that come from code are made with the site.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
#: File of the repository → its place on the site.
JOINED = {
    "CHANGELOG.md": "project/changelog.md",
    "CODE_OF_CONDUCT.md": "project/code-of-conduct.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security-policy.md",
    "benchmarks/README.md": "project/benchmarks.md",
    **{
        name: name
        for folder in ("examples", "examples/kubernetes")
        for path in sorted((ROOT / folder).glob("*.*"))
        for name in [f"{folder}/{path.name}"]
    },
}
#: The page of a folder that pages link to.
FOLDERS = {"docs/guides": "docs/index.md"}
#: A link in Markdown with its text and target; images and code blocks have none of these targets.
_LINK = re.compile(r"\[(?P<text>[^\]\[]+)\]\((?P<target>[^)\s:#]+)(?P<anchor>#[^)\s]*)?\)")

#: A row of a table, and a code span.
_ROW = re.compile(r"(?m)^\|.*\|$")
_CODE = re.compile(r"(`+)[^`\n]+?\1")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Give headings the anchors that GitHub gives them."""
    config.mdx_configs["toc"] = {**config.mdx_configs.get("toc", {}), "slugify": slug, "permalink": True}
    return config


def slug(title: str, separator: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", separator)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files that join the site, and those that are made for it."""
    from mkdocs.structure.files import File  # the tests read the tables above without MkDocs

    sys.path.insert(0, str(ROOT))  # MkDocs runs this file by its path
    from docs import gen

    for source, place in JOINED.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text(encoding="utf-8")))
    for name in (*gen.PAGES, gen.SCHEMA):
        files.append(File.generated(config, name, content=gen.text(name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Rewrite links between docs/ and the files that joined."""
    place = page.file.src_uri
    sources = {place: source for source, place in JOINED.items()}
    return rewritten(without_escapes(markdown), sources.get(place, f"docs/{place}"), place)


def without_escapes(markdown: str) -> str:
    """Tables whose code spans have their bars plain: GitHub needs a backslash there, Python-Markdown would show it."""
    return _ROW.sub(lambda row: _CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), markdown)


def rewritten(markdown: str, source: str, place: str) -> str:
    """The text of a page whose file is ``source`` in the repository and ``place`` on the site."""

    def link(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), match["target"]))
        path = FOLDERS.get(path, path)
        target = path.removeprefix("docs/") if path.startswith("docs/") else JOINED.get(path)
        if target is None:
            return match["text"]
        relative = posixpath.relpath(target, posixpath.dirname(place) or ".")
        return f"[{match['text']}]({relative}{match['anchor'] or ''})"

    return _LINK.sub(link, markdown)
