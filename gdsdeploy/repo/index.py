"""Shared by the readers of signed apt and rpm indices: the repository that an index belongs to, and its date."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal

from gdsdeploy.errors import RepositoryUntrusted
from gdsdeploy.model.lock import Index

#: An index may be dated this far ahead of this machine's clock.
MAX_FUTURE: Final = timedelta(minutes=10)
FETCHES_AT_ONCE: Final = 6


@dataclass(frozen=True)
class Repository:
    """A repository with nothing left open."""

    name: str
    #: of rpm: the folder that holds ``repodata``; empty while only the controller's apt sources know it
    uri: str
    #: on the controller
    keyring: Path
    fingerprints: tuple[str, ...]
    #: on the host
    host_keyring: str
    #: ``("/",)`` for apt's flat layout, whose files are relative to ``uri`` wherever its index is; empty for rpm
    suites: tuple[str, ...] = ()
    #: empty for a flat layout and for rpm
    components: tuple[str, ...] = ()
    #: why its index is used although it isn't signed, which rpm knows only; empty: ``fingerprints`` have to sign it
    unsigned: str = ""
    #: primary keys that have to sign each package of an unsigned one
    package_keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} ({' '.join(self.suites)})" if self.suites else self.name

    def index(
        self, kind: Literal["apt", "rpm"], date: datetime, signer: str, suite: str = "", until: datetime | None = None
    ) -> Index:
        """The lock's record of one of its indices."""
        return Index(
            repository=self.name,
            kind=kind,
            uri=self.uri,
            suite=suite,
            components=self.components,
            date=rfc3339(date),
            valid_until=rfc3339(until) if until else None,
            signed_by=signer,
            host_keyring=self.host_keyring,
            metadata="unsigned" if self.unsigned else "signed",
            package_keys=self.package_keys,
            why=self.unsigned,
        )


def require_past(uri: str, date: datetime, now: datetime) -> None:
    """Raise RepositoryUntrusted for an index that is dated in the future."""
    if date > now + MAX_FUTURE:
        raise RepositoryUntrusted(
            f"{uri}: this index is dated {rfc3339(date)}, and it is {rfc3339(now)}",
            hint="Correct this machine's clock",
        )


def rfc3339(moment: datetime) -> str:
    """A time as locks have it: in UTC, to the second."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
