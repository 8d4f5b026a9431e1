"""cufile.json as a resource, the folder of its log files, and the link that was there before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gdsdeploy.host.apply.cufile import Cufile, Desired
from gdsdeploy.host.apply.host import ManagedHost
from tests.unit.host.apply.apply_tree import apply, check, differing, tree

CONTENT = '// Rendered by gdsdeploy; changes here are overwritten.\n{"properties": {}}\n'
TMPFILES = """\
# Rendered by gdsdeploy; changes here are overwritten. libcufile refuses to work when this folder is missing.
d /var/log/cufile 1777 root root 30d
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("etc/tmpfiles.d", "etc/gdsdeploy", "var/log", "var/lib"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


def both(root: Path, desired: Desired) -> list[tuple[str, str]]:
    predicted = [(change.kind, change.subject) for change in check(root, Cufile(), desired).changes]
    assert [(change.kind, change.subject) for change in apply(root, Cufile(), desired)] == predicted
    assert check(root, Cufile(), desired).changes == []
    return predicted


def test_it_is_written(root: Path) -> None:
    before = tree(root)
    assert both(root, Desired(CONTENT)) == [
        ("write", "/etc/tmpfiles.d/gdsdeploy.conf"),
        ("make", "/var/log/cufile"),
        ("write", "/etc/cufile.json"),
    ]
    assert (root / "etc/tmpfiles.d/gdsdeploy.conf").read_text() == TMPFILES
    assert (root / "var/log/cufile").stat().st_mode & 0o7777 == 0o1777
    Cufile().revert(ManagedHost(root=str(root)))
    assert tree(root) == before


def test_the_log_folder_needs_to_be_open_to_all(root: Path) -> None:
    both(root, Desired(CONTENT))
    (root / "var/log/cufile").chmod(0o755)
    assert both(root, Desired(CONTENT)) == [("make", "/var/log/cufile")]


def test_a_folder_with_logs_stays(root: Path) -> None:
    both(root, Desired(CONTENT))
    (root / "var/log/cufile/cufile_1.log").write_text("log\n")
    Cufile().revert(ManagedHost(root=str(root)))
    assert (root / "var/log/cufile/cufile_1.log").exists()


def test_a_link_of_the_alternatives_comes_back(root: Path) -> None:
    (root / "usr/local/cuda/gds").mkdir(parents=True)
    (root / "usr/local/cuda/gds/cufile.json").write_text("{}\n")
    (root / "etc/alternatives").mkdir()
    (root / "etc/alternatives/cufile.json").symlink_to("/usr/local/cuda/gds/cufile.json")
    (root / "etc/cufile.json").symlink_to("/etc/alternatives/cufile.json")
    before = tree(root)
    both(root, Desired(CONTENT))
    assert not (root / "etc/cufile.json").is_symlink()
    assert (root / "usr/local/cuda/gds/cufile.json").read_text() == "{}\n"
    both(root, Desired(CONTENT.replace("{}", "[]")))
    Cufile().revert(ManagedHost(root=str(root)))
    assert tree(root) == before


@pytest.mark.parametrize(("text", "goes"), [(CONTENT, True), ('{"properties": {}}\n', False)])
def test_without_a_record_only_one_of_ours_goes(root: Path, text: str, goes: bool) -> None:
    (root / "etc/cufile.json").write_text(text)
    changes = Cufile().revert(ManagedHost(root=str(root)))
    assert [(change.kind, change.subject, change.reason) for change in changes] == (
        [("delete", "/etc/cufile.json", "not-recorded")] if goes else []
    )
    assert (root / "etc/cufile.json").exists() != goes


def test_another_path_is_found_by_the_expectation(root: Path) -> None:
    both(root, Desired(CONTENT, path="/etc/cufile[1].json"))
    (root / "etc/gdsdeploy/expectation.json").write_text(json.dumps({"cufile_path": "/etc/cufile[1].json"}))
    Cufile().revert(ManagedHost(root=str(root)))
    assert not (root / "etc/cufile[1].json").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"cufile_path": 1}', '{"cufile_path": "etc"}'])
def test_an_expectation_that_says_nothing(root: Path, text: str) -> None:
    both(root, Desired(CONTENT))
    (root / "etc/gdsdeploy/expectation.json").write_text(text)
    Cufile().revert(ManagedHost(root=str(root)))
    assert not (root / "etc/cufile.json").exists()


def test_a_log_folder_of_others_has_to_be_there(root: Path) -> None:
    desired = Desired(CONTENT, log_dir="/data/log")
    refusal = check(root, Cufile(), desired).refusals[0]
    assert (refusal.id, refusal.message) == (
        "log-dir",
        "/data/log does not exist, and libcufile would refuse to work without it",
    )
    assert refusal.hint == (
        "Make it, writable for all users of cuFile programs (mode 1777), or leave logging.dir out of the fleet file"
    )
    (root / "data").mkdir()
    (root / "data/log").touch()
    assert [entry.id for entry in check(root, Cufile(), desired).refusals] == ["log-dir"]
    (root / "data/log").unlink()
    (root / "data/log").mkdir()
    before = tree(root)
    both(root, desired)
    assert "/data/log" not in differing(before, tree(root))


@pytest.mark.parametrize(("desired", "reason"), [(Desired(""), "content"), (Desired(CONTENT, path="x"), "path")])
def test_refusals(root: Path, desired: Desired, reason: str) -> None:
    assert [entry.id for entry in check(root, Cufile(), desired).refusals] == [reason]
