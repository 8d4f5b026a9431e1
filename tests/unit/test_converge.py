"""Arguments and events of ansible-playbook."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gdsdeploy import converge, resources
from gdsdeploy.errors import ConvergeFailed, HostUnfit, HostUnreachable


def test_the_command_line_is_ours_and_then_the_users_flags() -> None:
    found = converge.argv(
        "provision", Path("/s/inventory.yml"), limit=["gpu1", "gpu2"], extra=["--check", "--diff", "-vv"]
    )
    assert found == [
        sys.executable, "-m", "ansible", "playbook",
        "--inventory", "/s/inventory.yml", "--limit", "gpu1,gpu2", "--check", "--diff", "-vv",
        str(resources.playbook("provision")),
    ]  # fmt: skip


def test_host_keys_are_checked_and_stray_configuration_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "ansible.cfg").write_text("[defaults]\nhost_key_checking = false\n")
    done = subprocess.run(
        [Path(sys.executable).parent / "ansible-config", "dump", "--only-changed"],
        env={**converge.environment(control_dir=Path("/s/cm")), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    settings = dict(re.findall(r"^(\w+)\(.*\) = (.*)$", done.stdout, re.MULTILINE))
    assert settings["HOST_KEY_CHECKING"] == "True"
    assert settings["DEFAULT_ROLES_PATH"] == str([str(resources.roles())])


def fake_playbook(tmp_path: Path, events: list[dict[str, object]], status: int) -> list[str]:
    """A program that prints events as the callback does: what is tested here is the reader of them."""
    script = tmp_path / "play.py"
    lines = [converge.MARK + json.dumps(event) for event in events]
    script.write_text(f"import sys\nprint('human text')\nprint({chr(10).join(lines)!r})\nsys.exit({status})\n")
    return [sys.executable, str(script)]


def result(status: str, role: str, task: str, **more: object) -> dict[str, object]:
    return {"event": "result", "host": "gpu1", "role": role, "task": task, "status": status,
            "seconds": 1.0, "changed": False, **more}  # fmt: skip


def test_changes_and_log_are_kept(tmp_path: Path) -> None:
    events = [
        {"event": "play", "name": "Prepare"},
        {"event": "long", "host": "gpu1", "role": "gds_repo", "task": "Configure | Pin the stack"},
        result("ok", "gds_repo", "Configure | Pin the stack", changed=True),
        result("ok", "gds_repo", "Verify | Ask apt"),
    ]
    said: list[str] = []
    log = tmp_path / "log" / "run.log"
    outcome = converge.play(fake_playbook(tmp_path, events, 0), {}, log=log, progress=said.append)
    assert outcome.hosts["gpu1"].changed == ["gds_repo: Configure | Pin the stack"]
    assert outcome.changes() == 1
    assert log.read_text() == "human text\n"
    assert said[0] == "▸ Prepare"
    assert "  gpu1: gds_repo: Pin the stack …" in said


@pytest.mark.parametrize(
    ("event", "error", "words"),
    [
        (
            result("failed", "gds_preflight", "Preflight | There is room", detail={"msg": "/ has 3 MiB free"}),
            HostUnfit,
            "gpu1: / has 3 MiB free",
        ),
        (
            result(
                "failed", "gds_modules", "Install | Build", detail={"msg": "non-zero return code", "stderr": "a\nb"}
            ),
            ConvergeFailed,
            "gpu1: gds_modules: Build: non-zero return code\n  | a\n  | b",
        ),
        (
            result("unreachable", "gds_repo", "Configure | x", detail={"msg": "timed out"}),
            HostUnreachable,
            "gpu1: lost during gds_repo: timed out",
        ),
    ],
)
def test_failures_name_host_role_and_cause(
    tmp_path: Path, event: dict[str, object], error: type[Exception], words: str
) -> None:
    outcome = converge.play(fake_playbook(tmp_path, [event], 2), {}, log=tmp_path / "l", progress=lambda _: None)
    failure = outcome.hosts["gpu1"].failure
    assert type(failure) is error
    assert str(failure) == words


def test_a_playbook_that_dies_without_a_word_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConvergeFailed, match="status 4"):
        converge.play(fake_playbook(tmp_path, [], 4), {}, log=tmp_path / "l", progress=lambda _: None)
