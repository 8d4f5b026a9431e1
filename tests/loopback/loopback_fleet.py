"""A fleet whose hosts are all this machine, each behind a real SSH server on loopback."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from gdsdeploy.lock import lockfile
from gdsdeploy.lock.lockfile import pins
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Component, Kernel, LockedDriver, Source, Target
from tests.loopback.loopback_sshd import ADDRESSES, Sshd

RUNNING = os.uname().release


class LoopbackFleet:
    """A fleet file and its lock.  Every host is this machine; the profile ``wrong`` is locked to no kernel of it.

    Each host without an address or port of its own gets an address at which the server answers as another machine.
    """

    def __init__(self, folder: Path, server: Sshd, hosts: dict[str, dict[str, Any]]) -> None:
        self.server, self.path = server, folder / "fleet.yml"
        first, *rest = server.known_hosts.read_text().split()[:3]
        names = [first.replace(ADDRESSES[0], name) for name in (*ADDRESSES, "localhost")]
        server.known_hosts.write_text("".join(f"{name} {' '.join(rest)}\n" for name in names))
        addresses = iter(ADDRESSES)
        hosts = {
            name: {**host} if {"address", "port"} & host.keys() else {**host, "address": next(addresses)}
            for name, host in hosts.items()
        }
        profile = {"os": "debian-13", "repositories": []}
        value = {
            "version": 1,
            "ssh": {
                "user": "root",
                "port": server.port,
                "address": "127.0.0.1",
                "identity_file": str(server.identity),
                "known_hosts": str(server.known_hosts),
            },
            "profiles": {"right": profile, "wrong": profile},
            "builders": {"build1": {"profile": "right", "port": 2}},
            "hosts": hosts,
        }
        self.path.write_text(yaml.safe_dump(value))
        fleet = Fleet.model_validate(value)
        kernels = {"right": RUNNING, "wrong": "0.0.0-none"}
        targets = {name: target(fleet, name, release) for name, release in kernels.items()}
        lockfile.write(lockfile.beside(self.path), lockfile.build(targets))

    def sessions(self) -> int:
        """How often something was executed on the server so far."""
        log = (self.server.folder / "log").read_text()
        return log.count("Starting session: command") + log.count("Starting session: forced-command")


def target(fleet: Fleet, profile: str, kernel: str) -> Target:
    return Target(
        os="debian-13",
        arch="x86_64",
        kernel=Kernel(release=kernel, version="1"),
        driver=LockedDriver(version="550.1", flavour="open", source_tree="/usr/src/nvidia", dkms_name="nvidia"),
        nvidia_fs=Source(version="2.19.7", source_tree="/usr/src/nvidia-fs-2.19.7", dkms_name="nvidia-fs"),
        libcufile=Component(version="1.9.1.3"),
        gds_tools=None,
        rules=(),
        pins=pins(fleet.profiles[profile]),
        indices=(),
        packages=(),
    )
