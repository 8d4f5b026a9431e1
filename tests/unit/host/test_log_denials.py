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
            r"|Driver/library version mismatch|Unknown Error|Bad file descriptor|Nothing to do|NV_WARN_NOTHING_TO_DO"
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
    (r"held broken packages", "whole packages"),
    (r"NO_PUBKEY", "GOODSIG"),
    (r"unexpected size.*", "expected size"),
    (r"All mirrors were tried", "A mirror answered"),
    (r", Fatal,", ", Non-fatal,"),
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
CAUSES = [row for row in SIGNS if "cause" in row and not row.get("harmless")]


def denied(sample: str) -> str:
    for pattern, opposite in OPPOSITES:
        sample = re.sub(pattern, opposite, sample)
    return sample


#: The others tell of an event or of a state that has no other words: what isn't printed can't be denied.
DENIED = [row for row in CAUSES if denied(row["sample"]) != row["sample"]]


@pytest.mark.parametrize("row", DENIED, ids=lambda row: row["id"])
def test_a_line_that_denies_a_sign_shows_no_cause(row: dict[str, Any]) -> None:
    text = denied(row["sample"])
    # What went well isn't logged as a fault.
    line = LOG_LINE.replace("ERROR", "INFO").format(text) if row["part"] == "cufile" else text
    assert [(cause.id, cause.certainty) for cause in answer_to([("paste", line.encode())]).causes] == []


def test_most_signs_are_denied() -> None:
    assert len(DENIED) > 0.8 * len(CAUSES)
