"""What apt-get says that it would do, with the preferences and lists that a check predicts."""

from __future__ import annotations

import contextlib
import re
import tempfile
from typing import Iterator, Sequence

from ..host import ManagedHost
from .future import looking

_STATUS = "/var/lib/dpkg/status"
#: An administrator's preferences outside of preferences.d.
_MAIN = "/etc/apt/preferences"
#: No questions, and no service that needrestart restarts: containerd or slurmd of a host at work.
ENVIRONMENT = {
    "DEBIAN_FRONTEND": "noninteractive",
    "APT_LISTCHANGES_FRONTEND": "none",
    "LC_ALL": "C",
    "NEEDRESTART_SUSPEND": "1",
    # For a needrestart that doesn't know the variable above: it lists services.
    "NEEDRESTART_MODE": "l",
}
#: A query must neither wait for a lock nor leave a cache behind.
LOOK = ["--simulate", "--option=Debug::NoLocking=1"]


def simulate(host: ManagedHost, options: Sequence[str], words: Sequence[str], loose: Sequence[str]) -> str:
    """What apt says it would do, given that the holds of ``loose`` are gone and preferences are as predicted.

    options: of aptlists.options.  Raises CannotTellError.
    """
    argv = ["apt-get", *options, "--assume-yes", *LOOK]
    with contextlib.ExitStack() as stack:
        if host.prediction.preferences:
            # apt reads this file before those of preferences.d, as it will read ours.
            text = f"{host.prediction.preferences}\n{host.text(_MAIN)}"
            argv.append(f"--option=Dir::Etc::preferences={stack.enter_context(_temporary('preferences', text))}")
        if loose:
            status = host.once(("loose", *loose), lambda: _loose_status(host, loose))
            # apt's own cache is of another status; it takes a second of processor time to make one.
            argv += [f"--option=Dir::State::status={status}", f"--option=Dir::Cache::pkgcache={status}.pkgcache"]
        return host.query([*argv, *words], env=ENVIRONMENT)


def _loose_status(host: ManagedHost, names: Sequence[str]) -> str:
    """The path of a copy of dpkg's status where ``names`` aren't held; apt puts its cache of it beside it."""
    with looking():
        path = tempfile.mkdtemp(prefix="loose-", dir=host.scratch("status")) + "/status"
        with open(path, "w", encoding="utf-8") as file:
            file.write(_without_holds(host.text(_STATUS), names))
    return path


@contextlib.contextmanager
def _temporary(name: str, text: str) -> Iterator[str]:
    """The path of a file with this text."""
    with tempfile.NamedTemporaryFile("w", prefix=f"gdsdeploy-{name}-", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        yield file.name


def _without_holds(status: str, names: Sequence[str]) -> str:
    """Dpkg's status where ``names`` aren't held."""
    for name in names:
        pattern = rf"^(Package: {re.escape(name)}\n(?:.+\n)*?Status: )hold "
        status = re.sub(pattern, r"\1install ", status, flags=re.MULTILINE)
    return status
