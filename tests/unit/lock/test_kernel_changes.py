"""kernel_changes.yml, the program that reads tags for it, and the rules that come of both."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib import resources

from docs.gen import compat_rules, kernel_changes
from gdsdeploy.host import data


def test_hosts_have_the_rules_as_the_tables_make_them() -> None:
    assert resources.files(data).joinpath("compat.json").read_text(encoding="utf-8") == compat_rules.table()


def test_the_tags_are_read_again_in_time() -> None:
    last = kernel_changes.table().read_again_after
    newest = kernel_changes.tags()["driver"]
    assert newest.date < last
    assert datetime.now(UTC).date() <= last, (
        f"the newest tag of tags.yml, {newest.newest}, is of {newest.date}, kernel_changes.yml has read_again_after:"
        f" {last}; follow 'Add a release of the driver' in docs/guides/extend.md"
    )
