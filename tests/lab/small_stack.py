"""A stack of small packages in its own signed repository, and two locks with a small difference.

The packages are real ones of dpkg's, the repository is signed and served on loopback, which light hosts share; only
what is in the packages is imitated.  The modules are archives in the controller's cache, as a builder leaves them.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gdsdeploy.builds import cache
from gdsdeploy.builds.assign import BuildFacts, want
from gdsdeploy.builds.cache import BuilderKeys
from gdsdeploy.host.archive import pack
from gdsdeploy.host.archive.provenance import Builder, Origin, public_pem
from gdsdeploy.host.kmod.kernel import Kernel
from gdsdeploy.lock import lockfile
from gdsdeploy.model.lock import Component, Index, Kernel as LockedKernel, Lock, LockedDriver, Package, Target
from tests.repos.archive import Archive, Key, Suite
from tests.unit.host.kmod.kmod_root import RELEASE, Root

#: The builder, which is never there: hosts find what it has built in the cache.
MAKER = "maker"
SUITE = "small"
KEYRING = "/etc/apt/keyrings/gdsdeploy-small.gpg"
#: Checks that no imitation can pass: there is no libcufile and no GPU behind these packages.
BEYOND = ("driver.userland", "driver.firmware", "cufile.library", "cufile.accepted", "cufile.effective")
#: Maintainer script that does what a test has asked for, once: the file that it is named by is its switch.
SWITCH = """#!/bin/sh
set -e
switch=/{package}.{event}
test -e $switch || exit 0
how=$(cat $switch)
rm -f $switch
case $how in
    kill) kill -9 $PPID; sleep 5 ;;
    fail) echo "asked to fail" >&2; exit 1 ;;
    wait) while ! test -e /go; do sleep 0.2; done; rm -f /go ;;
esac
"""


@dataclass(frozen=True)
class Small:
    """The repository's folder and key, and the locks."""

    root: Path
    key: Key
    old: Lock
    new: Lock

    def drop(self, package: Package) -> None:
        """As archives do with what is old."""
        (self.root / package.file).unlink()


def deb(
    folder: Path, package: str, version: str, *, files: Path | None = None, depends: str = "",
    architecture: str = "amd64", scripts: Mapping[str, str] | None = None,
) -> Path:  # fmt: skip
    """Build a package; its content depends on its version.  scripts: its own, without those with a switch."""
    root = folder / f"{package}_{version}"
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN/control").write_text(
        f"Package: {package}\nVersion: {version}\nArchitecture: {architecture}\n"
        + (f"Depends: {depends}\n" if depends else "")
        + f"Maintainer: nobody <nobody@archive.example>\nDescription: imitated {package}\n"
    )
    if scripts is None:
        scripts = {event: SWITCH.format(package=package, event=event) for event in ("preinst", "postinst")}
    for event, text in scripts.items():
        script = root / "DEBIAN" / event
        script.write_text(text)
        script.chmod(0o755)
    place = root / "usr/share" / package
    place.mkdir(parents=True)
    (place / "content").write_bytes(hashlib.sha256(version.encode()).digest() * 625)
    if files is not None:
        subprocess.run(["cp", "-a", f"{files}/.", root], check=True)
    file = folder / f"{package}_{version}_{architecture}.deb"
    subprocess.run(["dpkg-deb", "--build", "--root-owner-group", root, file], check=True, capture_output=True)
    return file


def make(folder: Path, uri: str, key: Key) -> Small:
    """The repository in ``folder``, to be served at ``uri``, and its two locks."""
    work = folder.parent / "work"
    kernel = work / "kernel"
    tree = Root(work / "tree")
    tree.remove_headers()
    tree.lists()
    (kernel / "usr/lib").mkdir(parents=True)
    (kernel / "boot").mkdir()
    (kernel / f"boot/vmlinuz-{RELEASE}").write_text("imitated\n")
    subprocess.run(["cp", "-a", tree.path / "lib/modules", kernel / "usr/lib"], check=True)
    image = "small-kernel"
    debs = {
        (image, "6.12.94-1"): deb(work, image, "6.12.94-1", files=kernel),
        ("small-driver", "550.1"): deb(work, "small-driver", "550.1"),
        ("small-driver", "550.2"): deb(work, "small-driver", "550.2"),
        ("small-cufile", "1.9.1"): deb(work, "small-cufile", "1.9.1"),
        ("small-extra", "2"): deb(work, "small-extra", "2"),
        ("small-source", "550.1"): deb(work, "small-source", "550.1"),
        ("small-source", "550.2"): deb(work, "small-source", "550.2"),
    }
    parts = {
        image: "kernel-image", "small-driver": "driver-userland", "small-cufile": "libcufile",
        "small-source": "driver-source",
    }  # fmt: skip
    packages: dict[tuple[str, str], Package] = {}
    stanzas = []
    (folder / "pool").mkdir(parents=True)
    for (name, version), file in debs.items():
        place = f"pool/{file.name}"
        file.rename(folder / place)
        data = (folder / place).read_bytes()
        packages[name, version] = Package(
            package=name,
            version=version,
            architecture="amd64",
            part=parts.get(name, "support"),  # type: ignore[arg-type]
            needed_by="build" if name == "small-source" else "host",
            file=place,
            size=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            repository="small",
            suite=SUITE,
            component="main",
        )
        stanzas.append(
            {
                "Package": name,
                "Version": version,
                "Architecture": "amd64",
                "Maintainer": "nobody <nobody@archive.example>",
                "Description": "imitated",
                "Filename": place,
                "Size": str(len(data)),
                "SHA256": hashlib.sha256(data).hexdigest(),
            }
        )
    Archive(folder).publish(Suite(SUITE, {"main": stanzas}, origin="small"), key)
    both = [packages[image, "6.12.94-1"], packages["small-cufile", "1.9.1"]]
    old = lockfile.build(
        {
            "gds": _target(
                "550.1", [*both, packages["small-driver", "550.1"], packages["small-source", "550.1"]], uri, key
            )
        }
    )
    added = [packages["small-driver", "550.2"], packages["small-source", "550.2"], packages["small-extra", "2"]]
    new = lockfile.build({"gds": _target("550.2", [*both, *added], uri, key)})
    return Small(folder, key, old, new)


def _target(driver: str, packages: list[Package], uri: str, key: Key) -> Target:
    index = Index(
        repository="small", uri=uri, suite=SUITE, components=("main",), date="2026-01-01T00:00:00Z",
        signed_by=key.fingerprint, host_keyring=KEYRING,
    )  # fmt: skip
    return Target(
        os="debian-13",
        arch="x86_64",
        kernel=LockedKernel(release=RELEASE, version="6.12.94-1"),
        driver=LockedDriver(version=driver, flavour="open", source_tree="/usr/src/nvidia", dkms_name="nvidia"),
        nvidia_fs=None,
        libcufile=Component(version="1.9.1.3"),
        gds_tools=None,
        rules=(),
        pins={},
        indices=(index,),
        packages=tuple(sorted(packages, key=lambda package: package.package)),
    )


def fleet(small: Small, uri: str, hosts: dict[str, dict[str, Any]], ssh: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A fleet file for it."""
    profile = {"os": "debian-13", "repositories": ["small"], "mode": "compat", "own_kernel": False, "builder": MAKER}
    waived = [{"check": check, "until": "2099-12-31", "reason": "imitated packages"} for check in BEYOND]
    return {
        "version": 1,
        "repositories": {
            "small": {
                "kind": "apt", "uri": uri, "suites": [SUITE], "components": ["main"],
                "keyring": str(small.key.keyring), "fingerprints": [small.key.fingerprint], "signed_by": None,
            }
        },
        "ssh": ssh,
        "profiles": {"gds": profile},
        "builders": {MAKER: "gds"},
        "hosts": hosts,
        "waivers": waived,
        **more,
    }  # fmt: skip


def stock(folder: Path, fleet_path: Path, *locks: Lock) -> None:
    """Put the modules of each lock into the controller's cache, as the fleet's builder would have left them."""
    seed = b"s" * 32
    BuilderKeys.of(fleet_path).path(MAKER).write_text(public_pem(seed))
    for lock in locks:
        target = lock.targets["gds"]
        root = Root(folder / target.driver.version)
        root.nvidia(info=[("version", target.driver.version)])
        archive = folder / f"{target.driver.version}.tar"
        pack.pack(Kernel(RELEASE, str(root.path)), [], str(archive), Builder(MAKER, seed))
        cache.default(print).put(archive, want(target, BuildFacts()), Origin(MAKER, public_pem(seed)))


def write(path: Path, value: dict[str, Any], lock: Lock) -> None:
    """The fleet file and the lock beside it."""
    path.write_text(yaml.safe_dump(value))
    lockfile.write(lockfile.beside(path), lock)
