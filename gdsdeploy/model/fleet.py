"""Intent: what ``fleet.yml`` says, and nothing that had to be looked up."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, Strict, StringConstraints, field_validator, model_validator

#: A name that is safe as a file name, an inventory host and a DNS label.
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")]
AbsolutePath = Annotated[str, StringConstraints(pattern=r"^/[^\x00\n]*$")]
Fingerprint = Annotated[str, StringConstraints(pattern=r"^[0-9A-F]{40}$")]

PackageName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9.+_-]+$")]
GpuClass = Literal[
    "maxwell", "pascal", "volta", "turing", "ampere", "ada", "hopper", "grace-hopper", "blackwell"
]  # fmt: skip

#: How data reaches GPU memory: ``direct`` accepts either direct mechanism, ``compat`` accepts the bounce buffer.
PathWanted = Literal["direct", "nvidia-fs", "p2pdma", "compat"]

_PIN = re.compile(
    r"^(newest"  # whatever the rules admit
    r"|(==|=)?\s*[0-9][0-9A-Za-z.+~:_-]*"  # branch or exact version, with rpm's "_"
    r"|(<|<=|>|>=|==|=)?\s*[0-9][0-9A-Za-z.+~:-]*"  # the same, or one bound
    r"(\s*,\s*(<|<=|>|>=)\s*[0-9][0-9A-Za-z.+~:-]*)*)$"
)


def _check_pin(value: object) -> object:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise ValueError(f'a version is text: write it in quotes, "{value}"')
    if isinstance(value, str) and not _PIN.match(value):
        raise ValueError(
            'a version pin is "newest", a branch ("550"), an exact version ("550.163.01") or bounds (">=550, <560")'
        )
    return value


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Repository(_Model):
    """A signed package repository; what is left out comes from the platform's preset of the same name."""

    kind: Literal["apt", "rpm"] | None = None
    #: Base address; without it, the controller's own apt configuration says where this archive is.
    uri: Annotated[str, StringConstraints(pattern=r"^(https?|file)://[^\s]+$")] | None = None
    suites: Annotated[tuple[str, ...], Strict(False)] | None = None
    components: Annotated[tuple[str, ...], Strict(False)] | None = None
    #: OpenPGP keyring file on the controller that holds the signing keys.
    keyring: AbsolutePath | None = None
    #: Full fingerprints of the primary keys that may sign; one good signature by one of them is required.
    fingerprints: Annotated[tuple[Fingerprint, ...], Strict(False)] | None = None
    #: Keyring path on the host for apt's Signed-By; default: one we install from ``keyring``.
    signed_by: AbsolutePath | None = None


class Mirror(_Model):
    """A mirror that `gdsdeploy mirror` wrote, which the hosts use instead of the original repositories."""

    #: As the hosts reach it.
    uri: Annotated[str, StringConstraints(pattern=r"^(https?|file)://[^\s]+$")]
    #: File on the controller that has its key, relative to the fleet file; the mirror's folder has it.
    keyring: Annotated[str, StringConstraints(min_length=1)]


class Driver(_Model):
    """The NVIDIA driver asked for."""

    version: str = "newest"
    flavour: Literal["open", "proprietary"] = "open"
    #: Parameters of the nvidia module, rendered into modprobe.d.
    options: dict[str, str | int] = Field(default_factory=dict)

    _pin = field_validator("version", mode="before")(_check_pin)


class Mount(_Model):
    """A storage mount of a profile and the path that its I/O has to take."""

    mount: AbsolutePath
    path: PathWanted = "direct"


def _check_cufile(value: object, where: str = "") -> object:
    """cufile.json knows booleans, whole numbers, text, lists of those, and objects; it has no null and no fractions."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{where}{key!r}: a key is text")
            _check_cufile(item, f"{where}{key}.")
    elif isinstance(value, list):
        for item in value:
            _check_cufile(item, where)
    elif not isinstance(value, (bool, int, str)):
        raise ValueError(f"{where.rstrip('.')}: cufile.json has no value like {value!r}")
    return value


class Fit(_Model):
    """What of a profile's cufile.json is fitted to each host, from what that host is."""

    #: RDMA interfaces whose addresses are listed: ``rail``: one for each network; ``near``: the nearest to each GPU.
    addresses: Literal["none", "all", "rail", "near"] = "none"
    family: Literal["any", "ipv4", "ipv6"] = "any"
    #: Whether pools are made smaller where the host's memory or its GPUs' BAR1 are too small for the library's own.
    pools: bool = True


class Profile(_Model):
    """One kind of host: operating system, pins, configuration."""

    os: Annotated[str, StringConstraints(pattern=r"^[a-z]+-[0-9]+(\.[0-9]+)?$")]
    arch: Literal["x86_64", "aarch64"] = "x86_64"
    repositories: Annotated[tuple[Name, ...], Strict(False)] | None = None
    kernel: str = "newest"
    driver: Driver = Driver()
    nvidia_fs: str = "newest"
    libcufile: str = "newest"
    #: The mechanism this profile is built for; ``compat`` installs no nvidia-fs.
    mode: Literal["nvidia-fs", "p2pdma", "compat"] = "nvidia-fs"
    rdma: Literal["none", "peermem", "dmabuf"] = "none"
    #: What has to run beside the driver, in its own version.
    companions: Annotated[tuple[Literal["persistenced", "fabricmanager", "imex"], ...], Strict(False)] = ()
    #: CUDA packages to lock and install; none that pulls a driver.
    cuda: Annotated[tuple[PackageName, ...], Strict(False)] = ()
    #: DOCA or OFED packages to lock and install; the version of the first is the release that rules judge.
    doca: Annotated[tuple[PackageName, ...], Strict(False)] = ()
    #: Which GPUs the hosts have, for the rules that depend on it.
    gpu: GpuClass | None = None
    #: Sections of cufile.json laid over the rendered defaults.
    cufile: dict[str, dict[str, Any]] = Field(default_factory=dict)
    #: Without it the file is the same on every host of the profile, and none is asked.
    fit: Fit | None = None
    storage: Annotated[tuple[Mount, ...], Strict(False)] = ()
    #: Name of the builder whose audited modules the hosts receive; without it each host builds its own.
    builder: Name | None = None
    #: Whether provision may reboot a host of this profile.
    reboot: bool = True

    _pins = field_validator("kernel", "nvidia_fs", "libcufile", mode="before")(_check_pin)

    @field_validator("driver", mode="before")
    @classmethod
    def _short_driver(cls, value: object) -> object:
        return value if isinstance(value, dict) else {"version": _check_pin(value)}

    @field_validator("cufile")
    @classmethod
    def _cufile_values(cls, value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        _check_cufile(value)
        return value

    @field_validator("companions", "cuda", "doca")
    @classmethod
    def _names_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if value.count(name) > 1:
                raise ValueError(f"{name} is listed twice")
        return value

    @field_validator("storage")
    @classmethod
    def _mounts_once(cls, value: tuple[Mount, ...]) -> tuple[Mount, ...]:
        seen: set[str] = set()
        for item in value:
            if item.mount in seen:
                raise ValueError(f"the mount {item.mount} is listed twice")
            seen.add(item.mount)
        return value


class Ssh(_Model):
    """How to reach a host.  Relative file names are relative to the fleet file."""

    address: str | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    user: Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_.-]*$")] | None = None
    identity_file: str | None = None
    known_hosts: str | None = None
    #: ssh_config(5) instead of the user's and the system's own
    config: str | None = None


class Host(Ssh):
    """A host and its profile."""

    profile: Name

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: object) -> object:
        return {"profile": value} if isinstance(value, str) else value


class Fleet(_Model):
    """The whole of a fleet file."""

    version: Literal[1]
    repositories: dict[Name, Repository] = Field(default_factory=dict)
    mirror: Mirror | None = None
    ssh: Ssh = Ssh()
    profiles: dict[Name, Profile] = Field(min_length=1)
    builders: dict[Name, Host] = Field(default_factory=dict)
    hosts: dict[Name, Host] = Field(min_length=1)

    def everyone(self) -> dict[str, Host]:
        """Hosts and builders by name."""
        return {**self.builders, **self.hosts}

    def connection(self, name: str) -> Ssh:
        """The host's own connection settings over the fleet's; ``address`` defaults to the name.

        What stays None is left to OpenSSH's configuration.
        """
        own, shared = self.everyone()[name], self.ssh
        return Ssh(
            address=own.address or shared.address or name,
            port=own.port or shared.port,
            user=own.user or shared.user,
            identity_file=own.identity_file or shared.identity_file,
            known_hosts=own.known_hosts or shared.known_hosts,
            config=own.config or shared.config,
        )


def references(fleet: Fleet) -> list[tuple[tuple[str, ...], str]]:
    """What pydantic cannot see: names that point nowhere.  Returns (path of keys, message) pairs."""
    found: list[tuple[tuple[str, ...], str]] = []
    for section, hosts in (("hosts", fleet.hosts), ("builders", fleet.builders)):
        for name, host in hosts.items():
            if host.profile not in fleet.profiles:
                found.append(((section, name, "profile"), f"there is no profile {host.profile!r}"))
    found += [
        (("hosts", name), f"{name!r} is also a builder; a machine is one or the other")
        for name in fleet.hosts.keys() & fleet.builders.keys()
    ]
    for name, profile in fleet.profiles.items():
        where = ("profiles", name, "builder")
        if profile.builder is None:
            continue
        builder = fleet.builders.get(profile.builder)
        if builder is None:
            found.append((where, f"there is no builder {profile.builder!r}"))
        elif builder.profile != name:
            found.append(
                (where, f"builder {profile.builder!r} has profile {builder.profile!r}; it can build for that only")
            )
    return found
