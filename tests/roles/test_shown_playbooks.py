"""Playbooks on pages are played as shown, by the installed collection and an imitated host program.

tests/lab/test_playbooks_light.py plays those on a host that need no repository, kernel or reboot.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.roles import shown
from tests.roles.installing import BIN, environment
from tests.roles.shown import Playbook
from tests.roles.tasks import APPLY
from tests.roles.test_collection import program

PLAYBOOKS = shown.playbooks()
#: Files that playbooks read beside them.
FILES = ("cufile.json", "expectation.json")
#: A line with a module or a role of the collection.
PART = re.compile(r"(?m)^\s*(- )?(role: )?gdsdeploy\.gds\.\w+:?\s*$")
#: The host is this machine.
INVENTORY = """
gpus: {hosts: {gpu1: {ansible_connection: local, ansible_become: false}}}
hosts: {children: {gpus: {}}}
builders: {hosts: {build1: {}}}
"""


def test_pages_have_playbooks() -> None:
    pages = {playbook.place.partition(":")[0] for playbook in PLAYBOOKS}
    assert pages >= {"docs/collection.md", "docs/roles.md"}
    for playbook in PLAYBOOKS:
        assert playbook.roles or APPLY in playbook.text, f"{playbook.place}: these tests know no other playbooks"


def test_no_block_escapes_these_tests() -> None:
    """Neither YAML with a mistake in it nor a part of a playbook."""
    blocks = [block for page in shown.all_pages() for block in shown.blocks(page)]
    for place, language, text in blocks:
        if language in ("yaml", "yml"):
            assert list(yaml.safe_load_all(text)), place
    others = [(place, text) for place, _, text in blocks if not shown.is_playbook(text)]
    assert [place for place, text in others if PART.search(text)] == [], "show a whole playbook"


def prepare(folder: Path) -> None:
    for name in FILES:
        (folder / name).write_text("{}\n")
    (folder / "inventory.yml").write_text(INVENTORY)


@pytest.mark.parametrize("playbook", PLAYBOOKS, ids=lambda playbook: playbook.place)
def test_a_playbook_is_valid_and_its_variables_fit(installed: Path, tmp_path: Path, playbook: Playbook) -> None:
    prepare(tmp_path)
    (tmp_path / "site.yml").write_text(playbook.text)
    env = {**environment(installed / "collections", tmp_path), **program(tmp_path, {"changes": []}, [])}
    argv = [BIN / "ansible-playbook", "-i", "inventory.yml", "site.yml"]
    for more in (["--syntax-check"], ["--check", "--diff"]):
        done = subprocess.run([*argv, *more], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    for role in playbook.roles:
        assert f"TASK [{role} : " in done.stdout
    assert re.search(r"gpu1 +: ok=[1-9].* changed=0 +unreachable=0 +failed=0", done.stdout), done.stdout


def commands() -> list[tuple[str, list[str]]]:
    """Without those that play what ``gdsdeploy inventory`` writes: tests/lab/test_inventory_light.py plays that."""
    return [(page, words) for page, words in shown.commands() if "-i" not in words or "inventory.yml" in words]


@pytest.mark.parametrize(("page", "words"), commands(), ids=str)
def test_commands_of_pages(installed: Path, tmp_path: Path, page: str, words: list[str]) -> None:
    """Those of ansible-doc run, and those of ansible-playbook check the syntax, with the options that are shown."""
    prepare(tmp_path)
    (tmp_path / "site.yml").write_text(PLAYBOOKS[0].text)
    argv = [BIN / words[0], *words[1:], *(["--syntax-check"] if words[0] == "ansible-playbook" else [])]
    env = environment(installed / "collections", tmp_path)
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), f"{page}: {words}\n{done.stdout}{done.stderr}"
