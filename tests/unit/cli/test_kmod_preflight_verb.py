"""What ``gdsdeploy kmod preflight`` claims: only about modules that were tried."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
import yaml

from gdsdeploy.cli import kmod_preflight as verb
from gdsdeploy.lock.compat import Verdict
from gdsdeploy.preflight import Answer, Cell, StackCandidate
from gdsdeploy.preflight.record import ModuleResult, PreflightRecord
from tests import commandline
from tests.unit.lock.test_resolve import target
from tests.unit.preflight.test_preflight_record import make_record

NV_PCI = "driver 550.163.01 (open) doesn't build: nvidia/nv-pci.c:237: too few arguments"
WHOLE = tuple(ModuleResult(name, Answer.YES, Answer.YES) for name in ("nvidia", "nvidia_uvm", "nvidia_fs"))
FAILED = (ModuleResult("driver", Answer.NO, Answer.NO, error=NV_PCI), WHOLE[-1])
RULE = Verdict("driver-550-pci-resize", allowed=False, words="")


def untried() -> PreflightRecord:
    return make_record(target())


def full(builds: Answer = Answer.YES, loads: Answer = Answer.YES) -> PreflightRecord:
    modules = WHOLE if builds is Answer.YES else FAILED
    return make_record(target(), builds=builds, loads=loads, modules=modules)


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yml"
    path.write_text(yaml.safe_dump({"version": 1, "profiles": {"gds": {"os": "debian-13"}}, "hosts": {"gpu1": "gds"}}))
    return path


def run(
    fleet: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    record: PreflightRecord,
    *words: str,
    forbidden: bool = False,
) -> tuple[int, str, str]:
    """Exit code, output and messages, each with single spaces."""
    stack = target()
    candidate = StackCandidate(
        profile="gds",
        kernel=stack.kernel.release,
        kernel_package="6.12.117-1",
        driver=stack.driver.version,
        driver_package="550.163.01-2",
        flavour="open",
        nvidia_fs="2.19.7",
        nvidia_fs_package="2.19.7-1",
        target=stack,
        against=(RULE,) if forbidden else (),
    )
    monkeypatch.setattr(verb, "Fetcher", lambda **_: contextlib.nullcontext())
    monkeypatch.setattr(verb, "preflight", lambda *_, **__: [Cell(candidate, record, is_earlier=False)])
    code = commandline.run("kmod", "preflight", fleet, *words)
    captured = capsys.readouterr()
    return code, " ".join(captured.out.split()), " ".join(commandline.plain(captured.err).split())


def test_a_module_that_was_not_tried_is_no_yes_of_a_stack(
    fleet: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(fleet, monkeypatch, capsys, untried(), forbidden=True)
    assert code == 0
    assert "not tried not tried nvidia_fs yes now" in out
    text = "compat.yml forbids it ([driver-550-pci-resize]); this preflight neither confirms nor refutes that"
    assert f"{text}: not tried: nvidia" in out
    assert "would load" not in out


def test_its_json_says_so_of_each_module(
    fleet: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(fleet, monkeypatch, capsys, untried(), "--json")
    document = json.loads(out)
    (cell,) = document["cells"]
    assert (code, document["ok"], cell["builds"], cell["loads"]) == (0, False, "not tried", "not tried")
    assert [(module["module"], module["builds"], module["loads"]) for module in cell["modules"]] == [
        ("nvidia", "not tried", "not tried"),
        ("nvidia_fs", "yes", "yes"),
    ]
    assert json.loads(run(fleet, monkeypatch, capsys, full(), "--json")[1])["ok"] is True


def test_a_rule_that_forbids_what_works_is_named(
    fleet: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(fleet, monkeypatch, capsys, full(), forbidden=True)
    assert code == 0
    assert "yes yes all 3 modules now" in out
    assert "compat.yml forbids it ([driver-550-pci-resize]), yet every module builds and would load" in out
    assert "compat.yml" not in run(fleet, monkeypatch, capsys, full())[1]


@pytest.mark.parametrize(
    ("builds", "fails"), [(Answer.NO, "yet it doesn't build"), (Answer.YES, "yet it would not load")]
)
def test_a_failure_that_no_rule_forbids_is_named(
    builds: Answer,
    fails: str,
    fleet: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = run(fleet, monkeypatch, capsys, full(builds, Answer.NO))
    assert (code, f"compat.yml allows it, {fails}" in out) == (24, True)
    out = run(fleet, monkeypatch, capsys, full(builds, Answer.NO), forbidden=True)[1]
    assert "compat.yml forbids it, too: [driver-550-pci-resize]" in out
    assert "yet" not in out


def test_the_module_that_failed_is_named(
    fleet: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(fleet, monkeypatch, capsys, full(Answer.NO, Answer.NO))
    assert code == 24
    assert "no no driver no, nvidia_fs yes now" in out
    assert NV_PCI in out


def test_an_unknown_answer_is_no_success(
    fleet: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    undecided = (WHOLE[0], ModuleResult("nvidia_fs", Answer.YES, Answer.UNKNOWN))
    record = make_record(target(), builds=Answer.YES, loads=Answer.UNKNOWN, modules=undecided)
    code, out, _ = run(fleet, monkeypatch, capsys, record, forbidden=True)
    assert code == 31
    assert "neither confirms nor refutes that" in out
