"""Run the testinfra suite of ``tests/host`` against a fleet, from a checkout or from an installed wheel alike."""

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
from gdsdeploy.ssh import machines, sshconfig
from gdsdeploy.ssh.endpoint import Endpoint

#: pytest's exit status for tests that failed.
FAILED = 1


def run_suite(
    fleet: Fleet, fleet_path: Path, names: Sequence[str], argv: Sequence[str], *, line: Callable[[str], None]
) -> None:
    """Run pytest with one test for each check and host of ``names``, handing its output to ``line``.

    argv: for pytest, as it is.  Raises ChecksFailed when a test failed, ProgramFailed for pytest's other ends,
    and FleetInvalid where two names are one endpoint.
    """
    suite, fleet_dir = resources.share() / "tests" / "host", paths.folder_of(fleet_path).resolve()
    endpoints = sshconfig.endpoints(fleet, fleet_dir, names)
    distinct = machines.Distinct(names, fleet_path)
    with tempfile.TemporaryDirectory(prefix="gdsdeploy-") as folder:
        config = Path(folder) / "ssh_config"
        config.write_text("".join(ssh_config(distinct.add(endpoint)) for endpoint in endpoints), encoding="utf-8")
        command = [
            *(sys.executable, "-P", "-m", "pytest"),
            # Neither the settings of a project that lies about, nor traces in the installed package.
            *("-c", os.devnull, f"--rootdir={suite}", "-p", "no:cacheprovider"),
            f"--hosts={','.join(f'ssh://{name}' for name in names)}",
            f"--ssh-config={config}",
            f"--fleet={fleet_path.resolve()}",
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
