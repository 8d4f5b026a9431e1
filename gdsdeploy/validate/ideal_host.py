"""A made-up host that has everything a path needs, and the parts of it that can be taken away one by one.

The support matrix (``support.py``) runs explain's rules on it.  It is facts, and no evidence of any host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

from gdsdeploy.host.explain.cause import COMPAT, DMABUF, NVIDIA_FS, P2PDMA, PEERMEM
from gdsdeploy.host.explain.nvidia_fs import HOOKS
from gdsdeploy.host.explain.userspace_rdma import CLIENTS
from gdsdeploy.host.facts import HostFacts, facts_from, require
from gdsdeploy.host.facts.cufile import ACCEPTED
from gdsdeploy.host.facts.gpu import OPEN, PROPRIETARY
from gdsdeploy.host.facts.modules import ModuleFacts
from gdsdeploy.host.facts.network import Address, RdmaInterface
from gdsdeploy.host.facts.pci import DISPLAY, NETWORK, NVIDIA_VENDOR, NVME, Function
from gdsdeploy.host.facts.storage import MD, Device, Mount, StorageFacts
from gdsdeploy.host.facts.storage import NVME as LOCAL
from gdsdeploy.host.facts.storage import NVMEOF as FABRIC
from gdsdeploy.host.gdscheck import Gpu, Report, Row
from gdsdeploy.host.paths import NVIDIA

#: Class of GPUs → the model that stands for it.
GPUS = {
    "geforce": "NVIDIA GeForce RTX 4090",
    "volta": "Tesla V100-SXM2-32GB",
    "turing": "Tesla T4",
    "ampere": "NVIDIA A100-SXM4-80GB",
    "ada": "NVIDIA L40S",
    "hopper": "NVIDIA H100 80GB HBM3",
    "grace-hopper": "NVIDIA GH200 480GB",
    "blackwell": "NVIDIA B200",
}
#: The class whose processor is NVIDIA's own, and its machine.
GRACE, GRACE_MACHINE = "grace-hopper", "aarch64"
Part = Callable[[HostFacts], HostFacts]
MOUNT = "/mnt/data"
ADDRESS = "192.0.2.1"
_BRIDGES = ("0000:00:01.0", "0000:01:00.0")
_GPU, _DISK, _NIC = "0000:03:00.0", "0000:04:00.0", "0000:05:00.0"
_PORTS = {_GPU: "0000:02:01.0", _DISK: "0000:02:02.0", _NIC: "0000:02:03.0"}
_REGISTRY = "RMForceStaticBar1=1;ForceP2P=0;RmForceDisableIomapWC=1;"
#: Devices below XFS, by the names that a query may use for them.
DEVICES = {"nvmeof": FABRIC, "raid0": MD}
#: Storage in whose section of cufile.json P2PDMA has a key.
_BLOCKS, _VIRTUAL = ("nvme", "nvmeof", "raid"), "virtiofs"


@dataclass(frozen=True)
class Query:
    """``filesystem`` as in /proc/mounts, or a name of DEVICES; ``gpu`` a name of GPUS."""

    filesystem: str
    mode: str
    libcufile: str
    kernel: str
    gpu: str


def ideal(query: Query) -> HostFacts:
    """Every part that the path of ``query.mode`` may need, but no other mechanism that could take its place."""
    base, grace = _base(_REGISTRY), query.gpu == GRACE
    mount, uses_nvidia_fs = _mount(query.filesystem), query.mode == NVIDIA_FS
    model = GPUS[query.gpu]
    return replace(
        base,
        os=replace(base.os, machine=GRACE_MACHINE if grace else "x86_64"),
        kernel=replace(
            base.kernel,
            release=query.kernel,
            config={"PCI_P2PDMA": "y", "ZONE_DEVICE": "y"},
            modules=frozenset(),
            symbols={name: "" for hooks in HOOKS.values() for name in hooks} | {"pci_p2pdma_add_resource": ""},
            messages=(),
        ),
        driver=replace(
            base.driver,
            version="595.71.05",
            flavour=OPEN,
            module=_module("nvidia", loaded=True),
            gpus=(_GPU,),
            models={_GPU: model},
        ),
        nvidia_fs=replace(
            base.nvidia_fs,
            module=_module("nvidia_fs", loaded=uses_nvidia_fs, version="2.30.1" if uses_nvidia_fs else ""),
            devices=(0,),
            opens="ok",
            registered=tuple(HOOKS),
            mapped=(1, 0),
            bridges=(),
        ),
        peermem=replace(
            base.peermem, module=_module("nvidia_peermem", loaded=True), stub=False, rdma_devices=("mlx5_0",)
        ),
        p2p=replace(
            base.p2p,
            clients=("nv_mem",) if query.mode == PEERMEM else (),
            legacy_loaded=False,
            peer_memory="ib_uverbs",
            rdma_dmabuf="ib_uverbs" if query.mode == DMABUF else None,
            adapters_dmabuf=("mlx5_ib",),
        ),
        cufile=replace(base.cufile, config=_config(query.mode), acceptance=ACCEPTED, library=query.libcufile),
        gdscheck=replace(base.gdscheck, logged=_report(query, model)),
        storage=StorageFacts({MOUNT: mount}, {"nvme0": "rdma" if query.filesystem == "nvmeof" else "pcie"}),
        pci=replace(
            base.pci,
            functions=(
                _function(_GPU, DISPLAY << 16, grace),
                _function(_DISK, NVME, grace),
                replace(_function(_NIC, NETWORK << 16, grace), names=("mlx5_0",)),
            ),
            gpus=(_function(_GPU, DISPLAY << 16, grace),),
            acs=dict.fromkeys((*_BRIDGES, *_PORTS.values()), 0),
            cpu=None if grace else ("AuthenticAMD", 0x19),
        ),
        environment=replace(base.environment, container=None, variables={}, complete=True),
        network=replace(base.network, rdma=(RdmaInterface("mlx5_0", "ens1", True, _NIC, (Address(ADDRESS, 24),)),)),
    )


@lru_cache(maxsize=2)
def _base(registry: str) -> HostFacts:
    """What only files show: the driver's registry, and that NVMe multipath is off."""
    params = f'RegistryDwords: "{registry}"\n'
    return facts_from({"files": {NVIDIA + "/params": params, "/sys/module/nvme_core/parameters/multipath": "N\n"}})


def _module(name: str, *, loaded: bool, version: str = "") -> ModuleFacts:
    return ModuleFacts(name, loaded, version, "", "", None)


def _function(address: str, kind: int, grace: bool) -> Function:
    port = _PORTS[address]
    vendor = NVIDIA_VENDOR if address == _GPU else 0x144D
    function = Function(
        address, vendor, 0x2330, kind, "", 0, grace, {0: 1 << 24, 1: 1 << 37, 3: 1 << 25}, (*_BRIDGES, port)
    )
    # Grace needs an IOMMU that translates.
    return replace(function, iommu_domain="DMA" if grace else None)


def _mount(name: str) -> Mount:
    filesystem = "xfs" if name in DEVICES else name
    options = {"ext4": ("data=ordered",), "nfs": ("proto=rdma",), "nfs4": ("proto=rdma",)}.get(filesystem, ())
    has_disk = filesystem in ("ext4", "xfs")
    device = _device(DEVICES.get(name, LOCAL)) if has_disk else None
    return Mount(MOUNT, "source", filesystem, options, device, () if has_disk else None, f"{MOUNT} {filesystem}")


def _device(kind: str) -> Device:
    fabric = kind == FABRIC
    disk = Device(
        name="nvme0n1",
        number="259:0",
        kind=FABRIC if fabric else LOCAL,
        transport="rdma" if fabric else "pcie",
        pci_address="" if fabric else _DISK,
        dm_uuid="",
        dm_targets=(),
        md_level="",
        integrity=False,
        udev_usage="filesystem",
        block_size=512,
        ext4_options=("data=ordered",),
        ext4_features=(),
        requests=1024,
        read_ahead=128,
    )
    if kind != MD:
        return disk
    return replace(
        disk, name="md0", number="9:0", kind=MD, transport="", pci_address="", md_level="raid0", below=(disk,)
    )


def _config(mode: str) -> Mapping[str, Any]:
    properties: dict[str, Any] = {"rdma_dev_addr_list": [ADDRESS], "allow_compat_mode": True}
    properties["rdma_peer_type"] = "dmabuf" if mode == DMABUF else "nvidia_peermem"
    # nvidia-fs and RDMA have no key: libcufile uses them where it can.
    properties["use_pci_p2pdma"] = mode == P2PDMA
    properties["force_compat_mode"] = mode == COMPAT
    own = {"use_pci_p2pdma": mode == P2PDMA}
    fs: dict[str, Any] = {client.section: {client.write_key: True} for client in CLIENTS.values()}
    return {"properties": properties, "block": dict.fromkeys(_BLOCKS, own), "fs": {**fs, _VIRTUAL: own}}


def _report(query: Query, model: str) -> Report:
    """The rows of libcufile about the GPU and, in mode p2pdma, about storage, which it alone can confirm there.

    In other modes the rules have to decide without such a row.
    """
    way = "c2c" if query.gpu == GRACE else "p2pdma"
    row = Row(f"{way}, compat", True, (way, "compat"))
    rows = dict.fromkeys(("NVMe", "NVMeOF", "VIRTIOFS"), row) if query.mode == P2PDMA else {}
    gpus = (Gpu(0, model, gds=True, bar_mib=1 << 17),)
    return Report(query.libcufile, "", "", {}, rows, {}, {}, gpus, {}, (), (), True, 0, "direct")


def mount_of(facts: HostFacts) -> Mount:
    """The one mount of the host."""
    return require(facts.storage.mounts)[MOUNT]


def _without(section: str, **fields: object) -> Part:
    def take_away(facts: HostFacts) -> HostFacts:
        return replace(facts, **{section: replace(getattr(facts, section), **fields)})

    return take_away


def _no_address(facts: HostFacts) -> HostFacts:
    config = dict(facts.cufile.config) if isinstance(facts.cufile.config, Mapping) else {}
    properties = {key: value for key, value in config["properties"].items() if key != "rdma_dev_addr_list"}
    return replace(facts, cufile=replace(facts.cufile, config={**config, "properties": properties}))


def _other_mount(option: str, filesystems: tuple[str, ...]) -> Part:
    """Another option of the mount, for these filesystems."""

    def take_away(facts: HostFacts) -> HostFacts:
        mount = mount_of(facts)
        if mount.filesystem in filesystems:
            mount = replace(mount, options=(option,))
        return replace(facts, storage=replace(facts.storage, mounts={MOUNT: mount}))

    return take_away


def _no_udev(facts: HostFacts) -> HostFacts:
    mount = mount_of(facts)
    if isinstance(mount.device, Device):
        mount = replace(mount, device=replace(mount.device, udev_usage=None))
    return replace(facts, storage=replace(facts.storage, mounts={MOUNT: mount}))


def _other_iommu(facts: HostFacts) -> HostFacts:
    """One that translates addresses; on Grace one that doesn't."""
    grace = facts.os.machine == GRACE_MACHINE
    gpus, functions = (
        tuple(replace(function, iommu=True, iommu_domain="identity" if grace else "DMA") for function in row)
        for row in (require(facts.pci.gpus), require(facts.pci.functions))
    )
    return replace(facts, pci=replace(facts.pci, gpus=gpus, functions=functions))


def _no_registry(facts: HostFacts) -> HostFacts:
    full, empty = _base(_REGISTRY).driver, _base("").driver
    names = (field.name for field in fields(empty))
    changes = {name: getattr(empty, name) for name in names if getattr(empty, name) != getattr(full, name)}
    return replace(facts, driver=replace(facts.driver, **changes))


_NO_LINK = (RdmaInterface("mlx5_0", "ens1", False, _NIC, (Address(ADDRESS, 24),)),)
#: Name of a part → how to take it away, or to replace it by one that won't do.
PARTS: Mapping[str, Part] = {
    "nvidia-fs": _without("nvidia_fs", module=_module("nvidia_fs", loaded=False)),
    "hooks in the storage driver": _without("kernel", symbols={"pci_p2pdma_add_resource": ""}),
    "open kernel modules": _without("driver", flavour=PROPRIETARY),
    "CONFIG_PCI_P2PDMA": _without("kernel", config={"PCI_P2PDMA": "n", "ZONE_DEVICE": "y"}),
    "registry keys": _no_registry,
    "IOMMU off or passing through": _other_iommu,
    "RDMA adapter": _without("peermem", rdma_devices=()),
    "its address in cufile.json": _no_address,
    "active link": _without("network", rdma=_NO_LINK),
    "PeerDirect (OFED)": _without("p2p", peer_memory=None),
    "nvidia-peermem": _without("p2p", clients=()),
    "DMA-BUF in the RDMA core": _without("p2p", rdma_dmabuf=None),
    "DMA-BUF in the adapter's driver": _without("p2p", adapters_dmabuf=()),
    "data=ordered": _other_mount("data=journal", ("ext4",)),
    "proto=rdma": _other_mount("proto=tcp", ("nfs", "nfs4")),
    "udev's record of the disk": _no_udev,
}
MODES = (NVIDIA_FS, P2PDMA, PEERMEM, DMABUF, COMPAT)
