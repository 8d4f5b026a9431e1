"""SELinux: what was written by rename gets its label back, in one call, and never silently not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import process
from gdsdeploy.host.apply import engine, registry, removal
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.errors import ApplyError
from gdsdeploy.host.process import Output
from tests.unit.host.apply.apply_tree import FILES, DesiredFiles, Some, desired_resource

WRITTEN = ["/etc/some.conf", "/etc/some.d", "/etc/some.d/a", "/opt", "/opt/deep", "/opt/deep/er", "/opt/deep/er/file"]


DONE = Output(0, "", "")


class Restorecon:
    """Stands in for restorecon; every other program isn't there."""

    def __init__(self, output: Output) -> None:
        self.output = output
        self.calls: list[list[str]] = []

    def __call__(self, argv: list[str], *_: Any, **__: Any) -> Output:
        if argv[0] != "restorecon":
            return Output(process.NOT_FOUND, "", "not found")
        self.calls.append(argv[1:])
        return self.output


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A system where SELinux is enabled."""
    (tmp_path / "sys/fs/selinux").mkdir(parents=True)
    (tmp_path / "sys/fs/selinux/enforce").write_text("1")
    (tmp_path / "etc").mkdir()
    return tmp_path


def restorecon(monkeypatch: pytest.MonkeyPatch, output: Output = DONE) -> Restorecon:
    fake = Restorecon(output)
    monkeypatch.setattr(process, "run", fake)
    return fake


def run(root: Path, *resources: Any) -> ManagedHost:
    host = ManagedHost(root=str(root))
    engine.run(host, [desired_resource(resource, DesiredFiles(FILES)) for resource in resources])
    return host


def test_everything_that_was_written_is_labelled_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = restorecon(monkeypatch)
    run(root, Some())
    assert fake.calls == [WRITTEN]
    run(root, Some())
    assert fake.calls == [WRITTEN], "nothing was written"


def test_a_check_labels_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = restorecon(monkeypatch)
    engine.run(ManagedHost(True, str(root)), [desired_resource(Some(), DesiredFiles(FILES))])
    assert fake.calls == []


def test_without_selinux_nothing_is_asked(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "sys/fs/selinux/enforce").unlink()
    fake = restorecon(monkeypatch, Output(process.NOT_FOUND, "", ""))
    run(root, Some())
    assert fake.calls == []


@pytest.mark.parametrize(
    ("output", "message", "hint"),
    [
        (
            Output(process.NOT_FOUND, "", ""),
            "restorecon is missing",
            "dnf install policycoreutils, then run: restorecon",
        ),
        (Output(255, "", "restorecon: no policy\n"), "restorecon: no policy", "run: restorecon /etc/some.conf"),
    ],
)
def test_labels_that_cannot_be_restored_are_an_error(
    output: Output, message: str, hint: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restorecon(monkeypatch, output)
    with pytest.raises(ApplyError, match=message) as error:
        run(root, Some())
    assert error.value.hint.startswith(hint)


class Fails(Some):
    """Writes its files, and fails after that: they are put back."""

    def settle(self, *_: Any) -> None:
        raise ApplyError("it failed")


def test_what_was_put_back_after_an_error_is_labelled_and_the_error_stays(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "etc/some.conf").write_text("theirs\n")
    fake = restorecon(monkeypatch, Output(1, "", "no policy\n"))
    host = ManagedHost(root=str(root))
    with pytest.raises(ApplyError, match="it failed"):
        engine.run(host, [desired_resource(Fails(), DesiredFiles(FILES))])
    assert fake.calls == [["/etc/some.conf"]]
    assert host.notes == ["restorecon can't label what was written: no policy: run: restorecon /etc/some.conf"]


def test_a_removal_labels_what_is_as_before(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "etc/some.conf").write_text("theirs\n")
    fake = restorecon(monkeypatch)
    run(root, Some())
    fake.calls.clear()
    monkeypatch.setattr(registry, "removal_order", lambda: ["some"])
    monkeypatch.setattr(registry, "resource", lambda _: Some())
    removal.remove(ManagedHost(root=str(root)), ["some"])
    assert (root / "etc/some.conf").read_text() == "theirs\n"
    assert fake.calls == [["/etc/some.conf"]]


def test_what_a_run_could_not_label_the_next_one_does(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are right, so only the record says that labels are missing."""
    restorecon(monkeypatch, Output(1, "", "no policy"))
    with pytest.raises(ApplyError):
        run(root, Some())
    fake = restorecon(monkeypatch)
    run(root, Some())
    assert [set(call) >= set(WRITTEN) for call in fake.calls] == [True]
    run(root, Some())
    assert len(fake.calls) == 1
