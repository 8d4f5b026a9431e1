"""A lab on disk: its hosts, their ports, and the files for SSH."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gdsdeploy import atomic, paths
from gdsdeploy.files import folders
from gdslab import firmware, guest, records, ssh, systems
from gdslab.efi import Uefi
from gdslab.errors import LabUnavailable
from gdslab.firmware import Firmware
from gdslab.host import HostRecord, LabHost
from gdslab.nspawn import LightHost
from gdslab.qemu import VmHost
from gdslab.server import Server
from gdslab.systems import System

#: First port tried for each kind, below Linux's range for outgoing connections.
FIRST_PORT = {"light": 22001, "vm": 22011, "repositories": 21901}
LAST_PORT = 32000
#: Group of hosts → their kind and the prefix of their names.
GROUPS = {"vm": ("vm", "gpu"), "light": ("light", "build"), "node": ("light", "node")}
STATE_VERSION = 1


def labs_directory() -> Path:
    """The folder of labs."""
    return paths.state() / "lab"


def cache_directory() -> Path:
    """The folder of base systems and stand-ins."""
    return paths.cache() / "lab"


class Lab:
    """A lab by its name; the constructor writes nothing."""

    def __init__(self, name: str) -> None:
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,30}", name):
            raise LabUnavailable(
                f"{name!r} cannot name a lab", hint="Use up to 31 lower-case letters, digits and hyphens"
            )
        self.name = name
        self.directory = labs_directory() / name
        # Two threads make the two kinds of hosts, and both change the record.
        self._mutex = threading.RLock()

    @property
    def fleet_path(self) -> Path:
        """The lab's fleet file."""
        return self.directory / "fleet.yml"

    @property
    def ssh_config(self) -> Path:
        """An ssh_config with every host of the lab."""
        return self.directory / "ssh_config"

    @property
    def key(self) -> Path:
        """The private key for all hosts of the lab."""
        return self.directory / "id_ed25519"

    def exists(self) -> bool:
        """Whether the lab was brought up, at least in part."""
        return (self.directory / "lab.json").is_file()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Exclude other gdsdeploy processes from this lab."""
        with folders.hold_lock(labs_directory() / f".{self.name}.lock", what=f"lab {self.name}"):
            yield

    def read(self) -> dict[str, Any]:
        """The lab's record; raises LabUnavailable without such a lab, or for a record of another version."""
        value = records.read_json(self.directory / "lab.json")
        if value is None:
            raise LabUnavailable(f"there is no lab {self.name}", hint=f"gdsdeploy lab up --lab {self.name}")
        if value["version"] != STATE_VERSION:
            raise LabUnavailable(
                f"lab {self.name} was made by another version of gdsdeploy",
                hint=f"Run that version's `gdsdeploy lab down --lab {self.name}`",
            )
        return value

    def write(self, value: dict[str, Any]) -> None:
        """Replace the lab's record."""
        self.directory.mkdir(parents=True, exist_ok=True)
        records.write_json(self.directory / "lab.json", {"version": STATE_VERSION, **value})

    def update(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Call ``change`` on the lab's record, atomically among this process's threads."""
        with self._mutex:
            value = self.read()
            change(value)
            self.write(value)

    @property
    def system(self) -> System:
        """The operating system of the lab's hosts; earlier versions recorded only Debian's release."""
        value = self.read()
        return systems.find(value["os"]) if "os" in value else systems.of_release(value["release"])

    @property
    def release(self) -> guest.Release:
        """The Debian release that the hosts' programs come from."""
        return self.system.base

    @property
    def firmware(self) -> Firmware:
        """What the lab's VM hosts boot by."""
        return firmware.of(self.read().get("firmware"))

    @property
    def server(self) -> Server | None:
        """The web server of the lab's repositories; None for hosts of Debian, which use Debian's archive."""
        return Server.of(self.directory, self.read())

    def add_server(self, kit: Path) -> None:
        """Record the server of the repositories in ``kit``, with an unused port, unless there is one."""

        def add(value: dict[str, Any]) -> None:
            port = free_port(FIRST_PORT["repositories"], recorded_ports())
            value.setdefault("repositories", {"port": port, "kit": kit.as_posix()})

        with self._mutex, folders.hold_lock(labs_directory() / ".ports.lock", what="the choice of ports"):
            self.update(add)

    def hosts(self) -> list[LabHost]:
        """All hosts of the lab, light ones first, in the order they were made."""
        value = self.read()
        return [self._host(HostRecord(**host), value) for host in value["hosts"]]

    def host(self, name: str) -> LabHost:
        """The host called ``name``; raises LabUnavailable when the lab has none."""
        hosts = {host.name: host for host in self.hosts()}
        if name not in hosts:
            raise LabUnavailable(f"lab {self.name} has no host {name}", hint=f"It has: {', '.join(hosts)}")
        return hosts[name]

    def _host(self, record: HostRecord, value: dict[str, Any]) -> LabHost:
        directory = self.directory / "hosts" / record.name
        if record.kind == "light":
            return LightHost(record, directory, self.ssh_config)
        emulator = Path(value["emulator"]) if value.get("emulator") else None
        uefi = self._uefi(value)
        return VmHost(record, directory, self.ssh_config, value.get("accelerator") or "tcg", emulator, uefi)

    def _uefi(self, value: dict[str, Any]) -> Uefi | None:
        """How the VM hosts boot by UEFI; None for a BIOS."""
        chosen, parts = firmware.of(value.get("firmware")), value.get("uefi")
        if not chosen.uefi or parts is None:
            return None
        grub = "grub2" if self.system.kit == "el" else "grub"
        own, db = (tuple(map(bytes.fromhex, parts[name])) for name in ("moks", "db"))
        return Uefi(Path(parts["root"]), grub, chosen.secure_boot, own + chosen.moks, db, chosen.tpm)

    def group(self, group: str) -> list[LabHost]:
        """The hosts of ``group``: "vm", "light" (builders), or "node" (light hosts to provision)."""
        return [host for host in self.hosts() if group_of(host.name) == group]

    def lacks(self, group: str, count: int) -> bool:
        """Whether the record has fewer than ``count`` hosts of ``group``."""
        return len(self.group(group)) < count

    def add_hosts(self, group: str, count: int, base: Path) -> None:
        """HostRecord hosts of ``group`` until there are ``count``, each with an unused port."""
        kind, prefix = GROUPS[group]

        def add(value: dict[str, Any]) -> None:
            used_ports = recorded_ports()
            names = {host["name"] for host in value["hosts"]}
            for name in (f"{prefix}{number}" for number in range(1, count + 1)):
                if name not in names:
                    port = free_port(FIRST_PORT[kind], used_ports)
                    used_ports.add(port)
                    value["hosts"].append(asdict(HostRecord(name, kind, port, base.as_posix())))
            value["hosts"].sort(key=lambda host: (host["kind"], *_name_and_number(host["name"])))

        with self._mutex, folders.hold_lock(labs_directory() / ".ports.lock", what="the choice of ports"):
            self.update(add)

    def host_key(self, name: str) -> tuple[str, str]:
        """The host's SSH key, private and public half; made when missing."""
        folder = self.directory / "host_keys"
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        path = folder / name
        ssh.make_key(path, f"{name} of lab {self.name}")
        return path.read_text(), path.with_name(f"{name}.pub").read_text()

    def write_access(self) -> None:
        """Write known_hosts and ssh_config for all hosts."""
        with self._mutex:
            hosts = self.hosts()
            keys = {host.port: self.host_key(host.name)[1] for host in hosts}
            atomic.write(self.directory / "known_hosts", ssh.known_hosts(keys))
            ports = {host.name: host.port for host in hosts}
            atomic.write(self.ssh_config, ssh.config(self.directory, guest.USER, ports))


def group_of(name: str) -> str:
    """The group of the host called ``name``."""
    prefix, _ = _name_and_number(name)
    return next(group for group, (_, start) in GROUPS.items() if start == prefix)


def _name_and_number(name: str) -> tuple[str, int]:
    letters = name.rstrip("0123456789")
    return letters, int(name[len(letters) :])


def all_labs() -> list[Lab]:
    """Every lab of this user, by name."""
    folder = labs_directory()
    names = sorted(path.parent.name for path in folder.glob("*/lab.json")) if folder.is_dir() else []
    return [Lab(name) for name in names]


def recorded_ports() -> set[int]:
    """Ports of all hosts and repositories in this user's labs, running or not."""
    records = [lab.read() for lab in all_labs()]
    served = {int(record["repositories"]["port"]) for record in records if "repositories" in record}
    return served | {int(host["port"]) for record in records for host in record["hosts"]}


def free_port(first: int, used_ports: set[int]) -> int:
    """The first port from ``first`` on that isn't in ``used_ports`` and has no listener."""
    for port in range(first, LAST_PORT):
        if port not in used_ports and not port_in_use(port):
            return port
    raise LabUnavailable(f"no free port between {first} and {LAST_PORT} on 127.0.0.1")


def port_in_use(port: int) -> bool:
    """Whether a program listens on ``port`` of loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As sshd and QEMU do: connections in TIME_WAIT don't count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False
