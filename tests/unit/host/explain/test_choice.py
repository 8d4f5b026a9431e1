"""What ``init`` proposes never contradicts ``explain``; and P2PDMA beyond mounts: registry, processors, limits."""

from __future__ import annotations

import re

import pytest

from gdsdeploy.host.explain import explain
from gdsdeploy.host.facts import UndecidedError, Unknown, facts_from
from gdsdeploy.host.libcufile.p2pdma import storage_keys
from gdsdeploy.host.model.compat import rules_with
from gdsdeploy.host.subjects import gpu, p2pdma
from gdsdeploy.host.subjects.condition import (
    COMPAT,
    DIRECT,
    NVIDIA_FS,
    P2PDMA,
    Cause,
    Condition,
    condition,
    needs,
    weigh,
)
from gdsdeploy.host.subjects.cufile_json import requests_p2pdma
from gdsdeploy.host.subjects.driver import registry
from gdsdeploy.host.subjects.mechanisms import STORAGE, choose
from gdsdeploy.host.subjects.p2pdma import LABELS
from tests.unit.host import cases, hosts
from tests.unit.host.explain.capable_host import GPU
from tests.unit.host.explain.faults import FAULTS, FOR_P2PDMA, explained
from tests.unit.host.patches import patched

#: Causes of one mount or of cufile.json, which the choice leaves to provision.
OF_MOUNTS = ("cufile.", "ext4.", "filesystem.", "storage.", "udev.", "nfs.", "nvmeof.", "platform.host-bridge")
#: A fault of the moment, which the choice of a mode for years doesn't look at.
OF_NOW = ("nvidia.fabric-state",)
#: What the two say about the same thing: the hooks of one driver, or of any.
HOOKS = ("no-hooks", "other-hooks", "not-registered", "ofed-unused")


def of_host(cause: Cause) -> bool:
    about_disk = (cause.id == "platform.iommu" and GPU not in cause.what) or "NVMe multipath device" in cause.what
    return not (cause.id.startswith((*OF_MOUNTS, *OF_NOW)) or cause.id.endswith(HOOKS) or about_disk)


@pytest.mark.parametrize("name", FAULTS)
def test_both_say_the_same_of_a_host(name: str) -> None:
    case, mode = FAULTS[name], P2PDMA if FAULTS[name].host in FOR_P2PDMA else NVIDIA_FS
    document = case.change(hosts.named("capable, with a GPU" if case.host == "capable" else case.host))
    facts, path = facts_from(document), explained(document)
    offered = {one.value: weigh(one.needs(facts)) for one in STORAGE}
    chosen = choose(facts).mode
    if path.path in DIRECT:
        assert (offered[str(path.path)].holds, chosen in DIRECT) == (True, True), "what explain expects is usable"
    assert path.path not in [name for name, mechanism in offered.items() if mechanism.holds is False]
    # An obstacle of the host is one for both.
    reasons = {reason for mechanism in offered.values() for reason in mechanism.why}
    causes = [cause for cause in (*path.causes, *path.suspects) if of_host(cause)]
    assert [cause.what for cause in causes if cause.what not in reasons] == []
    if path.path == COMPAT:
        assert not causes or mode != P2PDMA or offered[P2PDMA].holds is False
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


HOST, GRACE = hosts.named("p2pdma"), hosts.named("grace")
ASKED = {"properties": {"use_pci_p2pdma": True}}


@pytest.mark.parametrize("name", ["lustre", "beegfs", "gpfs", "scatefs", "nfs", "panfs"])
def test_filesystems_without_the_path_are_judged_by_nvidia_fs_alone(name: str) -> None:
    settings = {"$json": {**ASKED, "fs": {name: {"use_pci_p2pdma": True}}}}
    mounts = {"$replace": {" ext4 /dev/nvme0n1 ": f" {name} /dev/nvme0n1 "}}
    document = patched(HOST, {"files": {"/proc/self/mountinfo": mounts, "/etc/cufile.json": settings}})
    assert requests_p2pdma(facts_from(document), lambda: name) is False
    assert explained(document).path != "p2pdma"


def test_every_route_is_judged() -> None:
    assert {row.storage for row in storage_keys() if row.route} == set(LABELS)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", {}),
        ("RMForceStaticBar1=1;RmForceDisableIomapWC=1;", {"rmforcestaticbar1": 1, "rmforcedisableiomapwc": 1}),
        (" ForceP2P = 0x11 ; forcep2p=2", {"forcep2p": 2}),
        ("A=010;B=10;C=x;D=0x;E=-1;F=9z", {"a": 8, "b": 10, "c": 0, "d": 0, "e": 0, "f": 9}),
        ("A;=1;B=;C=1=2;;D=1", {"d": 1}),
    ],
)
def test_the_registry_is_read_as_the_driver_reads_it(text: str, values: dict[str, int]) -> None:
    assert registry(text) == values


def test_grace_is_never_refused_without_a_row_and_chosen_with_one() -> None:
    assert choose(facts_from(GRACE)).mode == "p2pdma"
    bar0 = "0x0000000001000000 0x0000000001ffffff 0x40200\n0x0 0x0 0x0\n0x0 0x0 0x0\n"
    document = patched(GRACE, {"files": {f"/sys/bus/pci/devices/{GPU}/resource": bar0}})
    assert choose(facts_from(document)).mode == "p2pdma", "its GPUs' memory isn't reached through BAR1"
    row = {"cufile-open": {"log": {"$replace": {": c2c, compat": ": compat"}}}}
    document = patched(document, {"files": {"/etc/cufile.json": "{}"}, "commands": row})
    assert isinstance(choose(facts_from(document)).mode, Unknown), "cufile.json doesn't ask for it yet"


def test_the_limits_are_those_of_the_rules_for_locks() -> None:
    rules = {rule.id: rule for rule in rules_with(())}
    assert rules["p2pdma-driver"].needs["driver"] == (">=" + ".".join(map(str, p2pdma.DRIVER)),)
    assert rules["p2pdma-libcufile"].needs["libcufile"] == (">=" + ".".join(map(str, p2pdma.LIBRARY)),)
    assert rules["p2pdma-kernel"].needs["kernel"] == (">=" + ".".join(map(str, p2pdma.KERNEL)),)
    assert rules["p2pdma-driver-595"].warns["driver"] == (f"<{p2pdma.LEAKING[1][0]}",)
    (excluded,) = rules["p2pdma-rhel-9.5"].refuses["kernel_package"]
    assert re.search(p2pdma.RHEL_9_5, f"{excluded}.11.1.el9_5.x86_64")
    assert not re.search(p2pdma.RHEL_9_5, "5.14.0-570.12.1.el9_6.x86_64")


def test_kinds_say_the_same_as_mounts() -> None:
    asked = patched(HOST, {"files": {"/etc/cufile.json": {"$json": ASKED}}})
    for document in (HOST, asked, cases.read("explain/faults_p2pdma")["no static BAR1"].document()):
        explanation = explain(facts_from(document), ())
        kind = next(kind for kind in explanation.kinds if kind.label == "NVMe")
        assert kind.path.path == explained(document).path


def undecided() -> bool:
    raise UndecidedError("because")


def test_a_fact_that_is_not_known_never_lets_a_condition_hold() -> None:
    because = Unknown("because")
    assert Condition(undecided).holds == because
    assert condition(lambda: Condition(undecided()))().holds == because
    assert weigh([Condition(lambda: True), Condition(undecided)]).holds == because
    # A rule that meets one outside of its conditions ends with one that is unknown.
    rule = gpu.direct(facts_from({}))
    assert [each.holds for each in rule] == [Unknown("/sys/bus/pci/devices was not looked at")]


def test_a_cause_is_made_where_it_is_shown() -> None:
    def cause() -> Cause:
        raise AssertionError("nobody sees it")

    for holds in (True, Unknown("because")):
        assert Condition(holds, cause).cause is None
    shown = Cause("a.b", "what", "fix")
    assert (
        Condition(False, lambda: shown).cause
        == Condition(Unknown("because"), lambda: shown, suspect=True).cause
        == shown
    )
