"""A machine → the desired state of each resource, and from these the variables of the roles that apply them.

A resource has two places: its module in ``gdsdeploy/host/apply/``, which hosts run and which knows no fleet, and its
row here.  They stand in the order in which the playbook's roles apply them.  Pure, but for the files of the
controller that a machine's :class:`~gdsdeploy.converge.machine.Files` reads.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

from gdsdeploy.converge import boot
from gdsdeploy.converge.expectation import expectation as expectation_of
from gdsdeploy.converge.machine import (
    PEERMEM,
    PEERMEM_UNIT,
    Machine,
    addresses,
    encoded,
    exactly,
    packaged_files,
    superseded,
)
from gdsdeploy.cufile.render import log_dir
from gdsdeploy.fleetfile import selection
from gdsdeploy.host.apply import (
    boot_arguments,
    boot_default,
    cufile,
    driver_options,
    expectation,
    gate,
    guard,
    image,
    imex,
    loaded,
    module_options,
    modules,
    peermem,
    pins,
    preflight,
    program,
    reboot,
    recipes,
    registry,
    removals,
    repositories,
    signing,
    watch,
)
from gdsdeploy.host.apply.file_resource import FileResource
from gdsdeploy.host.apply.packages import managers, transaction
from gdsdeploy.host.gate.gate import FILE, Settings
from gdsdeploy.host.io.prometheus import places
from gdsdeploy.host.model.system import services_of
from gdsdeploy.lock.signatures import lock_order
from gdsdeploy.model.lock import Target
from gdsdeploy.platform import stack_platform_for

VERSION: Final = 1
#: MiB that have to be free on a host before anything is installed, by the directory they are needed in.
FREE_MIB = {"/boot": 200, "/usr": 800, "/var": 500}
#: IMEX guide, IMEX Channels: without one, programs may not share memory; the driver makes channel 0 for every user.
IMEX_CHANNEL = {"NVreg_CreateImexChannel0": "1"}


@dataclass(frozen=True)
class Resource:
    """A resource as a role applies it."""

    #: as the host program names it: RESOURCE or RESOURCE.INSTANCE
    name: str
    role: str
    desired: Callable[[Machine], Any]
    #: on which machines
    when: Callable[[Machine], bool] = lambda _: True
    #: variables of the role that name files of the controller, instead of the fields with their contents
    files: Callable[[Machine], dict[str, Any]] = lambda _: {}
    contents: tuple[str, ...] = ()
    #: whether it has the name of a machine: its own, or that of the one that builds for it
    named: bool = False


_host, _boots, _builds = attrgetter("is_host"), attrgetter("boots"), attrgetter("builds")


def _builds_or_receives(machine: Machine) -> bool:
    return machine.builds or machine.is_host


def _preflight(machine: Machine) -> preflight.Desired:
    target, profile = machine.target, machine.profile
    fleet_id, serial = lock_order(machine.fleet, machine.lock)
    # A host may run a kernel of another flavour without the profile saying so; the one that runs isn't the image's.
    asks = machine.boots and not machine.image and profile.kernel.flavour is None
    return preflight.Desired(
        os=target.os,
        arch=target.arch,
        manager=machine.manager,
        free_mib=dict(FREE_MIB),
        unasked_kernel=machine.release if asks else "",
        kernel_release=machine.release,
        versions={package.package: package.version for package in machine.packages},
        repositories=addresses(target),
        driver_version=target.driver.version if machine.is_host else "",
        imex_nodes=list(machine.fleet.imex_nodes(machine.name)),
        fleet_id=fleet_id,
        lock_serial=serial,
    )


def _repositories(machine: Machine) -> repositories.Desired:
    indices, keyrings = machine.sources
    keys = [managers.Key(dest, encoded(machine.controller.keyring(source))) for dest, source in keyrings.items()]
    return repositories.Desired(machine.manager, indices, keys, machine.pins)


def _bad_kernels(target: Target) -> list[str]:
    """Packages of the kernels that a compatibility rule forbids: on them, the driver's build leaves dpkg half done."""
    platform = stack_platform_for(target.os)
    kernels = [choice.choice for choice in target.refused if choice.rule in target.rules and choice.subject == "kernel"]
    return [name for kernel in kernels for name in platform.kernel_packages(kernel)]


def _superseded(machine: Machine) -> list[managers.Package]:
    """What leaves before the driver comes."""
    return superseded(machine.target) if machine.is_host and machine.manager == "apt" else []


def _expectation(machine: Machine) -> expectation.Desired:
    if not machine.is_host:
        return expectation.Desired("")
    expected = expectation_of(machine)
    return expectation.Desired((replace(expected, host="") if machine.image else expected).to_json())


def has_dkms(machine: Machine) -> bool:
    """Whether it gets DKMS, to build or because the driver's packages need it."""
    return any(package.part == "driver-source" for package in machine.packages)


def _recipe(machine: Machine) -> dict[str, Any]:
    """What DKMS builds, as both of its resources say it."""
    target = machine.target
    nvidia_fs = target.nvidia_fs if machine.profile.mode == "nvidia-fs" else None
    return {
        "source": machine.supply.mode,
        "kernel_release": machine.release,
        # No host boots a builder's other kernels.
        "target_only": not machine.is_host,
        "driver_version": target.driver.version,
        "driver_flavour": target.driver.flavour,
        "driver_tree": target.driver.source_tree,
        "driver_dkms_name": target.driver.dkms_name,
        "nvidia_fs_version": nvidia_fs.version if nvidia_fs else "",
        "nvidia_fs_tree": nvidia_fs.source_tree if nvidia_fs else "",
        "nvidia_fs_dkms_name": nvidia_fs.dkms_name if nvidia_fs else "nvidia-fs",
    }


def _driver_options(machine: Machine) -> driver_options.Desired:
    profile, driver = machine.profile, machine.target.driver
    channel = IMEX_CHANNEL if machine.fleet.imex_nodes(machine.name) else {}
    return driver_options.Desired(
        kernel_release=machine.release,
        options={**channel, **boot.driver_options(profile)},
        option_module=driver.module or machine.platform.driver_module[driver.flavour],
        modules=[*machine.loads, *machine.umad],
        rdma=profile.rdma,
        p2pdma=boot.needs_p2pdma_options(profile),
    )


def _packages(machine: Machine, part: str) -> transaction.Desired:
    return transaction.Desired(
        manager=machine.manager,
        packages=exactly(machine.packages_of[part]),
        locked=machine.locked,
        removes=list(machine.profile.removes),
    )


def _signing(machine: Machine) -> signing.Desired:
    own = machine.profile.signing
    delivered = None if machine.builds else machine.controller.content(machine.certificate_path)
    return signing.Desired(
        certificate=own.certificate if own else "",
        # An address of a PKCS#11 token isn't a file.
        key=own.own_key if own and not own.own_key.startswith("pkcs11:") else "",
        settings=own.settings if own else "",
        signs=machine.builds,
        # The firmware is that of the hosts, not of the machine that makes an image.
        enrols=machine.is_host and not machine.image,
        kernel_release=machine.release,
        certificate_content=encoded(delivered or b""),
    )


def _modules(machine: Machine) -> modules.Desired:
    return modules.Desired(
        **_recipe(machine),
        names=machine.loads,
        signed=machine.profile.signing is not None,
        builder=machine.supply.origin,
        # An archive to receive, and the key with which it is verified, come while provision runs.
        hand_over=machine.builds and bool(machine.archive_path),
        packaged=packaged_files(machine.target),
    )


def _gate(machine: Machine) -> gate.Desired:
    wish = machine.profile.gate
    settings = Settings(
        seconds=float(wish.seconds),
        file=wish.file,
        slurm=wish.slurm,
        metrics=wish.metrics,
        measured_boot=wish.measured_boot,
        waivers=selection.waivers_of(machine.fleet, machine.name),
    )
    return gate.Desired(
        enabled=wish.enabled and machine.is_host,
        settings=settings.to_json(),
        before=list(wish.before),
        required_by=list(wish.required_by),
        seconds=wish.seconds,
        slurm=wish.slurm,
        # All of the usual folders: only the host knows which of them are there.
        files=[*places(wish.metrics, FILE), *([wish.file] if wish.file else [])],
    )


#: Every resource in the order in which the playbook's roles apply it.
RESOURCES: Final[tuple[Resource, ...]] = (
    Resource("preflight", "gds_preflight", _preflight),
    Resource(
        "repositories",
        "gds_repo",
        _repositories,
        files=lambda machine: {"keys": [{"src": src, "dest": dest} for dest, src in machine.sources[1].items()]},
        contents=("keys",),
    ),
    Resource(
        "pins",
        "gds_repo",
        lambda machine: pins.Desired(
            manager=machine.manager,
            indices=machine.sources[0],
            pins=machine.pins,
            deny=[*machine.platform.kept_out, *_bad_kernels(machine.target)],
            modules=list(machine.target.modules),
        ),
    ),
    Resource(
        "removals",
        "gds_repo",
        lambda machine: removals.Desired(
            manager=machine.manager,
            pins=machine.pins,
            superseded=_superseded(machine),
            locked=machine.locked,
            removes=list(machine.profile.removes),
        ),
    ),
    Resource("program", "gds_host", lambda _: program.Desired()),
    Resource("expectation", "gds_host", _expectation, named=True),
    Resource("recipes", "gds_modules", lambda machine: recipes.Desired(**_recipe(machine)), has_dkms),
    Resource("guard", "gds_kernel", lambda machine: guard.Desired(machine.manager), _boots),
    Resource("driver_options", "gds_driver", _driver_options, _host),
    Resource(
        "packages.driver",
        "gds_driver",
        lambda machine: replace(
            _packages(machine, "driver"),
            dependents=exactly(machine.packages_of["cufile"]),
            superseded=_superseded(machine),
        ),
        _host,
    ),
    Resource("imex", "gds_driver", lambda machine: imex.Desired(list(machine.fleet.imex_nodes(machine.name))), _host),
    Resource(
        "packages.kernel",
        "gds_kernel",
        lambda machine: replace(
            _packages(machine, "kernel"),
            superseded=superseded(machine.target) if machine.is_host and machine.target.packaged else [],
        ),
    ),
    Resource(
        "module_options",
        "gds_boot",
        lambda machine: module_options.Desired(machine.release, boot.module_options(machine.profile)),
        _boots,
    ),
    Resource(
        "boot_arguments",
        "gds_boot",
        # What boots hosts from the network passes them.
        lambda machine: boot_arguments.Desired(
            machine.release, [] if machine.image == "network" else boot.arguments(machine.profile)
        ),
        _boots,
    ),
    Resource("packages.cufile", "gds_cufile", lambda machine: _packages(machine, "cufile"), _host),
    Resource(
        "cufile",
        "gds_cufile",
        lambda machine: cufile.Desired(machine.cufile, log_dir=log_dir(machine.profile)),
        _host,
    ),
    Resource(
        "signing",
        "gds_secureboot",
        _signing,
        lambda machine: machine.profile.signing is not None and _builds_or_receives(machine),
        files=lambda machine: {"shared": machine.certificate_path},
        contents=("certificate_content",),
    ),
    Resource("packages.modules", "gds_modules", lambda machine: _packages(machine, "modules"), _builds),
    Resource(
        "modules",
        "gds_modules",
        _modules,
        _builds_or_receives,
        files=lambda machine: {"archive": machine.archive_path, "builder_key": machine.builder_key_path},
        contents=("hand_over", "archive_sha256", "builder_key"),
        named=True,
    ),
    Resource(
        "boot_default",
        "gds_kernel",
        lambda machine: boot_default.Desired(machine.release),
        lambda machine: machine.boots and machine.image != "network",
    ),
    Resource(
        "peermem",
        "gds_peermem",
        lambda machine: peermem.Desired(machine.profile.rdma, list(machine.profile.gate.before)),
        _host,
    ),
    Resource("gate", "gds_gate", _gate, _host),
    Resource(
        "watch",
        "gds_watch",
        lambda machine: watch.Desired(
            machine.profile.watch.enabled and machine.is_host,
            machine.profile.watch.every,
            machine.profile.watch.metrics,
        ),
        _host,
    ),
    Resource(
        "loaded",
        "gds_modules",
        # In an image, services are only enabled.
        lambda machine: loaded.Desired(
            kernel_release=machine.release,
            loaded=[] if machine.image else [*machine.loads, *machine.umad, *machine.peermem],
            units={PEERMEM: PEERMEM_UNIT} if machine.peermem and not machine.image else {},
            services=services_of(package.package for package in machine.target.packages),
        ),
        _boots,
    ),
    Resource(
        "reboot",
        "gds_reboot",
        lambda machine: reboot.Desired(
            kernel_release=machine.release,
            modules=machine.loads,
            allowed=machine.profile.reboot,
            arguments=boot.arguments(machine.profile),
            parameters=boot.expected_parameters(machine.profile),
        ),
        lambda machine: machine.boots and not machine.image,
        contents=("after_boot",),
    ),
    # After packages, which may bring what belongs to one host.
    Resource("image", "gds_host", lambda _: image.Desired(), lambda machine: bool(machine.image)),
)
#: Name of a resource → the role that applies it.
ROLES: Final[Mapping[str, str]] = {resource.name: resource.role for resource in RESOURCES}


def desired_states(machine: Machine, *, named: bool = False) -> dict[str, Any]:
    """Name of each resource that the machine has → its desired state.

    named: only of those resources.  Raises FleetInvalid where a keyring is missing.
    """
    return {
        resource.name: resource.desired(machine)
        for resource in RESOURCES
        if resource.when(machine) and (resource.named or not named)
    }


def listed(machine: Machine, alike: dict[Hashable, dict[str, Any]]) -> list[dict[str, Any]]:
    """The same as the host program's document lists it.

    alike: what machines of one run have in common.
    """
    key = machine.kind
    if key not in alike:
        alike[key] = plain(desired_states(machine))
    states = {**alike[key], **plain(desired_states(machine, named=True))}
    entries = ((name.partition("."), state) for name, state in states.items())
    return [{"resource": name[0], "instance": name[2], "desired": state} for name, state in entries]


def variables(machine: Machine) -> dict[str, Any]:
    """The variables of all roles: ROLE_OPTION for each option of a role's resources."""
    fleet_id, serial = lock_order(machine.fleet, machine.lock)
    values: dict[str, Any] = {
        "gds_role": "host" if machine.is_host else "builder",
        "gds_host_image": machine.image,
        "gds_kernel_boot": machine.boots,
        "gds_modules_dkms": has_dkms(machine),
        "gds_remove_fleet_id": fleet_id,
        "gds_remove_lock_serial": serial,
    }
    for resource in RESOURCES:
        own = {key: value for key, value in plain(resource.desired(machine)).items() if key not in resource.contents}
        for option, value in {**own, **resource.files(machine)}.items():
            values[f"{resource.role}_{option}"] = value
    return values


def plain(value: Any) -> Any:
    """A desired state as JSON has it."""
    kind: Any = type(value)
    if kind in (str, bool, int, float):
        return value
    if kind in (list, tuple):
        return [inner if type(inner) is str else plain(inner) for inner in value]
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    return {name: plain(getattr(value, name)) for name in _field_names(kind)}


@lru_cache(maxsize=256)
def _field_names(kind: Any) -> tuple[str, ...]:
    """Of a dataclass; asked thousands of times for each host of a large fleet."""
    return tuple(field.name for field in fields(kind))


def paths(desired_states: Mapping[str, Any]) -> set[str]:
    """The files and folders that the resources of a machine decide about."""
    files: set[str] = set()
    for name, desired in desired_states.items():
        resource = registry.resource(name.partition(".")[0])
        files |= set(resource.reverts)
        if name == "repositories":
            files |= {key.dest for key in desired.keys}
        if name in ("repositories", "pins"):
            # What they have to say depends on what else the host has configured.
            files |= set(managers.manager(desired.manager).configured)
        elif name != "program" and isinstance(resource, FileResource):
            files |= {file.path for file in resource.desired_files(desired)}
    return files
