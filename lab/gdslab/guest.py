"""Files of the lab's hosts, as path → content; pure.

All hosts of a release share a base system; a host's seed (name, keys, addresses) is unpacked over it.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdslab.archive import DEBIAN_KEYRING, Archive, loopback_port
from gdslab.errors import LabUnavailable

# Most verbs of a lab read no lock, and its model is a third of what they import.
if TYPE_CHECKING:
    from gdsdeploy.model.lock import Target

#: QEMU's user-mode network in every guest; guest/lab-network.service repeats it.
GUEST_ADDRESS, GATEWAY, NAMESERVER = "10.0.2.15", "10.0.2.2", "10.0.2.3"
USER = "admin"
#: Base images share these ids: a guest sees only its own disks.
ROOT_UUID = "b1c7f0a4-6d53-4a0e-9b52-0f6a6d1c0001"
DISK_ID = 0x6D5EED01
#: Of the EFI system partition, which a UEFI host has on a disk of its own.
ESP_UUID = "6D5E-ED02"
#: A VM host's disk, a sparse file.
DISK_BYTES = 12 << 30
#: Where hosts have the module that gives a kernel its package's release.
RENAMER = "usr/local/lib/lab/gds_lab_release.ko"
NVME_LABEL, NVME_MOUNT = "nvme", "/mnt/nvme"
#: The file of Debian's hosts with the archive, and the archive's components for a complete stack.
SOURCES, COMPONENTS = "etc/apt/sources.list.d/debian.sources", "main contrib non-free non-free-firmware"
#: Packages of Debian that bring along what a VM host's lock has for it, but for the kernel and its modules.
STACK = (
    *("firmware-nvidia-gsp", "gds-tools", "libcuda1", "libnvidia-pkcs11-openssl3", "libnvidia-ptxjitcompiler1"),
    *("nvidia-modprobe", "nvidia-open-kernel-support", "nvidia-smi", "nvidia-support"),
)

_COMMON_PACKAGES = (
    "ca-certificates", "dbus", "iproute2", "kmod", "openssh-server", "procps", "python3",
    "python3-apt", "sudo", "systemd", "systemd-sysv", "udev",
)  # fmt: skip
_VM_PACKAGES = (
    *("e2fsprogs", "efibootmgr", "grub-pc-bin", "grub2-common", "initramfs-tools", "mokutil", "pciutils", "zstd"),
)
#: Of all kinds of hosts, without a kernel.
PACKAGES = (*_COMMON_PACKAGES, *_VM_PACKAGES)
#: The modules that hosts keep of the kernel's 4,200: an emulated depmod of all takes a minute and a half.
KERNEL_MODULES = (
    *("arch/*", "block/*", "crypto/*", "fs/*", "kernel/*", "lib/*", "mm/*", "security/*"),
    *("drivers/acpi/button.*", "drivers/acpi/video.*", "drivers/block/*", "drivers/char/hw_random/virtio*"),
    *("drivers/firmware/qemu_fw_cfg.*", "drivers/gpu/drm/drm*", "drivers/gpu/drm/ttm/*"),
    *("drivers/infiniband/core/*", "drivers/infiniband/sw/*", "drivers/input/evdev.*", "drivers/input/misc/uinput.*"),
    *("drivers/md/*", "drivers/net/net_failover.*", "drivers/net/virtio_net.*", "drivers/nvme/*"),
    *("drivers/platform/x86/wmi.*", "drivers/virtio/*"),
    *("net/core/*", "net/dns_resolver/*", "net/ipv4/udp_tunnel.*", "net/ipv6/ip6_udp_tunnel.*", "net/sunrpc/*"),
    *("net/netfilter/nfnetlink.*", "net/vmw_vsock/*"),
    # Of packages with built modules.
    *("nvidia-*-open/*", "nvidia-fs/*"),
)
#: The file with dpkg's options on all hosts.
DPKG = "etc/dpkg/dpkg.cfg.d/lab"
_DPKG_OPTIONS = (
    "force-unsafe-io",
    "path-exclude=*/lib/modules/*/kernel/*",
    *(f"path-include=*/lib/modules/*/kernel/{module}" for module in KERNEL_MODULES),
    # Without it, kbuild makes no BTF of modules, and gdsdeploy compiles them without debug information.
    "path-exclude=/usr/src/linux-headers-*/vmlinux",
)


def source_line(index: Mapping[str, Any]) -> str:
    """The one-line apt source of a lock's index."""
    signed = f"[signed-by={index['host_keyring']}]"
    return f"deb {signed} {index['uri']} {index['suite']} {' '.join(index['components'])}"


def image_packages(target: Target) -> tuple[tuple[str, str], ...]:
    """The locked packages of one profile that a host needs if it doesn't build its modules: name and version.

    Those of the kernel aren't among them.
    """
    return tuple(
        (package.package, package.version)
        for package in target.packages
        if package.needed_by in ("host", "both") and not package.part.startswith("kernel-")
    )


@dataclass(frozen=True)
class Release:
    """A Debian release for the lab's hosts; ``driver``: the branch in its archive.

    ``kernel`` of ``suite``: the newest on which this driver compiles, where none of the release's does
    (docs/kernels.md).
    """

    name: str
    number: int
    driver: str
    kernel: str = ""
    suite: str = ""

    @property
    def suites(self) -> tuple[str, ...]:
        """The suites of the main archive for a complete stack."""
        return (self.name, f"{self.name}-updates", *([self.suite] if self.suite else ()))


RELEASES = {
    "trixie": Release("trixie", 13, "550", "6.12.95+deb12-amd64", "bookworm-backports"),
    "bookworm": Release("bookworm", 12, "535"),
}


def release(name: str) -> Release:
    """The release called ``name``; raises LabUnavailable for another name."""
    if name not in RELEASES:
        raise LabUnavailable(f"the lab has no release {name}", hint=f"Choose a release: {', '.join(RELEASES)}")
    return RELEASES[name]


def packages(kind: str) -> tuple[str, ...]:
    """Packages of a base system of ``kind`` ("vm" or "light") beside Debian's required ones and a kernel."""
    return (*_COMMON_PACKAGES, *(_VM_PACKAGES if kind == "vm" else ()))


def suites(rel: Release, archive: Archive, of_main: tuple[str, ...] = ()) -> list[tuple[str, tuple[str, ...]]]:
    """The archive addresses of ``rel`` and the suites at each; of_main: those of the first, if not the usual ones."""
    main = (archive.uri, of_main or (rel.name, f"{rel.name}-updates"))
    return [main, (archive.security_uri, (f"{rel.name}-security",))] if archive.security_uri else [main]


def keyring(archive: Archive) -> str:
    """Path of the archive's keyring in the guest."""
    standard = archive.keyring == DEBIAN_KEYRING
    return DEBIAN_KEYRING.as_posix() if standard else f"/usr/share/keyrings/lab-{archive.keyring.name}"


def debian_sources(archive: Archive, listed: list[tuple[str, tuple[str, ...]]], components: str = "main") -> str:
    """The guest's ``debian.sources``, as Debian's installer writes it; listed: addresses, and the suites at each."""
    return "\n".join(
        f"Types: deb\nURIs: {uri}\nSuites: {' '.join(names)}\nComponents: {components}\nSigned-By: {keyring(archive)}\n"
        for uri, names in listed
    )


def apt_options(archive: Archive, ca_bundle: str | None) -> dict[str, str]:
    """A guest's apt options for this archive, without translated package descriptions."""
    options = {**archive.options, **archive.proxy, "Acquire::Languages": "none"}
    if ca_bundle:
        options["Acquire::https::CAInfo"] = ca_bundle
    return options


def base_files(rel: Release, archive: Archive, kind: str) -> dict[str, str | Path]:
    """Files of a base system: path relative to its root → text, or the file of this machine to copy."""
    ca_bundle = "/etc/ssl/certs/lab-archive.pem" if archive.ca_bundle else None
    options = apt_options(archive, ca_bundle)
    files: dict[str, str | Path] = {
        SOURCES: debian_sources(archive, suites(rel, archive)),
        "etc/apt/apt.conf.d/90lab": "".join(f'{name} "{value}";\n' for name, value in sorted(options.items())),
        "etc/sudoers.d/lab": f"{USER} ALL=(ALL:ALL) NOPASSWD: ALL\n",
        "etc/ssh/sshd_config.d/lab.conf": "PasswordAuthentication no\nHostKey /etc/ssh/ssh_host_ed25519_key\n",
        DPKG: "".join(f"{option}\n" for option in _DPKG_OPTIONS),
        # A fixed list of modules: each later kernel gets an initramfs that boots this machine, made in seconds.
        "etc/initramfs-tools/conf.d/lab": "MODULES=list\nCOMPRESS=zstd\nCOMPRESSLEVEL=1\nRESUME=none\n",
    }
    if archive.ca_bundle:
        files["etc/ssl/certs/lab-archive.pem"] = archive.ca_bundle
    if keyring(archive) != DEBIAN_KEYRING.as_posix():
        files[keyring(archive).lstrip("/")] = archive.keyring
    if kind == "vm":
        files |= _vm_files()
    return files


def _vm_files() -> dict[str, str | Path]:
    units = ("lab-network.service", "lab-seed.service", "lab-rxe.service")
    return {
        "etc/default/grub": _data("grub.default"),
        # A new kernel still gets its initramfs.  Without this, each package with a trigger remakes the running one's:
        # four times in one installation, for minutes under emulation.
        "etc/initramfs-tools/update-initramfs.conf": "update_initramfs=no\nbackup_initramfs=no\n",
        "etc/initramfs-tools/modules": "virtio_pci\nvirtio_blk\nnvme\next4\n",
        "etc/fstab": fstab(),
        "etc/resolv.conf": f"nameserver {NAMESERVER}\n",
        # The default limit is 90 s; loading the driver takes an emulated machine 40 s of processor time.
        "etc/systemd/system/systemd-modules-load.service.d/lab.conf": "[Service]\nTimeoutStartSec=600\n",
        **{f"etc/systemd/system/{unit}": _data(unit) for unit in units},
        "usr/local/lib/lab/seed": _data("seed"),
    }


def fstab(*, esp: bool = False) -> str:
    """The file systems of a VM host; esp: with the EFI system partition."""
    return (
        f"UUID={ROOT_UUID} / ext4 noatime,errors=remount-ro 0 0\n"
        f"LABEL={NVME_LABEL} {NVME_MOUNT} ext4 noatime,data=ordered,nofail 0 0\n"
    ) + (f"UUID={ESP_UUID} /boot/efi vfat umask=0077,nofail 0 0\n" if esp else "")


def seed_files(
    name: str, port: int, authorized_key: str, host_key: tuple[str, str], archive: Archive, kind: str
) -> dict[str, tuple[str, int]]:
    """Files that turn a base system into the host ``name``: path → (text, permissions).

    host_key: private and public half.  port: of a light host's sshd on loopback.
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
    for local_port in sorted({local for local in map(loopback_port, addresses) if local}):
        files |= _forward(local_port)
    return files


def _forward(port: int) -> dict[str, tuple[str, int]]:
    """Units that forward ``port`` of the guest's loopback to the controller's, so one address works everywhere."""
    unit = f"etc/systemd/system/lab-forward-{port}"
    link = f"etc/systemd/system/sockets.target.wants/lab-forward-{port}.socket"
    socket = f"[Unit]\nDescription=Port {port} of the controller\n\n[Socket]\nListenStream=127.0.0.1:{port}\n"
    proxy = f"[Service]\nExecStart=/usr/lib/systemd/systemd-socket-proxyd {GATEWAY}:{port}\n"
    return {
        f"{unit}.socket": (socket, 0o644),
        link: (socket, 0o644),
        f"{unit}.service": (f"[Unit]\nDescription=Port {port} of the controller\n\n{proxy}", 0o644),
    }


def tar(files: Mapping[str, tuple[str, int] | tuple[str | bytes, int]]) -> bytes:
    """``files`` (path → content, permissions) as an uncompressed archive, owned by root.

    It has no entries for folders, so unpacking changes no folder's owner and replaces no link to a folder.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, (value, mode) in sorted(files.items()):
            content = value if isinstance(value, bytes) else value.encode()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.uname, entry.gname = len(content), mode, "root", "root"
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def data(name: str) -> Path:
    """Path of a file of this package, such as a script that root runs on the controller."""
    return Path(str(resources.files("gdslab") / name))


def _data(name: str) -> str:
    return (data("guest") / name).read_text()
