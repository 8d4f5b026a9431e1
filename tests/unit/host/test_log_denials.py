"""A text that denies what a sign says never leads to the sign's cause."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gdsdeploy.host.logs.judge import answer_to
from tests.unit.host.test_log_tables import LOG_LINE, SIGNS

#: What a program prints instead where all is well, in this order.
OPPOSITES = [
    (
        (
            r"Invalid (?:argument|parameters)|Unknown symbol in module, or unknown parameter \(see dmesg\)"
            r"|Key was rejected by service|Operation not permitted|Exec format error"
            r"|No such (?:device|file or directory)"
            r"|(?:Input/output|internal|initialization) error|Cannot allocate memory|Bad address|CUDA_ERROR_\w+"
            r"|Driver/library version mismatch"
        ),
        "Success",
    ),
    (r"\b(err\w*|status|ret\w*|result|code|n)(\W{1,4})-?[1-9]\d*\b", r"\g<1>\g<2>0"),
    (r"(?i)\b(?:could not|cannot|can't|couldn't|unable to|failed to|failed)(?= (?!succ)\w)", "successfully"),
    (r"(?i)\b(?:(?:is|are|was|were|has been|does|did|do) )?not (?=\w)|\b(?:is|does|could|ca|has|are|was)n't ", ""),
    (r"(?i)\bfail(?:ed|s|ure)?\b", "success"),
    (r"(?i)\bunsupported\b", "Supported"),
    (r"\b[Nn]o (?=\w)", "the "),
    (r"\bwithout\b", "with"),
    (r"(?i)\bdisabled\b", "enabled"),
    (r"\bmissing\b", "present"),
    (r"(?i)\berrors?\b", "ok"),
    (r"(?i)\bfault\b", "good"),
    (r"\bdisagrees about", "agrees about"),
    (r"(?i)\b(?:rejected|refused|denied)\b", "accepted"),
    (r"(?i)\binvalid\b", "valid"),
    (r"(?i)\bunmet\b", "met"),
    (r"(?i)\bmismatch\b", "match"),
    (r"\+ ", "- "),
    (r"(?i)nothing provides", "a package provides"),
    (r"\bundefined\b", "defined"),
    (r"\b[Uu]nknown\b", "known"),
    (r"\.\.\. no$", "... yes"),
    (r"(?i)incompatible", "compatible"),
    (r"\bconflicting\b", "equal"),
    (r"\bproprietary module\b", "open module"),
    (r"non-GPLONLY", "GPLONLY"),
    (r"proto=tcp", "proto=rdma"),
    (r"-microsoft-standard-WSL2", "-generic"),
    (r"GeForce RTX 3090", "H200"),
    (r"Translated", "Passthrough"),
]
#: Signs whose lines tell of an event or of a state that has no other words; what isn't printed can't be denied.
EVENTS = {
    "build.compiler",
    "build.symvers-bogus",
    "cufile.assertion",
    "cufile.closing",
    "cufile.compat-process",
    "cufile.threadpool",
    "kernel.hung",
    "kernel.module-layout",
    "kernel.needs-open",
    "kernel.nouveau",
    "kernel.nvidia-fs-bug",
    "kernel.vermagic",
    "kernel.xid-169",
    "kernel.xid-169-gb10",
    "lsmod.ofed",
    "packages.modular",
    "program.nccl-acs",
    "program.registered-dm",
    "symbols.v2",
}
CAUSES = [row for row in SIGNS if "cause" in row and not row.get("harmless")]


def denied(sample: str) -> str:
    for pattern, opposite in OPPOSITES:
        sample = re.sub(pattern, opposite, sample)
    return sample


@pytest.mark.parametrize("row", [row for row in CAUSES if row["id"] not in EVENTS], ids=lambda row: row["id"])
def test_a_line_that_denies_a_sign_shows_no_cause(row: dict[str, Any]) -> None:
    text = denied(row["sample"])
    assert text != row["sample"], "say how it's denied, or that it is an event"
    # What went well isn't logged as a fault.
    line = LOG_LINE.replace("ERROR", "INFO").format(text) if row["part"] == "cufile" else text
    assert [(cause.id, cause.certainty) for cause in answer_to([("paste", line.encode())]).causes] == []


def test_events_are_signs() -> None:
    assert EVENTS - {row["id"] for row in CAUSES} == set()
