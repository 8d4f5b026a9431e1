"""Pages that come from code or tables: the site is built with them, and ``python -m docs.gen checks`` prints one.

Neither the wheel nor the host program carries them.
"""

from __future__ import annotations

import importlib

#: Page of the site → the module of this folder whose ``page()`` is its text.
PAGES = {
    "apply-resources.md": "apply_resources",
    "audit.md": "audit",
    "checks.md": "checks",
    "cli.md": "cli",
    "cufile-errors.md": "cufile_errors",
    "faults.md": "faults",
    "fleet-schema.md": "fleet_schema",
    "foreign.md": "foreign",
    "kernel-messages.md": "kernel_messages",
    "roles.md": "collection",
    "tickets.md": "tickets",
}
#: The JSON Schema of fleet files, which the site has beside them.
SCHEMA = "fleet.schema.json"


def text(name: str) -> str:
    """The text of one of ``PAGES``, or the schema."""
    module = importlib.import_module(f"docs.gen.{PAGES.get(name, 'fleet_schema')}")
    made: str = module.text() if name == SCHEMA else module.page()
    return made


def table_row(*cells: str) -> str:
    """A row of a table in Markdown."""
    return "| {} |\n".format(" | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells))
