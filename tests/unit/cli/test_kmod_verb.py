from __future__ import annotations

import json
from pathlib import Path

import pytest

from gdsdeploy.cli.kmod import VERBS
from tests import commandline
from tests.unit.host.kmod.kmod_root import RELEASE, Root


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    return (commandline.run("kmod", *words), *capsys.readouterr())


@pytest.fixture
def root(tmp_path: Path) -> Root:
    root = Root(tmp_path / "root")
    root.nvidia()
    root.nvidia_fs()
    return root


@pytest.mark.parametrize("verb", ["audit", "build", "trees"])
def test_help_is_of_this_verb_and_has_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, verb, "--help")
    assert code == 0
    assert out.startswith(f"Usage: gdsdeploy kmod {verb} ")
    assert f"  Examples:\n    gdsdeploy kmod {verb}" in out
    assert "--json" in out


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert all(f"  {verb} " in out for verb in VERBS)


def test_an_unknown_verb(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "conquer")
    assert code == 2
    assert "No such command 'conquer'" in err


def test_modules_that_would_load(root: Root, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "audit", "--kernel", RELEASE, "--root", str(root.path))
    assert (code, err) == (0, "")
    assert "nvidia_fs: ok" in out


def test_one_object_a_module(root: Root, capsys: pytest.CaptureFixture[str]) -> None:
    root.nvidia_fs(imports={"nvidia_p2p_get_pages": 1})
    code, out, err = run(capsys, "audit", "--json", "--kernel", RELEASE, "--root", str(root.path))
    assert (code, err) == (24, "")
    results = json.loads(out)
    assert [(result["module"], result["ok"]) for result in results] == [("nvidia", True), ("nvidia_fs", False)]
    for result in results:
        assert {"module", "ok", "findings"} <= set(result)
        for finding in result["findings"]:
            assert set(finding) == {"id", "severity", "outcome", "message", "hint"}


def test_what_could_not_be_told(root: Root, capsys: pytest.CaptureFixture[str]) -> None:
    root.nvidia_fs(info=[])
    assert run(capsys, "audit", "--kernel", RELEASE, "--root", str(root.path), "nvidia-fs")[0] == 31


def test_what_cannot_be_audited_is_an_error_with_a_hint(root: Root, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "audit", "--kernel", "9.9", "--root", str(root.path))
    assert (code, out) == (1, "")
    assert err.splitlines()[0] == f"error: kernel 9.9 has no modules in {root.path}/lib/modules"
    assert f"choose from: {RELEASE}" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [(["audit", "--fast"], "No such option '--fast'"), (["build"], "Missing argument 'MODULE|NAME=VALUE...'")],
)
def test_a_wrong_command_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, *words)
    assert code == 2
    assert message in err


def test_no_driver_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "trees", "--sources", str(tmp_path))[:2] == (0, "no driver source tree\n")
    code, _, err = run(capsys, "trees", "--sources", str(tmp_path), "--driver-version", "1")
    assert code == 1
    assert "there is no source tree of driver 1" in err
