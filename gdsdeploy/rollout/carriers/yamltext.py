"""YAML as people write it for Ansible: indented lists, and no aliases."""

from __future__ import annotations

import re
import secrets
from typing import Any

import yaml

#: What Ansible would take for a template.
_TEMPLATE = re.compile(r"\{[{%#]")
#: Stands for the folder of the playbooks in values to dump; random, so that no fleet file or host can contain it.
FOLDER_MARK = f"/{secrets.token_hex(16)}"
#: Its replacement, the only template in the text.
_FOLDER = "{{ playbook_dir }}"


class _Plain(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - yaml's signature
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002 - yaml's signature
        super().increase_indent(flow, False)


class _Data(_Plain):
    """Marks texts as data that Ansible would take for templates."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    tag = "!unsafe" if _TEMPLATE.search(text) else "tag:yaml.org,2002:str"
    return dumper.represent_scalar(tag, text.replace(FOLDER_MARK, _FOLDER))


_Data.add_representer(str, _text)


def dump(value: Any, *, sort_keys: bool, width: int, data: bool = False) -> str:
    """The text of ``value``; lines are broken at ``width`` characters where they can be.

    data: no text in it is a template; FOLDER_MARK becomes one.
    """
    dumper = _Data if data else _Plain
    return yaml.dump(value, Dumper=dumper, sort_keys=sort_keys, allow_unicode=True, width=width)
