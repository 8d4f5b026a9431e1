"""What dnf would choose from: the answer of the program that asks it, which is data."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gdsdeploy.host import process
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.packages import dnf
from gdsdeploy.host.errors import ApplyError
from gdsdeploy.host.process import Output

ANSWER = {
    "offered": [
        ["driver", "3:2-1", "noarch", "a" * 64],
        ["driver", "3:2-1", os.uname().machine, "b" * 64],
        ["other", "0:1-1", "s390x", "c" * 64],
    ],
    "hidden": [["kernel", "0:5-1", "excluded"], ["driver", "3:3-1", "stream"]],
}


def ask(monkeypatch: pytest.MonkeyPatch, root: Path, answer: Output) -> tuple[dnf.Offer, list[list[str]]]:
    started: list[list[str]] = []

    def run(argv: list[str], *_: object, **__: object) -> Output:
        started.append(argv)
        return Output(0, "", "") if argv[0] == "dnf" else answer

    monkeypatch.setattr(process, "run", run)
    return dnf.ask(ManagedHost(root=str(root)), ["driver"], ["--refresh"]), started


def test_the_python_of_dnf_is_asked_after_the_lists_were_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/dnf").write_text("#!/usr/libexec/platform-python -s\n")
    offer, started = ask(monkeypatch, tmp_path, Output(0, json.dumps(ANSWER), ""))
    assert started[0] == ["dnf", "--quiet", "--assumeyes", "--refresh", "makecache"]
    assert started[1][:3] == ["/usr/libexec/platform-python", "-I", "-c"]
    assert json.loads(started[1][-1]) == {"names": ["driver"]}
    # A file for another machine is on offer, and can't be the locked one.
    assert offer.digests == {"driver=3:2-1": {"a" * 64, "b" * 64}, "other=0:1-1": set()}
    assert offer.hidden == {"kernel=0:5-1": dnf.EXCLUDED, "driver=3:3-1": dnf.STREAM}


@pytest.mark.parametrize(
    "answer",
    [
        Output(1, "", "Traceback …\nModuleNotFoundError: No module named 'dnf'\n"),
        Output(0, "", ""),
        Output(0, json.dumps({**ANSWER, "hidden": [["a", "b", "unheard of"]]}), ""),
        Output(0, json.dumps({**ANSWER, "offered": [["a", "b"]]}), ""),
        Output(0, "[1]", ""),
        Output(0, json.dumps(ANSWER), "", truncated=True),
    ],
)
def test_an_answer_that_cannot_be_read_is_no_offer(
    answer: Output, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(ApplyError, match="dnf can't be asked what it would install") as error:
        ask(monkeypatch, tmp_path, answer)
    assert error.value.hint == "see what is wrong with dnf: dnf repolist"
