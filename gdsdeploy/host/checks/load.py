"""Whether mounts deliver what the fleet asks of them while they are busy."""

from __future__ import annotations

from typing import Iterator

from ..facts import HostFacts, Unknown
from ..facts.load import size
from ..model.expectation import Expectation
from .registry import Answer, check, failed, passed, unknown


@check(
    "storage.load",
    "this mount delivers what the fleet asks of it, while several readers keep it busy",
    expects="the rate of the fleet file; tried only on request, and where there is one",
    prevents="a disk, a cable or a link at half its width that every check of what is configured calls good",
)
def load(facts: HostFacts, expectation: Expectation) -> Iterator[Answer]:
    for item in expectation.storage:
        mount_point, limits = item.get("mount", ""), item.get("load")
        wanted = limits.get("read") if isinstance(limits, dict) else None
        loads = facts.storage.loads
        if not isinstance(wanted, (int, float)) or (not isinstance(loads, Unknown) and not loads):
            # The fleet has no threshold, or nobody asked.
            continue
        found = loads if isinstance(loads, Unknown) else loads.get(mount_point, Unknown("it was not read from"))
        expected = f"at least {size(wanted)}/s read"
        if isinstance(found, Unknown):
            hint = "Make what the reason above says good, and validate again with --load; see docs/validate.md"
            yield unknown(found.reason, hint, mount_point, expected)
        elif found.rate >= wanted:
            yield passed(found.summary, (), mount_point, expected)
        else:
            hint = (
                "Validate again with --load while nothing else uses the mount; then compare the links of its disks or"
                " adapters (gdsdeploy topology) and the health of the storage with a host that delivers it"
            )
            yield failed(found.summary, hint, (), mount_point, expected)
