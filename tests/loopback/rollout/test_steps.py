"""Steps of a rollout on one host: what each of its answers leads to.  Booting first: at most one reboot of one boot."""

from __future__ import annotations

import ast
import copy
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from docs.gen.collection import ROOT, spec
from gdsdeploy.builds.assign import Supply
from gdsdeploy.cancel import Stop
from gdsdeploy.converge import ansible
from gdsdeploy.converge.diff import HostPlan
from gdsdeploy.errors import (
    ConvergeFailed,
    GdsError,
    HostUnfit,
    HostUnreachable,
    Interrupted,
    RebootFailed,
    RollbackFailed,
    RolloutRefused,
)
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.host.apply.model import REBOOT, Change
from gdsdeploy.host.io.wording import line
from gdsdeploy.host.rollout import reboot as host_status, snapshot as host_snapshot
from gdsdeploy.lock import lockfile
from gdsdeploy.model.rollout import Step, Task
from gdsdeploy.model.rollout_settings import Rollout
from gdsdeploy.rollout import preconditions
from gdsdeploy.rollout.drain import Drainer
from gdsdeploy.rollout.steps import answers, rollback, upgrade
from gdsdeploy.rollout.steps.answers import Question
from gdsdeploy.rollout.steps.upgrade import Look
from gdsdeploy.rollout.steps.work import Patience, Work, alone
from gdsdeploy.ssh import transport
from gdsdeploy.ssh.endpoint import Answer
from tests.loopback import loopback_sshd
from tests.loopback.loopback_fleet import LoopbackFleet
from tests.unit.rollout.asked import (
    BOOT,
    KERNEL,
    NEXT,
    OLD,
    ScriptedWork,
    compared,
    differs,
    needed,
    snapshot,
    status,
    work,
)

OTHER = f"the running kernel is {OLD}, not {KERNEL}"


def test_a_reboot_is_ordered_for_the_boot_that_was_noted() -> None:
    host = work(
        Step.REBOOT,
        {"rollout status": status(), "boot needed": needed(OTHER), "rollout reboot": {"did": "ordered"}},
        {"boot_id": BOOT},
    )
    assert upgrade.reboot(host) == {"how": "reboot", "boot_id": BOOT}
    assert host.calls("rollout", "reboot") == [
        ("rollout", "reboot", "--boot-id", BOOT, "--rollout", "20261121T1054-7f3a")
    ]


def test_in_another_boot_than_the_noted_one_nothing_is_ordered() -> None:
    """It was killed after the order: whether the new kernel runs is for the next step to prove."""
    host = work(Step.REBOOT, {"rollout status": status(NEXT)}, {"boot_id": BOOT})
    assert upgrade.reboot(host) == {"how": "reboot", "boot_id": BOOT}
    assert host.calls("rollout", "reboot") == []


def test_without_need_nothing_is_done() -> None:
    host = work(
        Step.REBOOT, {"rollout status": status(kernel=KERNEL), "boot needed": needed(running=KERNEL)}, {"boot_id": BOOT}
    )
    assert upgrade.reboot(host) == {"how": "none", "boot_id": BOOT}


@pytest.mark.parametrize("safe", [True, False])
def test_modules_are_exchanged_where_the_host_finds_that_safe(safe: bool) -> None:
    replies: dict[str, Any] = {
        "rollout status": status(kernel=KERNEL),
        "boot needed": needed("the loaded module nvidia is another", running=KERNEL),
        "rollout reload": {"changed": True} if safe else HostUnfit("python3 has /dev/nvidia0 open"),
        "rollout reboot": {"did": "ordered"},
    }
    host = work(Step.REBOOT, replies, {"boot_id": BOOT})
    assert upgrade.reboot(host)["how"] == ("reload" if safe else "reboot")
    assert len(host.calls("rollout", "reload")) == (2 if safe else 1)


def test_kernel_arguments_need_a_reboot_even_where_modules_could_be_exchanged() -> None:
    replies: dict[str, Any] = {
        "rollout status": status(kernel=KERNEL),
        "boot needed": {**needed("booted without iommu=pt", running=KERNEL), "by_reload": False},
        "rollout reboot": {"did": "ordered"},
    }
    settings = {"boot": {"arguments": {"iommu": "pt"}, "module_options": {"nvme_core": {"multipath": "N"}}}}
    host = work(Step.REBOOT, replies, {"boot_id": BOOT}, profile={**settings, "mode": "nvidia-fs"})
    assert upgrade.reboot(host)["how"] == "reboot"
    (question,) = host.calls("boot", "needed")
    assert {"--argument=iommu=pt", "--parameter=nvme_core.multipath=N"} <= set(question)


def test_a_fleet_may_want_no_exchange_of_modules() -> None:
    replies: dict[str, Any] = {
        "rollout status": status(kernel=KERNEL),
        "boot needed": needed("the loaded module nvidia is another", running=KERNEL),
        "rollout reboot": {"did": "ordered"},
    }
    assert upgrade.reboot(work(Step.REBOOT, replies, {"boot_id": BOOT}, reload=False))["how"] == "reboot"


def test_a_profile_may_forbid_reboots() -> None:
    host = work(
        Step.REBOOT,
        {"rollout status": status(), "boot needed": needed(OTHER)},
        {"boot_id": BOOT},
        profile={"reboot": False},
    )
    with pytest.raises(RebootFailed, match="its profile does not allow one"):
        upgrade.reboot(host)


def test_a_host_without_a_kernel_of_its_own_is_never_rebooted() -> None:
    host = work(Step.REBOOT, {"rollout status": status()}, {"boot_id": BOOT}, profile={"own_kernel": False})
    assert upgrade.reboot(host)["how"] == "none"
    assert host.questions == [("rollout", "status")]


def test_it_is_awaited_until_it_answers_from_another_boot() -> None:
    silent = HostUnreachable("gone")
    answers: list[dict[str, Any] | GdsError] = [status(), silent, silent, status(NEXT, KERNEL)]
    host = work(
        Step.BOOT,
        {"rollout status": lambda n: answers[n], "boot needed": needed(boot=NEXT, running=KERNEL)},
        {"how": "reboot", "boot_id": BOOT},
    )
    assert upgrade.boot(host) == {"boot_id": NEXT, "kernel": KERNEL, "how": "none"}


def test_a_boot_that_was_proven_is_proven_again_without_another_one() -> None:
    replies = {"rollout status": status(NEXT, KERNEL), "boot needed": needed(boot=NEXT, running=KERNEL)}
    first = upgrade.boot(work(Step.BOOT, replies, {"how": "reboot", "boot_id": BOOT}))
    again = work(Step.BOOT, replies, {"how": "reboot", "boot_id": BOOT, **first})
    assert upgrade.boot(again) == first
    assert again.waited == []


def test_one_that_never_answers_is_unreachable_after_the_time_that_it_has() -> None:
    host = work(
        Step.BOOT,
        {"rollout status": HostUnreachable("no route")},
        {"how": "reboot", "boot_id": BOOT},
        reboot_timeout=30,
    )
    with pytest.raises(HostUnreachable, match="no answer for 30 s: no route"):
        upgrade.boot(host)
    assert sum(host.waited) == 30


def test_one_that_never_goes_down_is_no_reboot() -> None:
    host = work(Step.BOOT, {"rollout status": status()}, {"how": "reboot", "boot_id": BOOT}, reboot_timeout=30)
    with pytest.raises(RebootFailed, match="it still is in boot boot-1"):
        upgrade.boot(host)


def test_one_that_comes_back_with_the_old_kernel_says_that_it_fell_back() -> None:
    once = {"state": "fell back", "kernel": KERNEL}
    host = work(Step.BOOT, {"rollout status": status(NEXT, OLD, once=once)}, {"how": "reboot", "boot_id": BOOT})
    with pytest.raises(RebootFailed, match=r"it runs kernel .*90.*, not .*94.*was to boot once, and fell back"):
        upgrade.boot(host)


def test_modules_may_be_loaded_after_sshd_answers_but_not_never() -> None:
    verdicts = [needed("nvidia is not loaded"), needed(boot=NEXT, running=KERNEL)]
    data = {"how": "reboot", "boot_id": BOOT}
    replies: dict[str, Any] = {"rollout status": status(NEXT, KERNEL), "boot needed": lambda n: verdicts[n]}
    assert upgrade.boot(work(Step.BOOT, replies, data))["boot_id"] == NEXT
    replies["boot needed"] = needed("nvidia is not loaded")
    with pytest.raises(RebootFailed, match="it is back, but nvidia is not loaded"):
        upgrade.boot(work(Step.BOOT, replies, data))


def test_power_is_switched_by_the_fleets_own_command() -> None:
    silent = {"rollout status": HostUnreachable("no route")}
    assert upgrade.power(work(Step.POWER, silent, power_cycle=["test", "{host}", "=", "gpu1"])) == {}
    with pytest.raises(RebootFailed, match="switch gpu1 off and on"):
        upgrade.power(work(Step.POWER, silent, power_cycle=["test", "{host}", "=", "gpu2"]))
    with pytest.raises(RebootFailed, match=r"has no rollout\.power_cycle"):
        upgrade.power(work(Step.POWER, {}))


# -- Questions to a host as steps ask them, over a real sshd on loopback: answers, refusals, and a broken way.


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackFleet]:
    folder = tmp_path_factory.mktemp("asking")
    server = loopback_sshd.start(folder)
    try:
        yield LoopbackFleet(folder, server, {"gpu1": {"profile": "right"}, "gpu2": {"profile": "right", "port": 1}})
    finally:
        server.stop()


def work_over_ssh(fleet: LoopbackFleet, host: str = "gpu1", poll: float = 0.05) -> Work:
    intent = load_fleet(fleet.path)
    return Work(
        task=Task(host, Step.PREFLIGHT),
        fleet=alone(intent, host),
        lock=lockfile.read(lockfile.beside(fleet.path)),
        fleet_path=fleet.path,
        settings=Rollout(),
        rollout="x",
        drainer=Drainer(),
        logs=Path("/nowhere"),
        say=lambda _: None,
        everyone=intent,
        patience=Patience(poll=poll),
    )


def test_an_answer_is_one_object(fleet: LoopbackFleet) -> None:
    answer = work_over_ssh(fleet).ask(answers.STATUS)
    assert answer.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert {"kernel", "lock_digest", "packages", "space", "once"} <= set(answer.model_dump())


def test_what_the_host_refuses_is_an_error_with_its_words(fleet: LoopbackFleet) -> None:
    with pytest.raises(ConvergeFailed, match="gpu1: this isn't a snapshot of version 1") as caught:
        work_over_ssh(fleet).ask(answers.COMPARE, "--with", "-", stdin=b"{}")
    assert caught.value.hint == "make one: gdsdeploy-host.pyz rollout snapshot --json"


def test_one_that_does_not_answer_is_asked_thrice(fleet: LoopbackFleet) -> None:
    waited: list[float] = []
    host = work_over_ssh(fleet, "gpu2")
    object.__setattr__(host, "wait", waited.append)
    with pytest.raises(HostUnreachable, match="gpu2"):
        host.ask(answers.STATUS)
    assert waited == [0.05, 0.05]


def test_a_wish_to_stop_ends_the_pause_between(fleet: LoopbackFleet) -> None:
    stop = Stop()
    threading.Timer(0.5, stop.request).start()
    with pytest.raises(Interrupted), stop.scope():
        work_over_ssh(fleet, "gpu2", poll=60).ask(answers.STATUS)


def test_a_fleet_of_one_has_that_one(fleet: LoopbackFleet) -> None:
    intent = load_fleet(fleet.path)
    assert list(alone(intent, "gpu2").everyone()) == ["gpu2"]
    assert alone(intent, "build1").builders.keys() == {"build1"}


# -- A key that a person enrols at the console: what each answer of a host leads to.


FINGERPRINT = ":".join(["ab"] * 20)
ORDERED = ("rollout", "reboot", "--boot-id", BOOT, "--rollout", "20261121T1054-7f3a")


def answer(state: str, boot: str = BOOT, password: str = "") -> dict[str, Any]:
    return {"state": state, "fingerprint": FINGERPRINT, "boot_id": boot, "password": password}


def scripted_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *answers: Any, boot: str = BOOT
) -> tuple[ScriptedWork, list[str]]:
    """The step on a host that answers in this order, and what it says."""
    monkeypatch.setattr(upgrade, "_certificate", lambda _work: ("-", b"certificate"))
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
    assert upgrade.enrol(host) == {"boot_id": NEXT}
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
        assert upgrade.enrol(host) == {"boot_id": BOOT}
        assert host.calls("rollout", "reboot") == []


def test_a_request_that_nobody_confirmed_is_withdrawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = (answer("absent"), answer("pending", password="x2"), answer("absent", NEXT), answer("absent", NEXT))
    host, _ = scripted_work(tmp_path, monkeypatch, *answers)
    with pytest.raises(HostUnfit, match="the key was not confirmed"):
        upgrade.enrol(host)
    assert host.questions[-1][-1] == "--withdraw"
    assert list(tmp_path.iterdir()) == []


def test_one_that_has_rebooted_already_is_not_rebooted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was killed after the order."""
    host, _ = scripted_work(tmp_path, monkeypatch, answer("enrolled", NEXT))
    assert upgrade.enrol(host) == {"boot_id": NEXT}
    host, _ = scripted_work(tmp_path, monkeypatch, answer("absent", NEXT), answer("absent", NEXT))
    with pytest.raises(HostUnfit):
        upgrade.enrol(host)
    assert host.calls("rollout", "reboot") == []


def test_a_menu_that_was_left_open_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = (answer("absent"), answer("pending", password="x2"), *[HostUnreachable("gpu1: no answer")] * 40)
    host, _ = scripted_work(tmp_path, monkeypatch, *answers)
    with pytest.raises(HostUnreachable, match="no new boot within 60 s: gpu1: no answer"):
        upgrade.enrol(host)


def test_a_host_without_the_key_is_refused_before_it_is_drained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, _ = scripted_work(tmp_path, monkeypatch)
    change = Change("enrol", "/etc/gdsdeploy/modules.der", "absent", "enrolled", "secure-boot", REBOOT)
    with pytest.raises(RolloutRefused, match="doesn't have the key") as caught:
        upgrade.refuse_missing_key(host, Look(HostPlan("gpu1", (change,)), host.machine))
    assert "--enrol-keys" in (caught.value.hint or "")
    upgrade.refuse_missing_key(host, Look(HostPlan("gpu1", ()), host.machine))


# -- Hosts that lie: whatever they answer is refused by name, or stays a text that decides and runs nothing.


ROLLOUT = Path(answers.__file__).parent
QUESTIONS: dict[tuple[str, ...], Question[Any]] = {
    each.words: each for each in vars(answers).values() if isinstance(each, Question)
}
TEMPLATE = "{{ lookup('pipe','touch /tmp/pwned') }}"
LOCKED = {"manager": "dpkg", "broken": [{"package": "a1", "state": "iF"}], "interrupted": False,
          "locks": [{"path": "/var/lib/dpkg/lock", "pid": 7, "program": "apt-get"}]}  # fmt: skip
SPACE = {"/boot": {"bytes": 1}}
DIFFERENCES = [differs("package", "nvidia-driver"), differs("file", "/etc/cufile.json")]
#: Question → an answer with everything in it.
WHOLE: Mapping[tuple[str, str], dict[str, Any]] = {
    ("rollout", "snapshot"): snapshot(),
    ("rollout", "status"): status(packages=LOCKED, space=SPACE),
    ("rollout", "compare"): compared(*DIFFERENCES),
    ("rollout", "keep"): {"archive": "/x"},
    ("rollout", "space"): {"fits": False, "filesystems": [{"fits": False, "says": "/boot is full"}]},
    ("rollout", "once"): {"once": True, "default": OLD},
    ("boot", "needed"): needed("another kernel"),
    ("boot", "show"): {"default": OLD},
    ("boot", "default"): {"changed": True},
    ("guard", "judge"): {"admitted": False, "reasons": ["nvidia.ko is cut off"]},
    ("gate", "run"): {"state": "open", "boot_id": BOOT, "reason": "all passed"},
}
#: Texts for people, which may say anything.
FREE = {
    ("rollout", "snapshot"): {"host", "boot.default_entry", "boot.next_entry", "boot.problem"},
    ("rollout", "status"): {
        *("packages.broken.0.state", "packages.locks.0.path", "packages.locks.0.program", "apply.run", "apply.who"),
    },
    ("rollout", "compare"): {f"differences.{number}.{key}" for number in (0, 1) for key in ("was", "is", "says")},
    ("rollout", "keep"): {"archive"},
    ("rollout", "space"): {"filesystems.0.says"},
    ("boot", "needed"): {"reasons.0"},
    ("guard", "judge"): {"reasons.0"},
    ("gate", "run"): {"state", "reason"},
}


def texts(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of every string, that of a key with a mark before it."""
    if isinstance(value, str):
        yield place
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from texts(inner, (*place, key))
        if isinstance(value, dict):
            yield (*place, ("key", key))


def replaced(whole: dict[str, Any], place: tuple[Any, ...], text: Any) -> dict[str, Any]:
    """A copy with another text at one place."""
    result = copy.deepcopy(whole)
    inner: Any = result
    for part in place[:-1]:
        inner = inner[part]
    last = place[-1]
    if isinstance(last, tuple):
        inner[text] = inner.pop(last[1])
    else:
        inner[last] = text
    return result


def at(value: Any, place: tuple[Any, ...]) -> Any:
    for part in place:
        value = value[part]
    return value


def named(place: tuple[Any, ...]) -> str:
    return ".".join(f"<{part[1]}>" if isinstance(part, tuple) else str(part) for part in place)


def checked(question: tuple[str, ...], document: Any) -> dict[str, Any]:
    return QUESTIONS[question].read("gpu1", document).model_dump(by_alias=True)


def understood(question: tuple[str, str], document: Any) -> dict[str, Any] | str:
    """The answer, or why the host is refused."""
    try:
        return checked(question, document)
    except HostUnfit as error:
        return error.message


@pytest.mark.parametrize("text", [TEMPLATE, "a\nb", "$(touch /tmp/pwned)", "--root=/x", "/etc/shadow", "../../etc/x"])
@pytest.mark.parametrize("question", WHOLE, ids=" ".join)
def test_only_texts_for_people_may_say_anything(question: tuple[str, str], text: str) -> None:
    """Each string in turn is another one: the host is refused by name, or the text comes through, as one line."""
    passed = set()
    for place in texts(WHOLE[question]):
        result = understood(question, replaced(WHOLE[question], place, text))
        if isinstance(result, str):
            assert result.startswith(f"gpu1: its answer to {' '.join(question)} is malformed: ")
            assert "\n" not in result
            continue
        if not isinstance(place[-1], tuple):
            assert at(result, place) == line(text)
            passed.add(named(place))
        else:
            # A key that nothing asks for is dropped.
            assert text not in json.dumps(result)
    if text == TEMPLATE:
        assert passed == FREE.get(question, set())
    else:
        # A path is a path, but not of a file that gdsdeploy writes.
        assert passed >= FREE.get(question, set())
        assert not any(place.startswith(("files.", "provision.")) or place == "differences.1.name" for place in passed)


@pytest.mark.parametrize("manager", ["dpkg", "rpm", ""])
def test_names_of_packages_are_names_whatever_manager_a_host_claims(manager: str) -> None:
    whole = snapshot(manager=manager)
    for place in texts({key: whole[key] for key in ("packages", "provision")}):
        if place[-1] != "version" and place[-1] not in (("key", key) for key in ("version", "held", "installed")):
            assert isinstance(understood(("rollout", "snapshot"), replaced(whole, place, TEMPLATE)), str), place


@pytest.mark.parametrize("value", [None, 1, True, [], {}, ["x"], 1e300, -5, "\ud800", "x" * (1 << 20)])
@pytest.mark.parametrize("question", WHOLE, ids=" ".join)
def test_values_of_other_types_and_sizes_are_refused(question: tuple[str, str], value: Any) -> None:
    for place in texts(WHOLE[question]):
        if isinstance(place[-1], tuple):
            continue
        with pytest.raises(HostUnfit, match="gpu1: its answer"):
            checked(question, replaced(WHOLE[question], place, value))


@pytest.mark.parametrize("document", [None, [], "x", 1, {}, {"version": 2}])
def test_an_answer_is_no_other_document(document: Any) -> None:
    with pytest.raises(HostUnfit, match="gpu1: its answer to rollout status is malformed"):
        checked(("rollout", "status"), document)


def test_rpm_allows_other_names_than_dpkg() -> None:
    named = snapshot(provision={"installed": ["nvidia_Driver.X"], "held": [], "removed": []})
    with pytest.raises(HostUnfit, match=r"'nvidia_Driver\.X' isn't the name of a package"):
        checked(("rollout", "snapshot"), named)
    assert checked(("rollout", "snapshot"), {**named, "manager": "rpm"})["provision"]["held"] == []


def test_what_no_question_asks_for_is_dropped() -> None:
    result = checked(("rollout", "snapshot"), {**snapshot(), "more": TEMPLATE})
    assert result == checked(("rollout", "snapshot"), snapshot())
    assert "more" not in result


def test_an_honest_host_is_understood(tmp_path: Path) -> None:
    """By the very functions that answer there."""
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("0d5cc0ba-0ba4-4f6a-a3d4-2e51dab1d7a8\n")
    (tmp_path / "etc/gdsdeploy").mkdir(parents=True)
    (tmp_path / "etc/gdsdeploy/gate.json").write_text("{}")
    kernel = tmp_path / "lib/modules" / OLD
    (kernel / "kernel").mkdir(parents=True)
    (kernel / "kernel/x.ko").write_text("x")
    (kernel / "updates").mkdir()
    (kernel / "updates/nvidia.ko").write_text("x")
    document = json.loads(json.dumps(host_snapshot.take(["bash"], str(tmp_path))))
    assert checked(("rollout", "snapshot"), document) == document
    assert "updates/nvidia.ko" in document["kernels"][OLD]["files"]
    state = json.loads(json.dumps(host_status.status(str(tmp_path))))
    result = checked(("rollout", "status"), state)
    assert result.items() >= {key: state[key] for key in ("boot_id", "kernel", "devices")}.items()


def test_every_question_that_a_rollout_asks_has_its_answer() -> None:
    questions = set()
    for path in ROLLOUT.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "ask":
                name = getattr(node.args[0], "attr", "")
                questions |= {getattr(answers, name).words} if name.isupper() else set()
    assert len(questions) > 10
    assert questions == QUESTIONS.keys()


@pytest.fixture
def liar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a host is asked, it runs another kernel than there is."""
    answer = Answer("gpu1", status(kernel=TEMPLATE), None, 0.1)
    monkeypatch.setattr(transport, "fan_out", lambda *_, **__: iter([answer]))


@pytest.mark.usefixtures("liar")
def test_steps_get_no_answer_that_was_not_checked() -> None:
    with pytest.raises(HostUnfit, match="gpu1: its answer to rollout status is malformed: kernel: "):
        Work.ask(work(Step.PREFLIGHT, {}), answers.STATUS)


@pytest.mark.usefixtures("liar")
def test_nor_does_the_planning() -> None:
    host = work(Step.PREFLIGHT, {})
    states = preconditions.present_states(host.fleet, host.fleet_path, ["gpu1"], timeout=1)
    assert isinstance(states["gpu1"], HostUnfit)


# -- a whole way back on a host that lies


def lying(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, question: tuple[str, str], document: Any) -> ScriptedWork:
    """A host in the middle of its rollout; to one question it answers with ``document``."""
    replies = {**WHOLE, ("rollout", "status"): status(), ("guard", "judge"): {"admitted": True, "reasons": []}}
    replies[question] = document
    data = {
        "snapshot": replies["rollout", "snapshot"],
        "modules_before": {"mode": "receive", "want": "w", "archive": ""},
    }
    host = work(Step.UNDO, {" ".join(words): answer for words, answer in replies.items()}, data)
    object.__setattr__(host, "logs", tmp_path / "logs")
    monkeypatch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(rollback, "towards_before", lambda _: host)
    monkeypatch.setattr(rollback, "_managed", lambda *_: {"/etc/cufile.json"})
    monkeypatch.setattr(rollback.previous_packages, "fetch_packages", lambda *_: {})
    monkeypatch.setattr(rollback.previous_packages, "offer_packages", lambda *_: nullcontext())
    shelf = SimpleNamespace(folder=tmp_path, keys=SimpleNamespace(folder=tmp_path), look=lambda *_: None)
    monkeypatch.setattr(rollback.assign, "open_run_archives", lambda _: nullcontext(shelf))
    monkeypatch.setattr(upgrade, "inventory", lambda *args: {"all": {"hosts": {"gpu1": dict(args[4])}}})
    monkeypatch.setattr(upgrade, "look_at", lambda *_: SimpleNamespace(plan=HostPlan("gpu1")))
    return host


@pytest.mark.parametrize(
    ("question", "place"),
    [
        (question, place)
        for question in (("rollout", "snapshot"), ("rollout", "status"), ("rollout", "compare"))
        for place in texts(WHOLE[question])
    ],
    ids=lambda value: named(value) if value and value[0] != "rollout" else value[1],
)
def test_nothing_that_a_host_says_reaches_ansible_as_it_likes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, question: tuple[str, str], place: tuple[Any, ...]
) -> None:
    """The way back of a host that answers with a template, in each string in turn: it fails, or never has it."""
    whole = status() if question[1] == "status" else WHOLE[question]
    if question[1] == "status" and place[0] in ("packages", "space"):
        whole = WHOLE[question]
    host = lying(monkeypatch, tmp_path, question, replaced(whole, place, TEMPLATE))
    played: list[str] = []

    def play(command: list[str], *_: Any, **__: Any) -> ansible.Outcome:
        played.append(Path(command[command.index("--inventory") + 1]).read_text())
        return ansible.Outcome(0, {"gpu1": ansible.HostResult()})

    monkeypatch.setattr(ansible, "play", play)
    message = "gpu1: done"
    try:
        rollback.undo(host)
    except GdsError as error:
        message = error.message
    assert message.startswith("gpu1: ")
    assert TEMPLATE not in "".join(played)
    assert "lookup" not in "".join(played)
    assert "pwned" not in "".join(" ".join(words) for words in host.questions)


def test_an_honest_way_back_says_what_was_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = [differs("file", "/etc/modprobe.d/gdsdeploy.conf", ""), differs("file", "/etc/cufile.json")]
    comparison = compared(differs("package", "nvidia-driver"), *files)
    host = lying(monkeypatch, tmp_path, ("rollout", "compare"), comparison)
    variables: list[dict[str, Any]] = []
    monkeypatch.setattr(upgrade, "play", lambda *args: variables.append(args[3]) or [])
    monkeypatch.setattr(rollback, "_differences", lambda *_, **__: [])
    rollback.undo(host)
    (had,) = variables
    assert had["gds_restore_new_packages"] == ["new-one"]
    assert had["gds_restore_installed"] == had["gds_restore_holds"] == ["nvidia-driver"]
    assert had["gds_restore_has_record"] is True
    restore = {name: value for name, value in had.items() if name.startswith("gds_restore_")}
    assert not ArgumentSpecValidator(spec(ROOT / "roles" / "gds_restore")["options"]).validate(restore).error_messages
    # The lock of before answers for cufile.json.
    assert had["gds_restore_files"] == [{"path": "/etc/modprobe.d/gdsdeploy.conf", "sha256": ""}]
    monkeypatch.setattr(rollback, "_managed", lambda *_: set())
    assert rollback._files(host, set()) == [
        {"path": "/etc/cufile.json", "sha256": "2" * 64},
        {"path": "/etc/modprobe.d/gdsdeploy.conf", "sha256": ""},
    ]


def test_a_snapshot_in_the_journal_is_checked_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An older gdsdeploy has written down what hosts said as it was."""
    bad = snapshot(provision={"installed": [TEMPLATE], "held": [], "removed": []})
    host = lying(monkeypatch, tmp_path, ("rollout", "snapshot"), bad)
    with pytest.raises(
        RollbackFailed, match=r"gpu1: its answer to rollout snapshot is malformed: provision\.installed"
    ):
        rollback._restore_variables(host, host)


def test_modules_that_were_kept_lie_where_the_program_keeps_them() -> None:
    """Whatever path a host names."""
    host = work(Step.SNAPSHOT, {"rollout keep": {"archive": "/etc/shadow"}})
    before = SimpleNamespace(supply=Supply("receive", "", ""))
    document = answers.SNAPSHOT.read("gpu1", snapshot(kernels={KERNEL: {"files": {}, "chosen": {}}}))
    archive = upgrade._kept_archive(host, host, before, document)  # type: ignore[arg-type]
    assert archive == f"/var/lib/gdsdeploy/rollout/{host.rollout}/modules-{KERNEL}.tar"
