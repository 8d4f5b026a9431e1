"""Files that a rollback gives back from the host's own record, or takes away."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.apply import engine
from gdsdeploy.host.apply.files import File
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.restore import Desired, FileBefore, Restore
from gdsdeploy.host.errors import DesiredError

CONF = "/etc/dkms/nvidia.conf"
OURS, THEIRS = "# Rendered by gdsdeploy\nours\n", "theirs\n"


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def host(tmp_path: Path) -> ManagedHost:
    """Somebody's file was replaced by ours."""
    place = tmp_path / CONF[1:]
    place.parent.mkdir(parents=True)
    place.write_text(THEIRS)
    place.chmod(0o640)
    ManagedHost(root=str(tmp_path)).write(File.of(CONF, OURS))
    return ManagedHost(root=str(tmp_path))


def restore(host: ManagedHost, *files: FileBefore, **more: Any) -> list[tuple[str, str]]:
    desired = Desired("apt", "remove", files=list(files), **more)
    (done,) = engine.run(host, [engine.DesiredResource("restore", Restore(), desired)])
    return [(change.kind, change.subject) for change in done.changes]


def test_a_file_comes_back_with_its_mode_and_is_forgotten(host: ManagedHost) -> None:
    assert restore(host, FileBefore(CONF, sha256(THEIRS))) == [("write", CONF)]
    place = Path(host.root, CONF[1:])
    assert (place.read_text(), place.stat().st_mode & 0o777) == (THEIRS, 0o640)
    assert CONF not in ManagedHost(root=host.root).record.paths
    assert restore(ManagedHost(root=host.root), FileBefore(CONF, sha256(THEIRS))) == []


def test_a_check_only_says_so(host: ManagedHost) -> None:
    assert restore(ManagedHost(check=True, root=host.root), FileBefore(CONF, sha256(THEIRS))) == [("write", CONF)]
    assert Path(host.root, CONF[1:]).read_text() == OURS


def test_a_record_of_something_else_is_left_alone(host: ManagedHost) -> None:
    """The rollout found another content than the one from before gdsdeploy's first change."""
    assert restore(host, FileBefore(CONF, sha256("between\n"))) == []
    assert Path(host.root, CONF[1:]).read_text() == OURS
    assert CONF in ManagedHost(root=host.root).record.paths


def test_a_file_that_was_not_there_goes(host: ManagedHost) -> None:
    path = "/etc/gdsdeploy/gate.json"
    host.write(File.of(path, OURS))
    assert restore(host, FileBefore(path)) == [("delete", path)]
    assert not Path(host.root, path[1:]).exists()
    assert Path(host.root, CONF[1:]).read_text() == OURS


def test_the_record_of_what_was_there_even_earlier_stays(host: ManagedHost) -> None:
    assert restore(host, FileBefore(CONF)) == [("delete", CONF)]
    assert CONF in ManagedHost(root=host.root).record.paths


@pytest.mark.parametrize("path", ["/etc/shadow", "/etc/gdsdeploy/../shadow", "/var/lib/gdsdeploy", "relative", ""])
def test_other_files_are_refused_before_anything_is_changed(host: ManagedHost, path: str) -> None:
    with pytest.raises(DesiredError, match="is not a file that gdsdeploy writes"):
        restore(host, FileBefore(CONF, sha256(THEIRS)), FileBefore(path))
    assert Path(host.root, CONF[1:]).read_text() == OURS


@pytest.mark.parametrize(
    "wrong",
    [{"new_packages": ["--root=/x"]}, {"installed": ["a b"]}, {"holds": ["{{ x }}"]}, {"new_kernels": ["../x"]},
     {"modules": "/etc/shadow", "kernel_release": "6.1"}, {"modules": "/var/lib/gdsdeploy/rollout/../../../etc/shadow",
                                                          "kernel_release": "6.1"}],
)  # fmt: skip
def test_names_that_are_none_are_refused(host: ManagedHost, wrong: dict[str, Any]) -> None:
    with pytest.raises(DesiredError, match=r"^restore"):
        restore(host, **wrong)
