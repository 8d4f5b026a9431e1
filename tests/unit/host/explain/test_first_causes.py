"""On every host with a fault, the first cause isn't what follows from another one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest

from gdsdeploy.host.model import causes
from tests.unit.host import hosts
from tests.unit.host.explain.faults import FAULTS, explained

#: Of causes that only hosts have, and logs don't: what each follows from.
CONSEQUENCES = {
    "nvidia-fs.driver-missing": "nvidia.not-installed",
    "nvme.not-registered": "storage.hooks-not-gpl",
    "rpcrdma.no-hooks": "nfs.not-rdma",
    "nvme_rdma.no-hooks": "nvmeof.not-rdma",
    "kernel.no-p2pdma-symbol": "kernel.no-p2pdma",
    "filesystem.kind": "filesystem.not-taken",
}


@cache
def found(name: str) -> tuple[str, ...]:
    fault = FAULTS[name]
    return tuple(cause.id for cause in explained(fault.change(hosts.named(fault.host))).causes)


def is_consequence(idents: Sequence[str]) -> bool:
    """Whether the first follows from another one."""
    links = [causes.row(ident).link if causes.has(ident) else (ident, ()) for ident in idents]
    first, *others = [(ident, (*follows, CONSEQUENCES.get(ident, ident))) for ident, follows in links]
    return any(causes.is_after(first, other) for other in others)


@pytest.mark.parametrize("name", FAULTS)
def test_the_first_cause_is_no_consequence(name: str) -> None:
    if found(name):
        assert not is_consequence(found(name)), found(name)


@pytest.mark.parametrize(("consequence", "cause"), CONSEQUENCES.items())
def test_hosts_have_both(consequence: str, cause: str) -> None:
    """Else the test above couldn't fail for it."""
    assert any({consequence, cause} <= set(found(name)) for name in FAULTS)
    assert is_consequence([consequence, cause])
    assert not is_consequence([cause, consequence])
