"""P2PDMA beyond single faults: releases and their keys, adapters, the driver's registry, processors, limits."""

from __future__ import annotations

from typing import Any

import pytest

from gdsdeploy.host.explain import COMPAT, explain, p2pdma, p2pdma_keys
from gdsdeploy.host.explain.gpus import grace
from gdsdeploy.host.explain.mechanisms import choose
from gdsdeploy.host.explain.p2pdma_routes import LABELS
from gdsdeploy.host.facts import Unknown, facts_from
from gdsdeploy.host.facts.driver import registry
from gdsdeploy.host.libcufile.p2pdma import storage_keys
from gdsdeploy.lock.compat import shipped
from tests.unit.host.explain import p2pdma_hosts as hosts
from tests.unit.host.explain.capable_host import Change, Document, both, config, file, mountinfo
from tests.unit.host.explain.test_explain_causes import bar, bars, explained

NOT_PROVEN = "not proven"


def library(release: str) -> Change:
    """Another release behind the name of the library that the loader takes."""

    def change(document: Document) -> None:
        for name in ("cufile-open", "cufile-open-control"):
            run = document["commands"][name]
            assert "/libcufile.so.0" in run["stdout"]
            run["stdout"] = run["stdout"].replace("/libcufile.so.0", f"/libcufile.so.{release}")

    return change


def outcome(document: Document) -> tuple[str, list[str]]:
    path = explained(document)
    causes = path.suspects if isinstance(path.path, Unknown) else path.causes
    return NOT_PROVEN if isinstance(path.path, Unknown) else path.path, [cause.id for cause in causes]


def ids(document: Document, prefix: str = "cufile.") -> list[str]:
    return [ident for ident in outcome(document)[1] if ident.startswith(prefix)]


@pytest.mark.parametrize(
    ("release", "change", "causes"),
    [
        ("1.15.1", config(properties={"use_pci_p2pdma": True}), []),
        ("1.16.1", config(properties={"use_pci_p2pdma": True}), ["cufile.p2pdma-half-set"]),
        ("1.15.1", hosts.md("raid0"), ["cufile.no-p2pdma"]),
        ("1.16.1", hosts.md("raid0"), []),
        ("1.18.1", hosts.md("raid1", raid1=True), ["cufile.no-p2pdma"]),
        ("1.19.1", hosts.md("raid1", raid1=True), []),
        ("1.19.1", hosts.md("raid10", raid1=True), ["cufile.p2pdma-half-set"]),
        ("1.12.0", lambda document: None, ["cufile.no-p2pdma"]),
    ],
)
def test_each_release_has_its_own_keys(release: str, change: Change, causes: list[str]) -> None:
    document = hosts.p2p()
    both(hosts.kernel("7.2.1"), library(release), change)(document)
    assert explained(document).path == ("p2pdma" if not causes else COMPAT)
    assert ids(document) == causes


def test_a_variable_is_one_half() -> None:
    document = hosts.p2p()
    config()(document)
    document["environment"]["CUFILE_USE_PCIP2PDMA"] = "true"
    cause = explained(document).causes[0]
    assert (cause.id, cause.fix) == ("cufile.p2pdma-half-set", "set block.nvme.use_pci_p2pdma to true")
    assert "CUFILE_USE_PCIP2PDMA=true" in cause.evidence[0]
    config(block={"nvme": {"use_pci_p2pdma": True}})(document)
    assert explained(document).path == "p2pdma"


@pytest.mark.parametrize(("value", "path"), [("TRUE", "p2pdma"), ("False", COMPAT), ("1", "p2pdma")])
def test_a_variable_counts_over_the_file_if_libcufile_takes_its_value(value: str, path: str) -> None:
    document = hosts.p2p()
    document["environment"]["CUFILE_USE_PCIP2PDMA"] = value
    assert explained(document).path == path
    if path == COMPAT:
        assert "CUFILE_USE_PCIP2PDMA=False" in explained(document).causes[0].evidence[0]


@pytest.mark.parametrize("value", ["yes", 1, None, {"nvme": True}, [], "x"])
def test_damaged_keys_are_not_set(value: Any) -> None:
    document = hosts.p2p()
    config(properties={"use_pci_p2pdma": True}, block={"nvme": {"use_pci_p2pdma": value}})(document)
    assert ids(document) == ["cufile.p2pdma-half-set"]
    config(properties={"use_pci_p2pdma": True}, block=value)(document)
    assert ids(document) == ["cufile.p2pdma-half-set"]


@pytest.mark.parametrize("name", ["lustre", "beegfs", "gpfs", "scatefs", "nfs", "panfs"])
def test_filesystems_without_the_path_are_judged_by_nvidia_fs_alone(name: str) -> None:
    document = hosts.p2p()
    mountinfo(" ext4 ", f" {name} ")(document)
    config(properties={"use_pci_p2pdma": True}, fs={name: {"use_pci_p2pdma": True}})(document)
    assert p2pdma_keys.requests(facts_from(document), name) is False
    assert explained(document).path != "p2pdma"


def test_every_route_is_judged() -> None:
    assert {row.storage for row in storage_keys() if row.route} == set(LABELS)


def adapter(name: str = "rxe0", where: str = "0000:00:07.0") -> Change:
    """The RDMA device of the recording, at a PCI function."""

    def change(document: Document) -> None:
        place = f"/sys/bus/pci/devices/{where}"
        source = "/sys/bus/pci/devices/0000:00:02.0"
        for section in ("files", "links", "listings"):
            copied = {
                path.replace(source, place): value
                for path, value in document[section].items()
                if path.startswith(source + "/") or path == source
            }
            document[section].update(copied)
        document["links"][place] = f"../../../devices/pci0000:00/{where}"
        document["files"][f"{place}/class"] = "0x020000\n"
        document["listings"][f"{place}/infiniband"] = [name]
        names = document["listings"]["/sys/bus/pci/devices"]
        document["listings"]["/sys/bus/pci/devices"] = sorted({*names, where})

    return change


def on_intel(document: Document) -> None:
    document["excerpts"]["/proc/cpuinfo"]["lines"] = ["vendor_id\t: GenuineIntel", "cpu family\t: 6"]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (hosts.nvmeof, NOT_PROVEN),
        (both(hosts.nvmeof, adapter()), "p2pdma"),
        (both(hosts.nvmeof, adapter(), on_intel), COMPAT),
    ],
)
def test_nvme_over_rdma_goes_by_an_adapter_that_reaches_the_gpu(change: Change, path: str) -> None:
    document = hosts.p2p()
    change(document)
    assert outcome(document)[0] == path, outcome(document)


def test_virtiofs_by_its_row() -> None:
    document = hosts.p2p()
    both(hosts.asking_virtiofs, hosts.row("VIRTIOFS", "p2pdma, compat"))(document)
    assert explained(document).path == "p2pdma"
    hosts.no_rows(document)
    assert outcome(document) == (NOT_PROVEN, ["cufile.unconfirmed"])
    both(hosts.virtiofs, config(properties={"use_pci_p2pdma": True}))(document := hosts.p2p())
    assert ids(document) == ["cufile.p2pdma-half-set", "cufile.unconfirmed"]


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


def test_the_registry_of_single_gpus_leaves_it_open() -> None:
    document = hosts.p2p()
    text = document["files"][hosts.PARAMS].replace(
        'RegistryDwordsPerDevice: ""', 'RegistryDwordsPerDevice: "pci=0000:00:06.0;RMForceStaticBar1=0"'
    )
    file(hosts.PARAMS, text)(document)
    assert outcome(document)[0] == NOT_PROVEN
    file(hosts.PARAMS, text.replace("RegistryDwords:", "Other:"))(document)
    assert outcome(document)[0] == NOT_PROVEN, "nothing was recorded about it"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda document: None, True),
        (hosts.model("NVIDIA GB300"), True),
        (both(hosts.model("NVIDIA H100"), lambda document: hosts.arm(document, "0x41", "0xd4f")), True),
        (both(hosts.model("NVIDIA GB10"), lambda document: hosts.arm(document, "0x41", "0xd85")), False),
        (both(hosts.model("NVIDIA H100"), lambda document: hosts.arm(document, "x", "0xd4f")), None),
        (both(hosts.model("NVIDIA H100"), lambda document: document["excerpts"].pop("/proc/cpuinfo")), None),
        (lambda document: document["host"]["uname"].update(machine="x86_64"), False),
        (lambda document: document["host"]["uname"].update(machine="aarch64_be"), False),
        (lambda document: document["host"]["uname"].pop("machine"), None),
    ],
)
def test_grace_is_known_by_its_gpu_or_its_core(change: Change, expected: bool | None) -> None:
    document = hosts.grace()
    change(document)
    answer = grace(facts_from(document))
    assert isinstance(answer, Unknown) if expected is None else answer is expected


def test_arm_lines_of_the_processor_are_none_of_x86() -> None:
    facts = facts_from(hosts.grace())
    assert facts.os.core == (0x41, 0xD4F)
    assert facts.pci.cpu is None
    assert facts_from(hosts.p2p()).os.machine == "x86_64"


def test_grace_is_never_refused_without_a_row_and_chosen_with_one() -> None:
    document = hosts.grace()
    assert choose(facts_from(document)).mode == "p2pdma"
    bars(bar(1 << 24, 0, 0))(document)
    assert choose(facts_from(document)).mode == "p2pdma", "its GPUs' memory isn't reached through BAR1"
    config()(document)
    hosts.row("NVMe", "compat")(document)
    assert isinstance(choose(facts_from(document)).mode, Unknown), "cufile.json doesn't ask for it yet"


def test_built_in_nvme_takes_its_parameter_from_the_command_line() -> None:
    document = hosts.p2p()
    file(hosts.MULTIPATH, "Y\n")(document)
    assert "modprobe.d" in explained(document).suspects[0].fix
    lines = document["excerpts"][f"/boot/config-{document['host']['uname']['release']}"]["lines"]
    lines[lines.index("CONFIG_BLK_DEV_NVME=m")] = "CONFIG_BLK_DEV_NVME=y"
    assert "command line" in explained(document).suspects[0].fix


def test_the_limits_are_those_of_the_rules_for_locks() -> None:
    rules = {rule.id: rule for rule in shipped()}
    assert rules["p2pdma-driver"].needs["driver"] == (">=" + ".".join(map(str, p2pdma.DRIVER)),)
    assert rules["p2pdma-libcufile"].needs["libcufile"] == (">=" + ".".join(map(str, p2pdma.LIBRARY)),)
    assert rules["p2pdma-kernel"].needs["kernel"] == (">=" + ".".join(map(str, p2pdma.KERNEL)),)
    assert rules["p2pdma-driver-595"].warns["driver"] == (f"<{p2pdma.LEAKING[1][0]}",)
    (excluded,) = rules["p2pdma-rhel-9.5"].refuses["kernel_package"]
    assert p2pdma.RHEL_9_5.search(f"{excluded}.11.1.el9_5.x86_64")
    assert not p2pdma.RHEL_9_5.search("5.14.0-570.12.1.el9_6.x86_64")


def test_kinds_say_the_same_as_mounts() -> None:
    for change in (lambda document: None, config(properties={"use_pci_p2pdma": True}), hosts.registry("")):
        document = hosts.p2p()
        change(document)
        explanation = explain(facts_from(document), ())
        kind = next(kind for kind in explanation.kinds if kind.label == "NVMe")
        assert kind.path.path == explained(document).path
