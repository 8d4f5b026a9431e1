"""Logins for repositories, from a file of the user in the form of apt_auth.conf(5).

A login goes to the machine that the user's file names, and to no other that a fleet file or a server points to.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import httpx

from gdsdeploy import paths
from gdsdeploy.errors import FleetInvalid
from gdsdeploy.files.secret import read_private
from gdsdeploy.model.fleet import Fleet

_MACHINE: Final = re.compile(
    r"((?P<scheme>https?)://)?(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>[0-9]{1,5}))?(?P<path>/\S*)?"
)
_PORTS: Final = {"https": 443, "http": 80}
_FORM: Final = "Write `machine HOST login USER password PASSWORD`, as in apt_auth.conf(5)"


@dataclass(frozen=True)
class Login:
    """One entry: where it is for, user and password."""

    #: without one in the file, it is https: a password isn't sent in the clear unless the user says so
    scheme: str
    host: str
    #: None: every port
    port: int | None
    #: empty: every path
    path: str
    user: str = field(repr=False)
    password: str = field(repr=False)

    def is_for(self, url: httpx.URL) -> bool:
        """Whether it may be sent to this address."""
        place = unquote(url.path)
        return (
            (url.scheme, url.host) == (self.scheme, self.host)
            and self.port in (None, url.port or _PORTS[self.scheme])
            and place.startswith(self.path)
            and not (self.path and ".." in place.split("/"))
        )


class Logins(httpx.Auth):
    """Adds the first login that is for a request's address; a redirect to another server goes without."""

    def __init__(self, logins: Sequence[Login]) -> None:
        self._logins = tuple(logins)

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        login = next((each for each in self._logins if each.is_for(request.url)), None)
        if login is not None:
            word = base64.b64encode(f"{login.user}:{login.password}".encode()).decode()
            request.headers["Authorization"] = f"Basic {word}"
        yield request


def of_fleet(fleet: Fleet, fleet_path: Path) -> Logins | None:
    """The logins in the file that a fleet file names, if it names one; raises FleetInvalid."""
    return read(paths.locate(paths.folder_of(fleet_path), fleet.credentials)) if fleet.credentials else None


def read(path: Path) -> Logins:
    """The logins in a file that only its owner may read; raises FleetInvalid, which quotes nothing of it."""
    return Logins(list(_entries(path, read_private(path, "credentials", FleetInvalid))))


def _entries(path: Path, text: str) -> Iterator[Login]:
    lines = ((number, line) for number, line in enumerate(text.splitlines(), 1) if not line.lstrip().startswith("#"))
    words = [(number, word) for number, line in lines for word in line.split()]
    while words:
        (number, _), entry = words[0], [word for _, word in words[:6]]
        words = words[6:]
        if entry[0::2] != ["machine", "login", "password"] or len(entry) < 6:
            raise FleetInvalid(f"{path}:{number}: is no login", hint=_FORM)
        machine = _MACHINE.fullmatch(entry[1])
        if machine is None:
            raise FleetInvalid(f"{path}:{number}: its machine is none", hint=_FORM)
        port = int(machine["port"]) if machine["port"] else None
        host = machine["host"].strip("[]").lower()
        yield Login(machine["scheme"] or "https", host, port, machine["path"] or "", entry[3], entry[5])
