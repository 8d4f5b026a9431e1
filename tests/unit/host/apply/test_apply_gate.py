"""The gate as a resource: put in place, changed, dismissed and taken back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gdsdeploy.host.apply import gate, services
from gdsdeploy.host.apply.gate import Desired, Gate
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.model import Change
from gdsdeploy.host.gate.gate import Settings
from tests.unit.host.apply.apply_tree import Systemctl, apply, check, differing, tree

ON = Desired(settings=Settings().to_json(), before=["slurmd.service"], required_by=["k3s.service"], slurm=True)
OFF = Desired(enabled=False)
FOLDER = "/etc/systemd/system"
LINKS = {f"{FOLDER}/multi-user.target.wants/gds-gate.service", f"{FOLDER}/k3s.service.requires/gds-gate.service"}

UNIT = """\
# Rendered by gdsdeploy; changes here are overwritten. See: systemctl edit gds-gate.service
[Unit]
Description=GPUDirect Storage gate: judges this boot before a scheduler gives it work
After=systemd-modules-load.service local-fs.target remote-fs.target
After=nvidia-persistenced.service nvidia-fabricmanager.service nvidia-imex.service openibd.service
Wants=network-online.target
After=network-online.target munge.service
Before=slurmd.service k3s.service

[Service]
Type=oneshot
ExecStart=/usr/bin/python3 -I -S /usr/lib/gdsdeploy/gdsdeploy-host.pyz gate run --quiet
# What looks at the host ends by itself; this is for a file system that does not even let it.
TimeoutStartSec=90

[Install]
WantedBy=multi-user.target
RequiredBy=k3s.service
"""


def summaries(changes: list[Change]) -> list[tuple[str, str, str]]:
    return [(change.kind, change.subject, change.reason) for change in changes]


def both(root: Path, desired: Desired) -> list[tuple[str, str, str]]:
    """Apply what was predicted; a second run is without change."""
    predicted = check(root, Gate(), desired)
    assert (predicted.refusals, predicted.unknown) == ([], [])
    changes = apply(root, Gate(), desired)
    assert summaries(changes) == summaries(predicted.changes)
    assert check(root, Gate(), desired).changes == []
    return summaries(changes)


@pytest.fixture
def root(tmp_path: Path, systemctl: Systemctl) -> Path:
    for folder in ("etc/systemd/system", "etc/gdsdeploy", "usr/lib/gdsdeploy", "var/lib/gdsdeploy", "run/gdsdeploy"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


def test_it_is_put_in_place(root: Path, systemctl: Systemctl) -> None:
    assert both(root, ON) == [
        ("write", "/etc/gdsdeploy/gate.json", "missing"),
        ("write", "/usr/lib/gdsdeploy/slurm-health", "missing"),
        ("write", "/etc/systemd/system/gds-gate.service", "missing"),
        ("enable", "gds-gate.service", "unit"),
    ]
    assert (root / "etc/systemd/system/gds-gate.service").read_text() == UNIT
    assert (root / "etc/gdsdeploy/gate.json").read_text() == ON.settings
    assert (root / "usr/lib/gdsdeploy/slurm-health").stat().st_mode & 0o777 == 0o755
    assert set(tree(root)) >= LINKS
    assert systemctl.calls == [["systemctl", "reenable", "gds-gate.service"]]


def test_other_settings_do_not_touch_the_unit(root: Path) -> None:
    both(root, ON)
    changed = replace(ON, settings=Settings(file="").to_json())
    assert both(root, changed) == [("write", "/etc/gdsdeploy/gate.json", "content")]


def test_a_unit_that_changes_is_enabled_anew(root: Path) -> None:
    both(root, ON)
    assert both(root, replace(ON, required_by=[])) == [
        ("write", "/etc/systemd/system/gds-gate.service", "content"),
        ("enable", "gds-gate.service", "unit"),
    ]
    assert not LINKS & set(tree(root)) - {f"{FOLDER}/multi-user.target.wants/gds-gate.service"}


@pytest.mark.parametrize("link", sorted(LINKS))
def test_a_link_that_is_gone_or_too_many_is_noticed(root: Path, link: str) -> None:
    both(root, ON)
    Path(f"{root}{link}").unlink()
    assert both(root, ON) == [("enable", "gds-gate.service", "links")]
    (root / "etc/systemd/system/slurmd.service.requires").mkdir()
    (root / "etc/systemd/system/slurmd.service.requires/gds-gate.service").symlink_to(services.path(gate.UNIT))
    assert both(root, ON) == [("enable", "gds-gate.service", "links")]


def test_without_slurm_its_program_goes(root: Path) -> None:
    both(root, ON)
    assert ("delete", "/usr/lib/gdsdeploy/slurm-health", "restore") in both(root, replace(ON, slurm=False))


def test_it_is_dismissed_with_what_it_left(root: Path, systemctl: Systemctl) -> None:
    before = tree(root)
    both(root, ON)
    files = {
        "/run/gdsdeploy/gate.json": "{}",
        "/run/gdsdeploy/healthy": "2026-11-22T10:00:00Z 20 checks passed\n",
        "/var/lib/gdsdeploy/gate.json": "{}",
        "/var/lib/node_exporter/gdsdeploy.prom": "# HELP\n",
        "/srv/open": "2026-11-22T10:00:00Z 20 checks passed\n",
        "/srv/precious": "what somebody else has written\n",
    }
    for path, text in files.items():
        Path(f"{root}{path}").parent.mkdir(parents=True, exist_ok=True)
        Path(f"{root}{path}").write_text(text)
    lock = root / "run/gdsdeploy/apply.lock"
    lock.write_text("")
    left = ["/var/lib/node_exporter/gdsdeploy.prom", "/srv/open", "/srv/precious", "/etc", "/run/gdsdeploy/healthy"]
    changes = both(root, replace(OFF, files=left))
    assert changes[0] == ("disable", "gds-gate.service", "not-wanted")
    assert {subject for _, subject, _ in changes[1:]} == {
        *(set(files) - {"/srv/precious"}),
        *("/etc/gdsdeploy/gate.json", "/usr/lib/gdsdeploy/slurm-health", "/etc/systemd/system/gds-gate.service"),
    }
    assert lock.exists()
    assert (root / "srv/precious").exists()
    folders = {f"{FOLDER}/multi-user.target.wants", f"{FOLDER}/k3s.service.requires", "/srv", "/var/lib/node_exporter"}
    assert differing(before, tree(root)) - folders == {"/run/gdsdeploy/apply.lock", "/srv/precious"}
    assert ["systemctl", "disable", "gds-gate.service"] in systemctl.calls


def test_dismissed_where_it_never_was(root: Path, systemctl: Systemctl) -> None:
    assert both(root, OFF) == []
    assert systemctl.calls == []


def test_links_to_a_unit_that_is_gone_go_too(root: Path, systemctl: Systemctl) -> None:
    both(root, ON)
    (root / "etc/systemd/system/gds-gate.service").unlink()
    assert both(root, OFF)[0] == ("disable", "gds-gate.service", "not-wanted")
    assert not LINKS & set(tree(root))
    assert systemctl.calls[1:] == []


def test_revert_finds_what_it_left_by_its_own_settings(root: Path) -> None:
    before = tree(root)
    (root / "srv").mkdir()
    settings = Settings(metrics="/srv", file="/srv/open")
    both(root, replace(ON, settings=settings.to_json()))
    (root / "srv/gdsdeploy.prom").write_text("# HELP\n")
    (root / "srv/open").write_text("2026-11-22T10:00:00Z 20 checks passed\n")
    predicted = summaries(Gate().revert(ManagedHost(check=True, root=str(root))))
    assert summaries(Gate().revert(ManagedHost(root=str(root)))) == predicted
    assert {"/srv/gdsdeploy.prom", "/srv/open"} <= {subject for _, subject, _ in predicted}
    assert differing(before, tree(root)) == {
        *("/srv", f"{FOLDER}/multi-user.target.wants", f"{FOLDER}/k3s.service.requires")
    }
    assert Gate().revert(ManagedHost(check=True, root=str(root))) == []


@pytest.mark.parametrize("settings", ["", "{", "[1]", '{"version": 1, "metrics": 5}', "[" * 9999])
def test_revert_with_settings_that_nobody_can_read(root: Path, settings: str) -> None:
    both(root, ON)
    (root / "etc/gdsdeploy/gate.json").write_text(settings)
    assert Gate().revert(ManagedHost(root=str(root)))[0].kind == "disable"


@pytest.mark.parametrize(
    ("desired", "ids"),
    [
        (replace(ON, settings=""), ["content"]),
        (replace(ON, before=["slurmd"]), ["unit-name"]),
        (replace(ON, required_by=["a.service\nExecStart=/bin/sh"]), ["unit-name"]),
        (replace(OFF, files=["etc/passwd"]), ["path"]),
        (OFF, []),
    ],
)
def test_refusals(root: Path, desired: Desired, ids: list[str]) -> None:
    assert [refusal.id for refusal in check(root, Gate(), desired).refusals] == ids
