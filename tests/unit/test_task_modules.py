"""Hosts are changed by the host program; what Ansible's own modules write goes into folders of root's alone."""

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
        *ROOT.glob("gdsdeploy/rollout/carriers/plays/*.yml"),
    ]
)
_KEYWORDS = "name when register vars tags changed_when failed_when check_mode loop until retries"
KEYWORDS = set(_KEYWORDS.split())
NESTED = {"tasks", "pre_tasks", "post_tasks", "handlers", "block", "always", "rescue"}
_READING = "assert debug import_role import_tasks meta reboot set_fact slurp uri"
#: They write no file of a host.
READING = {f"ansible.builtin.{name}" for name in _READING.split()}
#: Option that says where they write, or all of the arguments of a program.
WRITING = {"copy": "dest", "file": "path", "get_url": "dest", "command": "argv"}
#: In folders that only root can change: the archive is in /var/lib/gdsdeploy.
PLACES = {"/run/gdsdeploy", "/run/gdsdeploy/reboot-needed", "{{ gds_modules_archive }}"}
PROGRAMS = {"id", "python3"}


def tasks(value: Any) -> Iterator[dict[str, Any]]:
    """All tasks of a play, a block or a file."""
    for task in value or []:
        for key in NESTED & set(task):
            yield from tasks(task[key])
        if not NESTED & set(task) and "hosts" not in task:
            yield task


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_of_ansible_write_into_folders_of_root(path: Path) -> None:
    for task in tasks(yaml.safe_load(path.read_text())):
        (module,) = set(task) - KEYWORDS
        if module in READING or module.startswith("gdsdeploy.gds."):
            continue
        prefix, _, name = module.rpartition(".")
        assert (prefix, name in WRITING) == ("ansible.builtin", True), f"{path}: {module} isn't reviewed"
        place = task[module][WRITING[name]]
        if name == "command":
            assert place[0] in PROGRAMS, place
        else:
            assert place in PLACES, place
            assert task[module].get("state") == "absent" or task[module]["owner"] == "root"
