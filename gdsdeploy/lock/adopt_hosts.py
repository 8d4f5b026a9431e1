"""Ask hosts which pieces of a driver they have, for ``gdsdeploy lock --adopt``.  Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from gdsdeploy.errors import GdsError, HostUnfit
from gdsdeploy.host.model.system import fits
from gdsdeploy.lock.resolve.target import Pieces
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.platform import stack_platform_for
from gdsdeploy.ssh.endpoint import TIMEOUT, Answer, refusal
from gdsdeploy.ssh.reply_schema import Name, Plain, Shape, Version, parse_reply
from gdsdeploy.ssh.transport import ask_all

#: Packages of one host.
_MANY = 100_000


class _Package(Shape):
    version: Version


class _Reply(Shape):
    os: Plain
    arch: Plain
    packages: Annotated[dict[Name, _Package], Field(max_length=_MANY)]


def ask_pieces(fleet: Fleet, path: Path, names: Sequence[str], *, timeout: float = TIMEOUT) -> Pieces:
    """Ask all hosts at the same time.  timeout: seconds for each.

    Raises the first error of a host that didn't answer, HostUnfit for one of another system than its profile's, and
    what ssh.ask raises.
    """

    def judge(answer: Answer) -> Mapping[str, str]:
        document = answer.require_document()
        error = document.get("error")
        if isinstance(error, Mapping):
            raise refusal(answer.host, error)
        return _pieces(fleet, answer.host, parse_reply(answer.host, "packages", _Reply, document))

    outcomes = ask_all(fleet, path, names, ["packages", "--json"], judge, timeout=timeout)
    of_hosts: dict[str, Mapping[str, str]] = {}
    for name in names:
        result = outcomes[name]
        if isinstance(result, GdsError):
            raise result
        of_hosts[name] = result
    return Pieces(of_hosts, {name: fleet.machine(name).profile for name in names})


def _pieces(fleet: Fleet, host: str, reply: _Reply) -> dict[str, str]:
    """The pieces on one host; raises HostUnfit where its system isn't that of its profile."""
    name = fleet.machine(host).profile
    profile = fleet.profiles[name]
    if not fits(profile.os, reply.os) or profile.arch != reply.arch:
        raise HostUnfit(
            f"{host}: it runs {reply.os} on {reply.arch}, and its profile {name} is for {profile.os} on {profile.arch}",
            hint="Give it another profile in the fleet file",
        )
    platform = stack_platform_for(profile.os)
    return {each: one.version for each, one in reply.packages.items() if platform.may_be_adopted(each)}
