"""SVG elements as safe markup: values are escaped, numbers are short."""

from __future__ import annotations

from markupsafe import Markup, escape


def element(name: str, *inside: str, **attributes: str | float) -> Markup:
    """One element; ``class_`` is class, ``text_anchor`` text-anchor.  Text inside is escaped, Markup is not."""
    words = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), _short(value)) for key, value in attributes.items()
    )
    if not inside:
        return Markup("<{}{}/>").format(name, words)
    return Markup("<{0}{1}>{2}</{0}>").format(name, words, Markup("").join(escape(part) for part in inside))


def _short(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")
