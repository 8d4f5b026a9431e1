"""Show the findings of a report as the testinfra suite of ``tests/host``, from a checkout or a wheel alike."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from gdsdeploy import paths, resources, run
from gdsdeploy.errors import ChecksFailed, ProgramFailed
from gdsdeploy.host.io.wording import joined
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.report import formats
from gdsdeploy.report.model import Report
from gdsdeploy.ssh import sshconfig
from gdsdeploy.ssh.endpoint import Endpoint

#: pytest's exit status for tests that failed.
FAILED = 1


def run_suite(
    report: Report, fleet: Fleet, fleet_path: Path, argv: Sequence[str], *, line: Callable[[str], None]
) -> None:
    """Run pytest with one test for each finding of ``report``, handing its output to ``line``.

    No host is asked for these tests.  Others, which ``argv`` may name, reach the hosts by testinfra's ``host``.
    argv: for pytest, as it is.  Raises ChecksFailed when a test failed, and ProgramFailed for pytest's other ends.
    """
    suite, fleet_dir = resources.share() / "tests" / "host", paths.folder_of(fleet_path).resolve()
    names = [host.host for host in report.hosts]
    with tempfile.TemporaryDirectory(prefix="gdsdeploy-") as folder:
        config, findings = Path(folder) / "ssh_config", Path(folder) / "report.json"
        sections = map(ssh_config, sshconfig.endpoints(fleet, fleet_dir, names))
        config.write_text("".join(sections), encoding="utf-8")
        findings.write_text("".join(formats.json_pieces(report)), encoding="utf-8")
        command = [
            *(sys.executable, "-P", "-m", "pytest"),
            # Neither the settings of a project that lies about, nor traces in the installed package, nor the
            # fixtures of gdsdeploy's own tests in a checkout.
            *("-c", os.devnull, f"--rootdir={suite}", "-p", "no:cacheprovider", f"--confcutdir={suite}"),
            f"--hosts={','.join(f'ssh://{name}' for name in names)}",
            f"--ssh-config={config}",
            f"--gds-report={findings}",
            *argv,
            str(suite),
        ]
        status = run.stream(command, doing="run pytest", line=line, env=_environment())
    if status == FAILED:
        raise ChecksFailed("tests failed", hint="Follow the next step that each of them gives")
    if status != 0:
        raise ProgramFailed(f"pytest ended with status {status}", hint="See the reason above")


def _environment() -> dict[str, str | None]:
    """Neither plugins and options of pytest's variables, nor modules of the current folder; gdsdeploy is this one."""
    stray = dict.fromkeys(name for name in os.environ if name.startswith("PYTEST_"))
    package = Path(__file__).resolve().parents[2]
    return {**run.cleared(), **stray, "PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1"}


def ssh_config(host: Endpoint) -> str:
    """The section of an OpenSSH configuration by which ssh reaches the host under its name in the fleet."""
    settings = {
        "HostName": host.address,
        "Port": str(host.port),
        "User": host.user,
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "IdentitiesOnly": "no" if host.agent else "yes",
    }
    lines = [f"  {name} {value}" for name, value in settings.items()]
    lines += [f'  IdentityFile "{file}"' for file in host.identity_files]
    if host.known_hosts:
        lines.append("  UserKnownHostsFile " + " ".join(f'"{file}"' for file in host.known_hosts))
        lines.append("  GlobalKnownHostsFile none")
    lines += [f"  HostKeyAlias {host.host_key_alias}"] if host.host_key_alias else []
    # ssh hands it to a shell, after it has replaced what stands behind a %.
    lines += [f"  ProxyCommand {shlex.join(host.proxy).replace('%', '%%')}"] if host.proxy else []
    return joined([f"Host {host.host}", *lines, ""])
