"""A self-contained HTML page, written in parts: no outside references, and a policy that lets only our scripts run.

What hosts say is escaped, or stands in JSON that no browser runs: templates/page.js shows it as text.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections.abc import Hashable, Iterable, Iterator

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from gdsdeploy import __version__, resources
from gdsdeploy.host.io.wording import HIDDEN

#: Parts of the template that are written together.
_TOGETHER = 64


class Table:
    """Values by their place: each is in the page once, and everything else has its place."""

    def __init__(self) -> None:
        self._places: dict[Hashable, int] = {}

    def place(self, value: Hashable) -> int:
        """The place of ``value``, from 0."""
        return self._places.setdefault(value, len(self._places))

    def __contains__(self, value: Hashable) -> bool:
        return value in self._places

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._places)


class Texts(Table):
    """The texts of a page."""

    def each(self, *texts: str) -> tuple[int, ...]:
        """Their places."""
        places = self._places
        return tuple([places.setdefault(text, len(places)) for text in texts])

    def __iter__(self) -> Iterator[str]:
        return (fit(str(text)) for text in super().__iter__())


def stream(name: str, data: Iterable[tuple[str, Iterable[object]]], **values: object) -> Iterator[str]:
    """The page of templates/NAME.html.j2 in parts, with NAME.css and NAME.js.

    data: (id, values) of each block of JSON, read in this order after the rest of the page was written.
    """
    style, script = (_source("page", name, kind) for kind in ("css", "js"))
    policy = (
        f"default-src 'none'; base-uri 'none'; form-action 'none'; style-src {_hash(style)}; script-src {_hash(script)}"
    )
    template = _environment().get_template(f"{name}.html.j2")
    blocks = ((ident, _lines(block)) for ident, block in data)
    parts = template.stream(
        style=style, script=script, policy=policy, data=blocks, tool=f"gdsdeploy {__version__}", **values
    )
    parts.enable_buffering(_TOGETHER)
    yield from parts


def fit(text: str) -> str:
    """HTML has no control characters, and a host's text may have some."""
    return HIDDEN.sub("\ufffd", text)


def _lines(values: Iterable[object]) -> Iterator[Markup]:
    """A list as JSON, a line for each value.  No text in it can end the script that it stands in."""
    yield Markup("[")
    for number, value in enumerate(values):
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        yield Markup(("," if number else "") + "\n" + fit(text).replace("<", "\\u003c"))  # noqa: S704 # nosec B704
    yield Markup("]")


@functools.cache
def _source(common: str, name: str, kind: str) -> Markup:
    """Our own files: what both pages share, then the page's."""
    files = (resources.templates() / f"{part}.{kind}" for part in (common, name))
    return Markup("\n" + "\n".join(file.read_text("utf-8") for file in files))  # noqa: S704 # nosec B704


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _finalize(value: object) -> object:
    return fit(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _code(text: str) -> Markup:
    """What stands between backticks is a command."""
    parts = [escape(fit(part)) for part in text.split("`")]
    if len(parts) % 2 == 0:
        return Markup("`").join(parts)
    return Markup("").join(Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(parts))


def _names(text: str) -> Markup:
    """Folded names of hosts, which lines end between."""
    return Markup(",<wbr>").join(map(fit, text.split(",")))


@functools.cache
def _environment() -> Environment:
    """What templates are given is escaped, and undefined names are errors."""
    environment = Environment(
        loader=FileSystemLoader(resources.templates()),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.filters |= {"code": _code, "names": _names}
    return environment
