"""Every cause, seen by its own fault on a host that takes a direct path without it."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gdsdeploy.host.explain import BROKEN, COMPAT, DIRECT, NVIDIA_FS, Cause, explain, modules
from gdsdeploy.host.explain import Path as Taken
from gdsdeploy.host.facts import Unknown, facts_from
from tests.unit.host.explain import p2pdma_hosts as hosts
from tests.unit.host.explain.capable_host import (
    GPU,
    H100,
    MOUNT,
    PROVISIONED,
    RELEASE,
    Change,
    Document,
    absent,
    both,
    capable,
    config,
    device,
    dmesg,
    driver,
    file,
    hooks_gone,
    in_folder,
    loaded,
    mountinfo,
    over,
    with_gpu,
)
from tests.unit.host.explain.p2pdma_hosts import p2p

DOCS = Path(__file__).parents[4] / "docs" / "explain.md"
UNLOADED = absent("files", "/sys/module/nvidia_fs/version")
NO_DRIVER = absent("files", "/proc/driver/nvidia/version")
NVME = "0000:00:02.0"
NOT_PROVEN = "not proven"
OF_PROCESSES = ("no-nvidia-fs", "own-libcufile", "unaligned", "not-counted")


def second(record: Document, path: str = "/home/u/cufile.json") -> Change:
    """A file of /etc/profile.d lays another configuration over /etc/cufile.json."""

    def change(document: Document) -> None:
        document["listings"]["/etc/profile.d"] = ["u.sh"]
        lines = [f"export CUFILE_ENV_PATH_JSON={path}"]
        document["excerpts"]["/etc/profile.d/u.sh"] = {"pattern": "", "lines": lines}
        document["configs"][path] = record

    return change


def module_file(name: str, **values: object) -> Change:
    """A module file of the provisioned host, put where modprobe finds it, with one thing changed."""

    def change(document: Document) -> None:
        path, record = next((p, v) for p, v in PROVISIONED["modules"].items() if v["name"] == name.replace("-", "_"))
        document["modules"][path] = {**record, "vermagic": f"{RELEASE} SMP", **values}
        document["commands"][f"modprobe:{name}"].update(status=0, stdout=f"insmod {path} \n", stderr="")

    return change


def appended(path: str, text: str) -> Change:
    return lambda document: document["files"].__setitem__(path, document["files"][path] + text)


def dkms(text: str) -> Change:
    run = {"argv": ["dkms", "status"], "status": 0, "stdout": text, "stderr": "", "seconds": 0.1}
    return lambda document: document["commands"].__setitem__("dkms", run)


def package(name: str) -> Change:
    def change(document: Document) -> None:
        document["commands"]["dpkg-query"]["stdout"] += f"{name}\t1\tall\tii \n"

    return change


def iommu(address: str, kind: str) -> Change:
    def change(document: Document) -> None:
        document["links"][f"/sys/bus/pci/devices/{address}/iommu_group"] = "../../../kernel/iommu_groups/1"
        document["files"][f"/sys/bus/pci/devices/{address}/iommu_group/type"] = kind + "\n"

    return change


def bars(text: str) -> Change:
    return file(f"/sys/bus/pci/devices/{GPU}/resource", text)


def bar(*sizes: int) -> str:
    return "".join(f"0x{size:016x} 0x{2 * size - 1:016x} 0x40200\n" if size else "0x0 0x0 0x0\n" for size in sizes)


def log(before: str, after: str) -> Change:
    """What libcufile logged, in another release's words."""

    def change(document: Document) -> None:
        text = document["commands"]["cufile-open"]["log"]
        assert re.search(before, text)
        document["commands"]["cufile-open"]["log"] = re.sub(before, after, text)

    return change


def transport(name: str) -> Change:
    return both(
        in_folder("virtual/nvme-fabrics/ctl/nvme1/nvme1n1"),
        file("/sys/class/nvme/nvme1/transport", name + "\n"),
    )


def flag(bit: int, path: str = MOUNT) -> Change:
    return lambda document: document["inodes"].__setitem__(path, 0x80000 | bit)


def symbol(name: str) -> Change:
    return lambda document: document["excerpts"]["/proc/kallsyms"]["lines"].append(f"0000000000000000 T {name}\t[nvme]")


def nfs(options: str) -> Change:
    return both(mountinfo(" ext4 ", " nfs4 "), mountinfo("data=ordered", options))


def container(document: Document) -> None:
    """The same disk, mounted into a container whose own root is made of layers."""
    document["files"]["/run/systemd/container"] = "podman\n"
    mountinfo, root = document["files"]["/proc/self/mountinfo"], " 254:1 / / rw,noatime shared:1 - ext4 /dev/vda1 "
    assert root in mountinfo
    layers = " 0:60 / / rw,noatime - overlay overlay "
    document["files"]["/proc/self/mountinfo"] = mountinfo.replace(root, layers)


def below_bridges(document: Document) -> None:
    """GPU and disk each behind a root port of their own, as on most servers."""
    for address, port in ((GPU, "0000:00:01.1"), (NVME, "0000:00:01.2")):
        path = f"../../../devices/pci0000:00/{port}/{address}"
        document["links"][f"/sys/bus/pci/devices/{address}"] = path
    in_folder(f"pci0000:00/0000:00:01.2/{NVME}/nvme/nvme0/nvme0n1")(document)


@dataclass(frozen=True)
class Fault:
    """``id``: of the first cause, suspect or note that the change makes; ``path``: what the mount then takes."""

    id: str
    path: str
    change: Change
    words: str = ""
    base: Callable[[], Document] = capable
    #: what the evidence of the cause has to name
    evidence: str = ""
    also: tuple[str, ...] = field(default=())


def gpu() -> Document:
    return with_gpu(capable())


ROW, FULL = hosts.row, "RMForceStaticBar1=1;RmForceDisableIomapWC=1;"
#: More of P2PDMA: kernel, driver, keys, storage other than a local disk, Grace.
P2PDMA_FAULTS = {
    "kernel before 6.2": Fault(
        "kernel.old-p2pdma", COMPAT, hosts.kernel("5.15.0-91-generic"), "5.15.0", p2p, "uname -r: 5.15"
    ),
    "kernel that NVIDIA excludes": Fault(
        "kernel.old-p2pdma",
        COMPAT,
        both(hosts.kernel("5.14.0-503.11.1.el9_5.x86_64"), hosts.symbol("p2pdma_pgmap_ops")),
        "RHEL 9.5",
        p2p,
    ),
    "kernel with a backport": Fault(
        "", "p2pdma", both(hosts.kernel("5.14.0-427.13.1.el9_4.x86_64"), hosts.symbol("p2pdma_pgmap_ops")), base=p2p
    ),
    "kernel without ZONE_DEVICE": Fault(
        "kernel.no-zone-device",
        COMPAT,
        lambda document: document["excerpts"][f"/boot/config-{RELEASE}"]["lines"].remove("CONFIG_ZONE_DEVICE=y"),
        base=p2p,
    ),
    "another value of static BAR1": Fault(
        "driver.no-static-bar1",
        COMPAT,
        hosts.registry("RMForceStaticBar1=10;RmForceDisableIomapWC=1"),
        base=p2p,
        evidence="RMForceStaticBar1=10",
    ),
    "static BAR1 by the driver's choice": Fault(
        "driver.no-static-bar1", NOT_PROVEN, hosts.registry("RMForceStaticBar1=2;RmForceDisableIomapWC=1;"), base=p2p
    ),
    "write-combined BAR1": Fault(
        "driver.iomap-wc", COMPAT, hosts.registry("RMForceStaticBar1=1;"), base=p2p, evidence="RMForceStaticBar1=1;"
    ),
    "registry as the driver reads it": Fault(
        "", "p2pdma", hosts.registry("rmforcestaticbar1 = 0x1; X=1=2;RMFORCEDISABLEIOMAPWC=01"), base=p2p
    ),
    "GPU before Hopper": Fault(
        "driver.force-p2p", COMPAT, hosts.model("NVIDIA A100-SXM4-80GB"), "ForceP2P isn't 0", p2p, "RegistryDwords"
    ),
    "GPU before Hopper with ForceP2P": Fault(
        "", "p2pdma", both(hosts.model("NVIDIA L40S"), hosts.registry(FULL + "ForceP2P=0;")), base=p2p
    ),
    "driver that leaks with static BAR1": Fault(
        "driver.static-bar1-leak",
        "p2pdma",
        driver("Open Kernel Module for x86_64  580.159.04  Release Build"),
        "580.159.04",
        p2p,
        "580.159.04",
    ),
    "driver 590 on a newer kernel": Fault(
        "driver.p2pdma-refcount",
        NOT_PROVEN,
        both(hosts.kernel("6.18.0"), driver("Open Kernel Module for x86_64  590.48.01  Release Build")),
        "CUDA answers 801",
        p2p,
        "uname -r: 6.18",
    ),
    "driver 590 on an older kernel": Fault(
        "driver.static-bar1-leak",
        "p2pdma",
        driver("Open Kernel Module for x86_64  590.48.01  Release Build"),
        base=p2p,
    ),
    "multipath that no disk uses": Fault(
        "nvme.multipath", NOT_PROVEN, file(hosts.MULTIPATH, "Y\n"), base=p2p, evidence="multipath: Y"
    ),
    "the key of the mode alone": Fault(
        "cufile.p2pdma-half-set",
        COMPAT,
        config(properties={"use_pci_p2pdma": True}),
        "block.nvme.use_pci_p2pdma isn't true",
        p2p,
        "block.nvme.use_pci_p2pdma is not true",
    ),
    "the key of the disk alone": Fault(
        "cufile.p2pdma-half-set",
        COMPAT,
        config(block={"nvme": {"use_pci_p2pdma": True}}),
        "properties.use_pci_p2pdma isn't true",
        p2p,
    ),
    "the key of a disk for RAID": Fault(
        "cufile.p2pdma-half-set",
        COMPAT,
        both(hosts.kernel("7.1.0"), hosts.md("raid0", nvme=True)),
        "block.raid.use_pci_p2pdma isn't true",
        p2p,
    ),
    "RAID 0": Fault("storage.raid-kernel", COMPAT, hosts.md("raid0"), "from kernel 7.1 on", p2p, "md/level: raid0"),
    "RAID 0 on a new kernel": Fault("", "p2pdma", both(hosts.kernel("7.1.0"), hosts.md("raid0")), base=p2p),
    "RAID 1": Fault(
        "storage.raid-kernel",
        COMPAT,
        both(hosts.kernel("7.1.0"), hosts.md("raid1", raid1=True)),
        "from kernel 7.2 on",
        p2p,
    ),
    "virtiofs without its row": Fault("cufile.unconfirmed", COMPAT, hosts.asking_virtiofs, base=p2p),
    "virtiofs by nvidia-fs": Fault("filesystem.p2pdma-only", COMPAT, both(hosts.virtiofs, config()), base=p2p),
    "virtiofs and an old libcufile": Fault("filesystem.newer-library", COMPAT, both(hosts.virtiofs, config())),
    # --- Grace, and other machines that are not x86
    "Grace": Fault("", "p2pdma", lambda document: None, base=hosts.grace),
    "Grace by its core": Fault("", "p2pdma", hosts.model("NVIDIA H100"), base=hosts.grace),
    "Grace with RAID 0": Fault("", "p2pdma", hosts.md("raid0"), base=hosts.grace),
    "Grace without the link": Fault("cufile.unconfirmed", COMPAT, ROW("NVMe", "compat"), base=hosts.grace),
    "Grace without rows": Fault("cufile.unconfirmed", NOT_PROVEN, hosts.no_rows, base=hosts.grace),
    "Grace with addresses passed through": Fault(
        "platform.iommu", NOT_PROVEN, lambda document: hosts.translated(document, "identity"), base=hosts.grace
    ),
    "Grace with another memory mode": Fault(
        "gpu.memory-mode",
        NOT_PROVEN,
        lambda document: document["files"].update(
            {hosts.PARAMS: document["files"][hosts.PARAMS].replace('Mode: ""', 'Mode: "odd"', 1)}
        ),
        base=hosts.grace,
        evidence="odd",
    ),
    "Arm that isn't Grace": Fault(
        "platform.not-grace", NOT_PROVEN, lambda document: hosts.arm(document, "0x41", "0xd0c"), base=p2p
    ),
}

#: What a fault's mount is broken by when compat mode is not allowed, or refused for other reasons.
FAULTS = {
    "stock nvme": Fault("nvme.no-hooks", COMPAT, hooks_gone, "the loaded nvme has no hooks", evidence="kallsyms"),
    "hooks of version 2 only": Fault(
        "nvme.other-hooks",
        COMPAT,
        both(hooks_gone, symbol("nvme_v2_register_nvfs_dma_ops")),
        "another version than 1",
        evidence="nvme_v2_register",
    ),
    "hooks that were not taken": Fault(
        "nvme.not-registered", COMPAT, file("/proc/driver/nvidia-fs/modules", "wekafsio: 1\n"), evidence="wekafsio: 1"
    ),
    # --- why nvidia-fs is not loaded
    "not installed": Fault("nvidia-fs.not-installed", COMPAT, UNLOADED, "it is not installed", evidence="modprobe"),
    "no modules for this kernel": Fault(
        "nvidia-fs.not-installed",
        COMPAT,
        both(UNLOADED, lambda document: document["listings"].__setitem__("/lib/modules", ["6.1.0-50-amd64"])),
        f"there are no module files for the running kernel {RELEASE}",
        evidence="/lib/modules: 6.1.0-50-amd64",
    ),
    "built for another kernel by DKMS": Fault(
        "nvidia-fs.not-built",
        COMPAT,
        both(UNLOADED, dkms("nvidia-fs/2.19.7, 6.1.0-50-amd64, x86_64: installed\n")),
        f"DKMS built it for other kernels, not for {RELEASE}",
        evidence="6.1.0-50-amd64",
    ),
    "known to DKMS, not built": Fault(
        "nvidia-fs.not-built",
        COMPAT,
        both(UNLOADED, dkms(f"nvidia/580.95.05, {RELEASE}, x86_64: installed\nnvidia-fs/2.19.7: added\n")),
        "hasn't built it for",
        evidence="added",
    ),
    "a driver with another name in DKMS": Fault(
        "nvidia-fs.no-dkms-driver",
        COMPAT,
        both(UNLOADED, dkms(f"nvidia-srv/580.178.04, {RELEASE}, x86_64: installed\nnvidia-fs/2.28.4: added\n")),
        "it knows no such driver",
        evidence="nvidia-srv/580.178.04",
    ),
    "package without module": Fault(
        "nvidia-fs.not-built", COMPAT, both(UNLOADED, package("nvidia-fs-dkms")), "nvidia-fs-dkms is installed"
    ),
    "file of another kernel": Fault(
        "nvidia-fs.other-kernel",
        COMPAT,
        both(UNLOADED, module_file("nvidia-fs", vermagic="6.1.0-50-amd64 SMP ")),
        "its file was built for 6.1.0-50-amd64",
        evidence="vermagic 6.1.0-50-amd64",
    ),
    # The lines are those of real kernels (see tests/evidence/kmod and the driver's issue tracker).
    "refused for its symbols": Fault(
        "nvidia-fs.symbol-mismatch",
        COMPAT,
        both(
            UNLOADED,
            module_file("nvidia-fs"),
            dmesg("nvidia_fs: disagrees about version of symbol nvidia_p2p_get_pages"),
        ),
        evidence="dmesg: [   99.000000] nvidia_fs: disagrees",
    ),
    "no symbol versions": Fault(
        "nvidia-fs.symbol-mismatch",
        COMPAT,
        both(
            UNLOADED,
            module_file("nvidia-fs"),
            dmesg("nvidia_fs: no symbol version for nvidia_p2p_free_page_table"),
        ),
    ),
    "would be refused for its symbols": Fault(
        "nvidia-fs.symbol-mismatch",
        COMPAT,
        both(UNLOADED, module_file("nvidia", exports={}), module_file("nvidia-fs")),
        evidence="does not export",
    ),
    "proprietary driver, in the log": Fault(
        "nvidia-fs.proprietary-driver",
        COMPAT,
        both(
            UNLOADED,
            module_file("nvidia-fs"),
            dmesg("nvidia_fs: module using GPL-only symbols uses symbols nvidia_p2p_x from proprietary module nvidia."),
        ),
        evidence="GPL-only",
    ),
    "proprietary driver, before it is tried": Fault(
        "nvidia-fs.proprietary-driver",
        COMPAT,
        both(UNLOADED, module_file("nvidia-fs"), driver("x86_64 Kernel Module  580.159.04  Release Build")),
        evidence="x86_64 Kernel Module",
    ),
    "unsigned under Secure Boot": Fault(
        "nvidia-fs.refused-signature",
        COMPAT,
        both(
            UNLOADED,
            module_file("nvidia", imports={}),
            module_file("nvidia-fs", signature=None),
            file("/sys/kernel/security/lockdown", "none [integrity] confidentiality\n"),
        ),
        evidence="no signature",
    ),
    "refused for its signature": Fault(
        "nvidia-fs.refused-signature",
        COMPAT,
        both(
            UNLOADED,
            module_file("nvidia-fs"),
            file("/sys/module/module/parameters/sig_enforce", "Y\n"),
            dmesg("Loading of module with unavailable key is rejected"),
        ),
        evidence="unavailable key",
    ),
    "forbidden": Fault(
        "nvidia-fs.forbidden",
        COMPAT,
        both(UNLOADED, appended("/etc/modprobe.d/gdsdeploy.conf", "install nvidia-fs /bin/false\n")),
        "/etc/modprobe.d/gdsdeploy.conf:",
        evidence="install nvidia-fs /bin/false",
    ),
    "no driver for it": Fault(
        "nvidia.not-installed",
        COMPAT,
        both(UNLOADED, NO_DRIVER, module_file("nvidia-fs")),
        also=("nvidia-fs.driver-missing",),
    ),
    "loaded by nothing": Fault(
        "nvidia-fs.not-autoloaded",
        COMPAT,
        both(UNLOADED, module_file("nvidia-fs"), file("/etc/modules-load.d/gdsdeploy.conf", "nvidia\n")),
        evidence="modules-load.d",
    ),
    "not loaded for no known reason": Fault(
        "nvidia-fs.not-loaded",
        COMPAT,
        both(UNLOADED, module_file("nvidia-fs")),
    ),
    "in a container": Fault(
        "nvidia-fs.not-on-container-host", COMPAT, both(UNLOADED, container), "this is podman", evidence="/proc/modules"
    ),
    # --- the driver
    "no driver": Fault("nvidia.not-installed", COMPAT, NO_DRIVER),
    "Ubuntu's data-centre driver, not built": Fault(
        "nvidia.not-built",
        COMPAT,
        both(NO_DRIVER, dkms("nvidia-fs/2.19.7: added\nnvidia-srv/580.159.03: added\n")),
        "hasn't built it for",
        evidence="nvidia-srv/580.159.03: added",
    ),
    "no GPU in the machine": Fault(
        "nvidia.no-gpu", COMPAT, both(NO_DRIVER, module_file("nvidia"), dmesg("NVRM: No NVIDIA GPU found."))
    ),
    "nouveau": Fault(
        "nvidia.nouveau",
        COMPAT,
        both(NO_DRIVER, module_file("nvidia"), appended("/proc/modules", "nouveau 1 0 - Live 0x0\n")),
        evidence="nouveau 1 0",
    ),
    # --- nvidia-fs that is loaded
    "no devices": Fault(
        "nvidia-fs.no-devices", COMPAT, lambda document: document["listings"].__setitem__("/dev/nvidia*", [])
    ),
    "no devices in a container": Fault(
        "nvidia-fs.no-devices",
        COMPAT,
        both(container, lambda document: document["listings"].__setitem__("/dev/nvidia*", [])),
        "(this is podman)",
    ),
    "devices that may not be opened": Fault(
        "nvidia-fs.device-denied",
        COMPAT,
        lambda document: document["opens"].__setitem__("/dev/nvidia-fs0", {"error": "EPERM"}),
        evidence="EPERM",
    ),
    "another page table, in the log": Fault(
        "nvidia-fs.other-page-table",
        COMPAT,
        dmesg("nvidia-fs:nvfs_pin_gpu_pages Incompatible page table version 0x20000"),
    ),
    "nvidia-fs that the kernel stopped": Fault(
        "nvidia-fs.stopped",
        COMPAT,
        dmesg("kernel BUG at /var/lib/dkms/nvidia-fs/2.26.6/build/nvfs-stat.c:407!"),
        "can't be unloaded",
        evidence="dmesg: [   99.000000] kernel BUG",
    ),
    "nvidia-fs whose transfers all fail": Fault(
        "nvidia-fs.access-ok",
        COMPAT,
        dmesg("nvidia-fs:rw_verify_area failed with -14", "nvidia-fs:write IO failed :-14"),
        "2.25.6",
        evidence="rw_verify_area failed with -14",
    ),
    "hooks that the kernel refuses to hand out": Fault(
        "storage.hooks-not-gpl",
        COMPAT,
        both(
            dmesg("failing symbol_get of non-GPLONLY symbol nvme_v1_register_nvfs_dma_ops."),
            file("/proc/driver/nvidia-fs/modules", "wekafsio: 1\n"),
        ),
        "exports its hooks for nvidia-fs without GPL",
        evidence="non-GPLONLY symbol nvme_v1",
        also=("nvme.not-registered",),
    ),
    "OFED whose nvme isn't in use": Fault(
        "nvme.ofed-unused",
        COMPAT,
        both(hooks_gone, loaded("mlx_compat 69632 11 rdma_cm,mlx5_ib,ib_core, Live 0x0000000000000000 (OE)")),
        "nvme is the kernel's own",
        evidence="mlx_compat 69632 11 rdma_cm",
    ),
    "OFED whose nvme is in use and has no hooks": Fault(
        "nvme.no-hooks",
        COMPAT,
        both(hooks_gone, loaded("mlx_compat 69632 11 rdma_cm,nvme_core,nvme,ib_core, Live 0x0000000000000000 (OE)")),
    ),
    "a newer libcufile that registers files all the same": Fault(
        "nvme.no-hooks", COMPAT, hooks_gone, base=gpu, also=("cufile.silent-compat",)
    ),
    "Windows' subsystem for Linux": Fault(
        "platform.wsl",
        COMPAT,
        file("/proc/version", "Linux version 6.6.87.2-microsoft-standard-WSL2 (root@builder)\n"),
        evidence="microsoft-standard-WSL2",
    ),
    "libcufile that aborts": Fault(
        "platform.no-pci-tree",
        BROKEN,
        lambda document: document["commands"]["cufile-open"].update(
            status=-6, stdout="", stderr="Assertion failure, file index :cufio-udev  line :134\n", log=""
        ),
        evidence="libcufile: Assertion failure",
    ),
    "P2PDMA on a disk over fabrics": Fault(
        "cufile.p2pdma-nvmeof",
        NOT_PROVEN,
        both(
            transport("rdma"),
            symbol("nvme_rdma_v1_register_nvfs_dma_ops"),
            file("/proc/driver/nvidia-fs/modules", "nvme_rdma: 1\n"),
            config(properties={"use_pci_p2pdma": True}),
        ),
        "were seen to fail with EIO",
        evidence="use_pci_p2pdma",
    ),
    "a GPU on which nearly all of BAR1 was pinned": Fault(
        "gpu.pinned-budget",
        NVIDIA_FS,
        file(
            "/proc/driver/nvidia-fs/stats",
            f"GPU {GPU}  uuid:4fa4f9ed : Registered_MiB=0 Cache_MiB=0 max_pinned_MiB=131000\n",
        ),
        "up to 131000 MiB",
        gpu,
        "max_pinned_MiB=131000",
    ),
    "a fault of nvidia-fs": Fault(
        "nvidia-fs.reported-fault",
        NVIDIA_FS,
        dmesg("nvidia-fs:nvfs_get_dma:705 Unable to obtain dma_mapping for 0"),
        "could not map GPU memory",
        evidence="Unable to obtain dma_mapping",
    ),
    "an Xid": Fault(
        "driver.reported-fault",
        NVIDIA_FS,
        dmesg("NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=train, GPU has fallen off the bus."),
        "Xid 79 on 0000:3b:00: the GPU has fallen off the bus",
        evidence="dmesg: [   99.000000] NVRM: Xid",
    ),
    "a program's own error": Fault(
        "",
        NVIDIA_FS,
        dmesg("NVRM: Xid (PCI:0000:3b:00): 31, pid=1, name=train, Ch 00000008, MMU Fault"),
    ),
    "a forbidden version": Fault(
        "stack.forbidden",
        NVIDIA_FS,
        file("/sys/module/nvidia_fs/version", "2.25.6\n"),
        "nvidia-fs 2.25.6 has a broken access_ok probe",
        evidence="compatibility rule nvidia-fs-2.25.6",
        also=("stack.warning",),
    ),
    "another page table, by its record": Fault(
        "nvidia-fs.other-page-table", COMPAT, module_file("nvidia-fs"), "against driver 550.163.01, but 580.159.04 runs"
    ),
    "no mapping": Fault(
        "nvidia-fs.no-mapping",
        COMPAT,
        file("/proc/driver/nvidia-fs/stats", "Bar1-map\t\t\t: n=7 ok=0 err=7 free=0 callbacks=0\n"),
        evidence="err=7",
    ),
    "below the minimum": Fault(
        "nvidia-fs.below-minimum", NOT_PROVEN, file("/sys/module/nvidia_fs/version", "2.3.18\n")
    ),
    "another major version": Fault("nvidia-fs.other-major", BROKEN, file("/sys/module/nvidia_fs/version", "3.1.0\n")),
    # --- configuration
    "forced": Fault(
        "cufile.force-compat", COMPAT, config(properties={"force_compat_mode": True}), evidence="/etc/cufile.json:3:"
    ),
    "forced by a variable": Fault(
        "cufile.variable-forces-compat",
        COMPAT,
        lambda document: document["excerpts"]["/etc/environment"]["lines"].append("CUFILE_FORCE_COMPAT_MODE=true"),
        evidence="/etc/environment: CUFILE_FORCE_COMPAT_MODE=true",
    ),
    "another configuration": Fault(
        "cufile.variable-overlays",
        NOT_PROVEN,
        lambda document: document["environment"].__setitem__("CUFILE_ENV_PATH_JSON", "/home/u/cufile.json"),
        evidence="/home/u/cufile.json",
    ),
    "a second configuration that forces compat": Fault(
        "cufile.force-compat",
        COMPAT,
        second({"config": {"properties": {"force_compat_mode": True}}}),
        evidence="/home/u/cufile.json: properties: force_compat_mode: true\n/etc/profile.d/u.sh: export CUFILE_ENV",
    ),
    "a second configuration that denies": Fault(
        "cufile.denied",
        COMPAT,
        both(config(denylist={"drivers": ["nfs"]}), second({"config": {"denylist": {"drivers": ["nvme"]}}})),
        "names nvme",
    ),
    "a second configuration that is broken": Fault(
        "cufile.overlay-refused",
        BROKEN,
        second({"broken": "it isn't JSON: line 3"}),
        "it isn't JSON: line 3",
        evidence="/etc/profile.d/u.sh: export",
    ),
    "a second configuration with a number for a switch": Fault(
        "cufile.overlay-refused", BROKEN, second({"config": {"properties": {"allow_compat_mode": 0}}}), "neither true"
    ),
    "a second configuration that isn't there": Fault(
        "cufile.overlay-missing", "nvidia-fs", second({"error": "ENOENT"}), evidence="/etc/profile.d/u.sh: export"
    ),
    "a second configuration that can't be read": Fault(
        "cufile.variable-overlays", NOT_PROVEN, second({"error": "EACCES"}), evidence="EACCES"
    ),
    "a second configuration of each user": Fault(
        "cufile.variable-overlays",
        NOT_PROVEN,
        second({}, "$HOME/cufile.json"),
        evidence="$HOME/cufile.json, which depends on the program",
    ),
    "plain I/O": Fault("cufile.posix-io", NOT_PROVEN, config(properties={"posix_io_mode": True})),
    "denied driver": Fault("cufile.denied", COMPAT, config(denylist={"drivers": ["nvme"]}), "denylist.drivers"),
    "denied mount": Fault("cufile.denied", COMPAT, config(denylist={"mounts": [MOUNT]}), f"names {MOUNT}"),
    "denied filesystem": Fault("cufile.denied", COMPAT, config(denylist={"filesystems": ["ext4"]}), "names ext4"),
    "denied device": Fault("cufile.denied", COMPAT, config(denylist={"devices": ["/dev/nvme0n1"]}), "/dev/nvme0n1"),
    "no compat allowed": Fault(
        "nvme.no-hooks",
        BROKEN,
        both(hooks_gone, config(properties={"allow_compat_mode": False})),
        also=("cufile.no-compat",),
    ),
    "no compat by a variable": Fault(
        "nvme.no-hooks",
        BROKEN,
        both(
            hooks_gone,
            lambda document: document["environment"].__setitem__("CUFILE_ALLOW_COMPAT_MODE", "false"),
        ),
        also=("cufile.variable-no-compat",),
    ),
    "refused": Fault("cufile.refused", BROKEN, lambda document: document["commands"].update(refusal())),
    "small I/O": Fault(
        "cufile.small-io", "nvidia-fs", config(fs={"ext4": {"posix_gds_min_kb": 64}}), "less than 64 KiB"
    ),
    "no writes over RDMA": Fault(
        "cufile.no-rdma-writes", "nvidia-fs", config(properties={"gds_rdma_write_support": False})
    ),
    # --- filesystems
    "data=journal": Fault("ext4.not-ordered", COMPAT, mountinfo("data=ordered", "data=journal"), "data=journal"),
    "data=writeback by default": Fault(
        "ext4.not-ordered",
        COMPAT,
        both(mountinfo(",data=ordered", ""), file("/proc/fs/ext4/nvme0n1/options", "rw\ndata=writeback\n")),
        "data=writeback",
        evidence="/proc/fs/ext4/nvme0n1/options",
    ),
    "bcachefs": Fault("filesystem.kind", COMPAT, mountinfo(" ext4 ", " bcachefs "), "it writes copy-on-write"),
    "btrfs": Fault("filesystem.not-taken", BROKEN, mountinfo(" ext4 ", " btrfs "), "1.17", also=("filesystem.kind",)),
    "overlay": Fault(
        "filesystem.not-taken", BROKEN, mountinfo(" ext4 ", " overlay "), "1.16", also=("filesystem.kind",)
    ),
    "squashfs": Fault("filesystem.not-taken", BROKEN, mountinfo(" ext4 ", " squashfs "), "takes no files on squashfs"),
    "fuse": Fault("filesystem.kind", COMPAT, mountinfo(" ext4 ", " fuse.sshfs "), "a program provides"),
    "encrypted folder": Fault("filesystem.encrypted", COMPAT, flag(0x800), "is encrypted", evidence="inode flags"),
    "compressed folder": Fault("filesystem.compressed", COMPAT, flag(0x4), "is compressed"),
    "journalled folder": Fault("filesystem.journalled-data", COMPAT, flag(0x4000)),
    "verity": Fault("filesystem.verity", COMPAT, flag(0x100000)),
    "inline data": Fault(
        "filesystem.inline-data",
        "nvidia-fs",
        lambda document: document["features"].__setitem__("nvme0n1", {"incompat": 0x8000, "compat": 0, "ro_compat": 0}),
        evidence="superblock of /dev/nvme0n1",
    ),
    "encryption that some folder may use": Fault(
        "filesystem.encrypted",
        "nvidia-fs",
        lambda document: document["features"].__setitem__("nvme0n1", {"incompat": 0x10000}),
    ),
    "nfs over tcp": Fault("nfs.not-rdma", COMPAT, nfs("proto=tcp"), "proto=tcp"),
    "nfs over rdma without OFED": Fault("rpcrdma.no-hooks", COMPAT, nfs("proto=rdma")),
    # --- block devices
    "dm-crypt": Fault("storage.device-mapper", COMPAT, over("dm-0", dm_uuid="CRYPT-LUKS2-0"), "encrypted by dm-crypt"),
    "lvm": Fault(
        "storage.device-mapper", COMPAT, over("dm-1", dm_uuid="LVM-x"), "dm-1 is a device-mapper device (LVM)"
    ),
    "raid1": Fault("storage.raid-level", COMPAT, over("md0", md_level="raid1"), "md0 is raid1"),
    "virtio": Fault("storage.no-nvme", COMPAT, in_folder(f"pci0000:00/{NVME}/virtio1/block/vdb"), "virtio"),
    "loop": Fault("storage.no-nvme", COMPAT, in_folder("virtual/block/loop3"), "loop3 isn't an NVMe disk (loop)"),
    "protection information": Fault(
        "storage.protection-information",
        COMPAT,
        lambda document: document["files"].__setitem__(
            f"/sys/dev/block/{device(document)}/integrity/device_is_integrity_capable", "1\n"
        ),
    ),
    "large blocks": Fault(
        "storage.block-size",
        NOT_PROVEN,
        lambda document: document["files"].__setitem__(
            f"/sys/dev/block/{device(document)}/queue/logical_block_size", "16384\n"
        ),
    ),
    "nvme over tcp": Fault("nvmeof.not-rdma", COMPAT, transport("tcp"), "NVMe over tcp"),
    "nvme over rdma without OFED": Fault("nvme_rdma.no-hooks", COMPAT, transport("rdma")),
    "no udev database": Fault(
        "udev.no-database",
        BROKEN,
        lambda document: document["files"].__setitem__(f"/run/udev/data/b{device(document)}", {"error": "ENOENT"}),
        "5030",
    ),
    "no udev database in a container": Fault(
        "udev.no-database",
        BROKEN,
        both(
            container,
            lambda document: document["files"].__setitem__(f"/run/udev/data/b{device(document)}", {"error": "ENOENT"}),
        ),
        "this is podman",
    ),
    # --- GPUs and platform
    "consumer GPU": Fault(
        "gpu.class",
        COMPAT,
        file(f"/proc/driver/nvidia/gpus/{GPU}/information", "Model: \t\t NVIDIA GeForce RTX 4090\n"),
        base=gpu,
        evidence="GeForce",
    ),
    "GPU that libcufile refuses": Fault(
        "gpu.class",
        COMPAT,
        log(r"(GPU index 0 .*?) bar:1 .*", r"\1: Model Not Supported"),
        "Model Not Supported",
        base=gpu,
    ),
    "no BAR1": Fault("gpu.no-bar1", COMPAT, bars(bar(1 << 24, 0, 0)), base=gpu),
    "small BAR1": Fault("gpu.small-bar1", NOT_PROVEN, bars(bar(1 << 24, 1 << 26)), "64 MiB", base=gpu),
    "IOMMU that translates": Fault(
        "platform.iommu", NOT_PROVEN, iommu(GPU, "DMA-FQ"), "DMA-FQ", base=gpu, evidence="iommu_group/type: DMA-FQ"
    ),
    "IOMMU that passes through": Fault("platform.iommu", "nvidia-fs", iommu(GPU, "identity"), base=gpu),
    "ACS": Fault(
        "platform.acs",
        "nvidia-fs",
        both(below_bridges, file("/proc/driver/nvidia-fs/bridges", "0000:00:01.1\n")),
        base=gpu,
        evidence="0000:00:01.1",
    ),
    # --- P2PDMA
    "P2PDMA with all of it": Fault("", "p2pdma", lambda document: None, base=p2p),
    "kernel without P2PDMA": Fault(
        "kernel.no-p2pdma",
        COMPAT,
        lambda document: document["excerpts"][f"/boot/config-{RELEASE}"]["lines"].remove("CONFIG_PCI_P2PDMA=y"),
        base=p2p,
    ),
    "kernel without the symbol": Fault("kernel.no-p2pdma-symbol", COMPAT, hooks_gone, base=p2p),
    "old libcufile": Fault(
        "cufile.no-p2pdma",
        COMPAT,
        lambda document: document["commands"].update(capable()["commands"]),
        base=p2p,
    ),
    "proprietary for P2PDMA": Fault(
        "driver.proprietary", COMPAT, driver("x86_64 Kernel Module  580.159.04  Release Build"), base=p2p
    ),
    "old driver": Fault(
        "driver.no-p2pdma", COMPAT, driver("Open Kernel Module for x86_64  550.163.01  x"), "550.163.01", base=p2p
    ),
    "no static BAR1": Fault(
        "driver.no-static-bar1",
        COMPAT,
        file("/proc/driver/nvidia/params", H100["files"]["/proc/driver/nvidia/params"]),
        base=p2p,
        evidence="RegistryDwords",
    ),
    "GPU that the guide does not name": Fault(
        "gpu.no-p2pdma",
        NOT_PROVEN,
        file(f"/proc/driver/nvidia/gpus/{GPU}/information", "Model: \t\t Tesla T4\n"),
        base=p2p,
    ),
    "BAR1 too small for static BAR1": Fault("gpu.small-bar1", COMPAT, bars(bar(1 << 24, 1 << 28)), "256 MiB", base=p2p),
    "IOMMU with P2PDMA": Fault("platform.iommu", COMPAT, iommu(NVME, "DMA"), base=p2p),
    "IOMMU of the GPU with P2PDMA": Fault("platform.iommu", COMPAT, iommu(GPU, "DMA"), base=p2p),
    "multipath": Fault(
        "nvme.multipath",
        COMPAT,
        in_folder("virtual/nvme-subsystem/nvme-subsys0/nvme0n1"),
        "NVMe multipath device",
        base=p2p,
        evidence="nvme_core/parameters/multipath",
    ),
    "host bridge that is not in the list": Fault(
        "platform.host-bridge",
        COMPAT,
        lambda document: document["excerpts"]["/proc/cpuinfo"].update(
            lines=["vendor_id\t: GenuineIntel", "cpu family\t: 6"]
        ),
        base=p2p,
        evidence="8086",
    ),
    **P2PDMA_FAULTS,
}


def refusal() -> Document:
    from tests.unit.host.explain.capable_host import EVIDENCE, json

    answer: Document = json.loads((EVIDENCE / "cufile-open" / "libcuda-550-no-gpu.json").read_text())[
        "1.9.1 wrong-type"
    ]
    return answer


def explained(document: Document) -> Taken:
    mounts = explain(facts_from(document), (), MOUNT).mounts
    assert [mount.mount.mount_point for mount in mounts] == [MOUNT]
    return mounts[0].path


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_has_its_cause_first(name: str) -> None:
    fault = FAULTS[name]
    document = fault.base()
    before = explained(document)
    assert before.path in DIRECT, before
    assert (*before.causes, *before.suspects, *before.notes) == ()
    fault.change(document)
    result = explained(document)
    assert (NOT_PROVEN if isinstance(result.path, Unknown) else result.path) == fault.path, result
    causes = (result.suspects, result.causes) if isinstance(result.path, Unknown) else (result.causes, result.suspects)
    every = (*causes[0], *causes[1], *result.notes)
    if not fault.id:
        assert every == ()
        return
    assert every[0].id == fault.id, every
    assert fault.words in every[0].what
    assert fault.evidence in "\n".join(every[0].evidence)
    assert set(fault.also) <= {cause.id for cause in every}
    for cause in every:
        worded(cause)


def worded(cause: Cause) -> None:
    assert cause.what
    assert cause.fix
    assert cause.evidence, cause
    assert "{" not in cause.what + cause.fix, cause
    assert not re.search(r"https?:|www\.", cause.reference), "documents are named, not linked"


#: Ids that begin with the name of a module or of a storage stack are documented once for all of them.
OF_MODULES = (
    "forbidden|not-on-container-host|not-installed|not-built|other-kernel|proprietary-driver|symbol-mismatch"
    "|refused-signature|stub|no-gpu|nouveau|driver-missing|not-autoloaded|not-loaded"
)
GENERAL = (
    (re.compile(rf"^(nvidia-fs|nvidia-peermem|nvidia)\.(?=({OF_MODULES})$)"), "MODULE."),
    (
        re.compile(
            r"^(nvme|nvme_rdma|rpcrdma|lnet|beegfs|mmfslinux|scatefs|nvmeib_common|sfxvdriver|scsi_mod)\.(?=no-hooks|not-registered)"
        ),
        "STACK.",
    ),
)


def general(ident: str) -> str:
    for pattern, name in GENERAL:
        ident = pattern.sub(name, ident)
    return ident


#: See test_explain_rdma.py.
RDMA_FAULTS = {
    *(f"rdma.{name}" for name in ("no-adapter", "no-addresses", "foreign-addresses", "no-link", "other-peer-type")),
    *("rdma.no-peer-memory", "rdma.no-dmabuf", "rdma.adapter-no-dmabuf", "kernel.no-dmabuf", "peermem.not-registered"),
}
#: Of RDMA adapters: see test_explain_advice.py.
ADVICE = ("link-down", "policy", "no-routing")


def test_every_documented_cause_is_seen_and_every_seen_one_is_documented() -> None:
    documented = set(re.findall(r"^\| `(\w[\w-]*\.[\w-]+)` \|", DOCS.read_text(), re.MULTILINE))
    ids = {general(ident) for fault in FAULTS.values() for ident in (fault.id, *fault.also) if ident}
    elsewhere = {"MODULE.stub"}  # of the kinds of storage: see test_explain_document.py
    elsewhere |= {"nvidia-peermem.other-rdma-core"}  # see below
    elsewhere |= {"filesystem.newer-library", "filesystem.p2pdma-only", "cufile.other-row"}
    elsewhere |= {"cufile.no-rdma-library"} | RDMA_FAULTS
    elsewhere |= {f"process.{name}" for name in OF_PROCESSES}  # see test_explain_process.py
    advice = {"platform.far-gpu", "storage.queue-depth", "storage.spread"} | {f"rdma.{name}" for name in ADVICE}
    assert documented == ids | elsewhere | advice


@pytest.mark.parametrize("module", ["nvidia_peermem", "nv_peer_mem"])
def test_peer_memory_of_another_rdma_core_is_told_from_that_of_another_driver(module: str) -> None:
    document = copy.deepcopy(PROVISIONED)
    dmesg(f"{module}: disagrees about version of symbol nvidia_p2p_get_pages")(document)
    facts = facts_from(document)
    by_driver = modules.not_loaded(facts, modules.peermem(facts))
    dmesg(f"{module}: disagrees about version of symbol ib_register_peer_memory_client")(document)
    facts = facts_from(document)
    by_core = modules.not_loaded(facts, modules.peermem(facts))
    assert by_driver.id != by_core.id == "nvidia-peermem.other-rdma-core"
    assert "ib_register_peer_memory_client" in by_core.evidence[0]
    assert "OFED" in by_core.what
    assert "against the OFED or DOCA that is installed" in by_core.fix
