"""On every host with a fault, the first cause isn't what follows from another one."""

from __future__ import annotations

import pytest

from gdsdeploy.host.model import causes
from tests.unit.host import hosts
from tests.unit.host.explain.faults import FAULTS, explained


@pytest.mark.parametrize("name", FAULTS)
def test_the_first_cause_is_no_consequence(name: str) -> None:
    fault = FAULTS[name]
    found = [cause.id for cause in explained(fault.change(hosts.named(fault.host))).causes]
    links = [causes.row(ident).link for ident in found if causes.has(ident)]
    if links and causes.has(found[0]):
        assert not any(causes.is_after(links[0], other) for other in links[1:]), found
