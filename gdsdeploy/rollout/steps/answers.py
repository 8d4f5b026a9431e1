"""What hosts answer to a rollout's questions, checked before anything is done with it.

An answer is the host's own word.  Parts that decide, or that come back to a host (names of packages, paths, kernel
releases), have to be what they are called; every other text is for people, and nothing decides by it.  What no
question asks for is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from gdsdeploy.host.apply import written
from gdsdeploy.ssh.hostdata import (
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
    Time,
    Version,
    fitting,
)

_DEBIAN_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+")


def _known(path: str) -> str:
    if not written.is_known(path):
        raise ValueError("isn't a file that gdsdeploy writes")
    return path


Path = Annotated[str, Field(pattern=f"^/{PLAIN}+$", max_length=4096), AfterValidator(_known)]


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


class _Modules(Shape):
    files: dict[Below, Digest] = Field(max_length=MANY)
    chosen: dict[Name, Below] = Field(max_length=MANY)


class _File(Shape):
    sha256: Digest
    mode: Annotated[str, Field(pattern=r"^[0-7]{4}$")]
    uid: Id
    gid: Id


class Snapshot(Shape):
    """What a host is."""

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


class _Difference(Shape):
    what: Literal["package", "hold", "boot", "kernel", "module", "chosen", "file", "provision"]
    name: Plain
    was: Text
    now: Text = Field(alias="is")
    says: Text

    @model_validator(mode="after")
    def _path(self) -> Self:
        if self.what == "file":
            _known(self.name)
        return self


class Comparison(Shape):
    """How a host differs from a snapshot."""

    same: bool
    differences: list[_Difference] = Field(max_length=MANY)


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


class _Space(Shape):
    bytes: Size
    inodes: Size
    mount: Text


class _Keeper(Shape):
    run: Text
    who: Text
    works: bool


class Status(Shape):
    """What a step wants to know before and after it."""

    version: Literal[1]
    boot_id: BootId
    kernel: Release
    devices: Annotated[str, Field(pattern=r"^[0-9a-f ]*$", max_length=4096)]
    lock_digest: LockDigest
    uptime: Time
    boot: _Boot
    once: _Once
    packages: _Packages
    space: dict[Literal["/", "/boot", "/lib/modules", "/var"], _Space]
    apply: _Keeper


class _Row(Shape):
    fits: bool
    says: Text


class _Fits(Shape):
    fits: bool
    filesystems: list[_Row] = Field(max_length=MANY)


class _Kept(Shape):
    archive: Text


class _Armed(Shape):
    once: bool
    default: MaybeRelease


class _Verdict(Shape):
    admitted: bool
    reasons: list[Text] = Field(max_length=MANY)


class _Needed(Shape):
    needed: bool
    reasons: list[Text] = Field(max_length=MANY)
    boot_id: BootId
    running: Release
    unloaded: list[Name] = Field(max_length=MANY)


class _Default(Shape):
    default: MaybeRelease


class _Changed(Shape):
    changed: bool


class _Gate(Shape):
    state: Text
    boot_id: BootId
    reason: Text


class _Done(Shape):
    """Only that there is an answer counts."""


#: First two words of a question → its answer.
ANSWERS: Mapping[tuple[str, ...], type[Shape]] = {
    ("rollout", "snapshot"): Snapshot,
    ("rollout", "compare"): Comparison,
    ("rollout", "status"): Status,
    ("rollout", "space"): _Fits,
    ("rollout", "keep"): _Kept,
    ("rollout", "once"): _Armed,
    ("rollout", "reboot"): _Done,
    ("rollout", "reload"): _Done,
    ("apply", "--release"): _Done,
    ("boot", "needed"): _Needed,
    ("boot", "show"): _Default,
    ("boot", "default"): _Changed,
    ("guard", "judge"): _Verdict,
    ("guard", "default"): _Done,
    ("gate", "run"): _Gate,
}


def checked(host: str, question: Sequence[str], document: Any) -> dict[str, Any]:
    """The answer with the parts that its question asks for; raises HostUnfit that names what is wrong with it."""
    words = tuple(question[:2])
    return fitting(host, " ".join(words), ANSWERS[words], document).model_dump(by_alias=True)
