"""kernel_changes.yml, the program that reads tags for it, and the rules that come of both."""

from __future__ import annotations

from importlib import resources

from docs.gen import compat_rules
from gdsdeploy.host import data


def test_hosts_have_the_rules_as_the_tables_make_them() -> None:
    assert resources.files(data).joinpath("compat.json").read_text(encoding="utf-8") == compat_rules.table()
