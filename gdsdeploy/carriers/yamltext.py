"""YAML as people write it for Ansible: lists are indented, and what occurs twice is written twice."""

from __future__ import annotations

import re
from typing import Any

import yaml

#: What Ansible would take for a template.
_TEMPLATE = re.compile(r"\{[{%#]")
#: The one template that is meant: the folder of the playbooks, wherever that is on the machine that runs them.
HERE = "{{ playbook_dir }}"


class _Plain(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - yaml's signature
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002 - yaml's signature
        super().increase_indent(flow, False)


class _Data(_Plain):
    """Marks texts as data that Ansible would take for templates."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    tag = "!unsafe" if _TEMPLATE.search(text.replace(HERE, "")) else "tag:yaml.org,2002:str"
    return dumper.represent_scalar(tag, text)


_Data.add_representer(str, _text)


def dump(value: Any, *, sort_keys: bool, width: int, data: bool = False) -> str:
    """The text of ``value``; lines are broken at ``width`` characters where they can be.

    data: no text in it is a template, but for HERE.
    """
    dumper = _Data if data else _Plain
    return yaml.dump(value, Dumper=dumper, sort_keys=sort_keys, allow_unicode=True, width=width)
