"""At most one reboot of one boot, and none that is not proven: what each answer of a host leads to."""

from __future__ import annotations

from typing import Any

import pytest

from gdsdeploy.errors import GdsError, HostUnfit, HostUnreachable, RebootFailed
from gdsdeploy.model.rollout import Step
from gdsdeploy.rollout.steps import boot
from tests.unit.rollout.asked import BOOT, KERNEL, NEXT, OLD, needed, status, work

OTHER = f"the running kernel is {OLD}, not {KERNEL}"


def test_a_reboot_is_ordered_for_the_boot_that_was_noted() -> None:
    host = work(
        Step.REBOOT,
        {"rollout status": status(), "boot needed": needed(OTHER), "rollout reboot": {"did": "ordered"}},
        {"boot_id": BOOT},
    )
    assert boot.reboot(host) == {"how": "reboot", "boot_id": BOOT}
    assert host.calls("rollout", "reboot") == [
        ("rollout", "reboot", "--boot-id", BOOT, "--rollout", "20261121T1054-7f3a")
    ]


def test_in_another_boot_than_the_noted_one_nothing_is_ordered() -> None:
    """It was killed after the order: whether the new kernel runs is for the next step to prove."""
    host = work(Step.REBOOT, {"rollout status": status(NEXT)}, {"boot_id": BOOT})
    assert boot.reboot(host) == {"how": "reboot", "boot_id": BOOT}
    assert host.calls("rollout", "reboot") == []


def test_without_need_nothing_is_done() -> None:
    host = work(
        Step.REBOOT, {"rollout status": status(kernel=KERNEL), "boot needed": needed(running=KERNEL)}, {"boot_id": BOOT}
    )
    assert boot.reboot(host) == {"how": "none", "boot_id": BOOT}


@pytest.mark.parametrize("safe", [True, False])
def test_modules_are_exchanged_where_the_host_finds_that_safe(safe: bool) -> None:
    replies: dict[str, Any] = {
        "rollout status": status(kernel=KERNEL),
        "boot needed": needed("the loaded module nvidia is another", running=KERNEL),
        "rollout reload": {"changed": True} if safe else HostUnfit("python3 has /dev/nvidia0 open"),
        "rollout reboot": {"did": "ordered"},
    }
    host = work(Step.REBOOT, replies, {"boot_id": BOOT})
    assert boot.reboot(host)["how"] == ("reload" if safe else "reboot")
    assert len(host.calls("rollout", "reload")) == (2 if safe else 1)


def test_kernel_arguments_need_a_reboot_even_where_modules_could_be_exchanged() -> None:
    replies: dict[str, Any] = {
        "rollout status": status(kernel=KERNEL),
        "boot needed": {**needed("booted without iommu=pt", running=KERNEL), "by_reload": False},
        "rollout reboot": {"did": "ordered"},
    }
    settings = {"boot": {"arguments": {"iommu": "pt"}, "module_options": {"nvme_core": {"multipath": "N"}}}}
    host = work(Step.REBOOT, replies, {"boot_id": BOOT}, profile={**settings, "mode": "nvidia-fs"})
    assert boot.reboot(host)["how"] == "reboot"
    (question,) = host.calls("boot", "needed")
    assert {"--argument=iommu=pt", "--parameter=nvme_core.multipath=N"} <= set(question)


def test_a_fleet_may_want_no_exchange_of_modules() -> None:
    replies: dict[str, Any] = {
        "rollout status": status(kernel=KERNEL),
        "boot needed": needed("the loaded module nvidia is another", running=KERNEL),
        "rollout reboot": {"did": "ordered"},
    }
    assert boot.reboot(work(Step.REBOOT, replies, {"boot_id": BOOT}, reload=False))["how"] == "reboot"


def test_a_profile_may_forbid_reboots() -> None:
    host = work(
        Step.REBOOT,
        {"rollout status": status(), "boot needed": needed(OTHER)},
        {"boot_id": BOOT},
        profile={"reboot": False},
    )
    with pytest.raises(RebootFailed, match="its profile does not allow one"):
        boot.reboot(host)


def test_a_host_without_a_kernel_of_its_own_is_never_rebooted() -> None:
    host = work(Step.REBOOT, {"rollout status": status()}, {"boot_id": BOOT}, profile={"own_kernel": False})
    assert boot.reboot(host)["how"] == "none"
    assert host.questions == [("rollout", "status")]


def test_it_is_awaited_until_it_answers_from_another_boot() -> None:
    silent = HostUnreachable("gone")
    answers: list[dict[str, Any] | GdsError] = [status(), silent, silent, status(NEXT, KERNEL)]
    host = work(
        Step.BOOT,
        {"rollout status": lambda n: answers[n], "boot needed": needed(boot=NEXT, running=KERNEL)},
        {"how": "reboot", "boot_id": BOOT},
    )
    assert boot.boot(host) == {"boot_id": NEXT, "kernel": KERNEL, "how": "none"}


def test_a_boot_that_was_proven_is_proven_again_without_another_one() -> None:
    replies = {"rollout status": status(NEXT, KERNEL), "boot needed": needed(boot=NEXT, running=KERNEL)}
    first = boot.boot(work(Step.BOOT, replies, {"how": "reboot", "boot_id": BOOT}))
    again = work(Step.BOOT, replies, {"how": "reboot", "boot_id": BOOT, **first})
    assert boot.boot(again) == first
    assert again.waited == []


def test_one_that_never_answers_is_unreachable_after_the_time_that_it_has() -> None:
    host = work(
        Step.BOOT,
        {"rollout status": HostUnreachable("no route")},
        {"how": "reboot", "boot_id": BOOT},
        reboot_timeout=30,
    )
    with pytest.raises(HostUnreachable, match="no answer for 30 s: no route"):
        boot.boot(host)
    assert sum(host.waited) == 30


def test_one_that_never_goes_down_is_no_reboot() -> None:
    host = work(Step.BOOT, {"rollout status": status()}, {"how": "reboot", "boot_id": BOOT}, reboot_timeout=30)
    with pytest.raises(RebootFailed, match="it still is in boot boot-1"):
        boot.boot(host)


def test_one_that_comes_back_with_the_old_kernel_says_that_it_fell_back() -> None:
    once = {"state": "fell back", "kernel": KERNEL}
    host = work(Step.BOOT, {"rollout status": status(NEXT, OLD, once=once)}, {"how": "reboot", "boot_id": BOOT})
    with pytest.raises(RebootFailed, match=r"it runs kernel .*90.*, not .*94.*was to boot once, and fell back"):
        boot.boot(host)


def test_modules_may_be_loaded_after_sshd_answers_but_not_never() -> None:
    verdicts = [needed("nvidia is not loaded"), needed(boot=NEXT, running=KERNEL)]
    data = {"how": "reboot", "boot_id": BOOT}
    replies: dict[str, Any] = {"rollout status": status(NEXT, KERNEL), "boot needed": lambda n: verdicts[n]}
    assert boot.boot(work(Step.BOOT, replies, data))["boot_id"] == NEXT
    replies["boot needed"] = needed("nvidia is not loaded")
    with pytest.raises(RebootFailed, match="it is back, but nvidia is not loaded"):
        boot.boot(work(Step.BOOT, replies, data))


def test_power_is_switched_by_the_fleets_own_command() -> None:
    assert boot.power(work(Step.POWER, {}, power_cycle=["test", "{host}", "=", "gpu1"])) == {}
    with pytest.raises(RebootFailed, match="switch gpu1 off and on"):
        boot.power(work(Step.POWER, {}, power_cycle=["test", "{host}", "=", "gpu2"]))
    with pytest.raises(RebootFailed, match=r"has no rollout\.power_cycle"):
        boot.power(work(Step.POWER, {}))
