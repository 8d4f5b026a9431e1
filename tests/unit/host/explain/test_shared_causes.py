"""A cause that logs show as well has one fix and one reference, whichever evidence shows it."""

from __future__ import annotations

from functools import cache

import pytest

from gdsdeploy.host.explain import Cause
from gdsdeploy.host.explain.cause import listed_cause
from gdsdeploy.host.model import causes
from tests.unit.host.explain.faults import FAULTS, explained

#: Fixes that name this host's own file, disk, bridge or container, where a log's can't.
OF_THE_HOST = {
    *("cufile.denied", "cufile.no-compat", "cufile.p2pdma-half-set", "cufile.refused", "driver.no-static-bar1"),
    *("filesystem.kind", "filesystem.not-taken", "gpu.small-bar1", "nvidia-fs.device-denied", "nvidia-fs.not-loaded"),
    *(
        "nvme.no-hooks",
        "platform.acs",
        "platform.iommu",
        "storage.device-mapper",
        "storage.no-nvme",
        "udev.no-database",
    ),
    "driver.iomap-wc",
}


@cache
def seen_on_hosts() -> tuple[Cause, ...]:
    """Every cause of every host with one fault that the table of causes has, too."""
    every = []
    for fault in FAULTS.values():
        path = explained(fault.document())
        every += [cause for cause in (*path.causes, *path.suspects, *path.notes) if causes.has(cause.id)]
    return tuple(every)


def test_references_agree() -> None:
    assert [cause.id for cause in seen_on_hosts() if cause.reference != causes.row(cause.id).reference] == []


def test_fixes_agree_but_for_those_that_name_what_the_host_has() -> None:
    differing = {cause.id for cause in seen_on_hosts() if cause.fix != causes.row(cause.id).fix}
    assert differing <= OF_THE_HOST
    assert len({cause.id for cause in seen_on_hosts()} - differing) > 25


def test_a_row_gives_title_fix_and_reference() -> None:
    row = causes.row("nvme.ofed-unused")
    assert listed_cause("nvme.ofed-unused", ("x",)) == Cause(row.id, row.title, row.fix, ("x",), row.reference)
    assert listed_cause("nvme.ofed-unused", (), "here").what == "here"
    with pytest.raises(KeyError):
        listed_cause("no.such-cause")
