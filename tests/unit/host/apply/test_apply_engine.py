"""Documents of desired state, and what is done with the resources in them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.apply import engine, files
from gdsdeploy.host.apply.files import File
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.model import Change, Refusal
from gdsdeploy.host.errors import ApplyError, CannotTellError, DesiredError
from tests.unit.host.apply.apply_tree import FILES, DesiredFiles, Some, desired_resource, tree


def document(*resources: Any, version: Any = 1) -> dict[str, Any]:
    return {"version": version, "resources": list(resources)}


@pytest.mark.parametrize(
    ("value", "message", "hint"),
    [
        ([], "the desired state is not a JSON object", ""),
        (document(version=2), "the desired state has version 2; this program reads 1", "update gdsdeploy-host.pyz"),
        (document(version=0), "the desired state has version 0; this program reads 1", "render it with this version"),
        (document(version=True), "the desired state has version True; this program reads 1", "render it"),
        ({"resources": []}, "the desired state has version None; this program reads 1", "render it with this version"),
        ({"version": 1}, "the desired state has no list of resources", ""),
        (document("x"), "resources[0]: an object with resource, instance and desired is needed", ""),
        (document({"resource": "gate", "more": 1}), "resources[0]: an object with resource, instance and", ""),
        (document({"resource": 1}), "resources[0].resource: a string is needed", ""),
        (document({"resource": "gate", "instance": 1}), "resources[0].resource: a string is needed", ""),
        (document({"resource": "toaster"}), "toaster: unknown resource; known: ", "update gdsdeploy on the side"),
        (document({"resource": "../gate"}), "../gate: unknown resource; known: ", "update gdsdeploy on the side"),
        (document({"resource": "engine"}), "engine: unknown resource; known: ", "update gdsdeploy on the side"),
        (
            document({"resource": "program"}, {"resource": "gate", "desired": {"seconds": "30"}}),
            "resources[1].desired.seconds: integer is needed, not a string",
            "",
        ),
    ],
)
def test_a_document_with_a_mistake(value: Any, message: str, hint: str) -> None:
    with pytest.raises(DesiredError) as caught:
        engine.read_resources(value)
    assert str(caught.value).startswith(message)
    assert caught.value.hint.startswith(hint)
    assert (caught.value.kind, caught.value.exit_code) == ("desired", 2)


def test_resources_are_chosen_by_name_and_instance() -> None:
    value = document(
        {"resource": "gate"},
        {"resource": "expectation", "instance": "one"},
        {"resource": "expectation", "instance": "two"},
    )
    assert [one.name for one in engine.read_resources(value)] == ["gate", "expectation.one", "expectation.two"]
    assert [one.name for one in engine.read_resources(value, ["expectation"])] == ["expectation.one", "expectation.two"]
    assert [one.name for one in engine.read_resources(value, ["expectation.two"])] == ["expectation.two"]
    with pytest.raises(DesiredError, match="peermem: not in this desired state; it has: expectation, "):
        engine.read_resources(value, ["peermem"])


class Asked(Some):
    """Writes down what was pending when it was asked, and reports it."""

    def __init__(self) -> None:
        self.pending: list[int] = []

    def observe(self, host: ManagedHost, desired: DesiredFiles) -> Any:
        self.pending.append(len(host.pending))
        return {**super().observe(host, desired), "pending": len(host.pending)}

    def report(self, desired: DesiredFiles, observed: Any) -> dict[str, int]:
        return {"pending": observed["pending"], "files": len(desired.files)}


def test_what_variants_have_in_common_is_checked_once(tmp_path: Path) -> None:
    asked = Asked()
    one, two, three, last = (desired_resource(asked, DesiredFiles(FILES[:number])) for number in (1, 2, 3, 4))
    variants, known = ([one, two, last], [one, two, last], [one, three, last], [last]), list[Any]()
    host = ManagedHost(check=True, root=str(tmp_path))
    together = [engine.run(host, targets, known=known) for targets in variants]
    assert asked.pending == [0, 1, 2, 1, 3, 0], "the same only after the same changes"
    assert together == [engine.run(host, targets) for targets in variants]


class Failing(Some):
    """Writes its files, and then something happens."""

    def __init__(self, happening: Callable[[], None]) -> None:
        self.happening = happening

    def settle(self, host: ManagedHost, desired: DesiredFiles, changes: Sequence[Change]) -> None:
        self.happening()


def fails(error: BaseException) -> Callable[[], None]:
    def happening() -> None:
        raise error

    return happening


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ApplyError("a program failed", kind="failed"), "failed"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/etc/x"), "no-space"),
        (OSError(errno.EROFS, os.strerror(errno.EROFS), "/etc/x"), "io"),
        (CannotTellError("/etc/x: Input/output error"), "io"),
    ],
)
def test_a_resource_that_fails_is_as_it_was(tmp_path: Path, error: BaseException, kind: str) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "some.conf").write_text("before\n")
    before = tree(tmp_path, without=("/var",))
    with pytest.raises(ApplyError) as caught:
        engine.run(ManagedHost(root=str(tmp_path)), [desired_resource(Failing(fails(error)), DesiredFiles(FILES))])
    assert caught.value.kind == kind
    assert tree(tmp_path, without=("/var",)) == before


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143), ZeroDivisionError()])
def test_an_interrupted_resource_is_as_it_was(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)):
        engine.run(ManagedHost(root=str(tmp_path)), [desired_resource(Failing(fails(error)), DesiredFiles(FILES))])
    assert tree(tmp_path, without=("/var",)) == {}


def test_resources_before_the_failing_one_stay_and_are_told(tmp_path: Path) -> None:
    first = DesiredFiles([File.of("/etc/some.conf", "first\n")])
    results: list[engine.Result] = []
    with pytest.raises(ApplyError):
        engine.run(
            ManagedHost(root=str(tmp_path)),
            [
                desired_resource(Some(), first, "first"),
                desired_resource(Failing(fails(ApplyError("no"))), DesiredFiles(FILES), "second"),
            ],
            done=results.append,
        )
    assert (tmp_path / "etc/some.conf").read_text() == "first\n"
    assert [(result.name, len(result.changes)) for result in results] == [("first", 1)]
    assert not (tmp_path / "opt").exists()


class Refusing(Some):
    def refusals(self, desired: DesiredFiles, observed: Any) -> list[Refusal]:
        return [Refusal("os", "this is Plan 9", "use Debian")]


class Unreadable(Some):
    def changes(self, desired: DesiredFiles, observed: Any, pending: Sequence[Change] = ()) -> list[Change]:
        raise CannotTellError("/etc/x: Input/output error")


def test_a_refusal_comes_before_the_first_change(tmp_path: Path) -> None:
    with pytest.raises(ApplyError, match="this is Plan 9") as caught:
        engine.run(ManagedHost(root=str(tmp_path)), [desired_resource(Refusing(), DesiredFiles(FILES))])
    assert (caught.value.kind, caught.value.hint) == ("refused", "use Debian")
    assert tree(tmp_path) == {}
    result = engine.run(
        ManagedHost(check=True, root=str(tmp_path)), [desired_resource(Refusing(), DesiredFiles(FILES))]
    )[0]
    assert [refusal.id for refusal in result.refusals] == ["os"]
    assert len(result.changes) == len(FILES)


def test_what_cannot_be_told_is_never_no_change(tmp_path: Path) -> None:
    result = engine.run(
        ManagedHost(check=True, root=str(tmp_path)), [desired_resource(Unreadable(), DesiredFiles(FILES))]
    )[0]
    assert result.changes == []
    assert result.unknown == ["/etc/x: Input/output error"]


class Looking(Some):
    """Keeps the changes that are pending."""

    pending_changes: tuple[Change, ...] = ()

    def changes(self, desired: DesiredFiles, observed: Any, pending: Sequence[Change] = ()) -> list[Change]:
        Looking.pending_changes = tuple(pending)
        return []


def test_a_check_shows_later_resources_what_is_pending(tmp_path: Path) -> None:
    resources = [
        desired_resource(Some(), DesiredFiles(FILES), "first"),
        desired_resource(Looking(), DesiredFiles(), "second"),
    ]
    engine.run(ManagedHost(check=True, root=str(tmp_path)), resources)
    assert [(change.subject, change.resource) for change in Looking.pending_changes] == [
        (file.path, "first") for file in FILES
    ]
    assert tree(tmp_path) == {}
    engine.run(ManagedHost(root=str(tmp_path)), resources)
    assert Looking.pending_changes == ()


@pytest.mark.parametrize("check", [True, False])
def test_a_diff_shows_texts(tmp_path: Path, check: bool) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/some.conf").write_text("before\n")
    result = engine.run(
        ManagedHost(check=check, root=str(tmp_path)), [desired_resource(Some(), DesiredFiles(FILES))], diff=True
    )[0]
    assert result.diffs[0] == {"path": "/etc/some.conf", "before": "before\n", "after": "some = 1\n"}
    assert [entry["path"] for entry in result.diffs] == ["/etc/some.conf", "/etc/some.d/a", "/opt/deep/er/file"]


def test_an_undo_that_fails_at_one_file_puts_back_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full, so what was replaced can't be written; what is new can go."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/some.conf").write_text("theirs\n")
    real = files.replace

    def replace(place: str, content: bytes, *rest: Any) -> None:
        if b"deep" in content or b"theirs" in content:
            raise OSError(errno.ENOSPC, "No space left on device", place)
        real(place, content, *rest)

    monkeypatch.setattr(files, "replace", replace)
    host = ManagedHost(root=str(tmp_path))
    with pytest.raises(ApplyError, match="/opt/deep/er/file: no space left"):
        engine.run(host, [desired_resource(Some(), DesiredFiles([*FILES[1:3], FILES[0], FILES[3]]))])
    assert [note.partition(":")[0] for note in host.notes] == ["/etc/some.conf"]
    assert not (tmp_path / "etc/some.d").exists()
