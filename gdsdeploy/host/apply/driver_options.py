"""Module options, what stays out of the kernel, and what is loaded at boot; with the initramfs that carries them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List

from . import initramfs
from .files import File
from .host import ManagedHost
from .initramfs import CarriedFiles
from .model import Change, Rdma

MODPROBE = initramfs.CARRIED[0]
MODULES_LOAD = "/etc/modules-load.d/gdsdeploy.conf"
_NVME = "options nvme_core multipath=N"


@dataclass(frozen=True)
class Desired:
    """What the driver's module is loaded with, and what is loaded at boot."""

    #: Release of the locked kernel, as ``uname -r`` prints it.  Its initramfs carries the options.
    kernel_release: str
    #: Parameters of the driver's kernel module.
    options: Dict[str, str] = field(default_factory=dict)
    #: Name of the driver's module whose parameters these are, as its file is called on this system.
    option_module: str = "nvidia"
    #: Modules to load at boot, in this order.  nvidia-peermem isn't among them: a unit loads it.
    modules: List[str] = field(default_factory=list)
    #: How adapters reach GPU memory.
    rdma: Rdma = "none"
    #: Whether NVMe has no multipath, as mode ``p2pdma`` needs it on x86.
    p2pdma: bool = False


class DriverOptions(CarriedFiles[Desired]):
    """``modprobe.d`` and ``modules-load.d``."""

    name = "driver_options"
    desired_type = Desired
    removal_rank = 90
    reverts = (MODPROBE, MODULES_LOAD)
    carried = MODPROBE

    def desired_files(self, desired: Desired) -> List[File]:
        return [File.of(MODPROBE, modprobe_conf(desired)), File.of(MODULES_LOAD, modules_load_conf(desired))]

    def revert(self, host: ManagedHost) -> List[Change]:
        """The files; the initramfs has NVMe's option from one of them."""
        return initramfs.revert(host, self.reverts, carried=_NVME in host.text(MODPROBE))


def modprobe_conf(desired: Desired) -> str:
    """The text of ``/etc/modprobe.d/gdsdeploy.conf``."""
    lines = [
        "# Rendered by gdsdeploy; changes here are overwritten.",
        '# nouveau would take the GPU before nvidia can; "blacklist" alone does not stop a load by name.',
        "blacklist nouveau",
        "install nouveau /bin/false",
    ]
    lines += [f"options {desired.option_module} {name}={value}" for name, value in sorted(desired.options.items())]
    if desired.p2pdma:
        lines += ["# P2PDMA doesn't pass NVMe multipath.", _NVME]
    if "nvidia-fs" in desired.modules:
        lines.append("softdep nvidia-fs pre: nvidia")
    if desired.rdma != "none":
        lines += [
            "# What nvidia-peermem has replaced: both register the same client, so it would keep the other out.",
            "blacklist nv_peer_mem",
            "install nv_peer_mem /bin/false",
        ]
    if desired.rdma == "peermem":
        lines += [
            "# The RDMA core comes first; gds-peermem.service loads it.",
            "softdep nvidia-peermem pre: nvidia ib_core ib_uverbs",
        ]
        if desired.option_module != "nvidia":
            lines.append(f"softdep {desired.option_module}-peermem pre: nvidia ib_core ib_uverbs")
    if desired.rdma == "dmabuf":
        lines += ["# DMA-BUF serves: nothing is to load it at boot all the same.", "blacklist nvidia-peermem"]
    return "\n".join(lines) + "\n"


def modules_load_conf(desired: Desired) -> str:
    """The text of ``/etc/modules-load.d/gdsdeploy.conf``."""
    head = "# Rendered by gdsdeploy; changes here are overwritten. Order matters: nvidia before what links against it."
    return "\n".join([head, *desired.modules]) + "\n"
