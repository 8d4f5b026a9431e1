"""The checks of gdsdeploy as a testinfra suite: one test per check and host.

    pytest tests/host --hosts=ssh://gpu1,ssh://gpu2 [--ssh-config FILE] [--fleet fleet.yml] [--junitxml FILE]

Each host is asked once, before the tests, because only its answer says which mounts there are to test.  What it is
expected to be is what provision left on it in /etc/gdsdeploy/expectation.json or, with --fleet, what that fleet and its
lock say now; the name in --hosts is then the name in the fleet, and the fleet file's waivers hold.
"""

from __future__ import annotations

import base64
import io
import json
import shlex
import tarfile
from pathlib import Path
from typing import Any

import pytest
import testinfra
from testinfra.host import Host

from gdsdeploy.converge import expectation as expect
from gdsdeploy.errors import GdsError
from gdsdeploy.fleetfile import waivers
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.host.model import expectation as expected_state
from gdsdeploy.host.model import waiver
from gdsdeploy.host.model.finding import Finding, finding_from
from gdsdeploy.lock import lockfile
from gdsdeploy.zipapp import hostapp

USAGE = "say which hosts: pytest tests/host --hosts=ssh://HOST[,ssh://HOST…] [--ssh-config FILE] [--fleet fleet.yml]"
#: Characters of a file in one command: Linux takes 128 KiB for one argument, and that is quoted on the way.
CHUNK = 110_000
#: Seconds for the whole of one host's evidence.
TIMEOUT = 300


class NoFindingsError(Exception):
    """A host could not be asked; the message is the reason."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("gdsdeploy").addoption("--fleet", metavar="FILE", help="Expect what this fleet and its lock say.")


def pytest_configure(config: pytest.Config) -> None:
    # testinfra would run the suite on this machine; one that nobody pointed at a host must not pass.
    if not config.getoption("hosts"):
        raise pytest.UsageError(USAGE)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each finding of each host; a host that cannot be asked is one test, which fails with the reason."""
    if "finding" not in metafunc.fixturenames:
        return
    option = metafunc.config.option
    hosts = testinfra.get_hosts(
        option.hosts.split(","),
        connection=option.connection,
        ssh_config=option.ssh_config,
        ssh_identity_file=option.ssh_identity_file,
        ansible_inventory=option.ansible_inventory,
        force_ansible=option.force_ansible,
    )
    values: list[Finding | NoFindingsError] = []
    ids: list[str] = []
    for host in hosts:
        findings = _findings(host, option.fleet)
        values += findings
        ids += [f"{host.backend.get_pytest_id()}-{getattr(finding, 'check', 'reachable')}" for finding in findings]
    metafunc.parametrize("finding", values, ids=ids)


def _findings(host: Host, fleet: str | None) -> list[Finding | NoFindingsError]:
    try:
        expectation = _expectation(Path(fleet), host.backend.hostname) if fleet else None
        rows = _ask(host, expectation)["findings"]
        host_waivers = waivers.of_host(load_fleet(Path(fleet)), host.backend.hostname) if fleet else []
        findings = waiver.apply([finding_from(row) for row in rows], host_waivers, waiver.today())
        return [*findings] or [NoFindingsError("no check applies to this host")]
    except pytest.UsageError:
        raise
    except Exception as reason:  # noqa: BLE001 - each backend has its own; the test fails with the words of any
        return [NoFindingsError(f"{type(reason).__name__}: {reason}")]


def _expectation(fleet_file: Path, name: str) -> str:
    try:
        fleet = load_fleet(fleet_file)
        lock = lockfile.read(lockfile.beside(fleet_file))
        lockfile.require_fresh(fleet, lock, fleet_file=fleet_file)
        if name not in fleet.hosts:
            raise pytest.UsageError(f"{fleet_file} has no host {name!r}; it has {', '.join(fleet.hosts)}")
        return expect.expectation(fleet, lock, name).to_json()
    except GdsError as error:
        raise pytest.UsageError(f"{error.message}\n{error.hint or ''}".rstrip()) from None


def _ask(host: Host, expectation: str | None) -> dict[str, Any]:
    """Run the host program in a folder of its own, which is removed again."""
    folder = _carry({"gdsdeploy-host.pyz": hostapp.build(), "expectation.json": (expectation or "").encode()}, host)
    path = f"{folder}/expectation.json" if expectation is not None else expected_state.PATH
    program = f"{folder}/gdsdeploy-host.pyz"
    words = ["timeout", str(TIMEOUT), "python3", "-I", "-S", program, "validate", "--json", "--expectation", path]
    command = f"{shlex.join(words)}; status=$?; rm -rf {shlex.quote(folder)}; exit $status"
    if host.check_output("id -u") == "0":
        done = host.run(command)
    else:
        with host.sudo():
            done = host.run(command)
    try:
        document = json.loads(done.stdout)
    except ValueError:
        raise NoFindingsError(f"the host program ended with status {done.rc}: {done.stdout}{done.stderr}") from None
    if not isinstance(document, dict):
        raise NoFindingsError(f"the host program printed {document!r}")
    return document


def _carry(contents: dict[str, bytes], host: Host) -> str:
    """Put files into a new folder on the host and return its name; few and long commands, as each is a round trip."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, data in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    text = base64.b64encode(archive.getvalue()).decode()
    first, *parts = [text[start : start + CHUNK] for start in range(0, len(text), CHUNK)]
    folder: str = host.check_output(f'd=$(mktemp -d) && printf %s {first} > "$d/text" && echo "$d"')
    where = shlex.quote(folder)
    for part in parts[:-1]:
        host.run_expect([0], f"printf %s {part} >> {where}/text")
    last = "".join(parts[-1:])
    host.run_expect([0], f"printf %s '{last}' >> {where}/text && base64 -d {where}/text | tar -xC {where}")
    return folder
