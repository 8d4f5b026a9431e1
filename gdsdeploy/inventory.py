"""(fleet, lock) → Ansible's inventory with every role's variables; pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdsdeploy import mirrored
from gdsdeploy.cufile.render import log_dir
from gdsdeploy.model.fleet import Fleet, Profile
from gdsdeploy.model.lock import Lock, Package, Target
from gdsdeploy.platform import stack_platform_for

HOSTS, BUILDERS = "hosts", "builders"
#: Family of an operating system → the program that installs its packages.
MANAGERS = {"debian": "apt", "ubuntu": "apt", "rhel": "dnf"}


@dataclass(frozen=True)
class Sources:
    """Files on the controller that the run hands to the hosts, and texts rendered for them."""

    #: directory of the fleet file; relative file names in it start there
    fleet_dir: Path
    #: the zipapp
    program: Path
    #: where archives of built modules are kept
    modules: Path
    #: host → text of its expectation
    expectations: Mapping[str, str]
    #: host → text of its cufile.json; empty for one whose facts it is fitted to, while they are not known
    cufile: Mapping[str, str]


def inventory(fleet: Fleet, lock: Lock, sources: Sources) -> dict[str, Any]:
    """The whole inventory, as Ansible's YAML inventory plugin reads it."""
    groups: dict[str, Any] = {HOSTS: {"hosts": {}}, BUILDERS: {"hosts": {}}}
    for name, host in fleet.everyone().items():
        group = BUILDERS if name in fleet.builders else HOSTS
        target = lock.targets[host.profile]
        groups[group]["hosts"][name] = {
            **connection(fleet, name, sources.fleet_dir),
            **variables(fleet, name, target, sources),
        }
    return {"all": {"children": groups}}


def connection(fleet: Fleet, name: str, fleet_dir: Path) -> dict[str, Any]:
    """Ansible's connection variables for one host; host keys are always checked."""
    ssh = fleet.connection(name)
    options = ["-o", "StrictHostKeyChecking=yes", "-o", "BatchMode=yes"]
    if ssh.config:
        options += ["-F", f'"{in_fleet(fleet_dir, ssh.config)}"']
    if ssh.known_hosts:
        options += [
            "-o",
            f'UserKnownHostsFile="{in_fleet(fleet_dir, ssh.known_hosts)}"',
            "-o",
            "GlobalKnownHostsFile=/dev/null",
        ]
    found: dict[str, Any] = {
        "ansible_host": ssh.address,
        "ansible_ssh_common_args": " ".join(options),
    }
    if ssh.port:
        found["ansible_port"] = ssh.port
    if ssh.user:
        found["ansible_user"] = ssh.user
    if ssh.identity_file:
        found["ansible_ssh_private_key_file"] = str(in_fleet(fleet_dir, ssh.identity_file))
    found["ansible_become"] = ssh.user != "root"
    return found


def in_fleet(fleet_dir: Path, name: str) -> Path:
    """A file that the fleet names: absolute, from the home directory, or relative to the fleet file."""
    return fleet_dir / Path(name).expanduser()


def modules_archive(target: Target, directory: Path) -> Path:
    """Where the modules built for ``target`` are kept: the name is a digest of all that decides their content."""
    decisive = {"kernel-image", "kernel-headers", "driver-source", "nvidia-fs-source"}
    text = "\n".join(f"{p.package} {p.version} {p.sha256}" for p in target.packages if p.part in decisive)
    return directory / f"{target.kernel.release}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.tar"


def load_order(profile: Profile, target: Target) -> list[str]:
    """Modules to load at boot, in order: nvidia first, then what links against it."""
    order = ["nvidia"]
    if profile.rdma == "peermem":
        order.append("nvidia-peermem")
    if profile.mode == "nvidia-fs" and target.nvidia_fs is not None:
        order.append("nvidia-fs")
    return order


def packages_for(target: Target, *, host: bool, build: bool) -> list[Package]:
    """The locked packages that a machine needs, given whether it runs the stack and whether it builds modules."""
    wanted = {"both"} | ({"host"} if host else set()) | ({"build"} if build else set())
    return [package for package in target.packages if package.needed_by in wanted]


def bad_kernels(target: Target) -> list[str]:
    """Packages of the kernels that a compatibility rule forbids: on them, the driver's build leaves dpkg half done."""
    platform = stack_platform_for(target.os)
    refused = (item.what.partition(" ") for item in target.refused if item.rule in target.rules)
    return [name for kind, _, release in refused if kind == "kernel" for name in platform.kernel_packages(release)]


def keys(fleet: Fleet, target: Target, fleet_dir: Path) -> list[dict[str, str]]:
    """Keyrings to bring to a host: those of the fleet's own that no package of the operating system carries there."""
    found: dict[str, str] = {}
    for index in target.indices:
        wish = fleet.repositories.get(index.repository)
        if wish is not None and wish.keyring and not wish.signed_by and wish.keyring != index.host_keyring:
            found[index.host_keyring] = str(in_fleet(fleet_dir, wish.keyring))
    return [{"src": src, "dest": dest} for dest, src in sorted(found.items())]


def variables(fleet: Fleet, name: str, target: Target, sources: Sources) -> dict[str, Any]:
    """Every role's variables for one machine."""
    platform = stack_platform_for(target.os)
    profile_name = fleet.everyone()[name].profile
    profile = fleet.profiles[profile_name]
    is_host = name in fleet.hosts
    builds = not is_host or profile.builder is None
    packages = packages_for(target, host=is_host, build=builds)
    kernel = [p for p in packages if p.part in {"kernel-image", "kernel-headers"}]
    cufile = [p for p in packages if p.part in {"libcufile", "gds-tools"}]
    build_only = [p for p in packages if p.needed_by == "build" and p not in kernel]
    driver = [p for p in packages if p not in kernel and p not in cufile and p not in build_only]
    found: dict[str, Any] = {
        "gds_role": "host" if is_host else "builder",
        "gds_preflight_os": target.os,
        "gds_preflight_arch": target.arch,
        "gds_host_program": str(sources.program),
        "gds_host_expectation": sources.expectations[name] if is_host else "",
        "gds_repo_manager": MANAGERS[platform.family],
        "gds_packages_manager": MANAGERS[platform.family],
        "gds_kernel_manager": MANAGERS[platform.family],
        "gds_remove_manager": MANAGERS[platform.family],
        "gds_repo_indices": [
            {
                "repository": index.repository,
                "uri": index.uri,
                "suite": index.suite,
                "components": list(index.components),
                "host_keyring": index.host_keyring,
                "exclusive": index.repository not in platform.presets(),
            }
            for index in target.indices
        ],
        "gds_repo_keys": keys(fleet, target, sources.fleet_dir),
        "gds_repo_pins": [{**_package(p), "sha256": p.sha256} for p in packages],
        "gds_repo_modules": list(target.modules),
        "gds_repo_deny": [*platform.kept_out(), *bad_kernels(target)],
        "gds_kernel_release": target.kernel.release,
        "gds_kernel_packages": [_package(p) for p in kernel],
        "gds_kernel_boot": is_host,
        "gds_cufile_packages": [_package(p) for p in cufile] if is_host else [],
        "gds_cufile_content": sources.cufile[name] if is_host else "",
        "gds_cufile_log_dir": log_dir(profile),
        "gds_driver_packages": [_package(p) for p in driver] if is_host else [],
        "gds_driver_options": dict(profile.driver.options),
        "gds_driver_option_module": target.driver.module or platform.driver_module(target.driver.flavour),
        "gds_driver_modules": load_order(profile, target),
        "gds_driver_kernel_release": target.kernel.release,
        **_modules(is_host=is_host, builds=builds, profile=profile, target=target, sources=sources),
        "gds_reboot_kernel_release": target.kernel.release,
        "gds_reboot_modules": load_order(profile, target),
        "gds_reboot_ok": profile.reboot,
        "gds_remove_kernel_release": target.kernel.release,
    }
    found |= mirrored.variables(fleet.mirror, target, sources.fleet_dir, found["gds_repo_keys"])
    # A host's other packages come with gds_driver; a builder has only this role for all of them.
    found["gds_modules_packages"] = [_package(p) for p in (build_only if is_host else [*driver, *build_only])]
    return found


def _modules(*, is_host: bool, builds: bool, profile: Profile, target: Target, sources: Sources) -> dict[str, Any]:
    nvidia_fs = target.nvidia_fs if profile.mode == "nvidia-fs" else None
    return {
        "gds_modules_from": "build" if builds else "receive",
        "gds_modules_load": is_host,
        "gds_modules_kernel_release": target.kernel.release,
        "gds_modules_driver_version": target.driver.version,
        "gds_modules_driver_flavour": target.driver.flavour,
        "gds_modules_driver_tree": target.driver.source_tree,
        "gds_modules_driver_dkms_name": target.driver.dkms_name,
        "gds_modules_nvidia_fs_version": nvidia_fs.version if nvidia_fs else "",
        "gds_modules_nvidia_fs_tree": nvidia_fs.source_tree if nvidia_fs else "",
        "gds_modules_nvidia_fs_dkms_name": nvidia_fs.dkms_name if nvidia_fs else "nvidia-fs",
        "gds_modules_archive": "" if is_host and builds else str(modules_archive(target, sources.modules)),
        "gds_modules_names": load_order(profile, target),
    }


def _package(package: Package) -> dict[str, str]:
    return {
        "package": package.package,
        "version": package.version,
    }
