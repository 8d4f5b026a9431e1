"""Small hosts that gdsdeploy has provisioned: Debian, Ubuntu, the RHEL family; they build or receive their modules."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import process
from gdsdeploy.host.evidence.recorder import NOTHING, Recorder
from gdsdeploy.host.facts.document import Document
from gdsdeploy.host.process import Output
from gdsdeploy.host.subjects import foreign_files, packages
from gdsdeploy.host.subjects.foreign import ForeignInstall, Locked, findings
from gdsdeploy.host.subjects.foreign_files import ForeignFacts
from tests.unit.host.kmod.kmod_elf import write_module

RELEASE = "6.12.95-gpu"
VERSION = "580.95.05"
ADDRESS = "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64"
#: Where each family's loader looks.
MULTIARCH, LIB64 = "/usr/lib/x86_64-linux-gnu", "/usr/lib64"
LIBRARIES = {"libcuda.so.1": f"libcuda.so.{VERSION}", "libcufile.so.0": "libcufile.so.1.15.1"}


@dataclass
class Host:
    """A host in the folder ``root``; ``packages``: name → (version, dpkg's letters); ``files``: path → package."""

    root: Path
    manager: str
    packages: dict[str, tuple[str, str]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    #: (name, path) in the loader's order
    loader: list[tuple[str, str]] = field(default_factory=list)
    locked: dict[str, str] = field(default_factory=dict)
    #: programs that were run
    runs: list[str] = field(default_factory=list)

    def write(self, path: str, text: str = "", package: str = "") -> None:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        if package:
            self.own(path, package)

    def link(self, path: str, target: str) -> None:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)

    def own(self, path: str, package: str) -> None:
        self.files[path] = package

    def package(self, name: str, version: str = VERSION, letters: str = "ii", *, locked: bool = False) -> None:
        self.packages[name] = (version, letters)
        if locked:
            self.locked[name] = version

    def module(self, file: str, name: str, **options: object) -> str:
        write_module(self.root / f"lib/modules/{RELEASE}/{file}", name, **options)
        return f"/lib/modules/{RELEASE}/{file}"

    def library(self, path: str, soname: str, package: str = "", *, first: bool = False) -> None:
        """A file that the loader has for a name."""
        self.write(path, "", package)
        self.loader.insert(0 if first else len(self.loader), (soname, path))

    def dkms(
        self, name: str, version: str, package: str = "", *, folder: str = "", modules: Sequence[str] = ()
    ) -> None:
        """A package of DKMS; with ``folder`` its modules are installed there for RELEASE."""
        self.write(f"/usr/src/{name}-{version}/dkms.conf", 'AUTOINSTALL="yes"\n', package)
        self.link(f"/var/lib/dkms/{name}/{version}/source", f"/usr/src/{name}-{version}")
        for module in modules if folder else ():
            built = f"/var/lib/dkms/{name}/{version}/{RELEASE}/x86_64/module/{module}.ko"
            write_module(self.root / built.lstrip("/"), module)
            self.module(f"{folder}/{module}.ko", module)
        if folder:
            self.link(f"/var/lib/dkms/{name}/kernel-{RELEASE}-x86_64", f"{version}/{RELEASE}/x86_64")

    def unlink(self, path: str) -> None:
        (self.root / path.lstrip("/")).unlink()

    def append(self, path: str, text: str) -> None:
        with (self.root / path.lstrip("/")).open("a") as file:
            file.write(text)

    def missing(self, name: str) -> None:
        """The package is not installed."""
        self.packages.pop(name)

    def loaded(self, soname: str, path: str) -> None:
        """The loader finds this before all others, whatever it is."""
        self.loader.insert(0, (soname, path))

    def do(self, steps: Sequence[dict[str, dict[str, Any]]]) -> None:
        """What a case does to the host: methods of this class, with their arguments, in order."""
        for (method, arguments), *_ in (list(step.items()) for step in steps):
            if "build_id" in arguments:
                arguments = {**arguments, "build_id": bytes.fromhex(arguments["build_id"])}
            getattr(self, method)(**arguments)

    def finish(self) -> None:
        """Write the database of packages."""
        if self.manager == "rpm":
            (self.root / "var/lib/rpm").mkdir(parents=True, exist_ok=True)
            return
        self.write("/var/lib/dpkg/status", "Package: x\n")
        for name in {*self.packages, *self.files.values()}:
            listed = [path for path, owner in self.files.items() if owner == name]
            self.write(f"/var/lib/dpkg/info/{name}.list", "".join(f"{path}\n" for path in ["/.", *listed]))

    def run(self, argv: Sequence[str], *_: object, **__: object) -> Output:
        """What the host's programs print."""
        self.runs.append(argv[0])
        if argv[0] == "ldconfig":
            rows = [f"\t{name} (libc6,x86-64) => {path}\n" for name, path in self.loader]
            return Output(0, "2 libs found in cache\n" + "".join(rows), "")
        if argv[:2] == ["rpm", "-qf"]:
            paths = argv[argv.index("--") + 1 :] if "--" in argv else argv[-1:]
            if "FILEDIGESTS" in argv[3]:
                return Output(0, self._digests(), "")
            owners = [self.files.get(path) or f"file {path} is not owned by any package" for path in paths]
            return Output(0 if all(path in self.files for path in paths) else 1, "\n".join(owners) + "\n", "")
        if argv[0] in ("dpkg-query", "rpm") and any("root" in word or "admindir" in word for word in argv):
            # As apply/packages/state.py asks.
            rows = [f"{name}\tall\t{version}\t{letters} \n" for name, (version, letters) in self.packages.items()]
            return Output(0, "".join(rows), "")
        if argv[0] in ("dpkg-query", "rpm"):
            rows = [f"{name}\t{version}\tx86_64\t{letters} \n" for name, (version, letters) in self.packages.items()]
            return Output(0, "".join(rows), "")
        if argv[0] == "rpmdb" or argv[:3] == ["dnf", "--quiet", "check"]:
            return Output(0, "", "")
        raise AssertionError(f"nobody runs {argv}")

    def _digests(self) -> str:
        shipped = self.root / "usr/local/cuda-12.8/gds/cufile.json"
        digest = hashlib.sha256(shipped.read_bytes()).hexdigest() if shipped.exists() else ""
        return f"/usr/local/cuda-12.8/gds/cufile.json\t{digest}\n"

    def document(self, monkeypatch: pytest.MonkeyPatch) -> Document:
        self.finish()
        monkeypatch.setattr(process, "run", self.run)
        recorder = Recorder(root=str(self.root))
        packages.collect_packages(recorder, NOTHING)
        foreign_files.look(recorder, RELEASE)
        # As it comes from a host.
        return Document(json.loads(json.dumps(recorder.finish())))

    def facts(self, monkeypatch: pytest.MonkeyPatch) -> ForeignFacts:
        return ForeignFacts(self.document(monkeypatch))

    def installs(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, ForeignInstall]:
        """Kind → what was found; nothing may be unknown."""
        installs, unknown = findings(self.facts(monkeypatch), Locked(RELEASE, self.locked, (ADDRESS,)))
        assert unknown == ()
        return {one.kind: one for one in installs}


def _common(host: Host, libraries: str) -> Host:
    host.module("kernel/fs/own.ko", "own", info=[("intree", "Y")])
    host.module("kernel/drivers/video/fbdev/nvidia/nvidiafb.ko", "nvidiafb", info=[("intree", "Y")])
    for soname, file in LIBRARIES.items():
        package = "libcufile-12-8" if "cufile" in soname else "libnvidia-compute-580"
        host.write(f"{libraries}/{file}", "", package)
        host.link(f"{libraries}/{soname}", file)
        host.loader.append((soname, f"{libraries}/{soname}"))
        host.package(package, locked=True)
    host.write("/proc/modules", "nvidia 1 0 - Live 0x0\n")
    host.write("/proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n")
    host.write("/etc/gdsdeploy/cufile.json", "// Rendered by gdsdeploy from fleet.yml\n{}\n")
    host.link("/etc/cufile.json", "/etc/gdsdeploy/cufile.json")
    return host


def _received(host: Host) -> None:
    names = {"nvidia": "nvidia.ko", "nvidia_fs": "nvidia-fs.ko", "nvidia_uvm": "nvidia-uvm.ko"}
    for name, file in names.items():
        host.module(f"updates/gdsdeploy/{file}", name)


def _apt(host: Host) -> None:
    names = list(host.locked)
    host.packages.update({name: (version, "hi") for name, version in host.locked.items()})
    host.write("/var/lib/gdsdeploy/held", "".join(f"{name}\n" for name in names))
    pins = "".join(f"\nPackage: {name}\nPin: version {VERSION}\nPin-Priority: 1001\n" for name in names)
    host.write("/etc/apt/preferences.d/00-gdsdeploy.pref", f"# Rendered by gdsdeploy\n{pins}")
    host.write("/etc/apt/preferences.d/nodejs", "Package: nodejs\nPin: origin deb.nodesource.com\nPin-Priority: 600\n")
    host.write("/etc/apt/sources.list", "deb https://archive.ubuntu.com/ubuntu noble main\n")
    host.write("/etc/apt/sources.list.d/cuda.list", f"deb [signed-by=/usr/share/keyrings/cuda.gpg] {ADDRESS}/ /\n")


def debian_builds(root: Path) -> Host:
    host = _common(Host(root, "dpkg"), MULTIARCH)
    host.package("nvidia-kernel-open-dkms", locked=True)
    host.package("nvidia-fs-dkms", "2.26.6-1", locked=True)
    host.dkms(
        "nvidia-current-open",
        VERSION,
        "nvidia-kernel-open-dkms",
        folder="updates/dkms",
        modules=["nvidia-current-open", "nvidia-current-open-uvm"],
    )
    host.dkms("nvidia-fs", "2.26.6", "nvidia-fs-dkms", folder="updates/dkms", modules=["nvidia-fs"])
    # /lib is a link on a real host, and packages list files without /usr.
    host.own("/usr/src/nvidia-fs-2.26.6/dkms.conf", "nvidia-fs-dkms")
    _apt(host)
    return host


def ubuntu_receives(root: Path) -> Host:
    host = _common(Host(root, "dpkg"), MULTIARCH)
    _received(host)
    _apt(host)
    return host


def rocky_builds(root: Path) -> Host:
    host = _common(Host(root, "rpm"), LIB64)
    host.package("kmod-nvidia-open-dkms", "3:580.95.05-1.el9", locked=True)
    host.dkms("nvidia", VERSION, "kmod-nvidia-open-dkms", folder="extra", modules=["nvidia", "nvidia-uvm"])
    _dnf(host)
    return host


def rocky_receives(root: Path) -> Host:
    host = _common(Host(root, "rpm"), LIB64)
    _received(host)
    _dnf(host)
    return host


def _dnf(host: Host) -> None:
    locks = "".join(f"{name}-0:{version}-1.el9.*\n" for name, version in host.locked.items())
    text = f"# BEGIN gdsdeploy\n{locks}kmod-nvidia-latest-dkms-0:0-0.none\n# END gdsdeploy\nbash-0:5.1-1.el9.*\n"
    host.write("/etc/dnf/plugins/versionlock.list", text)
    host.write("/etc/dnf/dnf.conf", "[main]\ngpgcheck=1\nexclude=bash* \n vim\n")
    host.write("/etc/yum.repos.d/cuda.repo", f"[cuda]\nname=CUDA\nbaseurl={ADDRESS}\nenabled=1\n")
    host.write("/etc/yum.repos.d/gdsdeploy.repo", f"[gdsdeploy-cuda]\nbaseurl={ADDRESS}\nincludepkgs=nvidia*\n")


CLEAN = {
    "debian, builds": debian_builds,
    "ubuntu, receives": ubuntu_receives,
    "rocky, builds": rocky_builds,
    "rocky, receives": rocky_receives,
}
