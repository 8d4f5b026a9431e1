"""Whether gdsdeploy has provisioned this host at all."""

from __future__ import annotations

from ..facts import HostFacts, require
from ..model.expectation import Expectation
from ..paths import OWN_NAME, OWN_PARENTS
from .registry import Answer, check, failed, not_applicable, passed, subject

subject("host", after="os")

FOLDERS = ", ".join(f"{parent}/{OWN_NAME}" for parent in OWN_PARENTS)


@check(
    "host.provisioned",
    "gdsdeploy has provisioned this host",
    expects="a folder of gdsdeploy: " + FOLDERS,
    prevents="a list of failures that all mean the same: this host was left out when the fleet was provisioned",
    unknown_hint="Validate the host again with this release: gdsdeploy validate FLEET --limit HOST",
)
def provisioned(facts: HostFacts, _expectation: Expectation) -> Answer:
    manager = require(facts.environment.container)
    if manager is not None:
        return not_applicable(f"{manager}: the folders of its host are not visible")
    folders = require(facts.environment.own_folders)
    if folders:
        return passed(", ".join(folders))
    return failed("none of them exists: the host was never provisioned", "Run gdsdeploy provision FLEET on this host")
