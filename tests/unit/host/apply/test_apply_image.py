"""What hosts that boot from one image must not share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gdsdeploy.host import paths
from gdsdeploy.host.apply import expectation, packages
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.image import Desired, Image
from gdsdeploy.host.model.expectation import from_json
from gdsdeploy.host.paths import IMAGE
from tests.unit.host.apply.apply_tree import apply, check

EXPECTATION = (Path(__file__).parents[3] / "evidence" / "hosts" / "lab-vm.expectation.json").read_text()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "etc").mkdir()
    return tmp_path


def subjects(root: Path) -> list[tuple[str, str, str]]:
    """What was predicted and made; a second run makes nothing."""
    predicted = check(root, Image(), Desired())
    changes = apply(root, Image(), Desired())
    assert [(one.kind, one.subject) for one in changes] == [(one.kind, one.subject) for one in predicted.changes]
    assert check(root, Image(), Desired()).changes == []
    return [(one.kind, one.subject, one.reason) for one in changes]


@pytest.mark.parametrize("text", [None, "", "uninitialized\n"])
def test_an_image_without_an_identity_stays(root: Path, text: str | None) -> None:
    if text is not None:
        (root / "etc/machine-id").write_text(text)
    assert subjects(root) == []
    assert (root / "etc/machine-id").exists() == (text is not None)


def test_what_belongs_to_one_host_goes(root: Path) -> None:
    (root / "etc/machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    own = root / "var/lib/gdsdeploy"
    (own / "rollout").mkdir(parents=True)
    for name in ("builder.key", "builder.pub", "gate.json", "rollout/state.json", "installed"):
        (own / name).write_text("x")
    (root / "var/lib/dbus").mkdir()
    (root / "var/lib/dbus/machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    assert subjects(root) == [
        ("write", "/etc/machine-id", "identity"),
        ("delete", "/var/lib/gdsdeploy/builder.key", "identity"),
        ("delete", "/var/lib/gdsdeploy/builder.pub", "identity"),
        ("delete", "/var/lib/gdsdeploy/gate.json", "identity"),
        ("delete", "/var/lib/gdsdeploy/rollout", "identity"),
        ("delete", "/var/lib/dbus/machine-id", "identity"),
    ]
    assert (root / "etc/machine-id").read_text() == ""
    assert sorted(path.name for path in own.iterdir()) == ["installed"], "no record would bring the id back"


def test_dbus_may_have_a_link_to_the_id_of_systemd(root: Path) -> None:
    (root / "var/lib/dbus").mkdir(parents=True)
    (root / "var/lib/dbus/machine-id").symlink_to("/etc/machine-id")
    (root / "etc/machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    assert subjects(root) == [("write", "/etc/machine-id", "identity")]


@pytest.mark.parametrize(("mode", "labels"), [("enforcing", True), ("permissive", True), ("disabled", False)])
def test_the_first_boot_labels_what_was_written_without_selinux(root: Path, mode: str, labels: bool) -> None:
    (root / "etc/selinux").mkdir()
    (root / "etc/selinux/config").write_text(f"# SELINUX=enforcing\nSELINUX={mode}\nSELINUXTYPE=targeted\n")
    assert subjects(root) == ([("write", "/.autorelabel", "labels")] if labels else [])


def test_the_expectation_of_an_image_serves_its_hosts(root: Path) -> None:
    own = expectation.Desired(EXPECTATION)
    apply(root, expectation.Expectation(), expectation.Desired(replace(from_json(EXPECTATION), host="").to_json()))
    assert check(root, expectation.Expectation(), own).changes == []
    place = Path(f"{root}{paths.EXPECTATION}")
    place.write_text(replace(from_json(EXPECTATION), host="", lock_digest="sha256:other").to_json())
    assert [one.subject for one in check(root, expectation.Expectation(), own).changes] == [paths.EXPECTATION]
    place.write_text(replace(from_json(EXPECTATION), host="other").to_json())
    assert [one.subject for one in check(root, expectation.Expectation(), own).changes] == [paths.EXPECTATION]


def test_no_kernel_of_an_image_runs(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Manager:
        """Every package belongs to the running kernel."""

        def present(self, _: ManagedHost) -> list[str]:
            return ["linux-image-1"]

        def stays(self, name: str, running: str) -> bool:
            return bool(name and running)

    monkeypatch.setattr(packages, "host_manager", lambda _: Manager())
    monkeypatch.setattr(packages, "read_names", lambda *_: ["linux-image-1"])
    host = ManagedHost(root=str(root))
    assert (packages.staying(host), packages.leaving(host)) == (["linux-image-1"], [])
    Path(f"{root}{IMAGE}").mkdir(parents=True)
    assert (packages.staying(host), packages.leaving(host)) == ([], ["linux-image-1"])
