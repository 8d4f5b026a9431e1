"""nvidia-peermem as a resource: its unit, the drop-in that keeps nv_peer_mem out, and what systemd is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdsdeploy.host.apply import peermem, services
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.model import RELOAD, Change
from gdsdeploy.host.apply.peermem import Desired, Peermem
from tests.unit.host.apply.apply_tree import Systemctl, apply, check, tree

FOLDER = "/etc/systemd/system"
DROP_IN = f"{FOLDER}/nv_peer_mem.service.d"
UNIT = f"{FOLDER}/gds-peermem.service"

TEXT = """\
# Rendered by gdsdeploy; changes here are overwritten. See: systemctl edit gds-peermem.service
[Unit]
Description=NVIDIA peer memory (nvidia-peermem): after the RDMA core, before its users
ConditionPathExists=/usr/lib/gdsdeploy/gdsdeploy-host.pyz
After=systemd-modules-load.service openibd.service
After=rdma-load-modules@rdma.service rdma-load-modules@infiniband.service rdma-load-modules@roce.service
# OFED's service takes the RDMA core away when it stops, and cannot while a client of it is loaded.
PartOf=openibd.service
Before=gds-gate.service slurmd.service kubelet.service pbs.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/python3 -I -S /usr/lib/gdsdeploy/gdsdeploy-host.pyz peermem load
ExecStop=/usr/bin/python3 -I -S /usr/lib/gdsdeploy/gdsdeploy-host.pyz peermem unload
TimeoutStartSec=300

[Install]
# Where OFED's service is started by itself, as after its stop, this comes with it.
WantedBy=multi-user.target openibd.service
"""
DROP_IN_TEXT = """\
# Rendered by gdsdeploy; changes here are overwritten.
# nvidia-peermem or DMA-BUF has its place; the same file of modprobe.d that is named here keeps its module out.
[Unit]
ConditionPathExists=!/etc/modprobe.d/gdsdeploy.conf
"""


def summaries(changes: list[Change]) -> list[tuple[str, str]]:
    return [(change.kind, change.subject) for change in changes]


def both(root: Path, desired: Desired) -> list[tuple[str, str]]:
    predicted = summaries(check(root, Peermem(), desired).changes)
    assert summaries(apply(root, Peermem(), desired)) == predicted
    assert check(root, Peermem(), desired).changes == []
    return predicted


@pytest.fixture
def root(tmp_path: Path, systemctl: Systemctl) -> Path:
    (tmp_path / "etc/systemd/system/multi-user.target.wants").mkdir(parents=True)
    (tmp_path / "var/lib").mkdir(parents=True)
    return tmp_path


def test_with_peermem(root: Path, systemctl: Systemctl) -> None:
    desired = Desired("peermem", ["slurmd.service", "pbs.service"])
    assert both(root, desired) == [
        ("make", DROP_IN),
        ("write", f"{DROP_IN}/gdsdeploy.conf"),
        ("write", UNIT),
        ("enable", "gds-peermem.service"),
    ]
    assert Path(f"{root}{UNIT}").read_text() == TEXT
    assert Path(f"{root}{DROP_IN}/gdsdeploy.conf").read_text() == DROP_IN_TEXT
    assert {f"{FOLDER}/multi-user.target.wants/gds-peermem.service", f"{FOLDER}/openibd.service.wants"} <= set(
        tree(root)
    )
    assert systemctl.calls == [["systemctl", "reenable", "gds-peermem.service"]]


def test_from_peermem_to_dmabuf_and_to_none(root: Path, systemctl: Systemctl) -> None:
    before = tree(root)
    both(root, Desired("peermem"))
    assert both(root, Desired("dmabuf")) == [("disable", "gds-peermem.service"), ("delete", UNIT)]
    assert both(root, Desired("none")) == [("delete", f"{DROP_IN}/gdsdeploy.conf"), ("delete", DROP_IN)]
    after = tree(root)
    after.pop(f"{FOLDER}/openibd.service.wants")
    assert after == before
    assert both(root, Desired("none")) == []


def test_a_folder_with_drop_ins_of_others_stays(root: Path) -> None:
    both(root, Desired("dmabuf"))
    theirs = Path(f"{root}{DROP_IN}/site.conf")
    theirs.write_text("[Unit]\n")
    assert both(root, Desired("none")) == [("delete", f"{DROP_IN}/gdsdeploy.conf")]
    assert theirs.exists()


def test_revert(root: Path) -> None:
    before = tree(root)
    both(root, Desired("peermem"))
    predicted = summaries(Peermem().revert(ManagedHost(check=True, root=str(root))))
    assert summaries(Peermem().revert(ManagedHost(root=str(root)))) == predicted
    after = tree(root)
    after.pop(f"{FOLDER}/openibd.service.wants")
    assert after == before
    assert Peermem().revert(ManagedHost(root=str(root))) == []


def test_revert_without_a_record_as_older_versions_left_it(root: Path) -> None:
    Path(f"{root}{DROP_IN}").mkdir()
    Path(f"{root}{DROP_IN}/gdsdeploy.conf").write_text(DROP_IN_TEXT)
    Path(f"{root}{UNIT}").write_text(TEXT)
    assert summaries(Peermem().revert(ManagedHost(root=str(root)))) == [
        ("disable", "gds-peermem.service"),
        ("delete", f"{DROP_IN}/gdsdeploy.conf"),
        ("delete", UNIT),
    ]


def observed(**changed: object) -> dict[str, object]:
    """A running host with rdma none, on which nothing is to be done."""
    state = {"unit": services.Unit(False, []), "back": [], "booted": True, "outdated": False, "loaded": False}
    return {**state, **changed}


def test_a_running_systemd_reads_the_drop_in(root: Path) -> None:
    host = ManagedHost(check=True, root=str(root))
    for rdma in ("dmabuf", "none"):
        resource, desired = Peermem(), Desired(rdma)
        both(root, Desired("dmabuf" if rdma == "none" else "none"))
        state = {**resource.observe(host, desired), "booted": True}
        assert summaries(resource.changes(desired, state))[-1] == ("reload", "systemd")
    assert summaries(Peermem().changes(Desired(), observed())) == []
    # A run that was killed before systemd had read what it wrote.
    assert summaries(Peermem().changes(Desired(), observed(outdated=True))) == [("reload", "systemd")]
    assert summaries(Peermem().changes(Desired(), observed(outdated=True, booted=False))) == []


def test_unloading_disrupts_only_where_it_is_loaded() -> None:
    unit = services.Unit(True, [])
    for loaded in (True, False):
        disable = Peermem().changes(Desired(), observed(unit=unit, loaded=loaded))[0]
        assert (disable.kind, disable.disruption == RELOAD) == ("disable", loaded)


def test_systemctl_as_it_is_called_where_systemd_runs(monkeypatch: pytest.MonkeyPatch, systemctl: Systemctl) -> None:
    monkeypatch.setattr(services, "is_booted", lambda host: True)
    host = ManagedHost()
    monkeypatch.setattr(services, "observe", lambda host, unit: services.Unit(True, []))
    assert not services.is_outdated(host, [peermem.LEGACY, peermem.UNIT])
    services.disable(host, peermem.UNIT, stop=True)
    services.enable(host, peermem.UNIT)
    services.reload(host)
    assert systemctl.calls == [
        ["systemctl", "show", "--property=ActiveState,NeedDaemonReload", *services.OWN],
        ["systemctl", "disable", "--now", "gds-peermem.service"],
        ["systemctl", "reenable", "gds-peermem.service"],
        ["systemctl", "daemon-reload"],
    ]


def test_refusals(root: Path) -> None:
    assert [refusal.id for refusal in check(root, Peermem(), Desired("peermem", ["x y"])).refusals] == ["unit-name"]
