"""The first fleet file of a lab."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from jinja2 import Environment, StrictUndefined

from gdsdeploy import atomic, console
from gdslab import elbase, families, guest
from gdslab.archive import Archive
from gdslab.host import LabHost
from gdslab.kit import doca, el, ubuntu
from gdslab.server import Server
from gdslab.state import Lab, group_of
from gdslab.systems import System


def render(name: str, hosts: Sequence[LabHost], system: System, archive: Archive, server: Server | None = None) -> str:
    """The fleet file: it provisions VM hosts and nodes, and builds on the other light hosts."""
    # YAML, not HTML: escaping would corrupt addresses.
    environment = Environment(
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 # nosec B701
    )
    template = environment.from_string((guest.data("templates/fleet.yml.j2")).read_text())
    return template.render(
        name=name,
        archive=archive,
        system=system,
        release=system.base,
        server=server,
        doca=doca.folders(f"ubuntu{system.number}") if system.kit == "ubuntu" else {},
        host_keyring=families.UBUNTU_KEYRING,
        rpm_repositories=el.repositories(elbase.versions(system)) if system.kit == "el" else {},
        rpm_keys=el.KEYS,
        rpm_unsigned=el.UNSIGNED,
        repositories=_repositories(system, archive),
        driver=_driver(system),
        user=guest.USER,
        mount=guest.NVME_MOUNT,
        builders=[host for host in hosts if group_of(host.name) == "light"],
        nodes=[host for host in hosts if group_of(host.name) == "node"],
        hosts=[host for host in hosts if host.kind == "vm"],
    )


def _repositories(system: System, archive: Archive) -> list[str]:
    """The repositories of a profile, in order."""
    if system.kit == "el":
        return list(el.LISTED)
    if system.kit:
        return ["cuda", "ubuntu", "ubuntu-security"]
    return ["debian", "debian-security"] if archive.security_uri else ["debian"]


def _driver(system: System) -> str:
    """The branch of the driver that the system's repositories have."""
    if system.kit == "ubuntu":
        return ubuntu.RELEASES[system.os].cuda.driver.partition(".")[0]
    return elbase.versions(system).driver.partition(".")[0] if system.kit else system.base.driver


def write(lab: Lab, archive: Archive) -> None:
    """Write ``fleet.yml``; if the user edited it, warn about hosts that it doesn't name."""
    text = render(lab.name, lab.hosts(), lab.system, archive, lab.server)
    if lab.fleet_path.is_file():
        current = lab.fleet_path.read_text()
        if current == text:
            return
        if _digest(current) != lab.read().get("fleet"):
            for host in lab.hosts():
                if f"port: {host.port}" not in current:
                    console.warn(f"{lab.fleet_path} was edited, so it stays; it lacks {host.name}, port {host.port}")
            return
    lab.update(lambda value: value.update(fleet=_digest(text)))
    atomic.write(lab.fleet_path, text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
