"""What is written into the lab's hosts, as path → content; pure.

A base system holds what all hosts of a release share; the seed holds what makes one host itself (name, keys,
addresses) and is unpacked over it.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from gdsdeploy.errors import LabUnavailable
from gdsdeploy.lab.archive import DEBIAN_KEYRING, Archive, loopback_port
from gdsdeploy.model.lock import Target

#: The guest's view of QEMU's user-mode network, the same for every guest (guest/lab-network.service has it too).
GUEST_ADDRESS, GATEWAY, NAMESERVER = "10.0.2.15", "10.0.2.2", "10.0.2.3"
USER = "admin"
#: File system UUIDs are per base image: a guest sees only its own disks.
ROOT_UUID = "b1c7f0a4-6d53-4a0e-9b52-0f6a6d1c0001"
DISK_ID = 0x6D5EED01
NVME_LABEL, NVME_MOUNT = "nvme", "/mnt/nvme"

_COMMON_PACKAGES = (
    "ca-certificates",
    "dbus",
    "iproute2",
    "kmod",
    "openssh-server",
    "procps",
    "python3",
    "python3-apt",
    "sudo",
    "systemd",
    "systemd-sysv",
    "udev",
)
_VM_PACKAGES = (
    "e2fsprogs",
    "grub-pc-bin",
    "grub2-common",
    "initramfs-tools",
    "linux-image-amd64",
    "pciutils",
    "zstd",
)


#: Of the kernel's 4,200 modules, those that hosts keep.  depmod reads all of them whenever a package brings a kernel or
#: a module, which takes an emulated machine a minute and a half.
_KERNEL_MODULES = (
    *("arch/*", "block/*", "crypto/*", "fs/*", "kernel/*", "lib/*", "mm/*", "security/*"),
    *("drivers/acpi/button.*", "drivers/acpi/video.*", "drivers/block/*", "drivers/char/hw_random/virtio*"),
    *("drivers/firmware/qemu_fw_cfg.*", "drivers/gpu/drm/drm*", "drivers/gpu/drm/ttm/*"),
    *("drivers/infiniband/core/*", "drivers/infiniband/sw/*", "drivers/input/evdev.*", "drivers/input/misc/uinput.*"),
    *("drivers/md/*", "drivers/net/net_failover.*", "drivers/net/virtio_net.*", "drivers/nvme/*"),
    *("drivers/platform/x86/wmi.*", "drivers/virtio/*"),
    *("net/core/*", "net/dns_resolver/*", "net/ipv4/udp_tunnel.*", "net/ipv6/ip6_udp_tunnel.*", "net/sunrpc/*"),
    *("net/netfilter/nfnetlink.*", "net/vmw_vsock/*"),
)
#: dpkg's options on all hosts, and the file that has them.
DPKG = "etc/dpkg/dpkg.cfg.d/lab"
_DPKG_OPTIONS = (
    "force-unsafe-io",
    "path-exclude=*/lib/modules/*/kernel/*",
    *(f"path-include=*/lib/modules/*/kernel/{kept}" for kept in _KERNEL_MODULES),
)

#: What a base system boots unless it begins with a kernel of its own.
_KERNEL = "linux-image-amd64"


@dataclass(frozen=True)
class Preinstalled:
    """What hosts begin with, as if they were installed from an image of the site.

    sources: one-line apt sources.  packages: name → version.  kernel: whether a kernel is among them.
    """

    sources: tuple[str, ...]
    packages: tuple[tuple[str, str], ...]
    kernel: bool


def source_line(index: Mapping[str, Any]) -> str:
    """The apt source that an index of a lock was read from."""
    signed = f"[signed-by={index['host_keyring']}]"
    return f"deb {signed} {index['uri']} {index['suite']} {' '.join(index['components'])}"


def preinstalled(target: Target) -> Preinstalled:
    """The packages that a host needs which receives its modules, exactly as a lock has them for one profile."""
    wanted = [package for package in target.packages if package.needed_by in ("host", "both")]
    return Preinstalled(
        sources=tuple(source_line(index.model_dump()) for index in target.indices),
        packages=tuple((package.package, package.version) for package in wanted),
        kernel=any(package.part == "kernel-image" for package in wanted),
    )


@dataclass(frozen=True)
class Release:
    """A Debian release that the lab can make hosts of; ``driver``: the branch its own archive carries.

    ``kernel``: the newest one on which this driver compiles, where none of the release's is (docs/kernels.md), and
    ``suite``: where the archive has it.
    """

    name: str
    number: int
    driver: str
    kernel: str = ""
    suite: str = ""

    @property
    def suites(self) -> tuple[str, ...]:
        """The suites of the main archive that have a whole stack."""
        return (self.name, f"{self.name}-updates", *([self.suite] if self.suite else ()))


RELEASES = {
    "trixie": Release("trixie", 13, "550", "6.12.95+deb12-amd64", "bookworm-backports"),
    "bookworm": Release("bookworm", 12, "535"),
}


def release(name: str) -> Release:
    """The release called ``name``; raises LabUnavailable for one the lab does not make."""
    if name not in RELEASES:
        raise LabUnavailable(f"the lab has no release {name}", hint=f"It makes: {', '.join(RELEASES)}.")
    return RELEASES[name]


def packages(kind: str, begins: Preinstalled | None = None) -> tuple[str, ...]:
    """What a base system of this kind ("vm" or "light") has beyond Debian's required packages.

    begins: what is installed into it afterwards; with a kernel among that, it gets no other.
    """
    chosen = _COMMON_PACKAGES + (_VM_PACKAGES if kind == "vm" else ())
    return tuple(sorted(name for name in chosen if name != _KERNEL or begins is None or not begins.kernel))


def further_kernel(kind: str, rel: Release, begins: Preinstalled | None = None) -> str:
    """An apt pattern for what base systems of VM hosts have beside the newest kernel; empty for nothing.

    A pattern, unlike a name, may match no package: archives drop old kernels.
    """
    if kind != "vm" or not rel.kernel or (begins is not None and begins.kernel):
        return ""
    return f"?name(^linux-image-{re.escape(rel.kernel)}$)"


def suites(rel: Release, archive: Archive) -> list[tuple[str, tuple[str, ...]]]:
    """The archive addresses of ``rel`` and the suites at each."""
    found: list[tuple[str, tuple[str, ...]]] = [(archive.uri, (rel.name, f"{rel.name}-updates"))]
    if archive.security_uri:
        found.append((archive.security_uri, (f"{rel.name}-security",)))
    return found


def keyring(archive: Archive) -> str:
    """Path inside the guest of the keyring that signs its archive."""
    standard = archive.keyring == DEBIAN_KEYRING
    return DEBIAN_KEYRING.as_posix() if standard else f"/usr/share/keyrings/lab-{archive.keyring.name}"


def debian_sources(rel: Release, archive: Archive) -> str:
    """The guest's ``debian.sources``, in the form Debian's installer writes it."""
    return "\n".join(
        f"Types: deb\nURIs: {uri}\nSuites: {' '.join(names)}\nComponents: main\nSigned-By: {keyring(archive)}\n"
        for uri, names in suites(rel, archive)
    )


def apt_options(archive: Archive, ca_bundle: str | None) -> dict[str, str]:
    """A guest's apt options: what reaching the archive takes, and no translated package descriptions."""
    options = {**archive.options, **archive.proxy, "Acquire::Languages": "none"}
    if ca_bundle:
        options["Acquire::https::CAInfo"] = ca_bundle
    return options


def base_files(rel: Release, archive: Archive, kind: str) -> dict[str, str | Path]:
    """Files of a base system: path relative to its root → text, or the file of this machine to copy."""
    ca_bundle = "/etc/ssl/certs/lab-archive.pem" if archive.ca_bundle else None
    options = apt_options(archive, ca_bundle)
    files: dict[str, str | Path] = {
        "etc/apt/sources.list.d/debian.sources": debian_sources(rel, archive),
        "etc/apt/apt.conf.d/90lab": "".join(f'{name} "{value}";\n' for name, value in sorted(options.items())),
        "etc/sudoers.d/lab": f"{USER} ALL=(ALL:ALL) NOPASSWD: ALL\n",
        "etc/ssh/sshd_config.d/lab.conf": "PasswordAuthentication no\nHostKey /etc/ssh/ssh_host_ed25519_key\n",
        DPKG: "".join(f"{option}\n" for option in _DPKG_OPTIONS),
        # Named modules instead of a guess from the running system: every kernel that is installed later gets
        # an initramfs that boots this machine, and making it under emulation takes seconds instead of minutes.
        "etc/initramfs-tools/conf.d/lab": "MODULES=list\nCOMPRESS=zstd\nCOMPRESSLEVEL=1\nRESUME=none\n",
    }
    if archive.ca_bundle:
        files[f"{ca_bundle}".lstrip("/")] = archive.ca_bundle
    if keyring(archive) != DEBIAN_KEYRING.as_posix():
        files[keyring(archive).lstrip("/")] = archive.keyring
    if kind == "vm":
        files |= _vm_files()
    return files


def _vm_files() -> dict[str, str | Path]:
    return {
        "etc/default/grub": _data("grub.default"),
        # A kernel still gets an initramfs when it is installed. Without this, every package with a trigger would remake
        # the one of the kernel that is about to be left: four times in one installation, for minutes under emulation.
        "etc/initramfs-tools/update-initramfs.conf": "update_initramfs=no\nbackup_initramfs=no\n",
        "etc/initramfs-tools/modules": "virtio_pci\nvirtio_blk\nnvme\next4\n",
        "etc/fstab": (
            f"UUID={ROOT_UUID} / ext4 noatime,errors=remount-ro 0 0\n"
            f"LABEL={NVME_LABEL} {NVME_MOUNT} ext4 noatime,data=ordered,nofail 0 0\n"
        ),
        "etc/resolv.conf": f"nameserver {NAMESERVER}\n",
        # Its own limit is 90 s; loading the driver takes an emulated machine 40 s of processor time, on shared cores.
        "etc/systemd/system/systemd-modules-load.service.d/lab.conf": "[Service]\nTimeoutStartSec=600\n",
        "etc/systemd/system/lab-network.service": _data("lab-network.service"),
        "etc/systemd/system/lab-seed.service": _data("lab-seed.service"),
        "etc/systemd/system/lab-rxe.service": _data("lab-rxe.service"),
        "usr/local/lib/lab/seed": _data("seed"),
    }


def seed_files(
    name: str, port: int, authorized_key: str, host_key: tuple[str, str], archive: Archive, kind: str
) -> dict[str, tuple[str, int]]:
    """What makes a base system the host ``name``: path → (text, permissions).

    host_key: private and public half.  port: where a light host's sshd listens on loopback.
    """
    private, public = host_key
    files = {
        "etc/hostname": (f"{name}\n", 0o644),
        "etc/hosts": (f"127.0.0.1 localhost\n127.0.1.1 {name}\n::1 localhost ip6-localhost\n", 0o644),
        "etc/ssh/ssh_host_ed25519_key": (private, 0o600),
        "etc/ssh/ssh_host_ed25519_key.pub": (public, 0o644),
        f"home/{USER}/.ssh/authorized_keys": (authorized_key, 0o644),
    }
    if kind == "light":
        files["etc/ssh/sshd_config.d/lab-port.conf"] = (f"Port {port}\nListenAddress 127.0.0.1\n", 0o644)
        return files
    addresses = [archive.uri, archive.security_uri or "", *archive.proxy.values()]
    for local in sorted({found for found in map(loopback_port, addresses) if found}):
        files |= _forward(local)
    return files


def _forward(port: int) -> dict[str, tuple[str, int]]:
    """Units that make ``port`` of the controller's loopback answer on the guest's loopback too.

    One address then serves controller, light hosts and VM hosts alike, so a fleet file needs no translation.
    """
    unit = f"etc/systemd/system/lab-forward-{port}"
    wanted = f"etc/systemd/system/sockets.target.wants/lab-forward-{port}.socket"
    socket = f"[Unit]\nDescription=Port {port} of the controller\n\n[Socket]\nListenStream=127.0.0.1:{port}\n"
    proxy = f"[Service]\nExecStart=/usr/lib/systemd/systemd-socket-proxyd {GATEWAY}:{port}\n"
    return {
        f"{unit}.socket": (socket, 0o644),
        wanted: (socket, 0o644),
        f"{unit}.service": (f"[Unit]\nDescription=Port {port} of the controller\n\n{proxy}", 0o644),
    }


def tar(files: Mapping[str, tuple[str, int] | tuple[str | bytes, int]]) -> bytes:
    """``files`` (path → content, permissions) as an uncompressed archive, owned by root, without entries for folders.

    Without them, unpacking never replaces a folder's owner or a link that stands for a folder.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, (given, mode) in sorted(files.items()):
            content = given if isinstance(given, bytes) else given.encode()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.uname, entry.gname = len(content), mode, "root", "root"
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def data(name: str) -> Path:
    """Path of a file shipped in this package (a script that root runs on the controller)."""
    return Path(str(resources.files("gdsdeploy.lab") / name))


def _data(name: str) -> str:
    return (data("guest") / name).read_text()
