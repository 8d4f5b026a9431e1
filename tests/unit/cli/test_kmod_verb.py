"""``gdsdeploy kmod``: audits, the keys of builders, and what ``preflight`` claims: of modules that were tried."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gdsdeploy.builds.cache import BuilderKeys, fingerprint
from gdsdeploy.cli import kmod_preflight
from gdsdeploy.host.model.compat import REFUSED, Verdict
from gdsdeploy.preflight.record import Answer, ModuleResult
from gdsdeploy.preflight.trial import Cell, StackCandidate
from tests import commandline
from tests.loopback.builds.test_cache import EVIL, ORIGIN
from tests.unit.host.kmod.kmod_root import RELEASE, Root
from tests.unit.lock.test_resolve import target
from tests.unit.preflight.test_preflight_record import make_record

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return lambda *words: (commandline.run("kmod", *words), *capsys.readouterr())


@pytest.fixture
def root(tmp_path: Path) -> Root:
    root = Root(tmp_path / "root")
    root.nvidia()
    root.nvidia_fs()
    return root


def test_modules_that_would_load(root: Root, run: Run) -> None:
    code, out, err = run("audit", "--kernel", RELEASE, "--root", str(root.path))
    assert (code, err) == (0, "")
    assert "nvidia_fs: ok" in out


def test_one_object_a_module(root: Root, run: Run) -> None:
    root.nvidia_fs(imports={"nvidia_p2p_get_pages": 1})
    code, out, err = run("audit", "--json", "--kernel", RELEASE, "--root", str(root.path))
    assert (code, err) == (24, "")
    results = json.loads(out)
    assert [(result["module"], result["ok"]) for result in results] == [("nvidia", True), ("nvidia_fs", False)]
    for result in results:
        assert {"module", "ok", "findings"} <= set(result)
        for finding in result["findings"]:
            assert set(finding) == {"id", "severity", "outcome", "message", "hint"}


def test_what_could_not_be_told(root: Root, run: Run) -> None:
    root.nvidia_fs(info=[])
    assert run("audit", "--kernel", RELEASE, "--root", str(root.path), "nvidia-fs")[0] == 31


def test_what_cannot_be_audited_is_an_error_with_a_hint(root: Root, run: Run) -> None:
    code, out, err = run("audit", "--kernel", "9.9", "--root", str(root.path))
    assert (code, out) == (1, "")
    assert err.splitlines()[0] == f"error: kernel 9.9 has no modules in {root.path}/lib/modules"
    assert f"choose from: {RELEASE}" in err


def test_no_driver_tree(tmp_path: Path, run: Run) -> None:
    assert run("trees", "--sources", str(tmp_path))[:2] == (0, "no driver source tree\n")
    code, _, err = run("trees", "--sources", str(tmp_path), "--driver-version", "1")
    assert code == 1
    assert "there is no source tree of driver 1" in err


GOLDEN = Path(__file__).parents[2] / "golden" / "lab" / "fleet.yml"


def test_the_keys_of_a_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setenv("GDSDEPLOY_STATE_DIR", str(tmp_path / "state"))
    fleet = Path(shutil.copy(GOLDEN, tmp_path / "fleet.yml"))
    record = BuilderKeys.of(fleet).path("build1")
    code, _, err = run("builders", fleet)
    assert (code, f"No key is recorded in {record.parent}" in err) == (0, True)
    record.write_text(ORIGIN.public)
    record.with_name("build1.pub.new").write_text(EVIL.public)
    mine, other = fingerprint(ORIGIN.public), fingerprint(EVIL.public)
    code, out, _ = run("builders", fleet, "--json")
    assert json.loads(out)["builders"] == [{"name": "build1", "key": mine, "refused": other, "file": str(record)}]
    assert run("builders", fleet, "--accept", "build1")[:2] == (0, f"build1  {other}  {record}\n")
    code, _, err = run("builders", fleet, "--accept", "build1")
    assert (code, "build1 has shown no other key" in err) == (19, True)
    assert run("builders", fleet, "--accept", "../x")[0] == 10


# --- preflight: only of modules that were tried ----------------------------------------------------------------------

NV_PCI = "driver 550.163.01 (open) doesn't build: nvidia/nv-pci.c:237: too few arguments"
WHOLE = tuple(ModuleResult(name, Answer.YES, Answer.YES) for name in ("nvidia", "nvidia_uvm", "nvidia_fs"))
FAILED = (ModuleResult("driver", Answer.NO, Answer.NO, error=NV_PCI), WHOLE[-1])
UNDECIDED = (WHOLE[0], ModuleResult("nvidia_fs", Answer.YES, Answer.UNKNOWN))
RULE = Verdict("driver-550-pci-resize", REFUSED, words="")
#: Of records: every module was tried; they don't build; one wouldn't load; one can't be told.
FULL: dict[str, Any] = {"builds": Answer.YES, "loads": Answer.YES, "modules": WHOLE}
NO_BUILD: dict[str, Any] = {"builds": Answer.NO, "loads": Answer.NO, "modules": FAILED}
NO_LOAD: dict[str, Any] = {**FULL, "loads": Answer.NO}
UNKNOWN: dict[str, Any] = {"builds": Answer.YES, "loads": Answer.UNKNOWN, "modules": UNDECIDED}


@pytest.fixture
def preflighted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> Callable[..., tuple[int, str]]:
    """Exit code, and output with single spaces, where a stack has this record."""
    fleet = tmp_path / "fleet.yml"
    fleet.write_text(yaml.safe_dump({"version": 1, "profiles": {"gds": {"os": "debian-13"}}, "hosts": {"gpu1": "gds"}}))
    monkeypatch.setattr(kmod_preflight, "Fetcher", lambda **_: contextlib.nullcontext())

    def ended(record: dict[str, Any], *words: str, forbidden: bool = False) -> tuple[int, str]:
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
        cell = Cell(candidate, make_record(stack, **record), is_earlier=False)
        monkeypatch.setattr(kmod_preflight, "preflight", lambda *_, **__: [cell])
        code, out, _ = run("preflight", fleet, *words)
        return code, " ".join(out.split())

    return ended


FORBIDS = "compat.yml forbids it ([driver-550-pci-resize])"


@pytest.mark.parametrize(
    ("record", "forbidden", "code", "told", "untold"),
    [
        ({}, True, 0,
         ("not tried not tried nvidia_fs yes now",
          f"{FORBIDS}; this preflight neither confirms nor refutes that: not tried: nvidia"), "would load"),
        (FULL, True, 0,
         ("yes yes all 3 modules now", f"{FORBIDS}, yet every module builds and would load"), "not tried"),
        (FULL, False, 0, ("yes yes all 3 modules now",), "compat.yml"),
        (NO_BUILD, False, 24,
         ("compat.yml allows it, yet it doesn't build", NV_PCI, "no no driver no, nvidia_fs yes now"), "forbids"),
        (NO_BUILD, True, 24, ("compat.yml forbids it, too: [driver-550-pci-resize]",), "yet"),
        (NO_LOAD, False, 24, ("compat.yml allows it, yet it would not load",), "forbids"),
        (NO_LOAD, True, 24, ("compat.yml forbids it, too: [driver-550-pci-resize]",), "yet"),
        (UNKNOWN, True, 31, ("neither confirms nor refutes that",), "yet"),
    ],
)  # fmt: skip
def test_what_a_stack_came_to_is_told_beside_the_rules(
    record: dict[str, Any],
    forbidden: bool,
    code: int,
    told: tuple[str, ...],
    untold: str,
    preflighted: Callable[..., tuple[int, str]],
) -> None:
    ended, out = preflighted(record, forbidden=forbidden)
    assert (ended, [words for words in told if words not in out]) == (code, [])
    assert untold not in out


def test_json_says_of_each_module_whether_it_was_tried(preflighted: Callable[..., tuple[int, str]]) -> None:
    code, out = preflighted({}, "--json")
    document = json.loads(out)
    (cell,) = document["cells"]
    assert (code, document["ok"], cell["builds"], cell["loads"]) == (0, False, "not tried", "not tried")
    assert [(module["module"], module["builds"], module["loads"]) for module in cell["modules"]] == [
        ("nvidia", "not tried", "not tried"),
        ("nvidia_fs", "yes", "yes"),
    ]
    assert json.loads(preflighted(FULL, "--json")[1])["ok"] is True
