"""A fleet in which every verdict occurs, with texts that try to break out of each format."""

from __future__ import annotations

from typing import Any

from gdsdeploy.errors import HostUnreachable
from gdsdeploy.host.facts import facts_from
from gdsdeploy.host.facts.document import Document
from gdsdeploy.host.facts.pci import Function, Link, PciFacts, Topology, topology_facts
from gdsdeploy.host.model.finding import FAIL, PASS, UNKNOWN, Finding
from gdsdeploy.report.model import HostReport, Report, trouble_from

STACK = (
    ("kernel", "6.12.94+deb13-amd64"),
    ("driver", "550.163.01 open"),
    ("nvidia-fs", "2.19.7"),
    ("libcufile", "1.9.1.3"),
)
EVIL = '<script>alert("x")</script> & \x1b[31mred\x1b[0m ]]> {{ 7 * 7 }} \x00'

CHECKS = [
    ("os.release", "The operating system is the locked one", "debian-13"),
    ("kernel.release", "The running kernel is the locked one", "6.12.94+deb13-amd64"),
    ("kernel.taint", "Nothing taints the kernel but what has to", "proprietary or out-of-tree modules only"),
    ("driver.loaded-version", "The loaded nvidia module has the locked version", "550.163.01 open"),
    ("driver.vermagic", "The loaded nvidia module was built for the running kernel", "6.12.94+deb13-amd64"),
    ("driver.nouveau", "nouveau is neither loaded nor loadable", "not loaded, blacklisted"),
    ("nvidia-fs.loaded-version", "The loaded nvidia_fs module has the locked version", "2.19.7"),
    ("nvidia-fs.vermagic", "The loaded nvidia_fs module was built for the running kernel", "6.12.94+deb13-amd64"),
    ("nvidia-fs.symbol-versions", "Every symbol that nvidia_fs takes from nvidia has its version", "6 of 6 equal"),
    ("nvidia-fs.driver-tree", "nvidia_fs was built against the running driver", "/usr/src/nvidia-550.163.01"),
    ("peermem.usable", "GPU memory can be registered for RDMA", "nvidia_peermem registered"),
    ("cufile.rendered", "cufile.json is the rendered one", "sha256 05e0714c…"),
    ("cufile.accepted", "The installed libcufile accepts its configuration", "accepted"),
    ("storage.path:/mnt/nvme", "I/O on this mount takes the path that the fleet asks for", "direct"),
    ("storage.path:/home", "I/O on this mount takes the path that the fleet asks for", "compat"),
    ("packages.versions", "Every package has its locked version", "23 packages"),
]  # fmt: skip


def findings(**changed: Finding) -> tuple[Finding, ...]:
    """All pass, except those given by id with `_` for everything that is no letter."""
    rows = []
    for check, title, expected in CHECKS:
        word = "".join(char if char.isalnum() else "_" for char in check)
        path = {"storage.path:/mnt/nvme": "nvidia-fs", "storage.path:/home": "compat"}.get(check, "")
        finding = Finding(check, PASS, title, expected, expected, evidence=[f"{check}: seen"], path=path)
        rows.append(changed.get(word, finding))
    return tuple(rows)


TREE = Finding(
    "nvidia-fs.driver-tree",
    FAIL,
    "nvidia_fs was built against the running driver",
    "/usr/src/nvidia-current-open-550.163.01",
    "/usr/src/nvidia-current-535.261.03, another version and the proprietary flavour",
    "Run `gdsdeploy provision fleet.yml --limit gpu2`: it rebuilds nvidia-fs against the locked tree",
    [
        "/var/lib/dkms/nvidia-fs/2.19.7/6.12.94+deb13-amd64/x86_64/log/make.log: NVIDIA_SRC_DIR=/usr/src/nvidia-535",
        "nvidia_fs: no symbol version for nvidia_p2p_free_page_table",
        *(f"nvidia_fs: Unknown symbol nvidia_p2p_{n} (err -22)" for n in range(6)),
    ],
)
PATH = Finding(
    "storage.path:/mnt/nvme",
    FAIL,
    "I/O on this mount takes the path that the fleet asks for",
    "direct",
    "compat: the running kernel's nvme driver has no nvidia-fs hooks and PCI_P2PDMA is not set",
    "Install a kernel with CONFIG_PCI_P2PDMA, or DOCA's nvme driver, or write path: compat",
    path="compat",
)
PEERMEM = Finding(
    "peermem.usable",
    UNKNOWN,
    "GPU memory can be registered for RDMA",
    "nvidia_peermem registered",
    EVIL,
    "Install DOCA-OFED before the driver, or use DMA-BUF",
    [EVIL],
)
DOWN = HostUnreachable(
    "gpu4 (192.0.2.14:22): cannot connect: no answer",
    hint="Check that the host is up, that sshd listens on that port and that no firewall is in between",
)


def _function(address: str, vendor: int, kind: int, *bridges: str, **more: Any) -> Function:
    shape: dict[str, Any] = {"device": 1, "driver": "", "numa_node": 0, "iommu": False, "bars": {}, **more}
    root = f"pci{(bridges[0] if bridges else address)[:7]}"
    return Function(address, vendor=vendor, kind=kind, bridges=bridges, host_bridge=root, **shape)


FULL, HALF = Link(32.0, 16, 32.0, 16), Link(16.0, 2, 16.0, 4)
#: A GPU and a disk behind one switch, an adapter on its own root port, and a degraded disk on the other processor.
FUNCTIONS = (
    _function("0000:00:01.0", 0x8086, 0x060400, link=FULL),
    _function("0000:01:00.0", 0x11F8, 0x060400, "0000:00:01.0", link=FULL),
    _function("0000:02:00.0", 0x11F8, 0x060400, "0000:00:01.0", "0000:01:00.0", link=FULL),
    _function("0000:02:01.0", 0x11F8, 0x060400, "0000:00:01.0", "0000:01:00.0", link=Link(16.0, 4, 32.0, 16)),
    _function(
        "0000:03:00.0",
        0x10DE,
        0x030200,
        "0000:00:01.0",
        "0000:01:00.0",
        "0000:02:00.0",
        link=FULL,
        driver="nvidia",
        bars={0: 1 << 24, 1: 1 << 37},
    ),
    _function(
        "0000:04:00.0",
        0x144D,
        0x010802,
        "0000:00:01.0",
        "0000:01:00.0",
        "0000:02:01.0",
        link=Link(16.0, 4, 16.0, 4),
        driver="nvme",
        names=("nvme0",),
    ),
    _function("0000:00:02.0", 0x8086, 0x060400, link=FULL),
    _function("0000:05:00.0", 0x15B3, 0x020700, "0000:00:02.0", link=FULL, driver="mlx5_core", names=("mlx5_0", "ib0")),
    _function("0000:80:01.0", 0x8086, 0x060400, link=HALF, numa_node=1),
    _function(
        "0000:81:00.0", 0x144D, 0x010802, "0000:80:01.0", link=HALF, driver="nvme", names=("nvme1",), numa_node=1
    ),
)
ACS = {entry.address: 0x1D if entry.address == "0000:02:01.0" else 0 for entry in FUNCTIONS if entry.kind == 0x060400}


def tree() -> Topology:
    """The topology that the product itself makes of these functions."""
    document = Document({"listings": {"/sys/devices/system/node/node*": ["node0", "node1"]}, "files": {}})
    pci = PciFacts(FUNCTIONS, tuple(function for function in FUNCTIONS if function.vendor == 0x10DE), dict(ACS))
    topology = topology_facts(document, pci, facts_from({}).driver)
    assert isinstance(topology, Topology)
    return topology


def report() -> Report:
    hosts = (
        HostReport(
            "gpu1", "gds", findings(), boot_id="3c7aef50-5a0e-4a0c-9e0e-1f6b3f6f0001", stack=STACK, seconds=1.84
        ),
        HostReport(
            "gpu2",
            "gds",
            findings(nvidia_fs_driver_tree=TREE, storage_path__mnt_nvme=PATH),
            boot_id="9d1c2b7a-5a0e-4a0c-9e0e-1f6b3f6f0002",
            stack=STACK,
            seconds=2.31,
            topology=tree(),
        ),
        HostReport(
            "gpu3",
            "gds",
            findings(peermem_usable=PEERMEM, storage_path__mnt_nvme=PATH)[:-1],
            boot_id="0b77b0f6-5a0e-4a0c-9e0e-1f6b3f6f0003",
            stack=STACK,
            gaps=("programs: stopped after 60 s",),
            seconds=63.0,
        ),
        HostReport("gpu4", "storage", trouble=trouble_from(DOWN), seconds=15.0),
    )
    return Report("fleet.yml", "sha256:" + "5e" * 32, "2026-11-21T08:15:00Z", hosts)
