"""What hosts answer to a rollout's questions, checked before anything is done with it.

An answer is the host's own word.  Parts that decide, or that come back to a host (names of packages, paths, kernel
releases), have to be what they are called; every other text is for people, and nothing decides by it.  What no
question asks for is dropped.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from gdsdeploy.errors import HostUnfit
from gdsdeploy.host.rollout import written

#: Characters of a text, entries of a list or object: more than any host has.
_LONG, _MANY = 1 << 17, 10_000
_DEBIAN_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_PLAIN = r"[A-Za-z0-9._+~@,:=/ -]"


def _known(path: str) -> str:
    if not written.is_known(path):
        raise ValueError("isn't a file that gdsdeploy writes")
    return path


def _normal(path: str) -> str:
    if posixpath.normpath(path) != path or path.startswith(("/", "..")):
        raise ValueError("isn't a normalized path below its folder")
    return path


#: Anything but half of a surrogate pair, which no string may have here.
Text = Annotated[str, Field(max_length=_LONG)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9+._-]*$", max_length=255)]
Version = Annotated[str, Field(pattern=r"^[A-Za-z0-9.+:~^_ -]*$", max_length=1024)]
Release = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+_~-]*$", max_length=255)]
MaybeRelease = Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9.+_~-]*)?$", max_length=255)]
BootId = Annotated[str, Field(pattern=r"^[0-9A-Za-z-]*$", max_length=64)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
LockDigest = Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64})?$")]
Below = Annotated[str, Field(pattern=f"^[A-Za-z0-9_]{_PLAIN}*$", max_length=4096), AfterValidator(_normal)]
Path = Annotated[str, Field(pattern=f"^/{_PLAIN}+$", max_length=4096), AfterValidator(_known)]
Plain = Annotated[str, Field(pattern=f"^{_PLAIN}*$", max_length=4096)]
Size = Annotated[int, Field(ge=-1, lt=1 << 63)]
Id = Annotated[int, Field(ge=0, lt=1 << 32)]
#: Seconds.
Time = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Answer(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)


class _Boot(_Answer):
    default: MaybeRelease
    default_entry: Text
    next: MaybeRelease
    next_entry: Text
    problem: Text


class _Package(_Answer):
    version: Version
    held: bool


class _Provision(_Answer):
    installed: list[Name] = Field(max_length=_MANY)
    held: list[Name] = Field(max_length=_MANY)


class _Modules(_Answer):
    files: dict[Below, Digest] = Field(max_length=_MANY)
    chosen: dict[Name, Below] = Field(max_length=_MANY)


class _File(_Answer):
    sha256: Digest
    mode: Annotated[str, Field(pattern=r"^[0-7]{4}$")]
    uid: Id
    gid: Id


class Snapshot(_Answer):
    """What a host is."""

    version: Literal[1]
    when: Plain
    host: Text
    boot_id: BootId
    kernel: Release
    lock_digest: LockDigest
    boot: _Boot
    manager: Literal["dpkg", "rpm", ""]
    packages: dict[Name, _Package] = Field(max_length=_MANY)
    provision: _Provision
    kernels: dict[Release, _Modules] = Field(max_length=_MANY)
    files: dict[Path, _File | None] = Field(max_length=_MANY)

    @model_validator(mode="after")
    def _names(self) -> Self:
        """Debian allows fewer names than rpm."""
        names = [*self.packages, *self.provision.installed, *self.provision.held]
        wrong = next((name for name in names if self.manager == "dpkg" and not _DEBIAN_NAME.fullmatch(name)), None)
        if wrong is not None:
            raise ValueError(f"{wrong!r} isn't the name of a package")
        return self


class _Difference(_Answer):
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


class Comparison(_Answer):
    """How a host differs from a snapshot."""

    same: bool
    differences: list[_Difference] = Field(max_length=_MANY)


class _Broken(_Answer):
    package: Name
    state: Text


class _Lock(_Answer):
    path: Text
    pid: Id
    program: Text


class _Packages(_Answer):
    manager: Literal["dpkg", "rpm", ""]
    broken: list[_Broken] = Field(max_length=_MANY)
    interrupted: bool
    locks: list[_Lock] = Field(max_length=_MANY)


class _Once(_Answer):
    state: Literal["none", "armed", "withdrawn", "booted", "fell back"]
    kernel: MaybeRelease


class _Space(_Answer):
    bytes: Size
    inodes: Size
    mount: Text


class _Keeper(_Answer):
    run: Text
    who: Text
    works: bool


class Status(_Answer):
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


class _Row(_Answer):
    fits: bool
    says: Text


class _Fits(_Answer):
    fits: bool
    filesystems: list[_Row] = Field(max_length=_MANY)


class _Kept(_Answer):
    archive: Text


class _Armed(_Answer):
    once: bool
    default: MaybeRelease


class _Verdict(_Answer):
    admitted: bool
    reasons: list[Text] = Field(max_length=_MANY)


class _Needed(_Answer):
    needed: bool
    reasons: list[Text] = Field(max_length=_MANY)
    boot_id: BootId
    running: Release
    unloaded: list[Name] = Field(max_length=_MANY)


class _Default(_Answer):
    default: MaybeRelease


class _Changed(_Answer):
    changed: bool


class _Gate(_Answer):
    state: Text
    boot_id: BootId
    reason: Text


class _Done(_Answer):
    """Only that there is an answer counts."""


#: First two words of a question → its answer.
ANSWERS: Mapping[tuple[str, ...], type[_Answer]] = {
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
    try:
        return ANSWERS[words].model_validate(document).model_dump(by_alias=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(ascii(part)[1:-1] if isinstance(part, str) else str(part) for part in first["loc"])
        raise HostUnfit(
            f"{host}: its answer to {' '.join(words)} is malformed: {place[:200]}: {ascii(first['msg'])[1:-1][:200]}",
            hint="The program that ran there is gdsdeploy's own; see what changes its output on that host",
        ) from None
