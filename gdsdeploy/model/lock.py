"""The lock: what was resolved for each profile, exactly.  :mod:`gdsdeploy.lock.lockfile` reads and writes it."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    Strict,
    model_serializer,
    model_validator,
)

from gdsdeploy.model.text import (
    SECRET,
    AbsolutePath,
    Fingerprint,
    FleetId,
    MaybePath,
    MaybeWord,
    Model,
    Name,
    Suite,
    Word,
    below,
    matching,
    without_login,
)

#: "major.minor": a newer major is refused, a newer minor is read with a warning.
LOCK_VERSION = "1.7"

Sha256 = Annotated[str, matching(r"^[0-9a-f]{64}$", "a SHA-256 has 64 digits, 0-9 and a-f")]

#: Of a kernel; the name of its folder of modules.
Release = Annotated[
    str, matching(r"^[A-Za-z0-9][A-Za-z0-9.+_~-]*$", "write the release of a kernel, as `uname -r` prints it")
]

#: Of a kernel module, below the folder of its kernel.
ModuleFile = Annotated[
    str,
    matching(r"^[A-Za-z0-9][A-Za-z0-9/._+-]*\.ko(\.(xz|gz|zst))?$", "write the path of a module below its kernel's"),
]

#: What a package is in the stack; ``companion`` must equal the driver's version, apart from nvlsm, and ``support`` came
#: as a dependency.
Part = Literal[
    "kernel-image", "kernel-headers", "driver-source", "driver-modules", "driver-userland", "companion",
    "nvidia-fs-source", "nvidia-fs-modules", "libcufile", "gds-tools", "dkms", "cuda", "doca", "support",
]  # fmt: skip
#: The packages that modules are built from.
BUILT_FROM: Final[tuple[Part, ...]] = (
    "kernel-image", "kernel-headers", "driver-source", "driver-modules", "nvidia-fs-source", "nvidia-fs-modules",
    "doca",
)  # fmt: skip


class Package(Model):
    """One package file."""

    package: Word
    version: Word
    architecture: Word
    part: Part
    #: Where this package has to be: on hosts that run the stack, on machines that build modules, or on both.
    needed_by: Literal["host", "build", "both"]
    file: str
    #: bytes
    size: int
    sha256: Sha256
    repository: Name
    suite: MaybeWord
    component: MaybeWord

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells it apart from other package files."""
        return self.package, self.version, self.architecture


class _Short(Model):
    """Written without the keys of ``OPTIONAL`` that have their defaults: locks without them stay as they are."""

    OPTIONAL: ClassVar[tuple[str, ...]]

    @model_serializer(mode="wrap")
    def _written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        defaults = {key: type(self).model_fields[key].get_default(call_default_factory=True) for key in self.OPTIONAL}
        return {key: value for key, value in handler(self).items() if defaults.get(key, ...) != getattr(self, key)}


class Index(_Short):
    """One signed index that the lock was resolved from."""

    OPTIONAL = ("metadata", "package_keys", "why")

    repository: Name
    kind: Literal["apt", "rpm"] = "apt"
    uri: Annotated[Word, AfterValidator(without_login)] = Field(json_schema_extra=SECRET)
    #: empty for rpm, which has neither suites nor components
    suite: Annotated[MaybeWord, AfterValidator(below)]
    components: Annotated[tuple[Suite, ...], Strict(False)]
    #: RFC 3339, UTC: the Date field of the signed index (rpm: its newest timestamp), never the controller's clock.
    date: str
    valid_until: str | None = None
    #: Full fingerprint of the key that made the good signature; empty for an unsigned index.
    signed_by: MaybeWord
    #: Keyring path on the host for apt's Signed-By or dnf's gpgkey.
    host_keyring: AbsolutePath
    #: ``unsigned``: the fleet file accepts that, for the reason ``why``, and ``package_keys`` sign each package.
    metadata: Literal["signed", "unsigned"] = "signed"
    package_keys: Annotated[tuple[Fingerprint, ...], Strict(False)] = ()
    why: str = ""

    @model_validator(mode="after")
    def _vouched_for(self) -> Self:
        if self.metadata == "signed" and not self.signed_by:
            raise ValueError("signed_by: a signed index names its key")
        if self.metadata == "unsigned" and (self.kind != "rpm" or self.signed_by or not self.package_keys):
            raise ValueError("metadata: only an rpm index without a key may be unsigned, and it names package_keys")
        return self


class Kernel(Model):
    """The kernel that the modules are built for."""

    #: as ``uname -r`` prints it
    release: Release
    #: version of its package
    version: Word


class LockedDriver(Model):
    """The driver: its upstream version as ``/proc/driver/nvidia/version`` shows it."""

    version: Word
    flavour: Literal["open", "proprietary"]
    #: Directory on the host that holds the driver's source tree; empty where packages bring its modules.
    source_tree: MaybePath
    #: Name under which DKMS knows it; empty with ``source_tree``.
    dkms_name: MaybeWord
    #: Name of its module file, without ending; empty in locks before 1.1: the platform's own name.
    module: MaybeWord = ""


class Component(Model):
    """Upstream version of nvidia-fs, libcufile or gds-tools."""

    version: Word


class Source(Model):
    """nvidia-fs: upstream version, and its source tree on the host; empty where a package brings the module."""

    version: Word
    source_tree: MaybePath
    dkms_name: MaybeWord


class PackagedModule(Model):
    """A kernel module that a locked package brings, as that package's file has it."""

    #: in-kernel name
    module: Word
    #: name of the package
    package: Word
    #: below /lib/modules/RELEASE
    file: ModuleFile
    sha256: Sha256
    #: upstream's version; empty where the module says none
    version: MaybeWord
    #: who signed it, as its signature names that; empty: it is unsigned
    signer: str


class RefusedChoice(Model):
    """A newer choice that was not taken, and what forbade it."""

    #: The subject, a blank and the choice, e.g. ``kernel 6.12.107+deb13-amd64``; nothing but the properties splits it.
    what: str
    #: id of a compatibility rule, or ``kernel-headers``, ``gds-tools``, ``dependencies``
    rule: str
    words: str

    @property
    def subject(self) -> str:
        """What of the stack it is about, such as ``kernel``: the first word of ``what``, by the format of the lock."""
        return self.what.partition(" ")[0]

    @property
    def choice(self) -> str:
        """What was not taken of it, such as a kernel's release: the rest of ``what``."""
        return self.what.partition(" ")[2]


class Target(_Short):
    """Everything resolved for one profile."""

    OPTIONAL = ("adopted", "judged", "packaged", "proof")

    os: str
    arch: Literal["x86_64", "aarch64"]
    kernel: Kernel
    driver: LockedDriver
    nvidia_fs: Source | None
    libcufile: Component
    gds_tools: Component | None
    #: Ids of the compatibility rules that had a say in this choice (see compat.yml).
    rules: Annotated[tuple[str, ...], Strict(False)]
    #: Subject of these rules → what this choice has of it, but for the kernel, so that later rules can judge it, too.
    judged: dict[str, str] = Field(default_factory=dict)
    #: The pins it was resolved from, to say later why a lock is stale.
    pins: dict[str, str]
    #: What would have been preferred over this choice, had it been admitted.
    refused: Annotated[tuple[RefusedChoice, ...], Strict(False)] = ()
    #: Module streams, ``NAME:STREAM``, that hosts have to enable to get these packages from rpm repositories.
    modules: Annotated[tuple[Word, ...], Strict(False)] = ()
    #: Modules that the packages bring; empty where the modules are built.
    packaged: Annotated[tuple[PackagedModule, ...], Strict(False)] = ()
    #: Packages that hosts had of their driver, and that the lock has for that reason alone.
    adopted: Annotated[tuple[Word, ...], Strict(False)] = ()
    #: Digest of what the modules are made from, if `gdsdeploy lock --prove` saw each build and audited it; else empty.
    proof: Annotated[str, matching(r"^(sha256:[0-9a-f]{64})?$", "a proof is sha256: and 64 digits, 0-9 and a-f")] = ""
    indices: Annotated[tuple[Index, ...], Strict(False)]
    packages: Annotated[tuple[Package, ...], Strict(False)]

    @model_validator(mode="after")
    def _source_or_packages(self) -> Self:
        """The modules have a source tree or come from packages, and never both."""
        sources = [part.source_tree for part in (self.driver, self.nvidia_fs) if part is not None]
        if any(bool(tree) is bool(self.packaged) for tree in sources):
            raise ValueError("packaged: modules are either packaged or built from a source tree")
        return self

    def versions_of_modules(self) -> dict[str, str]:
        """Package → version of those that bring modules."""
        names = {module.package for module in self.packaged}
        return {package.package: package.version for package in self.packages if package.package in names}


class Lock(_Short):
    """The whole of gdsdeploy.lock."""

    OPTIONAL = ("fleet_id", "serial")

    lock_version: Annotated[str, matching(r"^[0-9]{1,9}\.[0-9]{1,9}$", f"write a version such as {LOCK_VERSION}")]
    #: sha256 over the rest in canonical form; an edit by hand is noticed.
    digest: Annotated[str, matching(r"^sha256:[0-9a-f]{64}$", "a digest is sha256: and 64 digits, 0-9 and a-f")]
    #: of the fleet that it is for, by its first lock; None in locks before 1.6
    fleet_id: FleetId | None = None
    #: higher in each new lock of the fleet; 0 in locks before 1.6
    serial: int = Field(default=0, ge=0)
    targets: dict[str, Target]
    #: the file's content and its verified signature; None: no signature was asked for
    _signed: tuple[bytes, bytes] | None = PrivateAttr(default=None)
