"""One sentence of a package manager has several causes: what stands beside it decides."""

from __future__ import annotations

import pytest

from gdsdeploy.host.logs.judge import POSSIBLE, answer_to
from tests.unit.host import cases

CASES = cases.load("logs/packages")


@pytest.mark.parametrize("name", CASES)
def test_package_managers(name: str) -> None:
    case = CASES[name]
    assert set(case) <= {"text", "first", "possible", "never"}
    answer = answer_to([("paste", case["text"].encode())])
    sure = [cause.id for cause in answer.causes if cause.certainty != POSSIBLE]
    possible = {cause.id for cause in answer.causes} - set(sure)
    assert sure == case["first"]
    assert possible >= set(case.get("possible", ()))
    assert not possible & set(case.get("never", ()))
