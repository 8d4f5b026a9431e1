"""Installed packages against the lock."""

from __future__ import annotations

from typing import List, Mapping, Tuple

from ..facts import HostFacts, UndecidedError, known
from ..facts.packages import Package
from ..model.expectation import Expectation
from .registry import Answer, check, failed, passed

#: Completely installed, and wanted so: as it is, or held.
COMPLETE = ("ii", "hi")
#: Packages named in a finding; the rest is counted.
NAMED = 5


@check(
    "packages.locked-versions",
    "every package of the lock is installed in exactly the locked version",
    expects="the packages of the lock, completely installed",
    prevents="drift: an upgrade by hand or by unattended-upgrades; a package that dpkg left half-configured",
)
def locked_versions(facts: HostFacts, expectation: Expectation) -> Answer:
    installed = known(facts.packages.installed)
    if not expectation.packages:
        raise UndecidedError("the expectation names no packages")
    wrong = [
        line for name, version in sorted(expectation.packages.items()) for line in _wrong(installed, name, version)
    ]
    if not wrong:
        return passed(f"{len(expectation.packages)} packages")
    shown = "; ".join(wrong[:NAMED]) + (f"; and {len(wrong) - NAMED} more" if len(wrong) > NAMED else "")
    return failed(shown, "Provision the host again; if apt refuses, 'dpkg --audit' and 'apt-get check' say why", wrong)


def _wrong(installed: Mapping[str, Tuple[Package, ...]], name: str, version: str) -> List[str]:
    found = installed.get(name, ())
    if any(item.version == version and item.status in COMPLETE for item in found):
        return []
    if not found or all(item.status.startswith(("un", "rc", "pn")) for item in found):
        return [f"{name} is not installed (locked: {version})"]
    shown = ", ".join(f"{item.version} [{item.status}]" for item in found)
    return [f"{name} is {shown} (locked: {version})"]
