"""Whether mounts deliver the fleet's rate under load."""

from __future__ import annotations

from typing import Iterator

from ..facts import HostFacts, Unknown
from ..facts.load import size
from ..model.expectation import Expectation
from .registry import Answer, check, failed, not_applicable, passed, unknown

SLOW_HINT = (
    "Validate again with --load while no other program uses the mount; then compare the links of its disks or"
    " adapters (gdsdeploy topology) and the health of the storage with a host that delivers it"
)


@check(
    "storage.load",
    "this mount delivers the fleet's rate while several readers keep it busy",
    expects="the rate of the fleet file; tried only on request, and where there is one",
    prevents="a slow disk, a bad cable or a link at half its width, which no check of the configuration notices",
)
def read_rate(facts: HostFacts, expectation: Expectation) -> Iterator[Answer]:
    loads = facts.storage.loads
    for mount in expectation.storage:
        mount_point, limits = mount.get("mount", ""), mount.get("load")
        rate = limits.get("read") if isinstance(limits, dict) else None
        if not isinstance(rate, (int, float)):
            yield not_applicable("the fleet sets no rate for this mount", mount_point)
            continue
        if not isinstance(loads, Unknown) and not loads:
            yield not_applicable("no reading under load was requested (--load)", mount_point)
            continue
        load = loads if isinstance(loads, Unknown) else loads.get(mount_point, Unknown("it was not read from"))
        expected = f"at least {size(rate)}/s read"
        if isinstance(load, Unknown):
            hint = "Remove the reason above, and validate again with --load; see docs/validate.md"
            yield unknown(load.reason, hint, mount_point, expected)
        elif load.rate >= rate:
            yield passed(load.summary, (), mount_point, expected)
        else:
            yield failed(load.summary, SLOW_HINT, (), mount_point, expected)
