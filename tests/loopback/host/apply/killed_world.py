"""A host in a folder whose programs leave their marks in files, and ways to stop what changes it."""

from __future__ import annotations

import errno
import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import process
from gdsdeploy.host.apply import boot_default, packages, program, services
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.model import Change, Resource
from gdsdeploy.host.apply.packages import aptsources, dnf, left, managers, state
from gdsdeploy.host.apply.packages.apt import Apt
from gdsdeploy.host.apply.packages.managers import Package
from gdsdeploy.host.archive import pack
from gdsdeploy.host.boot.grub import MenuGrub
from gdsdeploy.host.kmod.kernel import Kernel
from gdsdeploy.host.kmod.packaged import MANIFEST
from gdsdeploy.host.process import Output
from tests.unit.host.apply import boot_hosts
from tests.unit.host.apply.apply_tree import tree

RELEASE, OLDER = boot_hosts.RELEASE, boot_hosts.OLDER
#: What an administrator has in dpkg's place: name → [version, held, automatic].
PACKAGES = {"nvidia-driver-535": ["535.1", False, False], "libnvidia-gl-535": ["535.1", True, True]}
#: Where packages come from.
REPOSITORY = "https://example.org/cuda/"
_WORLD = "/world/"
#: apt's lists of packages, which outlast a removal.
_LISTS = "/run/lists"
#: For the user with this id, beside the owner and his group.
_ACL = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHi", *entry) for entry in ((1, 6, -1), (2, 4, 12), (4, 4, -1), (16, 4, -1), (32, 0, -1))
)
_SOURCES = {
    "nvidia-imex.service": "/etc/nvidia-imex/nodes_config.cfg",
    "gds-watch.service": "/etc/systemd/system/gds-watch.service",
}


class World:
    """Stands for host/process.py.  A program may be stopped before it begins, when it is half done, and at its end."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, path: str, text: str) -> Path:
        return boot_hosts.put(self.root, path, text.encode(errors="surrogateescape"))

    def text(self, path: str) -> str:
        place = self.root / path.lstrip("/")
        return place.read_text() if place.is_file() else ""

    def __call__(self, argv: Sequence[str], _: float, **__: Any) -> Output:
        words = [str(word) for word in argv if not str(word).startswith("--root=")]
        question = {*words[:2]} & {"apt-cache", "dpkg-query", "show", "is-active", "is-failed"}
        try:
            if question:
                return Output(0, self._do(words), "")
            sys.audit("program", words[0])
            printed = self._do(words)
            sys.audit("program", "done")
            return Output(0, printed, "")
        except OSError as error:
            return Output(1, "", str(error.strerror))

    def _do(self, words: list[str]) -> str:
        if words[0] == "systemctl":
            return self._systemctl(*words[1:])
        if words[0] == "update-alternatives":
            subprocess.run([*words[:3], "--log", "/run/alternatives.log", *words[3:]], check=True, capture_output=True)
        elif words[0] in ("apt-cache", "dpkg-query"):
            return self._asked(words)
        elif words[0] == "apt-get":
            assert words[-1] == "update", words
            sources = sorted(self.root.glob("etc/apt/sources.list.d/*"))
            self._halfway(_LISTS, "".join(path.read_text() for path in sources))
        elif words[0] == "dnf":
            verb, name, stream = words[-2], *f"{words[-1]}:".split(":")[:2]
            state = {"enable": "enabled", "reset": ""}[verb]
            self.put(f"{dnf.MODULES}/{name}.module", f"[{name}]\nname={name}\nstream={stream}\nstate={state}\n")
        elif words[0] == "update-grub":
            self.update_grub()
        elif words[0] == "grub-set-default":
            self._edit("/boot/grub/grubenv", "set", f"saved_entry={words[1]}")
        elif words[0] in ("grub-editenv", "grub2-editenv"):
            self._edit(words[1].replace(str(self.root), ""), *words[2:])
        else:
            name, release = words[0], words[-1]
            assert name in ("update-initramfs", "depmod"), words
            self._halfway(*(self.image if name == "update-initramfs" else self.index)(release))
        return ""

    def _halfway(self, path: str, content: str) -> None:
        self.put(path, "half")
        sys.audit("program", "half")
        self.put(path, content)

    def _asked(self, words: list[str]) -> str:
        if words[1] == "pkgnames":
            return "nvidia-driver-570\nnvidia-driver-575\n"
        pins = dict(re.findall(r"^Package: (.*)\nPin: version (.*)$", self.text(aptsources.PREFERENCES), re.MULTILINE))
        if words[1] == "policy":
            rows = ((name, pins.get(name, "(none)")) for name in words[3:])
            return "".join(f"{name}:\n  Installed: (none)\n  Candidate: {version}\n" for name, version in rows)
        if words[1] != "show" or REPOSITORY not in self.text(_LISTS):
            return ""
        rows = (word.split("=") for word in words[3:])
        return "\n".join(f"Package: {name}\nVersion: {version}\nSHA256: {64 * 'a'}\n" for name, version in rows)

    def image(self, release: str) -> tuple[str, str]:
        files = sorted(self.root.glob("etc/modprobe.d/*.conf"))
        return f"/boot/initrd.img-{release}", "".join(file.read_text() for file in files)

    def index(self, release: str) -> tuple[str, str]:
        folder = self.root / "lib/modules" / release
        files = sorted(folder.rglob("*.ko"))
        lines = [f"{file.relative_to(folder)}: {file.read_text()}\n" for file in files]
        return f"/lib/modules/{release}/modules.dep", "".join(lines) + self.text(
            f"/etc/depmod.d/gdsdeploy-{release}.conf"
        )

    def dangling(self) -> list[str]:
        """Links of systemd to units that are gone, and such units that run."""
        places = [*(self.root / "etc/systemd/system").rglob("*.service"), *(self.root / "world/running").iterdir()]
        files = [(place, _SOURCES.get(place.name, services.path(place.name))) for place in places]
        return [str(place) for place, path in files if not (self.root / path.lstrip("/")).exists()]

    def update_grub(self) -> None:
        """With the default of /etc/default, which the other imitation leaves out."""
        boot_hosts.UpdateGrub(self.root)(["update-grub"], 1.0)
        files = [path for path in (self.root / "etc/default").rglob("*") if path.is_file()]
        saved = any("GRUB_DEFAULT=saved" in file.read_text() for file in files)
        first = 'set default="${saved_entry}"' if saved else 'set default="0"'
        self.put("/boot/grub/grub.cfg", self.text("/boot/grub/grub.cfg").replace('set default="0"', first))

    def _edit(self, path: str, verb: str, *words: str) -> None:
        lines = [line for line in self.text(path).splitlines() if "=" in line]
        names = [word.partition("=")[0] for word in words]
        lines = [line for line in lines if line.partition("=")[0] not in names] + [w for w in words if verb == "set"]
        self.put(path, "".join(f"{line}\n" for line in ["# GRUB Environment Block", *lines]).ljust(1024, "#"))

    def units(self) -> str:
        folder = self.root / "etc/systemd/system"
        files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
        return json.dumps([[str(path.relative_to(folder)), path.read_text()] for path in files])

    def _systemctl(self, verb: str, *words: str) -> str:
        unit = words[-1] if words else ""
        running = f"{_WORLD}running/{unit}"
        if verb == "show":
            outdated = "yes" if self.text(_WORLD + "units") != self.units() else "no"
            places = [self.root / f"{_WORLD}running/{name}".lstrip("/") for name in words[1:]]
            states = ["active" if place.exists() else "inactive" for place in places]
            return "\n\n".join(f"ActiveState={state}\nNeedDaemonReload={outdated}" for state in states)
        if verb in ("reenable", "disable"):
            text = self.text(services.path(unit))
            for link in services.observe(ManagedHost(root=str(self.root)), unit).links:
                place = self.root / link.lstrip("/")
                place.unlink()
                if not list(place.parent.iterdir()):
                    place.parent.rmdir()
            sys.audit("program", "half")
            for link in services.links(unit, text) if verb == "reenable" else []:
                place = self.root / link.lstrip("/")
                place.parent.mkdir(exist_ok=True)
                place.symlink_to(services.path(unit))
        if verb in ("reenable", "disable", "daemon-reload"):
            self.put(_WORLD + "units", self.units())
        if "--now" in words:
            (self.root / running.lstrip("/")).unlink(missing_ok=True)
        if verb in ("start", "restart"):
            self.put(running, self.text(_SOURCES[unit]))
        return ""

    def stale(self, *, everywhere: bool) -> list[str]:
        """What isn't made from the files as they are now.  everywhere: initramfs of other kernels, too."""
        wrong = [] if self.text(_WORLD + "units") == self.units() else ["systemd"]
        for release in (RELEASE, OLDER) if everywhere else (RELEASE,):
            for path, content in (self.image(release), self.index(release)):
                if (self.root / path.lstrip("/")).exists() and self.text(path) != content:
                    wrong.append(path)
        for place in (self.root / "world/running").iterdir():
            if place.read_text() != self.text(_SOURCES[place.name]):
                wrong.append(place.name)
        before = self.text("/boot/grub/grub.cfg")
        if before:
            self.update_grub()
            wrong += [] if self.text("/boot/grub/grub.cfg") == before else ["/boot/grub/grub.cfg"]
        return wrong


class Dpkg(Apt):
    """A package manager whose database is a file of the world."""

    name, kind, holds, command = "killed", "dpkg", True, "apt-get"
    root: Path

    def database(self) -> dict[str, list[Any]]:
        value: dict[str, list[Any]] = json.loads((self.root / "world/dpkg").read_text())
        return value

    def _store(self, database: dict[str, list[Any]]) -> None:
        (self.root / "world/dpkg").write_text(json.dumps(database, sort_keys=True))

    def _change(self, steps: Sequence[Callable[[dict[str, list[Any]]], None]]) -> None:
        for step in steps:
            sys.audit("program", "dpkg")
            database = self.database()
            step(database)
            self._store(database)
        sys.audit("program", "done")

    def list_packages(self, host: Any) -> list[state.Package]:
        rows = self.database().items()
        return [state.Package(name, "amd64", row[0], "hi " if row[1] else "ii ") for name, row in rows]

    def order(self, version: str) -> Any:
        return version

    def unpin(self, host: Any) -> list[Change]:
        return []

    def stays(self, name: str, running: str) -> bool:
        return False

    def manual(self, host: Any) -> set[str]:
        return {name for name, row in self.database().items() if not row[2]}

    def mark_automatic(self, host: Any, names: Sequence[str]) -> None:
        self._change([lambda database, name=name: database[name].__setitem__(2, True) for name in names])  # type: ignore[misc]

    def hold(self, host: Any, names: Sequence[str], *, held: bool = True) -> None:
        self._change([lambda database, name=name: database[name].__setitem__(1, held) for name in names])  # type: ignore[misc]

    def simulate(self, host: Any, install: Any, remove: Any, loose: Any = ()) -> Any:
        return None

    def install(self, host: Any, install: Sequence[Package], remove: Sequence[str], along: Sequence[str] = ()) -> None:
        gone = [lambda database, name=name: database.pop(name, None) for name in (*remove, *along)]  # type: ignore[misc]
        new = [lambda database, one=one: database.update({one.package: [one.version, False, False]}) for one in install]  # type: ignore[misc]
        with process.defer_signals():
            self._change([*gone, *new])
        host.forget()

    def simulate_purge(self, host: Any, names: Any) -> Any:
        return list(names)

    def purge(self, host: Any, names: Sequence[str], **_: Any) -> None:
        self.install(host, [], names)

    def simulate_return(self, host: Any, install: Sequence[Package], purged: Any) -> list[Change]:
        return [Change("install", one.package, "", one.version) for one in install]

    def bring_back(self, host: Any, install: Sequence[Package]) -> None:
        self.install(host, install, [])


def populate(root: Path, *, entries: bool = False) -> World:
    """Two kernels with an initramfs each, GRUB, services that run, and administrators' files where ours will be.

    entries: GRUB's menu is made of entries of the Boot Loader Specification.
    """
    world = World(root)
    if entries:
        boot_hosts.rhel(root)
    else:
        boot_hosts.grub(root)
        world.update_grub()
        world.put("/boot/grub/grubenv", "# GRUB Environment Block\n".ljust(1024, "#"))
    (root / "var/lib/gdsdeploy").rmdir()
    for release in (RELEASE, OLDER):
        world.put(f"/lib/modules/{release}/kernel/nvme.ko", "nvme")
        world.put(f"/boot/vmlinuz-{release}", "")
    world.put("/etc/modprobe.d/site.conf", "options nvme_core io_timeout=30\n")
    world.put("/usr/sbin/update-initramfs", "")
    world.put("/etc/nvidia-imex/nodes_config.cfg", "10.0.0.9\n")
    (root / "etc/nvidia-imex/nodes_config.cfg").chmod(0o640)
    os.chown(root / "etc/nvidia-imex/nodes_config.cfg", 7, 9)
    world.put("/etc/dkms/nvidia.conf", "# an administrator's\n")
    world.put("/etc/systemd/system/nv_peer_mem.service", "[Service]\n")
    world.put("/var/lib/dpkg/status", "")
    world.put("/etc/ssl/site.der", "a certificate")
    world.put("/etc/ssl/site.key", "").chmod(0o600)
    world.put("/etc/apt/sources.list.d/site.list", "deb https://example.org/debian stable main\n")
    (root / "etc/apt/preferences.d").mkdir()
    (root / "etc/apt/apt.conf.d").mkdir()
    world.put(dnf.LOCKS.replace(".list", ".conf"), "")
    world.put("/etc/site/locks", "caf\udce9-0:1-1.*\n# a remark\nnvidia-driver-0:0-0.none\n").chmod(0o600)
    (root / dnf.LOCKS[1:]).symlink_to("/etc/site/locks")
    world.put(f"{dnf.MODULES}/nvidia-driver.module", "[nvidia-driver]\nstream=560\nstate=enabled\n")
    for folder in ("usr/bin", "usr/lib", "etc/depmod.d", "etc/default/grub.d"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "var/log").mkdir()
    places = ["etc/nvidia-imex/nodes_config.cfg", "etc/dkms/nvidia.conf", "etc/site/locks", "etc/kernel/cmdline"]
    for file in [*map(root.joinpath, places), *root.glob("boot/loader/entries/*")]:
        if file.exists():
            os.setxattr(file, "user.site", b"theirs")
            os.setxattr(file, "system.posix_acl_access", _ACL)
    for release in (RELEASE, OLDER):
        for path, content in (world.image(release), world.index(release)):
            world.put(path, content)
    world.put(_WORLD + "running/nvidia-imex.service", "10.0.0.9\n")
    world.put(_WORLD + "units", world.units())
    world.put(_WORLD + "dpkg", json.dumps(PACKAGES, sort_keys=True))
    return world


@dataclass(frozen=True)
class Archive:
    """What an archive has: the text of each module."""

    modules: dict[str, str] = field(default_factory=dict)


class Received(Resource[Archive]):
    """The modules of an archive, put in place by archive/pack.py; nothing finds this resource by its name."""

    name = ""
    desired_type = Archive

    def observe(self, host: ManagedHost, desired: Archive) -> Any:
        return self._install(host, desired, check=True)

    def changes(self, desired: Archive, observed: Any, pending: Sequence[Change] = ()) -> list[Change]:
        return [Change("place", path, "", "", "archive") for path in observed["changes"]]

    def settle(self, host: ManagedHost, desired: Archive, changes: Sequence[Change]) -> None:
        if changes:
            self._install(host, desired, check=False)

    def _install(self, host: ManagedHost, desired: Archive, *, check: bool) -> dict[str, Any]:
        files = {name: text.encode() for name, text in sorted(desired.modules.items())}
        manifest = {"modules": [{"name": n, "file": n, "sha256": sha256(f).hexdigest()} for n, f in files.items()]}

        def unpack(_: str, __: str, folder: str, ___: Any) -> Any:
            for name, content in {**files, MANIFEST: json.dumps(manifest).encode()}.items():
                Path(folder, name).write_bytes(content)
            return manifest

        # An archive of real modules takes minutes to build; what is placed is of no matter here.
        imitated = {"unpack": unpack, "audit": lambda *_, **__: [], "is_same_build": lambda *_: True}
        with pytest.MonkeyPatch.context() as patch:
            for name, function in {**imitated, "objections": lambda *_: []}.items():
                patch.setattr(pack, name, function)
            return pack.install("archive", Kernel(RELEASE, host.root), check)


def register_alternative(root: Path) -> None:
    """As a libcufile package of NVIDIA does."""
    for folder in ("run", "etc/alternatives", "var/lib/dpkg/alternatives", "usr/local/cuda-12.8/gds"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    boot_hosts.put(root, "/usr/bin/update-alternatives", "")
    path = "/usr/local/cuda-12.8/gds/cufile.json"
    boot_hosts.put(root, path, "{}")
    argv = ["update-alternatives", "--root", str(root), "--install", "/etc/cufile.json", "cufile.json", path, "128"]
    World(root)(argv, 1.0)


def imitate(root: Path, patch: Callable[[Any, str, Any], None]) -> None:
    """Have the host program run the world's programs."""
    world = World(root)
    Dpkg.root = root
    patch(process, "run", world)
    patch(services, "is_booted", lambda _: True)
    patch(MenuGrub, "only_here", lambda _: None)
    patch(program, "running", lambda: b"a program")
    # Its modules have no audit here.
    patch(boot_default, "_objections", lambda *_: [])
    for module in (left, packages):
        patch(module, "host_manager", lambda _: Dpkg())
    names, in_module = managers.module_names, managers._in_module
    patch(managers, "module_names", lambda package: sorted({*names(package), Dpkg.name}))
    patch(managers, "_in_module", lambda name: Dpkg() if name == Dpkg.name else in_module(name))


KILLED = 9
#: Events of Python's audit hooks that change a host; ``program`` is the world's own.
_CHANGES = {
    *("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.symlink", "os.link", "os.chmod", "os.chown"),
    *("os.truncate", "subprocess.Popen", "program"),
}


def stopped(work: Callable[[], object], number: int, way: str) -> int:
    """Run ``work`` in a child that is stopped before its change ``number``; its exit status, 0 without such a change.

    way: kill (SIGKILL), term (SIGTERM), full or readonly (this change and all later ones fail).
    """
    pid = os.fork()
    if pid == 0:
        count = 0

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal count
            writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if not writes and event not in _CHANGES:
                return
            count += 1
            if count == number and way == "kill":
                os._exit(KILLED)
            if count == number and way == "term":
                raise SystemExit(143)
            if count >= number and way in ("full", "readonly") and event not in ("os.remove", "os.rmdir"):
                code = errno.ENOSPC if way == "full" else errno.EROFS
                raise OSError(code, os.strerror(code))
            if count >= number and way == "readonly":
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        status = 1
        try:
            sys.addaudithook(hook)
            work()
            status = 1 if count >= number else 0
        except BaseException:  # noqa: BLE001 - this process ends in any case
            pass
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def whole(root: Path) -> dict[str, tuple[Any, ...]]:
    """Bytes, modes, owners, attributes and links of everything, and the world's holds and marks."""
    return tree(root, ("/run",))
