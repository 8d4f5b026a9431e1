"""``explain HOST PID`` as text, and for processes that aren't known; tests/cases/explain/process.yml has the rest."""

from __future__ import annotations

from typing import Any

import pytest

from gdsdeploy.host.explain import processes
from gdsdeploy.host.explain.text import render_process
from gdsdeploy.host.facts import facts_from
from tests.unit.host import cases
from tests.unit.host.checks.changes import GOOD
from tests.unit.host.patches import patched

PID = 4711


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (
            "a process that takes the direct path has no cause",
            (
                "process 4711 (train) of /system.slice/train.service: nvidia-fs\n",
                "since it opened cuFile: 40960 bytes read, 0 written, 0 of them through CPU memory",
            ),
        ),
        ("each cause of a process", ("CPU memory",)),
        ("files of a container are not those of the host", ("nothing that was examined explains",)),
    ],
)
def test_as_text(case: str, words: tuple[str, ...]) -> None:
    document = cases.read("explain/process")[case].document()
    text = render_process(processes.explain_process(facts_from(document), PID))
    assert text.startswith("process 4711 (train) of /system.slice/train.service: ")
    assert all(word in text for word in words), text


@pytest.mark.parametrize("known", [{"processes": {"$set": {}}}, {"processes": {"libcufile": {"$set": {}}}}])
def test_processes_that_are_not_known(known: Any) -> None:
    with pytest.raises(processes.NoSuchProcessError):
        processes.explain_process(facts_from(patched(GOOD, known)), PID)


def test_another_process() -> None:
    with pytest.raises(processes.NoSuchProcessError, match=r"process 1 has no libcufile loaded .*4711"):
        processes.explain_process(facts_from(GOOD), 1)
