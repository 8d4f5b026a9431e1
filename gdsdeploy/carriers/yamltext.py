"""YAML as people write it for Ansible: lists are indented, and what occurs twice is written twice."""

from __future__ import annotations

from typing import Any

import yaml


class _Plain(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - yaml's signature
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002 - yaml's signature
        super().increase_indent(flow, False)


def dump(value: Any, *, sort_keys: bool, width: int) -> str:
    """The text of ``value``; lines are broken at ``width`` characters where they can be."""
    return yaml.dump(value, Dumper=_Plain, sort_keys=sort_keys, allow_unicode=True, width=width)
