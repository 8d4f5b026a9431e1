"""What hosts answer to a rollout's questions, validated before use.

A host isn't trusted: parts that decide, or that return to a host (package names, paths, kernel releases), have to fit
their type.  Other texts are only shown, and unknown keys are dropped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, model_validator

from gdsdeploy.host.apply import written
from gdsdeploy.ssh.reply_schema import (
    MANY,
    PLAIN,
    Below,
    BootId,
    Digest,
    Id,
    LockDigest,
    MaybeRelease,
    Name,
    Plain,
    Release,
    Shape,
    Size,
    Text,
    Version,
    parse_reply,
)

S = TypeVar("S", bound=Shape)
_DEBIAN_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+")


def _require_own_file(path: str) -> str:
    if not written.is_known(path):
        raise ValueError("isn't a file that gdsdeploy writes")
    return path


Path = Annotated[str, Field(pattern=f"^/{PLAIN}+$", max_length=4096), AfterValidator(_require_own_file)]


class _Boot(Shape):
    default: MaybeRelease
    default_entry: Text
    next: MaybeRelease
    next_entry: Text
    problem: Text


class _Package(Shape):
    version: Version
    held: bool


class _Provision(Shape):
    installed: list[Name] = Field(max_length=MANY)
    held: list[Name] = Field(max_length=MANY)
    #: packages that have left for the lock
    removed: list[Name] = Field(max_length=MANY)


class _Modules(Shape):
    files: dict[Below, Digest] = Field(max_length=MANY)
    chosen: dict[Name, Below] = Field(max_length=MANY)


class _File(Shape):
    sha256: Digest
    mode: Annotated[str, Field(pattern=r"^[0-7]{4}$")]
    uid: Id
    gid: Id


class Snapshot(Shape):
    """A host's state, to which a rollback restores it."""

    version: Literal[1]
    when: Plain
    host: Text
    boot_id: BootId
    kernel: Release
    lock_digest: LockDigest
    boot: _Boot
    manager: Literal["dpkg", "rpm", ""]
    packages: dict[Name, _Package] = Field(max_length=MANY)
    provision: _Provision
    kernels: dict[Release, _Modules] = Field(max_length=MANY)
    files: dict[Path, _File | None] = Field(max_length=MANY)

    @model_validator(mode="after")
    def _names(self) -> Self:
        """Debian allows fewer names than rpm."""
        names = [*self.packages, *self.provision.installed, *self.provision.held]
        wrong = next((name for name in names if self.manager == "dpkg" and not _DEBIAN_NAME.fullmatch(name)), None)
        if wrong is not None:
            raise ValueError(f"{wrong!r} isn't the name of a package")
        return self


class Difference(Shape):
    what: Literal["package", "hold", "boot", "kernel", "module", "chosen", "file", "provision"]
    name: Plain
    was: Text
    now: Text = Field(alias="is")
    says: Text

    @model_validator(mode="after")
    def _path(self) -> Self:
        if self.what == "file":
            _require_own_file(self.name)
        return self


class Comparison(Shape):
    """How a host differs from a snapshot."""

    differences: list[Difference] = Field(max_length=MANY)


class _Broken(Shape):
    package: Name
    state: Text


class _Lock(Shape):
    path: Text
    pid: Id
    program: Text


class _Packages(Shape):
    manager: Literal["dpkg", "rpm", ""]
    broken: list[_Broken] = Field(max_length=MANY)
    interrupted: bool
    locks: list[_Lock] = Field(max_length=MANY)


class _Once(Shape):
    state: Literal["none", "armed", "withdrawn", "booted", "fell back"]
    kernel: MaybeRelease


class _Free(Shape):
    bytes: Size


class _Keeper(Shape):
    run: Text
    who: Text
    works: bool


class Status(Shape):
    """A host's state for a step."""

    version: Literal[1]
    boot_id: BootId
    kernel: Release
    devices: Annotated[str, Field(pattern=r"^[0-9a-f ]*$", max_length=4096)]
    lock_digest: LockDigest
    once: _Once
    packages: _Packages
    space: dict[Literal["/", "/boot", "/lib/modules", "/var"], _Free]
    apply: _Keeper


class _Row(Shape):
    fits: bool
    says: Text


class Space(Shape):
    """Whether the new files fit."""

    fits: bool
    filesystems: list[_Row] = Field(max_length=MANY)


class KeptArchive(Shape):
    """Path of the archive with the host's modules; empty: it has none."""

    archive: Text


class BootOnce(Shape):
    """Whether a kernel boots once, and the boot default after that."""

    once: bool
    default: MaybeRelease


class Verdict(Shape):
    """The audit of the modules for a kernel."""

    admitted: bool
    reasons: list[Text] = Field(max_length=MANY)


class Needed(Shape):
    """What a reboot would change."""

    needed: bool
    reasons: list[Text] = Field(max_length=MANY)
    boot_id: BootId
    running: Release
    by_reload: bool = True


class Default(Shape):
    """Which kernel boots by default."""

    default: MaybeRelease


class Changed(Shape):
    """Whether anything was changed."""

    changed: bool


class Gate(Shape):
    """The host's gate in one boot."""

    state: Text
    boot_id: BootId
    reason: Text


class Enrolment(Shape):
    """The state of a key in the host's firmware, and the one-time password of a request that was made now."""

    state: Literal["no-efi", "enrolled", "firmware", "pending", "leaving", "absent", "not-needed", "revoked"]
    fingerprint: Annotated[str, Field(pattern=r"^([0-9a-f]{2}:){19}[0-9a-f]{2}$")]
    boot_id: BootId
    password: Annotated[str, Field(pattern=r"^[a-z0-9]{0,64}$")] = ""


class Done(Shape):
    """An answer whose content doesn't matter."""


@dataclass(frozen=True)
class Question(Generic[S]):
    """Words of a command of the host program, and the shape of its answer."""

    words: tuple[str, ...]
    shape: type[S]

    def read(self, host: str, document: Any) -> S:
        """The validated answer; raises HostUnfit that names the wrong part."""
        return parse_reply(host, " ".join(self.words), self.shape, document)


SNAPSHOT = Question(("rollout", "snapshot"), Snapshot)
COMPARE = Question(("rollout", "compare"), Comparison)
STATUS = Question(("rollout", "status"), Status)
SPACE = Question(("rollout", "space"), Space)
ENROL = Question(("rollout", "enrol"), Enrolment)
KEEP = Question(("rollout", "keep"), KeptArchive)
ONCE = Question(("rollout", "once"), BootOnce)
REBOOT = Question(("rollout", "reboot"), Done)
RELOAD = Question(("rollout", "reload"), Done)
RELEASE = Question(("apply", "--release"), Done)
REBOOT_NEEDED = Question(("boot", "needed"), Needed)
SHOW_DEFAULT = Question(("boot", "show"), Default)
SET_DEFAULT = Question(("boot", "default"), Changed)
JUDGE = Question(("guard", "judge"), Verdict)
GUARD_DEFAULT = Question(("guard", "default"), Done)
RUN_GATE = Question(("gate", "run"), Gate)
