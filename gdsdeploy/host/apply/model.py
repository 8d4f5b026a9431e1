"""Changes as data, the interface of a resource, and errors while a host is changed.

``kind`` of an error is for programs, message and hint are for people.
"""

from __future__ import annotations

import contextlib
import errno
import os
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Dict,
    Generic,
    Iterator,
    List,
    Literal,
    Mapping,
    Sequence,
    Tuple,
    Type,
    TypeVar,
)

from ..derived import Thing
from ..errors import ApplyError, HostError
from ..io.atomic import UnsafePathError

if TYPE_CHECKING:
    from .host import ManagedHost

#: How adapters reach GPU memory.
Rdma = Literal["none", "peermem", "dmabuf"]
#: Where a machine has its modules from.
Source = Literal["build", "receive", "packaged"]
#: Of the driver's modules.
Flavour = Literal["open", "proprietary"]
_IN_THE_WAY = (errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST, errno.ELOOP)


@contextlib.contextmanager
def with_kind(kind: str) -> Iterator[None]:
    """Turn every other HostError into an ApplyError of this kind."""
    try:
        yield
    except ApplyError:
        raise
    except HostError as error:
        raise ApplyError(error.message, error.hint, kind) from None


@contextlib.contextmanager
def writing(path: str) -> Iterator[None]:
    """Turn an OSError into the ApplyError for ``path``; empty: for the path in the OSError."""
    try:
        yield
    except OSError as error:
        raise io_error(path or str(error.filename or "this host"), error) from None


def io_error(path: str, error: OSError) -> ApplyError:
    """The error for a path that can't be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ApplyError(f"{path}: no space left on the device", f"make room: df {os.path.dirname(path)}", "no-space")
    if isinstance(error, UnsafePathError):
        return ApplyError(str(error.strerror), f"have it changed by root only, or move it away: {error.filename}", "io")
    hint = f"look at it: ls -ld {path}" if error.errno in _IN_THE_WAY else "run it as root, on a writable filesystem"
    return ApplyError(f"{path}: {error.strerror or error}", hint, "io")


#: From the least to the most: what a change does to work that is running on the host.
NONE, RELOAD, REBOOT = "none", "module reload", "reboot"
DISRUPTIONS = (NONE, RELOAD, REBOOT)

#: Kinds that put a package in place in the locked version.
INSTALLS = ("install", "upgrade", "downgrade")


@dataclass(frozen=True)
class Change:
    """One change of a host.

    ``kind``: one of ``registry.words("kinds")``.  Programs branch on it, never on a sentence.
    ``before`` and ``after``: versions, ``sha256:…``, modes or states; empty where there is nothing.
    ``reason``: an id such as ``missing``, ``content``, ``mode``, ``version``, ``not-held``; see docs/apply.md.
    """

    kind: str
    subject: str
    before: str = ""
    after: str = ""
    reason: str = ""
    disruption: str = NONE
    #: the resource's name in the desired state, e.g. ``packages.driver``
    resource: str = ""
    #: what uses the subject now, a sentence each; ``apply`` refuses to unload a module that is in use
    users: Tuple[str, ...] = ()
    #: of a removal: the package that replaces or excludes this one, or of which it needs another version
    by: str = ""

    def to_json(self) -> Dict[str, Any]:
        """The change as a JSON object of texts, and a list of them: ``users``."""
        return {**asdict(self), "users": list(self.users)}


@dataclass(frozen=True)
class Refusal:
    """A condition that the host doesn't meet: until it does, nothing is changed."""

    id: str
    message: str
    hint: str = ""


D = TypeVar("D")
#: Ids and what they are in words.
Words = Mapping[str, str]


class Resource(ABC, Generic[D]):
    """One part of a host.  Subclasses register themselves by existing in a module of this package.

    The engine calls :meth:`observe`, then :meth:`changes`; without ``--check`` it then calls :meth:`apply` for each
    change in order and :meth:`settle` at the end.  ``changes`` is pure: a controller can call it, too.
    """

    #: as in the desired state and on the command line; ``NAME.INSTANCE`` where a host has several
    name: ClassVar[str] = ""
    #: a frozen dataclass; ``schema.py`` reads it from JSON and writes its JSON schema
    desired_type: ClassVar[Type[Any]]
    #: kinds of its changes → the action, in words; ``{}`` is the subject.  FileResource has those of files.
    kinds: ClassVar[Words] = {}
    #: reasons of its changes → what was there, in words; ``{}`` is the state before.  Without words it is shown
    reasons: ClassVar[Words] = {}
    #: place of :meth:`revert` in a removal, the smallest first; 0: nothing to take back
    removal_rank: ClassVar[int] = 0
    #: paths that :meth:`revert` restores; shell patterns are allowed in the last part.  So does a rollback
    reverts: ClassVar[Tuple[str, ...]] = ()

    @abstractmethod
    def observe(self, host: ManagedHost, desired: D) -> Any:
        """What the host is now; raises CannotTellError and ApplyError."""

    def refusals(self, desired: D, observed: Any) -> List[Refusal]:
        """Conditions that keep this resource from being applied."""
        return []

    def changes(self, desired: D, observed: Any, pending: Sequence[Change] = ()) -> List[Change]:
        """What differs.  pending: changes of earlier resources that a check predicted and that aren't made yet."""
        return []

    def apply(self, host: ManagedHost, desired: D, change: Change) -> None:
        """Make one change; raises ApplyError.  By default :meth:`settle` makes them together."""

    def settle(self, host: ManagedHost, desired: D, changes: Sequence[Change]) -> None:
        """After the last change: what they require together, and a look at the result; raises ApplyError.

        Also called when there was no change.
        """

    def derives(self, host: ManagedHost, desired: D) -> Sequence[Thing]:
        """What its changes make from files: due from the first change on, until the last one has ended well.

        :meth:`changes` has to say that what is due is made again; see ``derived.py``.
        """
        return ()

    def report(self, desired: D, observed: Any) -> Mapping[str, Any]:
        """The part of the observation that the controller needs, as JSON."""
        return {}

    def revert(self, host: ManagedHost) -> List[Change]:
        """Take back what :meth:`apply` has ever done here, by the host's record; with ``host.check`` only say it."""
        return []
