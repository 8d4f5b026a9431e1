"""The verb: this machine, a host behind a real SSH server, evidence that was saved, and what the user may get wrong."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.errors import FleetInvalid, HostUnreachable
from gdsdeploy.host import __main__ as program
from gdsdeploy.ssh import transport
from gdsdeploy.ssh.endpoint import Answer
from tests.commandline import Run
from tests.loopback.loopback_fleet import RUNNING, LoopbackFleet
from tests.loopback.loopback_sshd import free_port

HOSTS = Path(__file__).parents[2] / "evidence" / "hosts"
SAVED = HOSTS / "lab-vm-provisioned.json"
Make = Callable[..., LoopbackFleet]


def test_a_host_is_asked_once(make_fleet: Make, run: Run) -> None:
    fleet = make_fleet(gpu1={"profile": "right"}, gone={"profile": "right", "port": free_port()})
    code, out, err = run("explain", "gpu1", "--fleet", fleet.path, "--json")
    assert code == 0, err
    report = json.loads(out)
    assert report["host"] == "gpu1"
    assert dict(report["stack"])["kernel"] == RUNNING
    assert "/" in {entry["mount"] for entry in report["mounts"]}
    assert fleet.sessions() == 1
    code, out, _ = run("explain", "gpu1", "/etc/hosts", "--fleet", fleet.path)
    assert code == 0
    assert "/etc/hosts lies on this mount" in out
    assert "Kinds of storage" not in out
    code, out, err = run("explain", "gone", "--fleet", fleet.path)
    assert (code, out) == (HostUnreachable.exit_code, "")
    assert "gone (127.0.0.1:" in err


def test_the_host_looks_at_the_file_that_was_asked_about(
    make_fleet: Make, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = []
    fan_out = transport.fan_out

    def record(*arguments: Any, **options: Any) -> Iterator[Answer]:
        for answer in fan_out(*arguments, **options):
            answers.append(answer)
            yield answer

    monkeypatch.setattr(transport, "fan_out", record)
    fleet = make_fleet(gpu1={"profile": "right"})
    assert run("explain", "gpu1", "/etc/hosts", "--fleet", fleet.path)[0] == 0
    assert answers[0].document is not None
    # Only on a disk of the host's own: on any other mount a file may make its reader wait for ever.
    local = os.major(Path("/etc/hosts").stat().st_dev) != 0
    assert isinstance(answers[0].document["inodes"].get("/etc/hosts"), int) is local


def test_this_machine(run: Run) -> None:
    code, out, err = run("explain", "/")
    assert code == 0, err
    assert RUNNING in out
    assert "\n/  " in out


def test_saved_evidence(run: Run, tmp_path: Path) -> None:
    code, out, err = run("explain", "--evidence", SAVED)
    assert code == 0, err
    assert "/mnt/nvme  COMPAT: through CPU memory" in out
    code, out, _ = run("explain", "--evidence", SAVED, "/mnt/nvme/x", "--json")
    assert [(entry["mount"], entry["asked"]) for entry in json.loads(out)["mounts"]] == [("/mnt/nvme", "/mnt/nvme/x")]
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"host": "gpu1", "evidence": json.loads(SAVED.read_text())}))
    assert run("explain", "--evidence", report)[1] == run("explain", "--evidence", SAVED)[1], (
        "validate --with-evidence has it inside"
    )


@pytest.mark.parametrize("word", ["5027", "CU_FILE_HANDLE_NOT_REGISTERED", "cuda:100", "-22"])
def test_errors_of_cufile(run: Run, word: str) -> None:
    code, out, err = run("explain", "--error", word)
    assert code == 0, err
    assert "\n  1. " in out
    code, out, _ = run("explain", "--error", word, "--json")
    assert json.loads(out)["entries"][0]["causes"]


def test_an_error_that_there_is_not(run: Run) -> None:
    code, out, err = run("explain", "--error", "5999")
    assert (code, out) == (1, "")
    assert "no error code 5999 is known" in err
    assert "hint: The nearest are: " in err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("/mnt", "/data"), "/mnt is a path, so no second argument is expected"),
        (("gpu1", "data"), "MOUNT is an absolute path, and 'data' isn't"),
        (("gpu1", "--evidence", SAVED), "--evidence FILE replaces HOST"),
        (("gpu1", "--error", "5027"), "gpu1 is not expected beside --error CODE"),
        (("gpu1", "/data", "more"), "no third argument is expected: more"),
    ],
)
def test_what_does_not_go_together(run: Run, argv: tuple[object, ...], words: str) -> None:
    code, out, err = run("explain", *argv)
    assert (code, out) == (2, "")
    assert words in err


def test_a_host_without_its_fleet(run: Run, make_fleet: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run("explain", "gpu1")
    assert code == FleetInvalid.exit_code
    assert "the host gpu1 needs a fleet file, and this folder has no fleet.yml" in err
    assert "--fleet FILE" in err
    make_fleet(gpu1={"profile": "right"})
    code, _, err = run("explain", "gpu2")
    assert code == 2
    assert "fleet.yml has no host 'gpu2'; did you mean 'gpu1'?" in err


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("--for", "docs/consumers.md"),
        ("--launch", "docs/containers.md"),
        ("--redact", "support-bundle"),
        ("--ticket", "support-bundle"),
    ],
)
def test_a_removed_option_names_what_to_use_now(run: Run, option: str, instead: str) -> None:
    code, out, err = run("explain", "gpu1", option, "nccl")
    assert (code, out) == (2, "")
    assert f"gdsdeploy explain {option} was removed" in err
    assert instead in err


# --- the program on the host


def on_host(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    return (program.main(["explain", *map(str, argv)]), *capsys.readouterr())


def test_on_the_host_itself(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = on_host(capsys, "--evidence", SAVED, "/mnt/nvme")
    assert status == 0
    assert "[nvme.no-hooks]" in out
    status, out, _ = on_host(capsys, "--evidence", SAVED, "--json")
    report: dict[str, Any] = json.loads(out)
    assert {entry["mount"] for entry in report["mounts"]} == {"/", "/mnt/nvme"}
    assert on_host(capsys, "--error", "-22")[0] == 0


def test_on_the_host_itself_with_a_mistake(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, out, err = on_host(capsys, "--error", "nonsense")
    assert (status, out) == (2, "")
    assert "did you mean" in err
    document = json.loads(SAVED.read_text())
    document["files"]["/proc/self/mountinfo"] = "1 0 8:1 / /data rw - ext4 /dev/sda1 rw\n"
    (tmp_path / "x.json").write_text(json.dumps(document))
    status, _, err = on_host(capsys, "--evidence", tmp_path / "x.json", "/srv")
    assert (status, err) == (2, "gdsdeploy-host: nothing is mounted at or above /srv\n")
