"""Evidence of hosts as `gdsdeploy init` asks for it: recorded machines with another system, driver or repositories."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from gdsdeploy.host.facts import facts_from
from gdsdeploy.proposal.observe import Observation, observe
from tests.unit import rdma_host
from tests.unit.host.explain.capable_host import BARE, H100, complete

Document = dict[str, Any]
DEBIAN = """Types: deb
URIs: http://deb.debian.org/debian
Suites: trixie trixie-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://security.debian.org/debian-security
Suites: trixie-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""
UBUNTU = """Types: deb
URIs: http://archive.ubuntu.com/ubuntu/
Suites: noble noble-updates noble-backports
Components: main universe restricted multiverse
Signed-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg

Types: deb
URIs: http://security.ubuntu.com/ubuntu/
Suites: noble-security
Components: main universe restricted multiverse
Signed-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg
"""
CUDA = (
    "deb [signed-by=/usr/share/keyrings/cuda-archive-keyring.gpg] "
    "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64/ /\n"
)
#: As Rocky Linux ships it: mirrors by a list, and the address behind a hash.
ROCKY = """[baseos]
name=Rocky Linux $releasever - BaseOS
mirrorlist=https://mirrors.rockylinux.org/mirrorlist?arch=$basearch&repo=BaseOS-$releasever$rltype
#baseurl=http://dl.rockylinux.org/$contentdir/$releasever/BaseOS/$basearch/os/
gpgcheck=1
enabled=1
gpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-Rocky-9

[devel]
name=Rocky Linux $releasever - Devel
baseurl=http://dl.rockylinux.org/$contentdir/$releasever/devel/$basearch/os/
enabled=0
"""


def bare(name: str = "debian-13") -> Document:
    """A machine without a GPU and a driver: the lab's VM."""
    return of_system(complete(copy.deepcopy(BARE)), name, BARE["host"]["uname"]["release"])


def gpu(
    name: str = "ubuntu-24.04", release: str = "6.11.0-26-generic", driver: str = "580.95.05", flavour: str = "open"
) -> Document:
    """The machine with an H100, on which this driver runs."""
    document = of_system(complete(copy.deepcopy(H100)), name, release)
    functions = document["listings"]["/sys/bus/pci/devices"]
    for path in (f"/sys/bus/pci/devices/{name}/infiniband" for name in functions):
        document["listings"].setdefault(path, {"error": "ENOENT"})
    words = "UNIX Open Kernel Module for x86_64" if flavour == "open" else "UNIX x86_64 Kernel Module"
    document["files"]["/proc/driver/nvidia/version"] = f"NVRM version: NVIDIA {words}  {driver}  Release Build\n"
    return document


def with_rdma() -> Document:
    """A machine with two GPUs and four adapters that do RDMA, beside one that doesn't."""
    document = of_system(rdma_host.host(), "ubuntu-24.04", "6.11.0-26-generic")
    pci, infiniband = "/sys/bus/pci/devices", "/sys/class/infiniband"
    document["listings"][f"{pci}/0000:00:03.0/infiniband"] = {"error": "ENOENT"}
    for card, _, path, _ in rdma_host.CARDS:
        document["listings"] |= {f"{pci}/{path[-12:]}/infiniband": [card], f"{infiniband}/{card}/ports": ["1"]}
        document["files"][f"{infiniband}/{card}/ports/1/state"] = "1: DOWN\n"
        document["links"][f"{pci}/{path[-12:]}/driver"] = "../../../bus/pci/drivers/mlx5_core"
    return document


def of_system(document: Document, name: str, release: str) -> Document:
    """The document with another system and kernel, and the repositories that such a host has."""
    system, _, version = name.partition("-")
    document["files"]["/etc/os-release"] = f'ID="{system}"\nVERSION_ID="{version}"\nPRETTY_NAME="{name}"\n'
    document["host"]["uname"]["release"] = release
    document["files"]["/proc/sys/kernel/random/boot_id"] = f"{abs(hash((name, release))):036x}\n"
    sources = {"debian": DEBIAN, "ubuntu": UBUNTU}
    if system in sources:
        return with_files(document, {f"/etc/apt/sources.list.d/{system}.sources": sources[system]})
    packages = document["commands"].pop("dpkg-query")
    document["commands"]["rpm"] = {**packages, "stdout": ""}
    return with_files(document, {"/etc/yum.repos.d/rocky.repo": ROCKY})


def with_files(document: Document, files: Mapping[str, str], keys: Mapping[str, bytes] | None = None) -> Document:
    """The document with further texts, and with keyrings."""
    document["files"].update(files)
    document["binaries"].update({path: content.hex() for path, content in (keys or {}).items()})
    return document


def with_packages(document: Document, packages: Iterable[tuple[str, str]]) -> Document:
    """The document with further packages: (name, version)."""
    run = document["commands"].get("dpkg-query") or document["commands"]["rpm"]
    run["stdout"] += "".join(f"{name}\t{version}\tamd64\tii \n" for name, version in packages)
    return document


def observed(name: str, document: Document, has_file: Callable[[Path], bool] = lambda _: True) -> Observation:
    """What is proposed for the host; every keyring is on the controller unless ``has_file`` says otherwise."""
    return observe(name, facts_from(document), has_file=has_file)
