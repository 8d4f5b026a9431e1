"""The order in which nvidia-peermem is loaded and unloaded, by real systemd; OFED's service is a stand-in.

A light host loads no modules, so what the units run only writes down that it ran: the order is systemd's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gdsdeploy.zipapp import hostapp
from gdslab.host import LabHost
from tests.lab.roleplay import lights, play, put, restart

pytestmark = pytest.mark.lab

UNIT = "/etc/systemd/system/gds-peermem.service"
LOG = "/run/order"
#: A service as OFED and a scheduler have one each; their own packages are no Debian ones.
SERVICE = """[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'echo {name} starts >>/run/order'
ExecStop=/bin/sh -c 'echo {name} stops >>/run/order'
[Install]
WantedBy=multi-user.target
"""
#: What our unit runs, written down instead.
WRITTEN = """[Service]
ExecStart=
ExecStart=/bin/sh -c 'echo peermem loads >>/run/order'
ExecStop=
ExecStop=/bin/sh -c 'echo peermem unloads >>/run/order'
"""


@pytest.fixture(scope="module")
def host() -> Iterator[LabHost]:
    """A light host with the host program, a service of OFED's name, one of a scheduler's, and nv_peer_mem's."""
    with lights("peermem") as lab:
        light = lab.host("build1")
        put(light, "/usr/lib/gdsdeploy/gdsdeploy-host.pyz", hostapp.build())
        for unit in ("slurmd", "openibd", "nv_peer_mem"):
            put(light, f"/etc/systemd/system/{unit}.service", SERVICE.format(name=unit).encode())
        light.ssh(["sudo", "systemctl", "enable", "slurmd", "openibd", "nv_peer_mem"])
        yield light


def order(host: LabHost) -> list[str]:
    return host.ssh(["cat", LOG]).stdout.splitlines()


def after(host: LabHost, *argv: str) -> list[str]:
    """What ran because of ``systemctl ARGV``, in order."""
    host.ssh(["sudo", "rm", "-f", LOG])
    host.ssh(["sudo", "systemctl", *argv], timeout=60)
    return order(host)


def test_the_role_puts_the_unit_there_once(host: LabHost, tmp_path: Path) -> None:
    assert play(host, tmp_path, "gds_peermem", gds_peermem_rdma="peermem")
    assert play(host, tmp_path, "gds_peermem", gds_peermem_rdma="peermem") == []
    assert host.ssh(["systemctl", "is-enabled", "gds-peermem.service"]).stdout.strip() == "enabled"
    assert host.ssh(["sudo", "systemd-analyze", "verify", UNIT]).stderr == ""


def test_without_a_module_it_says_why(host: LabHost) -> None:
    assert host.ssh(["sudo", "systemctl", "start", "gds-peermem"], ok=(1,)).status == 1
    journal = host.ssh(["sudo", "journalctl", "-u", "gds-peermem", "-o", "cat"]).stdout
    assert "there is no nvidia-peermem for kernel" in journal


def test_at_boot_it_comes_after_the_rdma_core_and_before_its_users(host: LabHost) -> None:
    put(host, "/etc/modprobe.d/gdsdeploy.conf", b"install nv_peer_mem /bin/false\n")
    put(host, "/etc/systemd/system/gds-peermem.service.d/written.conf", WRITTEN.encode())
    restart(host)
    assert order(host) == ["openibd starts", "peermem loads", "slurmd starts"], "nv_peer_mem does not start at all"


def test_it_is_unloaded_before_ofed_restarts_and_loaded_after(host: LabHost) -> None:
    there_and_back = ["peermem unloads", "openibd stops", "openibd starts", "peermem loads"]
    assert after(host, "restart", "openibd") == there_and_back
    assert after(host, "stop", "openibd") == ["peermem unloads", "openibd stops"]
    assert after(host, "start", "openibd") == ["openibd starts", "peermem loads"]


def test_where_dma_buf_serves_it_is_dismissed(host: LabHost, tmp_path: Path) -> None:
    options = {"gds_peermem_rdma": "dmabuf"}
    host.ssh(["sudo", "rm", "-f", LOG])
    assert play(host, tmp_path, "gds_peermem", **options)
    assert order(host) == ["peermem unloads"]
    assert host.ssh(["test", "-e", UNIT], ok=(1,)).status == 1
    files_left = host.ssh(["find", "/etc/systemd/system", "-name", "gds-peermem.service"]).stdout
    assert files_left == "", "no link is left either"


def test_nv_peer_mem_is_as_it_was_when_its_condition_goes(host: LabHost, tmp_path: Path) -> None:
    condition = "/etc/systemd/system/nv_peer_mem.service.d/gdsdeploy.conf"
    host.ssh(["sudo", "rm", "-f", LOG])
    host.ssh(["sudo", "systemctl", "start", "nv_peer_mem"])
    assert host.ssh(["cat", LOG], ok=(1,)).status == 1, "its condition keeps it from starting"
    assert play(host, tmp_path, "gds_peermem", gds_peermem_rdma="none")
    assert host.ssh(["test", "-e", condition], ok=(1,)).status == 1
    host.ssh(["sudo", "systemctl", "daemon-reload"])
    assert after(host, "start", "nv_peer_mem") == ["nv_peer_mem starts"]
    assert host.ssh(["systemctl", "is-enabled", "nv_peer_mem"]).stdout.strip() == "enabled"
