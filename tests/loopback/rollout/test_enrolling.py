"""A key that a person enrols at the console: what each answer of a host leads to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.builds.assign import Supply
from gdsdeploy.converge.diff import HostPlan
from gdsdeploy.errors import HostUnfit, HostUnreachable, RolloutRefused
from gdsdeploy.host.apply.model import REBOOT, Change
from gdsdeploy.model.rollout import Step
from gdsdeploy.rollout.steps import enrol
from gdsdeploy.rollout.steps.apply import Look
from tests.unit.rollout.asked import BOOT, NEXT, ScriptedWork, work

FINGERPRINT = ":".join(["ab"] * 20)
ORDERED = ("rollout", "reboot", "--boot-id", BOOT, "--rollout", "20261121T1054-7f3a")


def answer(state: str, boot: str = BOOT, password: str = "") -> dict[str, Any]:
    return {"state": state, "fingerprint": FINGERPRINT, "boot_id": boot, "password": password}


def scripted_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *answers: Any, boot: str = BOOT
) -> tuple[ScriptedWork, list[str]]:
    """The step on a host that answers in this order, and what it says."""
    monkeypatch.setattr(enrol, "_certificate", lambda _work: ("-", b"certificate"))
    lines: list[str] = []
    replies: dict[str, Any] = {"rollout enrol": lambda number: answers[number], "rollout reboot": {"did": "ordered"}}
    host = work(Step.ENROL, replies, {"boot_id": boot}, console={"timeout": 60})
    scripted = replace(host, logs=tmp_path, announce=lines.append)
    for name in ("replies", "questions", "inputs", "waited"):
        object.__setattr__(scripted, name, getattr(host, name))
    return scripted, lines


def test_the_request_the_reboot_and_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = HostUnreachable("gpu1: no answer")
    answers = (
        answer("absent"), answer("pending", password="blindly2type"), answer("pending"), silent,
        answer("enrolled", NEXT),
    )  # fmt: skip
    host, lines = scripted_work(tmp_path, monkeypatch, *answers)
    password = tmp_path / "gpu1.mok-password"
    passwords: list[tuple[str, int]] = []

    def look(seconds: float) -> None:
        passwords.append((password.read_text(), password.stat().st_mode & 0o777))
        host.waited.append(seconds)

    object.__setattr__(host, "wait", look)
    assert enrol.enrol(host) == {"boot_id": NEXT}
    assert host.calls("rollout", "reboot") == [ORDERED]
    assert passwords[0] == ("blindly2type\n", 0o600), "while the person may need it"
    assert not password.exists()
    (words,) = lines
    assert FINGERPRINT in words
    assert str(password) in words
    assert "blindly2type" not in words
    assert set(host.inputs[:2]) == {b"certificate"}


def test_where_the_firmware_has_the_key_nothing_is_rebooted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for state in ("enrolled", "firmware", "not-needed", "no-efi"):
        host, _ = scripted_work(tmp_path, monkeypatch, answer(state))
        assert enrol.enrol(host) == {"boot_id": BOOT}
        assert host.calls("rollout", "reboot") == []


def test_a_request_that_nobody_confirmed_is_withdrawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = (answer("absent"), answer("pending", password="x2"), answer("absent", NEXT), answer("absent", NEXT))
    host, _ = scripted_work(tmp_path, monkeypatch, *answers)
    with pytest.raises(HostUnfit, match="the key was not confirmed"):
        enrol.enrol(host)
    assert host.questions[-1][-1] == "--withdraw"
    assert list(tmp_path.iterdir()) == []


def test_one_that_has_rebooted_already_is_not_rebooted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was killed after the order."""
    host, _ = scripted_work(tmp_path, monkeypatch, answer("enrolled", NEXT))
    assert enrol.enrol(host) == {"boot_id": NEXT}
    host, _ = scripted_work(tmp_path, monkeypatch, answer("absent", NEXT), answer("absent", NEXT))
    with pytest.raises(HostUnfit):
        enrol.enrol(host)
    assert host.calls("rollout", "reboot") == []


def test_a_menu_that_was_left_open_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = (answer("absent"), answer("pending", password="x2"), *[HostUnreachable("gpu1: no answer")] * 40)
    host, _ = scripted_work(tmp_path, monkeypatch, *answers)
    with pytest.raises(HostUnreachable, match="no new boot within 60 s: gpu1: no answer"):
        enrol.enrol(host)


def test_a_host_without_the_key_is_refused_before_it_is_drained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, _ = scripted_work(tmp_path, monkeypatch)
    change = Change("enrol", "/etc/gdsdeploy/modules.der", "absent", "enrolled", "secure-boot", REBOOT)
    supply = Supply("receive", "cache", "w")
    with pytest.raises(RolloutRefused, match="doesn't have the key") as caught:
        enrol.refuse(host, Look(HostPlan("gpu1", (change,)), supply, {}))
    assert "--enrol-keys" in (caught.value.hint or "")
    enrol.refuse(host, Look(HostPlan("gpu1", ()), supply, {}))
