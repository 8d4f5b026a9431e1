"""The mode that ``init`` proposes never contradicts ``explain``: a table of hosts with one fault each."""

from __future__ import annotations

import pytest

from gdsdeploy.host.explain.cause import COMPAT, DIRECT, NVIDIA_FS, P2PDMA, Cause, needs
from gdsdeploy.host.explain.mechanisms import choose, mechanisms
from gdsdeploy.host.facts import Unknown, facts_from
from tests.unit.host import hosts
from tests.unit.host.explain.capable_host import GPU
from tests.unit.host.explain.faults import FAULTS, FOR_P2PDMA, explained
from tests.unit.host.patches import patched

#: Causes of one mount or of cufile.json, which the choice leaves to provision.
OF_MOUNTS = ("cufile.", "ext4.", "filesystem.", "storage.", "udev.", "nfs.", "nvmeof.", "platform.host-bridge")
#: What the two say about the same thing: the hooks of one driver, or of any.
HOOKS = ("no-hooks", "other-hooks", "not-registered", "ofed-unused")


def of_host(cause: Cause) -> bool:
    about_disk = (cause.id == "platform.iommu" and GPU not in cause.what) or "NVMe multipath device" in cause.what
    return not (cause.id.startswith(OF_MOUNTS) or cause.id.endswith(HOOKS) or about_disk)


@pytest.mark.parametrize("name", FAULTS)
def test_both_say_the_same_of_a_host(name: str) -> None:
    case, mode = FAULTS[name], P2PDMA if FAULTS[name].host in FOR_P2PDMA else NVIDIA_FS
    document = case.change(hosts.named("capable, with a GPU" if case.host == "capable" else case.host))
    facts, path = facts_from(document), explained(document)
    offered = {one.name: one for one in mechanisms(facts) if one.name in (NVIDIA_FS, P2PDMA)}
    chosen = choose(facts).mode
    if path.path in DIRECT:
        assert (offered[str(path.path)].usable, chosen in DIRECT) == (True, True), "what explain expects is usable"
    assert path.path not in [name for name, mechanism in offered.items() if mechanism.usable is False]
    # An obstacle of the host is one for both.
    reasons = {reason for mechanism in offered.values() for reason in mechanism.why}
    causes = [cause for cause in (*path.causes, *path.suspects) if of_host(cause)]
    assert [cause.what for cause in causes if cause.what not in reasons] == []
    if path.path == COMPAT:
        assert not causes or mode != P2PDMA or offered[P2PDMA].usable is False
        refused = [condition.cause for condition in needs(mode, facts) if condition.holds is False]
        assert [cause for cause in refused if cause not in path.causes] == []


def test_p2pdma_is_chosen_and_taken_where_all_of_it_is_there() -> None:
    for name in FOR_P2PDMA:
        document = hosts.named(name)
        assert choose(facts_from(document)).mode == explained(document).path == P2PDMA


def test_grace_without_rows_is_unknown_to_both() -> None:
    without = FAULTS["Grace without rows"].document()
    document = patched(without, {"excerpts": {"/proc/cpuinfo": None}})
    assert isinstance(choose(facts_from(document)).mode, Unknown)
    assert isinstance(explained(document).path, Unknown)
