"""A machine → what that host is expected to be; pure."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from gdsdeploy.converge import boot
from gdsdeploy.converge.machine import Machine, addresses, packaged_files, packages_for
from gdsdeploy.cufile.render import PATH
from gdsdeploy.errors import FleetInvalid
from gdsdeploy.host.model.expectation import Expectation
from gdsdeploy.model.fleet import Mount, TopologySettings


def expectation(machine: Machine) -> Expectation:
    """The expectation of a host (never of a builder); without its cufile.json, the digest of that file is empty.

    Raises LockStale for a profile that the lock doesn't have, FleetInvalid and HostUnfit for that file.
    """
    fleet, lock, name, profile, target = machine.fleet, machine.lock, machine.name, machine.profile, machine.target
    devices = {"gpus": profile.gpus, "nics": profile.nics, "nvme": profile.nvme}
    wish, golden = profile.topology, golden_document(machine.profile_name, profile.topology)
    nvidia_fs = target.nvidia_fs if profile.mode == "nvidia-fs" else None
    return Expectation(
        host=name,
        profile=machine.profile_name,
        os=target.os,
        arch=target.arch,
        kernel_release=target.kernel.release,
        driver_version=target.driver.version,
        driver_flavour=target.driver.flavour,
        driver_tree=target.driver.source_tree,
        mode=profile.mode,
        rdma=profile.rdma,
        nvidia_fs_version=nvidia_fs.version if nvidia_fs else "",
        libcufile_version=target.libcufile.version,
        cufile_path=PATH,
        cufile_sha256=hashlib.sha256(machine.cufile.encode()).hexdigest() if machine.cufile else "",
        packages={
            package.package: package.version
            # Which of the others builds is chosen from what they are; a host that receives has no need of a compiler.
            for package in packages_for(target, host=True, build=fleet.modules(name) == "build")
        },
        repositories=addresses(target),
        storage=[_storage(mount) for mount in profile.storage],
        topology={key: value for key, value in (("nvme", wish.nvme), ("nic", wish.nic), ("golden", golden)) if value},
        hardware={kind: expected.expected() for kind, expected in devices.items() if expected is not None},
        lock_digest=lock.digest,
        fleet_id=lock.fleet_id or "",
        lock_serial=lock.serial,
        own_kernel=profile.own_kernel,
        boot_arguments=boot.arguments(profile),
        module_parameters=boot.expected_parameters(profile) if profile.own_kernel else {},
        packaged=packaged_files(target),
        imex_nodes=list(fleet.imex_nodes(name)),
        # Hosts don't need to know which file of the controller has the rule.
        rules=[replace(rule, place="") for rule in fleet._own_rules],
    )


def golden_document(profile: str, settings: TopologySettings) -> dict[str, Any] | None:
    """The golden topology of a profile; None: it names none.  Raises FleetInvalid where its file cannot be used."""
    if settings.golden is None:
        return None
    if isinstance(settings.document, str):
        raise FleetInvalid(
            f"profiles.{profile}.topology.golden: {settings.document}",
            hint="Write it from a host that is right: gdsdeploy topology FLEET --limit HOST --golden write",
        )
    return settings.document


def _storage(mount: Mount) -> dict[str, Any]:
    scratch = {} if mount.scratch else {"scratch": "no"}
    load = {} if mount.load is None else {"load": {"read": mount.load.read, "seconds": mount.load.seconds}}
    return {"mount": mount.mount, "path": mount.path, **scratch, **load}
