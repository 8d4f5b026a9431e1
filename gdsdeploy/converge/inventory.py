"""(fleet, lock) → Ansible's inventory with every role's variables; pure."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gdsdeploy import paths
from gdsdeploy.builds.assign import Supply, archive_of, by_intent
from gdsdeploy.converge import boot
from gdsdeploy.converge.image import Image
from gdsdeploy.cufile.render import log_dir
from gdsdeploy.fleetfile import selection
from gdsdeploy.host.gate.gate import FILE, Settings
from gdsdeploy.host.io.prometheus import places
from gdsdeploy.host.model.system import services_of
from gdsdeploy.lock import repo_settings
from gdsdeploy.lock.signatures import lock_order
from gdsdeploy.mirror import host_vars
from gdsdeploy.model.fleet import Fleet, Profile
from gdsdeploy.model.lock import Lock, Package, Target
from gdsdeploy.platform import stack_platform_for

HOSTS, BUILDERS = "hosts", "builders"
#: MiB that have to be free on a host before anything is installed, by the directory they are needed in.
FREE_MIB = {"/boot": 200, "/usr": 800, "/var": 500}
#: Loaded by a unit of its own, because it has to come after the RDMA core.
PEERMEM = "nvidia-peermem"
#: Parts of a lock that come together: packages of modules need their kernel's, and the driver's userland before.
KERNEL_PARTS = {"kernel-image", "kernel-headers", "driver-modules", "nvidia-fs-modules"}
#: IMEX guide, IMEX Channels: without one, programs may not share memory; the driver makes channel 0 for every user.
IMEX_CHANNEL = {"NVreg_CreateImexChannel0": "1"}
_UNITS = {PEERMEM: "gds-peermem.service"}
#: The playbook's folder in texts to :func:`dump`; random, so that neither a fleet file nor a host can have it.
FOLDER = f"/{secrets.token_hex(16)}"
#: What Ansible takes for a template.
_TEMPLATE = re.compile(r"\{[{%#]")


@dataclass(frozen=True)
class RunFiles:
    """Files on the controller that the run hands to the hosts, and texts rendered for them."""

    #: directory of the fleet file; relative file names in it start there
    fleet_dir: Path
    #: the zipapp
    program: Path
    #: where a run has its archives of built modules
    modules: Path
    #: host → text of its expectation
    expectations: Mapping[str, str]
    #: host → text of its cufile.json; empty for one whose facts it is fitted to, while they are not known
    cufile: Mapping[str, str]
    #: machine → where its modules come from; what the fleet file says, for those that are not there
    supplies: Mapping[str, Supply] = field(default_factory=dict)
    #: where certificates of keys that sign modules are kept
    certificates: Path = Path("certificates")
    #: where public keys of machines that build are on record
    builders: Path = Path("builders")
    #: id of the run, which locks each host until it ends, and the owner that other runs see; empty: no run
    run: str = ""
    who: str = ""
    #: stands for its host
    image: Image | None = None


class _Data(str):
    """A text that Ansible takes as it is."""

    __slots__ = ()


class _Dumper(yaml.SafeDumper):
    """Writes texts that are data with the tag that keeps Ansible from reading a template in them."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - as PyYAML calls it
        """The same text twice is written twice."""
        return True

    def represent_data_text(self, text: str) -> yaml.Node:
        """Tagged, but for ``yes``, ``0x10`` and the like: behind the tag Ansible reads those as what they look like."""
        tag = self.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
        data = tag == self.DEFAULT_SCALAR_TAG
        return self.represent_scalar("!unsafe" if data else self.DEFAULT_SCALAR_TAG, str(text), style='"')


_Dumper.add_representer(_Data, _Dumper.represent_data_text)


def dump(value: Any) -> str:
    """An inventory, or variables, as YAML for Ansible.  Every text is data: none is ever read as a template but FOLDER.

    Texts come from the fleet file and from hosts, and a template could run anything on this machine.
    """
    return yaml.dump(_data(value), Dumper=_Dumper, sort_keys=True, allow_unicode=True, width=10_000)


def _data(value: Any) -> Any:
    if isinstance(value, str):
        ours = FOLDER in value and not _TEMPLATE.search(value)
        return value.replace(FOLDER, "{{ playbook_dir }}") if ours else _Data(value)
    if isinstance(value, Mapping):
        return {str(key): _data(inner) for key, inner in value.items()}
    return [_data(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def inventory(fleet: Fleet, lock: Lock, sources: RunFiles) -> dict[str, Any]:
    """The whole inventory, as Ansible's YAML inventory plugin reads it."""
    groups: dict[str, Any] = {HOSTS: {"hosts": {}}, BUILDERS: {"hosts": {}}}
    for name in fleet.everyone():
        values = connection(fleet, name, sources.fleet_dir) | variables(fleet, lock, name, sources)
        values["gds_host_image"] = ""
        if sources.image is not None and name == sources.image.name:
            values |= sources.image.variables(values)
        groups[BUILDERS if name in fleet.builders else HOSTS]["hosts"][name] = values
    run = {"vars": {"gds_run": sources.run, "gds_who": sources.who}} if sources.run else {}
    return {"all": {"children": groups, **run}}


#: Variables come before the environment, whatever that has: of a shell, of CI, of AWX, which turns the check off.
#: ssh takes the first value of an option, and these arguments are the first on its command line.  Other connection
#: plugins read none of them, and paramiko's can be told to accept every key.
CHECKED = {
    "ansible_connection": "ssh",
    "ansible_host_key_checking": True,
    "ansible_ssh_args": "-o StrictHostKeyChecking=yes -o NoHostAuthenticationForLocalhost=no -o VerifyHostKeyDNS=no "
    "-o ControlMaster=auto -o ControlPersist=60s",
}


def connection(fleet: Fleet, name: str, fleet_dir: Path) -> dict[str, Any]:
    """Ansible's connection variables for one host; host keys are always checked."""
    ssh = fleet.connection(name)
    options = "-o StrictHostKeyChecking=yes -o BatchMode=yes"
    if ssh.config:
        options += f' -F "{paths.locate(fleet_dir, ssh.config)}"'
    if ssh.known_hosts:
        file = paths.locate(fleet_dir, ssh.known_hosts)
        options += f' -o UserKnownHostsFile="{file}" -o GlobalKnownHostsFile=/dev/null'
    optional = {
        "ansible_port": ssh.port,
        "ansible_user": ssh.user,
        "ansible_ssh_private_key_file": ssh.identity_file and str(paths.locate(fleet_dir, ssh.identity_file)),
    }
    return {
        "ansible_host": ssh.address,
        **CHECKED,
        "ansible_ssh_common_args": options,
        **{name: value for name, value in optional.items() if value},
        "ansible_become": ssh.user != "root",
    }


def load_order(profile: Profile, target: Target) -> list[str]:
    """Modules to load at boot, in order; a unit loads nvidia-peermem, which has to come after the RDMA core."""
    return ["nvidia", *(["nvidia-fs"] if profile.mode == "nvidia-fs" and target.nvidia_fs is not None else [])]


def _umad(profile: Profile) -> list[str]:
    """The kernel's module over which NVLSM reaches NVSwitches, loaded before the fabric manager starts NVLSM."""
    return ["ib_umad"] if "nvlink5" in profile.companions else []


def packages_for(target: Target, *, host: bool, build: bool) -> list[Package]:
    """The locked packages that a machine needs, given whether it runs the stack and whether it builds modules."""
    places = {"both"} | ({"host"} if host else set()) | ({"build"} if build else set())
    return [package for package in target.packages if package.needed_by in places]


def packaged_files(target: Target) -> list[dict[str, str]]:
    """The module files that locked packages bring, with the packages' versions."""
    versions = target.versions_of_modules()
    keys = ("module", "file", "sha256", "package")
    return [{**{key: getattr(one, key) for key in keys}, "version": versions[one.package]} for one in target.packaged]


def leaving(target: Target) -> list[dict[str, str]]:
    """Sources that DKMS builds for one version of the driver: other versions leave before it comes, on any host.

    Where packages bring the modules, every version leaves: what DKMS builds would have precedence.  They leave with the
    kernel's packages too: the driver's userland may be there already.
    """
    if target.packaged:
        names = stack_platform_for(target.os).displaced_packages(target.driver.version.partition(".")[0])
        return [{"package": name, "version": ""} for name in names]
    return [_package(p) for p in target.packages if p.part in {"driver-source", "nvidia-fs-source"}]


def bad_kernels(target: Target) -> list[str]:
    """Packages of the kernels that a compatibility rule forbids: on them, the driver's build leaves dpkg half done."""
    platform = stack_platform_for(target.os)
    kernels = [choice.choice for choice in target.refused if choice.rule in target.rules and choice.subject == "kernel"]
    return [name for kernel in kernels for name in platform.kernel_packages(kernel)]


def _unasked_kernel(profile: Profile, target: Target) -> str:
    """The locked kernel's release, where a host may run one of another flavour without the profile saying so."""
    return target.kernel.release if profile.own_kernel and profile.kernel.flavour is None else ""


def keys(fleet: Fleet, target: Target, fleet_dir: Path) -> list[dict[str, str]]:
    """Keyrings to bring to a host: those of the fleet's own that no package of the operating system carries there."""
    keyrings: dict[str, str] = {}
    platform = stack_platform_for(target.os)
    for index in target.indices:
        setting = repo_settings.setting(fleet, index.repository, platform, target.arch)
        keyring = str(setting.declared().keyring)
        if not setting.entry.signed_by and keyring not in (".", index.host_keyring):
            keyrings[index.host_keyring] = str(paths.locate(fleet_dir, keyring))
    return [{"src": source, "dest": dest} for dest, source in sorted(keyrings.items())]


def _order(fleet: Fleet, lock: Lock) -> dict[str, Any]:
    """The variables with which a host compares the lock to its own."""
    fleet_id, serial = lock_order(fleet, lock)
    roles = ("gds_preflight", "gds_remove")
    return {
        f"{role}_{key}": value for role in roles for key, value in (("fleet_id", fleet_id), ("lock_serial", serial))
    }


def variables(fleet: Fleet, lock: Lock, name: str, sources: RunFiles) -> dict[str, Any]:
    """Every role's variables for one machine."""
    profile_name = fleet.machine(name).profile
    profile, target = fleet.profiles[profile_name], lock.targets[profile_name]
    platform = stack_platform_for(target.os)
    is_host = name in fleet.hosts
    supply = sources.supplies.get(name) or by_intent(fleet, lock, name)
    builds = supply.mode == "build"
    packages = packages_for(target, host=is_host, build=builds)
    kernel = [p for p in packages if p.part in KERNEL_PARTS]
    cufile = [p for p in packages if p.part in {"libcufile", "gds-tools"}]
    build_only = [p for p in packages if p.needed_by == "build" and p not in kernel]
    driver = [p for p in packages if p not in kernel and p not in cufile and p not in build_only]
    values: dict[str, Any] = {
        "gds_role": "host" if is_host else "builder",
        **(_package_roles(profile, target) | _order(fleet, lock)),
        **_companions(fleet, name, profile, target),
        "gds_preflight_os": target.os,
        "gds_preflight_arch": target.arch,
        "gds_preflight_free_mib": dict(FREE_MIB),
        "gds_preflight_kernel_release": target.kernel.release,
        "gds_preflight_versions": {package.package: package.version for package in packages},
        "gds_preflight_repositories": addresses(target),
        "gds_preflight_unasked_kernel": _unasked_kernel(profile, target) if is_host else "",
        "gds_host_expectation": sources.expectations[name] if is_host else "",
        "gds_repo_indices": _indices(target),
        "gds_repo_keys": keys(fleet, target, sources.fleet_dir),
        "gds_repo_pins": [{**_package(p), "sha256": p.sha256} for p in packages],
        "gds_repo_modules": list(target.modules),
        "gds_repo_deny": [*platform.kept_out(), *bad_kernels(target)],
        "gds_kernel_release": target.kernel.release,
        "gds_kernel_packages": [_package(p) for p in kernel],
        "gds_kernel_boot": is_host and profile.own_kernel,
        "gds_cufile_packages": [_package(p) for p in cufile] if is_host else [],
        "gds_cufile_content": sources.cufile[name] if is_host else "",
        "gds_cufile_path": "/etc/cufile.json",
        "gds_cufile_log_dir": log_dir(profile),
        "gds_driver_packages": [_package(p) for p in driver] if is_host else [],
        "gds_driver_along": [_package(p) for p in cufile] if is_host else [],
        "gds_driver_leaving": leaving(target) if is_host and platform.manager == "apt" else [],
        "gds_kernel_leaving": leaving(target) if is_host and target.packaged else [],
        "gds_driver_p2pdma": boot.needs_p2pdma_options(profile),
        "gds_driver_option_module": target.driver.module or platform.driver_module(target.driver.flavour),
        "gds_driver_modules": [*load_order(profile, target), *_umad(profile)],
        "gds_driver_rdma": profile.rdma,
        "gds_driver_kernel_release": target.kernel.release,
        **_boot(profile, target),
        "gds_peermem_rdma": profile.rdma,
        "gds_peermem_before": list(profile.gate.before),
        **_modules(is_host=is_host, supply=supply, profile=profile, target=target),
        "gds_modules_dkms": any(package.part == "driver-source" for package in packages),
        "gds_modules_archive": _archive(name, is_host=is_host, supply=supply, sources=sources),
        "gds_modules_builder": supply.origin,
        "gds_modules_builder_key": str(sources.builders / f"{supply.origin}.pub") if supply.origin else "",
        **_services(fleet, name, profile),
        **_signing(fleet, name, supply=supply, profile=profile, target=target, sources=sources),
    }
    values |= host_vars.variables(fleet.mirror, target, sources.fleet_dir, values["gds_repo_keys"])
    # A host's other packages come with gds_driver; a builder has only this role for all of them.
    values["gds_modules_packages"] = [_package(p) for p in (build_only if is_host else [*driver, *build_only])]
    return values


def _companions(fleet: Fleet, name: str, profile: Profile, target: Target) -> dict[str, Any]:
    """What runs beside the driver, and the driver's options, one of which IMEX needs."""
    nodes = fleet.imex_nodes(name)
    return {
        "gds_preflight_driver_version": target.driver.version if name in fleet.hosts else "",
        "gds_preflight_imex_nodes": list(nodes),
        "gds_driver_imex_nodes": list(nodes),
        "gds_driver_options": {**(IMEX_CHANNEL if nodes else {}), **boot.driver_options(profile)},
    }


def _boot(profile: Profile, target: Target) -> dict[str, Any]:
    """What the next boot has beside its kernel, and what makes a reboot necessary."""
    return {
        "gds_boot_kernel_release": target.kernel.release,
        "gds_boot_arguments": boot.arguments(profile),
        "gds_boot_module_options": boot.module_options(profile),
        "gds_reboot_kernel_release": target.kernel.release,
        "gds_reboot_modules": load_order(profile, target),
        "gds_reboot_allowed": profile.reboot,
        "gds_reboot_arguments": boot.arguments(profile),
        "gds_reboot_parameters": boot.expected_parameters(profile),
    }


def _archive(name: str, *, is_host: bool, supply: Supply, sources: RunFiles) -> str:
    """The archive that a machine hands over or receives; empty where it does neither."""
    if supply.mode == "packaged" or supply.source == "kept":
        return ""
    alone = supply.mode == "build" and (not supply.delivers if name in sources.supplies else is_host)
    return "" if alone else str(archive_of(supply.want, sources.modules))


def addresses(target: Target) -> list[str]:
    """Where the lock's repositories are, each once."""
    return list(dict.fromkeys(index.uri for index in target.indices))


def _indices(target: Target) -> list[dict[str, Any]]:
    presets = stack_platform_for(target.os).presets()
    return [
        {
            "repository": index.repository,
            "uri": index.uri,
            "suite": index.suite,
            "components": list(index.components),
            "host_keyring": index.host_keyring,
            "exclusive": index.repository not in presets,
            **({"metadata": "unsigned"} if index.metadata == "unsigned" else {}),
        }
        for index in target.indices
    ]


def _package_roles(profile: Profile, target: Target) -> dict[str, Any]:
    """The package manager, the names of all locked packages, and what may leave, for each role that installs some."""
    manager = stack_platform_for(target.os).manager
    locked = sorted(package.package for package in target.packages)
    installing = ("gds_driver", "gds_kernel", "gds_cufile", "gds_modules")
    managers = {f"{role}_manager": manager for role in ("gds_repo", "gds_preflight", *installing)}
    removes = {f"{role}_removes": list(profile.removes) for role in installing}
    return {**managers, **{f"{role}_locked": locked for role in installing}, **removes}


def _modules(*, is_host: bool, supply: Supply, profile: Profile, target: Target) -> dict[str, Any]:
    nvidia_fs = target.nvidia_fs if profile.mode == "nvidia-fs" else None
    return {
        "gds_modules_from": supply.mode,
        # No host boots a builder's other kernels.
        "gds_modules_target_only": not is_host,
        "gds_modules_kernel_release": target.kernel.release,
        "gds_modules_driver_version": target.driver.version,
        "gds_modules_driver_flavour": target.driver.flavour,
        "gds_modules_driver_tree": target.driver.source_tree,
        "gds_modules_driver_dkms_name": target.driver.dkms_name,
        "gds_modules_nvidia_fs_version": nvidia_fs.version if nvidia_fs else "",
        "gds_modules_nvidia_fs_tree": nvidia_fs.source_tree if nvidia_fs else "",
        "gds_modules_nvidia_fs_dkms_name": nvidia_fs.dkms_name if nvidia_fs else "nvidia-fs",
        "gds_modules_packaged": packaged_files(target),
        "gds_modules_names": load_order(profile, target),
        "gds_modules_loaded": [
            *load_order(profile, target),
            *_umad(profile),
            *([PEERMEM] if profile.rdma == "peermem" else []),
        ],
        "gds_modules_units": dict(_UNITS) if profile.rdma == "peermem" else {},
        "gds_modules_services": services_of(package.package for package in target.packages),
    }


def _services(fleet: Fleet, name: str, profile: Profile) -> dict[str, Any]:
    """What gdsdeploy itself runs on a host."""
    watch = {**profile.watch.model_dump(), "enabled": profile.watch.enabled and name in fleet.hosts}
    return {**_gate(fleet, name, profile), **{f"gds_watch_{key}": value for key, value in watch.items()}}


def _gate(fleet: Fleet, name: str, profile: Profile) -> dict[str, Any]:
    gate = profile.gate
    settings = Settings(
        seconds=float(gate.seconds),
        file=gate.file,
        slurm=gate.slurm,
        metrics=gate.metrics,
        measured_boot=gate.measured_boot,
        waivers=[waiver.as_dict() for waiver in selection.waivers_of(fleet, name)],
    )
    # All of the usual folders: only the host knows which of them are there.
    metrics = places(gate.metrics, FILE)
    return {
        "gds_gate_left": [*metrics, *([gate.file] if gate.file else [])],
        "gds_gate_enabled": gate.enabled and name in fleet.hosts,
        "gds_gate_settings": settings.to_json(),
        "gds_gate_before": list(gate.before),
        "gds_gate_required_by": list(gate.required_by),
        "gds_gate_seconds": gate.seconds,
        "gds_gate_slurm": gate.slurm,
    }


def _signing(
    fleet: Fleet, name: str, *, supply: Supply, profile: Profile, target: Target, sources: RunFiles
) -> dict[str, Any]:
    """Of gds_secureboot; the certificate's name on the controller is of the fleet, the profile and the builder's file.

    So a profile with another key has no certificate here until its builder has handed that over.
    """
    signing = profile.signing
    parts = (sources.fleet_dir, fleet.machine(name).profile, signing.certificate if signing else "")
    owner = hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]
    return {
        "gds_secureboot_signs": supply.mode == "build",
        "gds_secureboot_enrols": name in fleet.hosts,
        "gds_secureboot_kernel_release": target.kernel.release,
        "gds_secureboot_certificate": signing.certificate if signing else "",
        # An address of a PKCS#11 token isn't a file.
        "gds_secureboot_key": signing.own_key if signing and not signing.own_key.startswith("pkcs11:") else "",
        "gds_secureboot_settings": signing.settings if signing else "",
        "gds_secureboot_shared": str(sources.certificates / f"{owner}.der") if signing else "",
        "gds_modules_signed": signing is not None,
    }


def _package(package: Package) -> dict[str, str]:
    return {"package": package.package, "version": package.version}
