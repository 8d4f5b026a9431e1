"""Arguments and events of ansible-playbook."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gdsdeploy import converge, resources
from gdsdeploy.errors import ConvergeFailed, HostUnfit, HostUnreachable, ModuleBuildFailed


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
            result(
                "failed",
                "gds_packages",
                "Install | Install the locked versions",
                detail={"msg": "non-zero return code", "rc": 100, "cmd": ["apt-get", "install"], "stderr": "E: no"},
            ),
            ConvergeFailed,
            "gpu1: gds_packages: Install the locked versions: apt-get ended with status 100\n  | E: no",
        ),
        (
            result(
                "failed",
                "gds_modules",
                "Install | Build with DKMS",
                detail={
                    "msg": "non-zero return code",
                    "cmd": ["python3", "gdsdeploy-host.pyz", "kmod", "dkms", "--json"],
                    "stderr": "error: driver 1 (open) does not build for kernel 6.1: nv.c:7: error: x (fixed in 2 (b))",
                },
            ),
            ModuleBuildFailed,
            "gpu1: driver 1 (open) does not build for kernel 6.1: nv.c:7: error: x",
        ),
        (
            result(
                "failed",
                "gds_modules",
                "Verify | Audit what the kernel would load",
                detail={
                    "msg": "non-zero return code",
                    "cmd": ["python3", "gdsdeploy-host.pyz", "kmod", "audit"],
                    "stdout": "nvidia: ok (x)\nnvidia_fs: FAILED (y)\n  error [driver-tree] is of 1\n    hint: z",
                },
            ),
            ModuleBuildFailed,
            "gpu1: the audit refuses the modules\n  | error [driver-tree] is of 1",
        ),
        (
            result(
                "failed",
                "gds_kernel",
                "Install | Install the locked versions",
                detail={
                    "msg": "apt failed",
                    "stdout": "Error! Bad return status for module build on kernel: 6.1.0-50-amd64 (x86_64)\nConsult y",
                },
            ),
            ModuleBuildFailed,
            "gpu1: DKMS could not build its modules for kernel 6.1.0-50-amd64",
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


def test_the_reason_that_a_role_asks_for_takes_the_place_of_the_package_managers(tmp_path: Path) -> None:
    events = [
        result("failed", "gds_modules", "Install | Install the locked versions", detail={"msg": "dpkg returned 1"}),
        result(
            "failed",
            "gds_modules",
            "Install | Say why the modules do not build",
            detail={"cmd": ["python3", "gdsdeploy-host.pyz", "kmod", "why"], "stderr": "error: it is broken"},
        ),
        result("failed", "gds_modules", "Install | Say why the packages cannot be had", detail={"msg": "dpkg"}),
    ]
    outcome = converge.play(fake_playbook(tmp_path, events, 2), {}, log=tmp_path / "l", progress=lambda _: None)
    failure = outcome.hosts["gpu1"].failure
    assert isinstance(failure, ModuleBuildFailed)
    assert failure.exit_code == 24
    assert str(failure) == "gpu1: it is broken"


def test_a_playbook_that_dies_without_a_word_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConvergeFailed, match="status 4"):
        converge.play(fake_playbook(tmp_path, [], 4), {}, log=tmp_path / "l", progress=lambda _: None)
