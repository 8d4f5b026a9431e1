"""Hosts of the RHEL family: Debian's programs below that family's package manager."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from gdsdeploy import console, run
from gdsdeploy.lab import files, guest, images
from gdsdeploy.lab.archive import Archive
from gdsdeploy.lab.images import VmBase
from gdsdeploy.lab.kit import el
from gdsdeploy.lab.kit.elversions import RELEASES, Versions
from gdsdeploy.lab.kit.kits import Kit
from gdsdeploy.lab.server import Server
from gdsdeploy.lab.systems import System

#: What the family's minimal hosts have, and what builds kernel modules there; Debian's names.
_PACKAGES = (
    *("bc", "cpio", "dnf", "dnf-plugins-core", "dracut-core", "file", "findutils", "gawk", "grub-common", "openssl"),
    *("patch", "rpm", "xz-utils", "zstd", "g++", "gcc", "libc6-dev", "libelf-dev", "make"),
    *("libibverbs1", "libnuma1", "librdmacm1"),
)
#: Debian's own, and what they would only be unpacked for.
_WITHOUT = ("initramfs-tools", "python3-apt")
#: As guest/grub.default has it for Debian.
_COMMAND_LINE = "console=ttyS0,115200 net.ifnames=0 mitigations=off nowatchdog rcupdate.rcu_cpu_stall_suppress=1"
_EXCLUDED = "".join(f"path-exclude=/usr/share/{folder}/*\n" for folder in ("doc", "info", "locale", "man"))


def versions(system: System) -> Versions:
    """What the repositories of ``system`` have."""
    return RELEASES[int(system.number)]


def light_base(cache: Path, system: System, kit: Kit, archive: Archive) -> Path:
    """Root folder of the base system of light hosts of ``system``; made when missing."""
    content = _base_files(system, archive, "light")

    def make(work: Path) -> None:
        _bootstrap(system, kit, archive, work, "light", content)

    name = _entry_name(system, archive, "light", content)
    return files.cached_folder(cache, name, make, what=f"the {system.os} base system") / "root"


def vm_base(
    cache: Path, system: System, kit: Kit, archive: Archive, renamer: Path, early: Callable[[Path], None]
) -> VmBase:
    """The base system of VM hosts of ``system``; made when missing.

    renamer: the module that gives the kernel its package's release.  early: as in :func:`images.disk_base`.
    """
    content = _base_files(system, archive, "vm") | {
        "etc/kernel/cmdline": f"root=UUID={guest.ROOT_UUID} ro {_COMMAND_LINE}\n",
        "usr/local/lib/lab/gds_lab_release.ko": renamer,
    }

    def bootstrap(work: Path) -> None:
        _bootstrap(system, kit, archive, work, "vm", content)

    return images.disk_base(cache, _entry_name(system, archive, "vm", content), system.os, bootstrap, early)


def _packages(kind: str) -> list[str]:
    common = (name for name in guest.packages(kind, "") if name and name not in _WITHOUT)
    return [*common, *_PACKAGES]


def _base_files(system: System, archive: Archive, kind: str) -> dict[str, str | Path]:
    """Files of the base system: path → text, or the file to copy; nothing of apt, initramfs-tools or Debian's GRUB."""
    common = guest.base_files(system.base, archive, kind)
    others = ("etc/apt/", "etc/initramfs-tools/", "etc/default/grub")
    return {
        **{name: text for name, text in common.items() if not name.startswith(others)},
        guest.DPKG: _EXCLUDED,
        "usr/lib/os-release": system.os_release,
        "etc/redhat-release": f"Rocky Linux release {versions(system).minor}\n",
    }


def _bootstrap(
    system: System, kit: Kit, archive: Archive, work: Path, kind: str, content: Mapping[str, str | Path]
) -> None:
    """Make ``work/root``; that of a VM host has the packages of its kernel in /run/kernel."""
    title = f"Making the {system.os} base system of {'VM' if kind == 'vm' else 'light'} hosts"
    with console.step(title), tempfile.TemporaryDirectory(prefix="gdsdeploy-lab-") as folder:
        tree, packages = Path(folder) / "tree", Path(folder) / "packages"
        tree.mkdir()
        packages.mkdir()
        images.lay_out(content, tree)
        offered = kit.folder / el.repositories(versions(system))["baseos"]
        for package in el.base(versions(system)):
            shutil.copyfile(offered / package.file, packages / package.file)
        if kind == "vm":
            (tree / "run/kernel").mkdir(parents=True)
            for package_file in sorted(offered.glob("kernel-*.rpm")):
                if not package_file.name.startswith("kernel-devel"):
                    shutil.copyfile(package_file, tree / "run/kernel" / package_file.name)
        scripts = guest.data("guest")
        argv = images.from_archive(
            system.base,
            archive,
            work / "root",
            "minbase",
            _packages(kind),
            images.setup_hook(tree),
            # mmdebstrap's cleaning needs apt, which is gone then.
            "--skip=cleanup",
            images.hook("base.sh", [str(tree), kind, guest.USER, guest.NVME_MOUNT]),
            images.hook("el.sh", [system.number, str(scripts / "el"), str(packages)]),
        )
        run.run(
            run.as_root([*images.CONTAINED, *argv]),
            doing=f"make the {system.os} base system",
            log=work / "log",
            hint="It comes from this machine's apt archive; check it with: apt-get update",
        )


def _entry_name(system: System, archive: Archive, kind: str, content: Mapping[str, str | Path]) -> str:
    """Name of the base system in the cache; it depends on the recipe and on the archive."""
    scripts = [guest.data("guest") / name for name in ("base.sh", "el.sh", "boot.sh")]
    recipe = {
        "archive": {name: str(value) for name, value in asdict(archive).items()},
        "packages": _packages(kind),
        "files": {name: str(value) for name, value in content.items()},
        "scripts": [path.read_text() for path in [*scripts, *sorted(guest.data("guest/el").iterdir())]],
        "rpms": [package.spec() for package in el.base(versions(system))],
    }
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
    return f"{system.os}-{kind}-{digest[:12]}"


def seed_files(system: System, server: Server) -> dict[str, tuple[str | bytes, int]]:
    """Files of a host that name the distribution's own repositories: path → (content, permissions)."""
    key = f"etc/pki/rpm-gpg/RPM-GPG-KEY-Rocky-{system.number}"
    text = el.yum_repositories(versions(system), server.uri, f"/{key}")
    return {
        "etc/yum.repos.d/rocky.repo": (text, 0o644),
        key: ((server.folder / el.KEYS["baseos"]).read_bytes(), 0o644),
    }
