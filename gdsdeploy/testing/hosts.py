"""Hosts as tests see them: what validation says about each, by check and by mount."""

from __future__ import annotations

import base64
import contextlib
import json
import shlex
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from gdsdeploy.converge import expectation
from gdsdeploy.converge.machine import Machine
from gdsdeploy.errors import GdsError, NameUnknown, did_you_mean
from gdsdeploy.fleetfile import selection
from gdsdeploy.fleetfile.load import TRUSTED
from gdsdeploy.host.model import finding
from gdsdeploy.host.model.finding import FAIL, UNKNOWN, WORDS, Finding, worst
from gdsdeploy.host.paths import EXPECTATION
from gdsdeploy.lock import lockfile
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock
from gdsdeploy.report.model import UNREACHABLE, Report
from gdsdeploy.validate.fleet_validation import validate
from gdsdeploy.zipapp import hostapp

if TYPE_CHECKING:
    from testinfra.host import Host  # type: ignore[import-untyped]  # testinfra ships no types

#: Characters of a file in one command: Linux takes 128 KiB for one argument, and that is quoted on the way.
CHUNK = 110_000
#: Seconds for the whole of one host's evidence.
TIMEOUT = 300


class NoFindingsError(Exception):
    """A host could not be asked; the message is the reason."""


def carried_findings(host: Host, expectation: str | None) -> list[Finding]:
    """The host's findings.  expectation: JSON; None: what provision left there.  Raises NoFindingsError."""
    try:
        return [Finding(**row) for row in _ask(host, expectation)["findings"]]
    except NoFindingsError:
        raise
    except Exception as reason:  # noqa: BLE001 - each backend has its own
        raise NoFindingsError(f"{type(reason).__name__}: {reason}") from None


def _ask(host: Host, expectation: str | None) -> dict[str, Any]:
    """Run the host program in a folder of its own, which is removed again, whatever happens."""
    folder: str = host.check_output("mktemp -d")
    try:
        _carry({"gdsdeploy-host.pyz": hostapp.build(), "expectation.json": (expectation or "").encode()}, host, folder)
        path = f"{folder}/expectation.json" if expectation is not None else EXPECTATION
        program = f"{folder}/gdsdeploy-host.pyz"
        words = ["timeout", str(TIMEOUT), "python3", "-I", "-S", program, "validate", "--json", "--expectation", path]
        with contextlib.nullcontext() if host.check_output("id -u") == "0" else host.sudo():
            done = host.run(shlex.join(words))
    finally:
        # By the user who made it, who needs no sudo.  What went wrong before is what the reader has to know.
        with contextlib.suppress(Exception):
            host.run(f"rm -rf {shlex.quote(folder)}")
    try:
        document = json.loads(done.stdout)
    except ValueError:
        raise NoFindingsError(f"the host program ended with status {done.rc}: {done.stdout}{done.stderr}") from None
    if not isinstance(document, dict):
        raise NoFindingsError(f"the host program printed {document!r}")
    return document


def _carry(contents: dict[str, bytes], host: Host, folder: str) -> None:
    """Put files into a folder on the host; few and long commands, as each is a round trip."""
    for name, data in contents.items():
        # A line of its own for each part, because they are decoded together.
        text, place = base64.b64encode(data).decode(), shlex.quote(f"{folder}/{name}")
        for start in range(0, len(text) or 1, CHUNK):
            host.run_expect([0], f"echo '{text[start : start + CHUNK]}' >> {place}.text")
        host.run_expect([0], f"base64 -d {place}.text >{place}")


_STORAGE = "storage.path"


@dataclass(frozen=True)
class Mount:
    """A storage mount: ``path`` is one of nvidia-fs, p2pdma, compat, broken, none; empty where it isn't known."""

    point: str
    path: str
    finding: Finding


@dataclass(frozen=True)
class GdsHost:
    """One host with its findings.  In an assertion, ``host.words`` shows what is wrong."""

    name: str
    findings: tuple[Finding, ...]
    #: why the host gave no evidence
    trouble: str = ""

    @property
    def verdict(self) -> str:
        """``pass``, ``fail``, ``unknown`` or ``waived``: the worst of its findings; ``unreachable`` without any."""
        return UNREACHABLE if self.trouble else worst(list(self.findings))

    @property
    def failures(self) -> list[Finding]:
        """What failed or couldn't be decided."""
        return [finding for finding in self.findings if finding.verdict in (FAIL, UNKNOWN)]

    @property
    def words(self) -> str:
        """What is wrong, for people."""
        failures = (
            f"{each.check}: {WORDS[each.verdict]}: {each.found}; expected: {each.expected}. {each.hint}"
            for each in self.failures
        )
        lines = [*([self.trouble] if self.trouble else []), *failures]
        return "\n".join(f"{self.name}: {line}" for line in lines)

    def check(self, name: str) -> Finding:
        """The finding of a check; ``storage.path:/mnt/nvme`` where it runs for each mount.  Fails the test if none."""
        for each in self.findings:
            if each.check == name:
                return each
        if self.trouble:
            pytest.fail(self.words, pytrace=False)
        ids = [each.check for each in self.findings]
        pytest.fail(f"{self.name} has no finding {name!r}{did_you_mean(name, ids)}", pytrace=False)

    def mount(self, point: str) -> Mount:
        """A storage mount of the host's profile.  Fails the test if there is none."""
        finding = self.check(f"{_STORAGE}:{point}")
        return Mount(point, finding.path, finding)


class Gds:
    """The hosts of a fleet file.  They are asked together, when a test needs the first of them."""

    def __init__(self, fleet_path: Path, limit: str | None = None, *, since_boot: bool = False) -> None:
        """limit: as of ``gdsdeploy validate --limit``.  since_boot: takes what gates recorded in the current boot."""
        self._path, self._limit, self._since_boot = fleet_path, limit, since_boot
        self._others: dict[str, GdsHost] = {}

    def __call__(self, host: str | Host) -> GdsHost:
        """The host of this name; of testinfra's host, asked through its connection, once."""
        if isinstance(host, str):
            self.require(host)
            return self._hosts[host]
        key = str(host.backend.get_pytest_id())
        if key not in self._others:
            self._others[key] = self._carried(host)
        return self._others[key]

    def require(self, host: str) -> None:
        """Fail the test unless the fleet has a host of this name."""
        if host not in self.names:
            words = f"{self._path} has no host {host!r}{did_you_mean(host, self.names)}"
            fail(NameUnknown(f"{words}; it has {', '.join(self.names)}"))

    @property
    def names(self) -> list[str]:
        """The names of the hosts."""
        try:
            return selection.select(self._limit, list(self._intent[0].hosts), self._path, option="--gds-limit")
        except GdsError as error:
            fail(error)

    @cached_property
    def report(self) -> Report:
        """As ``gdsdeploy validate`` makes it."""
        fleet, lock = self._intent
        try:
            return validate(
                fleet, lock, self._path, self.names, since_boot=self._since_boot,
                progress=lambda _: None,
            )  # fmt: skip
        except GdsError as error:
            fail(error)

    @cached_property
    def _hosts(self) -> dict[str, GdsHost]:
        return {
            each.host: GdsHost(each.host, each.findings, each.trouble.message if each.trouble else "")
            for each in self.report.hosts
        }

    @cached_property
    def _intent(self) -> tuple[Fleet, Lock]:
        try:
            return lockfile.fleet_and_lock(self._path, TRUSTED, signed=False)
        except GdsError as error:
            fail(error)

    def _carried(self, host: Host) -> GdsHost:
        """Of a host that the fleet file has by this name, what that expects; of others, what provision left there."""
        name = str(host.backend.hostname)
        in_fleet = self._path.is_file() and name in self._intent[0].hosts
        expected = expectation.expectation(Machine(*self._intent, name)).to_json() if in_fleet else None
        try:
            findings = carried_findings(host, expected)
        except NoFindingsError as error:
            return GdsHost(name, (), str(error))
        accepted = selection.waivers_of(self._intent[0], name) if in_fleet else []
        return GdsHost(name, tuple(finding.apply(findings, accepted, finding.today())))


def fail(error: GdsError) -> NoReturn:
    """Fail the test, or the collection of its file, with the words of ``error`` alone."""
    words = f"{error.message}\n{error.hint or ''}".rstrip()
    raise pytest.fail.Exception(words, pytrace=False) from None  # or pytest prints the error that it came from, too
