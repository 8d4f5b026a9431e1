"""``python -m docs.gen NAME``: print a page that only the site has."""

from __future__ import annotations

import sys

from docs.gen import PAGES, SCHEMA, text

if __name__ == "__main__":
    names = {**{page.removesuffix(".md"): page for page in PAGES}, SCHEMA: SCHEMA}
    if len(sys.argv) != 2 or sys.argv[1] not in names:
        sys.exit(f"usage: python -m docs.gen NAME\nNAME is one of: {', '.join(names)}")
    print(text(names[sys.argv[1]]), end="")
