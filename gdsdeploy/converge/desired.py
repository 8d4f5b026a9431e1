"""Role variables of one machine → the desired state that its host program checks: the same resources, in roles' order.

Pure, but for files of the controller, which :class:`Files` reads.  A test compares :data:`TABLE` with the roles' tasks.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from gdsdeploy.errors import FleetInvalid
from gdsdeploy.host.apply import registry
from gdsdeploy.host.apply.file_resource import FileResource
from gdsdeploy.host.apply.packages import managers
from gdsdeploy.host.io import reading
from gdsdeploy.host.model import schema

VERSION: Final = 1
Variables = Mapping[str, Any]


def _host(values: Variables) -> bool:
    return bool(values["gds_role"] == "host")


def _boots(values: Variables) -> bool:
    return bool(values["gds_kernel_boot"])


def _builds(values: Variables) -> bool:
    return bool(values["gds_modules_from"] == "build")


def _receives(values: Variables) -> bool:
    return _host(values) and not _builds(values)


def _signed(when: Callable[[Variables], bool]) -> Callable[[Variables], bool]:
    return lambda values: bool(values["gds_secureboot_certificate"]) and when(values)


@dataclass(frozen=True)
class Use:
    """A resource as one role applies it."""

    role: str
    resource: str
    #: option of its Ansible module → the role variable that the option is set to
    options: Mapping[str, str] = field(default_factory=dict)
    #: of a resource that a host has several of
    instance: str = ""
    #: on which machines
    when: Callable[[Variables], bool] = lambda _: True

    @property
    def name(self) -> str:
        """As the host program names it: RESOURCE or RESOURCE.INSTANCE."""
        return f"{self.resource}.{self.instance}" if self.instance else self.resource


def _options_of(role: str, *options: str) -> dict[str, str]:
    return {option: f"{role}_{option}" for option in options}


def _packages(role: str, *more: str) -> dict[str, str]:
    return {**_options_of(role, "manager", "locked", "removes", *more), "wanted": f"{role}_packages"}


_RECIPES = (
    *("driver_version", "driver_flavour", "driver_tree", "driver_dkms_name"),
    *("nvidia_fs_version", "nvidia_fs_tree", "nvidia_fs_dkms_name"),
)
_SOURCE = {"source": "gds_modules_from"}
_MODULES = Use(
    "gds_modules",
    "modules",
    _SOURCE
    | _options_of(
        "gds_modules",
        "kernel_release",
        *_RECIPES,
        "names",
        "signed",
        "archive",
        "builder",
        "builder_key",
        "packaged",
        "target_only",
    ),
)
_SIGNING = Use(
    "gds_secureboot",
    "signing",
    _options_of("gds_secureboot", "certificate", "key", "settings", "signs", "enrols", "kernel_release", "shared"),
)


_LOCKED = ("kernel_release", "versions", "repositories", "driver_version", "imex_nodes", "fleet_id", "lock_serial")
#: Every resource in the order in which the playbook's roles apply it.
TABLE: Final = (
    Use(
        "gds_preflight",
        "preflight",
        _options_of("gds_preflight", "os", "arch", "manager", "free_mib", "unasked_kernel", *_LOCKED),
    ),
    Use("gds_repo", "repositories", _options_of("gds_repo", "manager", "indices", "keys", "pins")),
    Use("gds_repo", "pins", _options_of("gds_repo", "manager", "indices", "pins", "deny", "modules")),
    Use("gds_host", "program"),
    Use("gds_host", "expectation", {"content": "gds_host_expectation"}),
    Use(
        "gds_modules",
        "recipes",
        _SOURCE | _options_of("gds_modules", *_RECIPES, "kernel_release", "target_only"),
        when=lambda values: bool(values["gds_modules_dkms"]),
    ),
    Use("gds_kernel", "guard", _options_of("gds_kernel", "manager"), when=_boots),
    Use(
        "gds_driver",
        "driver_options",
        _options_of("gds_driver", "kernel_release", "options", "option_module", "modules", "rdma", "p2pdma"),
        when=_host,
    ),
    Use("gds_driver", "packages", _packages("gds_driver", "along", "leaving"), "driver", _host),
    Use("gds_driver", "imex", {"nodes": "gds_driver_imex_nodes"}, when=_host),
    Use("gds_kernel", "packages", _packages("gds_kernel", "leaving"), "kernel"),
    Use(
        "gds_boot",
        "module_options",
        {"kernel_release": "gds_boot_kernel_release", "options": "gds_boot_module_options"},
        when=_boots,
    ),
    Use("gds_boot", "boot_arguments", _options_of("gds_boot", "kernel_release", "arguments"), when=_boots),
    Use("gds_cufile", "packages", _packages("gds_cufile"), "cufile", _host),
    Use("gds_cufile", "cufile", _options_of("gds_cufile", "content", "path", "log_dir"), when=_host),
    replace(_SIGNING, when=_signed(_builds)),
    Use("gds_modules", "packages", _packages("gds_modules"), "modules", _builds),
    replace(_MODULES, when=_builds),
    replace(_SIGNING, when=_signed(_receives)),
    replace(_MODULES, when=_receives),
    Use(
        "gds_kernel",
        "boot_default",
        {"kernel_release": "gds_kernel_release"},
        when=lambda values: _boots(values) and values["gds_host_image"] != "network",
    ),
    Use("gds_peermem", "peermem", _options_of("gds_peermem", "rdma", "before"), when=_host),
    Use(
        "gds_gate",
        "gate",
        _options_of("gds_gate", "enabled", "settings", "before", "required_by", "seconds", "slurm", "left"),
        when=_host,
    ),
    Use("gds_watch", "watch", _options_of("gds_watch", "enabled", "every", "metrics"), when=_host),
    Use(
        "gds_modules",
        "loaded",
        {"modules": "gds_modules_loaded"} | _options_of("gds_modules", "kernel_release", "units", "services"),
        when=_boots,
    ),
    Use(
        "gds_reboot",
        "reboot",
        _options_of("gds_reboot", "kernel_release", "modules", "allowed", "arguments", "parameters"),
        when=lambda values: _boots(values) and not values["gds_host_image"],
    ),
    # After packages, which may bring what belongs to one host.
    Use("gds_host", "image", when=lambda values: bool(values["gds_host_image"])),
)
#: Name of a resource → the role that applies it.
ROLES: Final[Mapping[str, str]] = {use.name: use.role for use in TABLE}

#: Bytes of a keyring or a certificate.
LIMIT: Final = 16 * 1024 * 1024
#: What keyrings have: a line of armour, or as their first byte one of a packet that holds a public key (RFC 9580).
_ARMOUR = b"\n-----BEGIN PGP PUBLIC KEY BLOCK-----"
_PUBLIC_KEY = frozenset(bytes([tag]) for tag in (0x98, 0x99, 0x9A, 0xC6))
_CORRECT_KEYRING = "Correct keyring in the fleet file"


class Files:
    """Files of the controller that role variables name; each is read once."""

    def __init__(self) -> None:
        self._read: dict[str, bytes | None] = {}

    def content(self, path: str) -> bytes | None:
        """The bytes of a file; None where there is none.  Raises FleetInvalid where it can't be read."""
        if path not in self._read:
            try:
                self._read[path] = reading.whole(path, LIMIT)
            except FileNotFoundError:
                self._read[path] = None
            except OSError as error:
                raise FleetInvalid(f"{path}: {error.strerror}", hint="Make it readable, and run this again") from None
        return self._read[path]


def resources_of(values: Variables, files: Files, *, archive: str = "") -> list[dict[str, Any]]:
    """The resources of a machine with these role variables.

    archive: sha256 of the archive of modules that the controller has for it; empty: what it received before stays.
    Raises FleetInvalid where a keyring is missing.
    """
    resources = []
    for use in (use for use in TABLE if use.when(values)):
        desired: dict[str, Any] = {}
        for option, variable in use.options.items():
            desired |= _fields(option, values[variable], values, files, archive)
        resources.append({"resource": use.resource, "instance": use.instance, "desired": desired})
    return resources


def _fields(option: str, value: Any, values: Variables, files: Files, archive: str) -> dict[str, Any]:
    """An option as fields of the desired state; four options name files of the controller."""
    if option == "keys":
        return {"keys": [_key(entry, files) for entry in value]}
    if option == "shared":
        content = None if values["gds_secureboot_signs"] or not value else files.content(value)
        return {"certificate_content": base64.b64encode(content or b"").decode()}
    if option == "archive":
        return {"hand_over": bool(value)} if _builds(values) else {"archive_sha256": archive}
    if option == "builder_key":
        # What is verified with it comes while provision runs.
        return {}
    return {option: value}


def _key(entry: Mapping[str, str], files: Files) -> dict[str, str]:
    return {"dest": entry["dest"], "content": base64.b64encode(keyring(entry["src"], files)).decode()}


def keyring(source: str, files: Files) -> bytes:
    """The content of a keyring.  Raises FleetInvalid where it's missing, or isn't one."""
    content = files.content(source)
    if content is None:
        raise FleetInvalid(f"{source}: the keyring is missing", hint=_CORRECT_KEYRING)
    require_keyring(source, content)
    return content


def require_keyring(place: str, content: bytes) -> None:
    """Raise FleetInvalid unless the file ``place`` begins with a public key.

    It leaves this machine: a fleet file that others wrote must not have any file sent to hosts that it names.
    """
    if _ARMOUR not in b"\n" + content and content[:1] not in _PUBLIC_KEY:
        raise FleetInvalid(
            f"{place}: not a keyring: it doesn't begin with an OpenPGP public key", hint=_CORRECT_KEYRING
        )


def paths(resources: Sequence[Mapping[str, Any]]) -> set[str]:
    """The files and folders that the resources of a document decide about."""
    files: set[str] = set()
    for entry in resources:
        name, resource = entry["resource"], registry.resource(entry["resource"])
        desired = schema.load(resource.desired_type, entry["desired"], name)
        files |= set(resource.reverts)
        if name == "repositories":
            files |= {key.dest for key in desired.keys}
        if name in ("repositories", "pins"):
            # What they have to say depends on what else the host has configured.
            files |= set(managers.manager(desired.manager).configured)
        elif name != "program" and isinstance(resource, FileResource):
            files |= {file.path for file in resource.desired_files(desired)}
    return files
