"""A fleet in which every verdict occurs, with texts that try to break out of each format; and a fleet of any size.

The large one has the findings of a recorded host, with texts on each host that no other host has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from gdsdeploy.errors import HostUnreachable
from gdsdeploy.host.facts import document, facts_from
from gdsdeploy.host.facts.document import Document
from gdsdeploy.host.model import expectation
from gdsdeploy.host.model.finding import FAIL, PASS, UNKNOWN, Finding
from gdsdeploy.host.subjects.pci import Function, Link, PciFacts
from gdsdeploy.host.subjects.topology import Topology, topology_facts
from gdsdeploy.report.model import HostReport, Report, trouble_from
from gdsdeploy.validate import fleet_validation

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
    codes = {"vendor": vendor, "device": 1, "class": kind}
    files = {f"/sys/bus/pci/devices/{address}/{name}": f"{code:#06x}\n" for name, code in codes.items()}
    shape: dict[str, Any] = {"numa_node": 0, "iommu": False, "iommu_group": None, **more}
    root = f"pci{(bridges[0] if bridges else address)[:7]}"
    return Function(Document({"files": files}), address).but(bridges=bridges, host_bridge=root, **shape)


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
    pci = PciFacts(document).but(functions=FUNCTIONS, acs=ACS)
    return topology_facts(document, pci, facts_from({}).driver)


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


RECORDED = Path(__file__).parents[2] / "evidence" / "hosts"
#: Of a thousand hosts: how many fail a check, could not tell one, and gave no evidence.
FAILING, UNSURE, SILENT = 20, 3, 2
#: Checks that fail, in turn.
CAUSES = ("packages.locked-versions", "cufile.rendered", "nvidia-fs.driver-tree", "driver.loaded-version")


def recorded() -> HostReport:
    """A real host; what its evidence could not tell passes."""
    text = (RECORDED / "lab-vm-provisioned.json").read_text()
    expected = expectation.from_json((RECORDED / "lab-vm.expectation.json").read_text())
    options = fleet_validation.ValidateOptions(day="2026-11-22")
    host = fleet_validation.host_report(expected, document.document("gpu", text), options, ())
    findings = tuple(replace(one, verdict=PASS, hint="") if one.verdict == UNKNOWN else one for one in host.findings)
    return replace(host, findings=findings, gaps=(), topology=tree())


def _findings(host: HostReport, name: str, number: int, failing: int) -> Iterator[Finding]:
    kind = number * 7919 % 1000
    for one in host.findings:
        if kind < failing and one.check == CAUSES[number % len(CAUSES)]:
            hint = f"Run `gdsdeploy provision fleet.yml --limit {name}`"
            yield replace(
                one, verdict=FAIL, found="another", hint=hint, evidence=[f"{name} said {n}" for n in range(9)]
            )
        elif failing <= kind < failing + UNSURE and one.check == "driver.errors":
            yield replace(one, verdict=UNKNOWN, hint="Run this as root", found="the kernel's log was not read")
        elif one.check.startswith("storage.path"):
            yield replace(one, evidence=[*one.evidence, f"serial S64GNX{number:08}", f"wwid eui.{number:032x}"])
        else:
            yield replace(one, evidence=list(one.evidence))


def large(hosts: int, failing: int = FAILING) -> Report:
    """gpu00000 and so on, of which ``failing`` of a thousand fail a check; the same each time."""
    base = recorded()
    down = HostUnreachable("no answer", hint="Check that the host is up")

    def host(number: int) -> HostReport:
        name = f"gpu{number:05}"
        if failing + UNSURE <= number * 7919 % 1000 < failing + UNSURE + SILENT:
            return HostReport(name, "gds", trouble=trouble_from(down))
        boot = f"3c7aef50-5a0e-4a0c-9e0e-{number:012}"
        return replace(
            base, host=name, boot_id=boot, seconds=1.0, findings=tuple(_findings(base, name, number, failing))
        )

    return Report("fleet.yml", "sha256:" + "5e" * 32, "2026-11-21T08:15:00Z", tuple(map(host, range(hosts))))
