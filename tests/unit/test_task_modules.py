"""Hosts are changed by the host program alone: Ansible's own modules write no file there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILES = sorted(
    [
        *ROOT.glob("roles/*/tasks/*.yml"),
        *ROOT.glob("roles/*/handlers/*.yml"),
        *ROOT.glob("playbooks/*.yml"),
    ]
)
_KEYWORDS = "name when register vars tags changed_when failed_when check_mode loop until retries"
KEYWORDS = set(_KEYWORDS.split())
NESTED = {"tasks", "pre_tasks", "post_tasks", "handlers", "block", "always", "rescue"}
_READING = "import_role import_tasks meta reboot"
#: They write no file of a host.
READING = {f"ansible.builtin.{name}" for name in _READING.split()}
#: What a task of another module runs: the host program.
PROGRAM = ["python3", "-I", "-S", "/usr/lib/gdsdeploy/gdsdeploy-host.pyz"]


def tasks(value: Any) -> Iterator[dict[str, Any]]:
    """All tasks of a play, a block or a file."""
    for task in value or []:
        for key in NESTED & set(task):
            yield from tasks(task[key])
        if not NESTED & set(task) and "hosts" not in task:
            yield task


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_of_ansible_write_no_file(path: Path) -> None:
    for task in tasks(yaml.safe_load(path.read_text())):
        (module,) = set(task) - KEYWORDS
        if module in READING or module.startswith("gdsdeploy.gds."):
            continue
        assert module == "ansible.builtin.command", f"{path}: {module} isn't reviewed"
        assert task[module]["argv"][: len(PROGRAM)] == PROGRAM, path
