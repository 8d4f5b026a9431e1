"""What each consumer needs, judged by made evidence; every need in the table is decided both ways by some host."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from gdsdeploy.host.explain import consumers as explained
from gdsdeploy.host.explain.text import WIDTH
from gdsdeploy.host.facts import facts_from
from gdsdeploy.host.model.consumer import ADVICE, KINDS, Need, consumers
from tests.unit.host.explain.capable_host import H100, Change, Document, both, capable, config, p2pdma, with_gpu
from tests.unit.host.explain.p2pdma_hosts import on_amd

NAMES = explained.names()
CASES = [(name, need) for name in NAMES for need in consumers()[name].needs if need.kind != ADVICE]


def ready() -> Document:
    """A host on which everything holds."""
    document = with_gpu(capable())
    document["listings"]["/sys/class/infiniband"] = ["mlx5_0"]
    document["excerpts"]["/proc/kallsyms"]["pattern"] += "|ib_umem_dmabuf_get|reg_user_mr_dmabuf"
    lines = document["excerpts"]["/proc/kallsyms"]["lines"]
    lines += ["0 T ib_umem_dmabuf_get\t[ib_uverbs]", "0 t mlx5_ib_reg_user_mr_dmabuf\t[mlx5_ib]"]
    return document


def states(document: Document, name: str) -> dict[str, str]:
    answer = explained.needs_of(name, facts_from(document))
    report = explained.as_document(answer)
    assert json.loads(json.dumps(report)) == report
    return {need["id"]: need["state"] for need in report["needs"]}


def wheel(document: Document) -> None:
    document["listings"]["python packages"] = ["/usr/lib/python3/dist-packages/nvidia_cufile-1.13.1.3.dist-info"]


def bare(document: Document) -> None:
    document["listings"]["/sys/bus/pci/devices"] = []


def without_udev(document: Document) -> None:
    document["listings"]["/run/udev"] = {"error": "ENOENT"}


def fault(need: Need) -> Change:
    """What makes a need fail."""
    if need.kind == "variable":
        return lambda document: document["environment"].__setitem__(need.variable, need.refused[0].lower())
    return {
        "config": config(properties={"force_compat_mode": True}),
        "library": wheel,
        "mechanism": bare,
        "udev": without_udev,
    }[need.kind]


@pytest.mark.parametrize(("name", "need"), CASES, ids=[need.id for _, need in CASES])
def test_each_need_holds_fails_and_is_unknown(name: str, need: Need) -> None:
    document = ready()
    assert states(document, name)[need.id] == "holds"
    fault(need)(document)
    assert states(document, name)[need.id] == "fails"
    assert states({}, name)[need.id] == "unknown", "without evidence"


def test_without_evidence_the_needs_are_still_shown() -> None:
    for name in NAMES:
        answer = explained.needs_of(name, facts_from({}))
        text = explained.render(answer)
        assert {need.state for need in answer.needs} <= {"unknown", "advice"}
        assert all(f"[{need.need.id}]" in text for need in answer.needs)
        assert all(len(line) <= WIDTH for line in text.splitlines())


def test_an_alternative_is_enough() -> None:
    document = ready()
    document["excerpts"]["/proc/kallsyms"]["lines"] = [
        line for line in document["excerpts"]["/proc/kallsyms"]["lines"] if "dmabuf" not in line
    ]
    assert states(document, "nccl")["nccl.gpudirect-rdma"] == "fails"
    assert states(ready(), "nccl")["nccl.gpudirect-rdma"] == "holds"
    other = with_gpu(capable())
    other["files"]["/sys/module/nvidia_fs/version"] = {"error": "ENOENT"}
    assert states(other, "kvikio")["kvikio.direct-path"] == "fails"
    both(p2pdma, on_amd)(other)
    assert states(other, "kvikio")["kvikio.direct-path"] != "fails"


def test_a_variable_of_a_running_program_or_of_a_file_counts() -> None:
    document = ready()
    document["processes"]["libcufile"]["programs"] = [
        {"pid": 7, "program": "etl", "libraries": [], "variables": {"KVIKIO_COMPAT_MODE": "yes"}}
    ]
    (need,) = (each for each in needs(document, "kvikio") if each["id"] == "kvikio.compat-mode")
    assert (need["state"], need["evidence"]) == ("fails", ["process 7 (etl): KVIKIO_COMPAT_MODE=yes"])
    document = ready()
    document["excerpts"]["/etc/nccl.conf"] = {"pattern": "", "lines": ["NCCL_NET_GDR_LEVEL=LOC"]}
    (need,) = (each for each in needs(document, "nccl") if each["id"] == "nccl.gdr-level")
    assert (need["state"], need["evidence"]) == ("fails", ["/etc/nccl.conf: NCCL_NET_GDR_LEVEL=LOC"])
    document["excerpts"]["/etc/nccl.conf"]["lines"] = ["NCCL_NET_GDR_LEVEL=PHB"]
    assert states(document, "nccl")["nccl.gdr-level"] == "holds"


def needs(document: Document, name: str) -> list[Any]:
    return list(explained.as_document(explained.needs_of(name, facts_from(document)))["needs"])


def test_a_running_program_that_forces_compat_mode_counts() -> None:
    document = ready()
    document["processes"]["libcufile"]["programs"] = [
        {
            "pid": 7, "program": "etl", "libraries": [], "base": "/etc/cufile.json",
            "variables": {"CUFILE_FORCE_COMPAT_MODE": "true"},
        }
    ]  # fmt: skip
    assert states(document, "pytorch")["pytorch.no-forced-compat"] == "fails"


def test_the_library_of_wheels() -> None:
    document = ready()
    document["listings"]["python packages"] = [
        "/opt/conda/lib/python3.12/site-packages/torch-2.9.0.dist-info",
        "/opt/conda/lib/python3.12/site-packages/nvidia_cufile-1.20.0.107.dist-info",
    ]
    answer = explained.needs_of("pytorch", facts_from(document))
    assert answer.installed == ("/opt/conda/lib/python3.12/site-packages/torch-2.9.0.dist-info",)
    assert states(document, "pytorch")["pytorch.libcufile"] == "holds", "the host has 1.20.0 too"
    document["listings"]["python packages"].append("/usr/lib/python3/dist-packages/nvidia_cufile-1.19.1.55.dist-info")
    assert states(document, "pytorch")["pytorch.libcufile"] == "fails"


def test_older_evidence_does_not_decide_the_variables() -> None:
    result = states(copy.deepcopy(H100), "cudf")
    assert (result["cudf.policy"], result["cudf.libcufile"]) == ("unknown", "unknown")


def test_the_table_is_read_as_it_is_written() -> None:
    assert {need.kind for consumer in consumers().values() for need in consumer.needs} == set(KINDS)
    ids = [need.id for consumer in consumers().values() for need in consumer.needs]
    assert len(set(ids)) == len(ids)
    assert all(need.id.startswith(name + ".") for name in NAMES for need in consumers()[name].needs)
    assert all(value == value.upper() for _, need in CASES for value in need.refused)
