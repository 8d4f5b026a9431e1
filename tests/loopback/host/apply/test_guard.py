"""Hooks of the kernel guard: where they are, what they run, and how they go."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gdsdeploy.host.apply import guard
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.errors import DesiredError
from tests.unit.host.apply.kernel_hosts import apply, check, short


@pytest.mark.parametrize("manager", ["apt", "dnf"])
def test_hooks_are_written_once_and_taken_back(tmp_path: Path, manager: str) -> None:
    first = apply(tmp_path, "guard", {"manager": manager})
    assert {change.subject for change in first.changes} >= set(guard.HOOKS[manager])
    for path in guard.HOOKS[manager]:
        file = tmp_path / path.lstrip("/")
        assert (file.stat().st_mode & 0o777, file.read_text()) == (0o755, guard.hook(manager))
    assert apply(tmp_path, "guard", {"manager": manager}).changes == []
    host = ManagedHost(check=True, root=str(tmp_path))
    assert {change.subject for change in guard.Guard().revert(host)} >= set(guard.HOOKS[manager])
    assert (tmp_path / guard.HOOKS[manager][0].lstrip("/")).exists()
    guard.Guard().revert(ManagedHost(root=str(tmp_path)))
    assert not any((tmp_path / path.lstrip("/")).exists() for path in guard.HOOKS[manager])


def test_a_mode_that_differs_is_a_change(tmp_path: Path) -> None:
    apply(tmp_path, "guard", {"manager": "dnf"})
    path = guard.HOOKS["dnf"][0]
    (tmp_path / path.lstrip("/")).chmod(0o644)
    assert short(check(tmp_path, "guard", {"manager": "dnf"}).changes) == [("write", path, "mode")]


def test_a_manager_without_hooks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DesiredError, match="'zypper' has no hooks"):
        apply(tmp_path, "guard", {"manager": "zypper"})


@pytest.mark.parametrize(
    ("manager", "folder", "words", "command"),
    [
        ("apt", "postinst.d", ["6.12"], "guard hook install 6.12"),
        ("apt", "postrm.d", ["6.12"], "guard hook remove 6.12"),
        ("dnf", "install.d", ["add", "6.12"], "guard hook install 6.12"),
        ("dnf", "install.d", ["remove", "6.12"], "guard hook remove 6.12"),
        ("dnf", "install.d", ["other", "6.12"], ""),
    ],
)
def test_what_a_hook_runs_is_isolated(
    tmp_path: Path, manager: str, folder: str, words: list[str], command: str
) -> None:
    program, hook = tmp_path / "program", tmp_path / folder / "hook"
    program.write_text("import sys; print(sys.flags.isolated, *sys.argv[1:], file=sys.stderr); sys.exit(7)")
    hook.parent.mkdir()
    hook.write_text(guard.hook(manager).replace("/usr/lib/gdsdeploy/gdsdeploy-host.pyz", str(program)))
    done = subprocess.run(["sh", str(hook), *words], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[:1] == ([f"1 {command}"] if command else [])
