"""Installed packages compared with the lock."""

from __future__ import annotations

from typing import Dict, Sequence

from ..facts import HostFacts, UndecidedError, require
from ..facts.packages import Package
from ..io.phrases import first_few
from ..model.expectation import Expectation
from .registry import Answer, check, failed, passed, subject

subject("packages", after="secure-boot")

#: dpkg's states of a completely installed package: selected for installation, or held.
COMPLETE = ("ii", "hi")
#: Packages named in a finding; the rest is counted.
NAMED = 5


@check(
    "packages.locked-versions",
    "every package of the lock is installed in exactly the locked version",
    expects="the packages of the lock, completely installed",
    prevents="drift: an upgrade by hand or by unattended-upgrades; a package that dpkg left half-configured",
    of_provision=True,
)
def locked_versions(facts: HostFacts, expectation: Expectation) -> Answer:
    installed, locked = require(facts.packages.installed), locked_packages(expectation)
    wrong = list(filter(None, (_problem(name, locked[name], installed.get(name, ())) for name in locked)))
    if not wrong:
        return passed(f"{len(locked)} packages")
    hint = "Provision the host again; if apt refuses, read why: dpkg --audit; apt-get check"
    return failed(first_few(wrong, NAMED, "; "), hint, wrong)


def locked_packages(expectation: Expectation) -> Dict[str, str]:
    """Package → version of the lock, sorted; raises UndecidedError for an expectation without packages."""
    if not expectation.packages:
        raise UndecidedError("the expectation names no packages")
    return dict(sorted(expectation.packages.items()))


def _problem(name: str, version: str, packages: Sequence[Package]) -> str:
    if any(package.version == version and package.status in COMPLETE for package in packages):
        return ""
    if all(package.status.startswith(("un", "rc", "pn")) for package in packages):
        return f"{name} is not installed (locked: {version})"
    shown = ", ".join(f"{package.version} [{package.status}]" for package in packages)
    return f"{name} is {shown} (locked: {version})"
