"""Generators of the pages that come from code or tables: ``python -m docs.gen.NAME > docs/NAME.md`` from the root.

Tests compare each page with its generator.  Neither the wheel nor the host program carries them.
"""

from __future__ import annotations


def table_row(*cells: str) -> str:
    """A row of a table in Markdown."""
    return "| {} |\n".format(" | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells))
