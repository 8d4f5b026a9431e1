"""The plan of a rollout, and every reason for which it is not begun."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from gdsdeploy.builds.assign import Supply
from gdsdeploy.converge.diff import HostPlan
from gdsdeploy.errors import (
    ControllerUnfit,
    DrainFailed,
    FleetInvalid,
    HostUnreachable,
    LockStale,
    NameUnknown,
    RolloutRefused,
)
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.host.apply.model import REBOOT, Change, Refusal
from gdsdeploy.lock import compat, lockfile, releases
from gdsdeploy.model.events import Kind, RolloutFinished
from gdsdeploy.model.rollout import Step, Wave
from gdsdeploy.preflight import record
from gdsdeploy.preflight.record import ModuleResult
from gdsdeploy.rollout import journal, preconditions, preview as shown
from gdsdeploy.rollout.preconditions import RolloutPreview, choose_participants
from gdsdeploy.rollout.steps.answers import Status
from gdsdeploy.ssh import transport
from gdsdeploy.ssh.endpoint import Answer
from tests.loopback.loopback_fleet import LoopbackFleet
from tests.loopback.loopback_sshd import Sshd, free_port
from tests.unit.rollout.asked import status, work
from tests.unit.rollout.planned_fleet import CHANGE, PATIENT, Drains, PlannedFleet, trial
from tests.unit.sample_rollouts import Story, plan as sample_plan

GOLDEN = """\
rollout ID: 2 hosts to change (1 with a reboot, 1 without a disruption), 1 with the lock already, 2 waves, about 25 min
  lock LOCK, at most 2 out of work at a time
  ✓ gds: kernel 2, driver 550.1: preflight of 2026-11-20: builds and loads

canary: 1 host, halts at 1 failure
  ~ a: [reboot, 20 min] upgrade nvidia-driver; write /etc/cufile.json

wave-2: 2 hosts, halts at 1 failure
  ~ b: [none, 5 min] upgrade nvidia-driver
  = c: has the lock already

– left out: d: in --exclude
! out of work already, and counted as unavailable: d: it is drained: disk
  how long hosts take is a guess: no rollout of this fleet has shown it yet"""


pytestmark = pytest.mark.usefixtures("own_folders")


@pytest.fixture
def make_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., PlannedFleet]:
    def make(*hosts: str, **changed: object) -> PlannedFleet:
        fleet = PlannedFleet(tmp_path, hosts or "abc", **changed)
        fleet.tried()
        fleet.answer(monkeypatch)
        return fleet

    return make


def prepare(
    fleet: PlannedFleet, limit: str | None = None, exclude: str | None = None, **more: object
) -> RolloutPreview:
    intent = fleet.fleet
    chosen = choose_participants(intent, fleet.path, limit, exclude)
    return preconditions.prepare(intent, lockfile.read(lockfile.beside(fleet.path)), fleet.path, chosen, **more)  # type: ignore[arg-type]


def refusal(fleet: PlannedFleet, **more: object) -> str:
    with pytest.raises(RolloutRefused) as caught:
        prepare(fleet, **more).require()  # type: ignore[arg-type]
    return caught.value.message


def test_the_plan_as_people_see_it(make_fleet: Callable[..., PlannedFleet]) -> None:
    fleet = make_fleet("a", "b", "c", "d")
    fleet.plans |= {"b": HostPlan("b", CHANGE[:1]), "c": HostPlan("c")}
    fleet.drains.out["d"] = "disk"
    preview = prepare(fleet, exclude="d")
    preview.require()
    text = shown.text(preview, time.time()).replace(preview.plan.id, "ID").replace(fleet.new.digest[7:19], "LOCK")
    assert text == GOLDEN
    assert fleet.asked == ["a", "b", "c"], "who takes no part is not planned for"
    assert preview.pending == ("a", "b")
    assert preview.satisfied == ("c",)
    assert preview.plan.previous == dict.fromkeys("abc", fleet.old.digest)
    assert (preview.plan.lock_digest, preview.plan.fleet) == (fleet.new.digest, str(fleet.path))
    assert preview.plan.fleet_digest == releases.digest_of(fleet.path)
    assert preview.plan.down == ("d",)
    assert preview.plan.from_json(preview.plan.as_json()) == preview.plan
    value = json.loads(shown.to_json(preview))
    assert value["hosts"]["a"]["disruption"] == "reboot"
    assert value["preflights"][0]["ok"] is True
    assert value["refused"] == []


def test_of_many_changes_those_that_say_most_are_named(make_fleet: Callable[..., PlannedFleet]) -> None:
    fleet, packages = make_fleet("a"), ("nvidia-driver", "linux-image-2", "libcufile0")
    resources = ("packages.driver", "packages.kernel", "packages.cufile")
    fleet.plans["a"] = HostPlan("a", (
        Change("write", "/etc/kernel/guard", resource="guard"), Change("write", "/etc/cufile.json", resource="cufile"),
        Change("boot", "kernel 2", resource="boot_default"), Change("build", "nvidia", resource="modules"),
        *(Change("upgrade", name, resource=resource) for name, resource in zip(packages, resources, strict=True)),
    ))  # fmt: skip
    text = " ".join(shown.text(prepare(fleet), time.time()).split())
    named = [
        "upgrade nvidia-driver",
        "upgrade linux-image-2",
        "upgrade libcufile0",
        "make kernel 2 the kernel that boots",
    ]
    assert f"{'; '.join(named)}; and 3 more" in text


def test_all_reasons_come_at_once(make_fleet: Callable[..., PlannedFleet]) -> None:
    fleet = make_fleet(*"abcde")
    fleet.plans |= {
        "a": HostUnreachable("a: no answer", hint="Is it up?"),
        "b": HostPlan("b", CHANGE, refusals=(Refusal("os", "it runs debian-12"),)),
        "c": HostPlan("c", CHANGE, unknown=("dpkg did not answer",)),
    }
    fleet.supplies = {"d": Supply("receive", "x", "w", lack="build1 did not answer")}
    fleet.drains.against = ["scontrol: permission denied"]
    fleet.locks["e"] = ""
    text = refusal(fleet)
    assert text.startswith("the rollout can't begin, for 6 reasons:\n")
    for line in (
        "  - scontrol: permission denied",
        "  - a: no answer\n    Is it up?",
        "  - b: it runs debian-12",
        "  - c: not everything about it could be read: dpkg did not answer",
        "  - d: no machine builds its modules: build1 did not answer",
        "  - e: it was never provisioned, so it has no earlier state for a rollback\n    Provision it first:",
    ):
        assert line in text


def test_programs_of_the_fleet_file_have_to_be_there(make_fleet: Callable[..., PlannedFleet]) -> None:
    """Programs in its folder count, and those on the PATH."""
    rollout = {**PATIENT, "power_cycle": ["./cycle", "{host}"], "notify": {"command": ["no-such-pager"]}}
    fleet = make_fleet("a", rollout=rollout)
    cycle = fleet.path.parent / "cycle"
    cycle.write_text("#!/bin/sh\n")
    text = refusal(fleet)
    assert f"  - rollout.power_cycle: {cycle} is no program that can be started" in text
    assert "  - rollout.notify.command: no-such-pager is not installed" in text
    cycle.chmod(0o755)
    assert "power_cycle" not in refusal(fleet)


def test_hosts_are_not_silent_where_this_machine_cannot_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, error = PlannedFleet(tmp_path, "a"), ControllerUnfit("this machine cannot look up a: Temporary failure")
    monkeypatch.setattr(preconditions, "ask", lambda *_, **__: iter([(Answer("a", None, error, 0.0), error)]))
    with pytest.raises(ControllerUnfit, match="cannot look up a"):
        preconditions.silent(fleet.fleet, fleet.path, ["a"])


def test_a_stack_that_nobody_has_tried(make_fleet: Callable[..., PlannedFleet]) -> None:
    fleet = make_fleet("a")
    fleet.untried()
    text = refusal(fleet)
    assert "profile gds: kernel 2 with driver 550.1 was never tried" in text
    assert f"gdsdeploy kmod preflight {fleet.path} --profile gds" in text
    failed = ModuleResult("nvidia_fs", record.Answer.NO, record.Answer.NO, error="nvfs-dma.c:412: no member pgmap")
    fleet.tried(builds=record.Answer.NO, modules=(failed,))
    assert "its preflight on 2026-11-20 failed: nvfs-dma.c:412: no member pgmap" in refusal(fleet)
    fleet.tried(loads=record.Answer.UNKNOWN)
    assert "is undecided: it is unknown whether every module would load" in refusal(fleet)


def test_a_proof_in_the_lock_admits_a_stack_until_a_build_fails(
    make_fleet: Callable[..., PlannedFleet],
) -> None:
    fleet = make_fleet("a")
    fleet.untried()
    refusal(fleet)
    target = fleet.new.targets["gds"]
    fleet.new = lockfile.build({"gds": target.model_copy(update={"proof": compat.ingredients(target)})})
    lockfile.write(lockfile.beside(fleet.path), fleet.new)
    prepare(fleet).require()
    assert "✓ gds: kernel 2, driver 550.1: proven by lock --prove: builds and loads" in shown.text(prepare(fleet), 0.0)
    fleet.tried(builds=record.Answer.NO)
    refusal(fleet)


def test_another_nvidia_fs_alone_needs_a_preflight(make_fleet: Callable[..., PlannedFleet]) -> None:
    """The hosts have built and loaded this driver for this kernel; nvidia-fs is all that nobody has tried."""
    fleet = make_fleet("a")
    fleet.untried()
    had = fleet.old.targets["gds"]
    module = had.packages[0].model_copy(update={"package": "nvidia-fs-dkms", "part": "nvidia-fs-source"})
    new = lockfile.build({"gds": had.model_copy(update={"packages": (*had.packages, module)})})
    lockfile.write(lockfile.beside(fleet.path), new)
    text = refusal(fleet)
    assert "profile gds: kernel 1 with driver 550.1 and another nvidia-fs was never tried" in text
    assert f"gdsdeploy kmod preflight {fleet.path} --profile gds" in text
    record.keep(trial(new))
    prepare(fleet).require()


def test_a_stack_that_hosts_have_already_needs_no_preflight(make_fleet: Callable[..., PlannedFleet]) -> None:
    fleet = make_fleet("a")
    fleet.untried()
    changed = fleet.old.targets["gds"].model_copy(update={"libcufile": fleet.old.targets["gds"].libcufile.model_copy(
        update={"version": "1.9.9"})})  # fmt: skip
    lockfile.write(lockfile.beside(fleet.path), lockfile.build({"gds": changed}))
    preview = prepare(fleet)
    assert [(trial.same, trial.ok) for trial in preview.trials] == [(True, True)]
    preview.require()
    assert "as the hosts have it" in shown.text(preview, 0.0)


def test_kept_modules_of_a_builder_need_no_preflight(make_fleet: Callable[..., PlannedFleet]) -> None:
    fleet = make_fleet("a", "b")
    fleet.untried()
    cache = Supply("receive", "x", "w", cached=True, origin="build1")
    for other in (Supply("build", "x", "v"), Supply("receive", "x", "v", builder="build1", origin="build1")):
        fleet.supplies = {"a": cache, "b": other}
        assert "was never tried" in refusal(fleet), "b's modules don't exist yet"
    fleet.supplies = {"a": cache, "b": cache}
    preview = prepare(fleet)
    preview.require()
    assert "✓ gds: kernel 2, driver 550.1: built and audited by build1" in shown.text(preview, 0.0)
    assert json.loads(shown.to_json(preview))["preflights"][0]["builders"] == ["build1"]


def test_a_lock_that_hosts_have_and_this_machine_has_not(
    make_fleet: Callable[..., PlannedFleet], tmp_path: Path
) -> None:
    fleet = make_fleet("a", "b")
    other = lockfile.build({"gds": fleet.old.targets["gds"].model_copy(update={"pins": {"driver": "535"}})})
    fleet.locks = dict.fromkeys("ab", other.digest)
    text = refusal(fleet)
    assert f"  - a, b: it has the lock {other.digest[7:19]}, which isn't kept on this machine" in text
    assert "--from LOCK" in text
    prepare(fleet, since=other).require()
    assert "a, b: it has the lock" in refusal(fleet, since=fleet.old), "another lock is none"


def test_hosts_that_have_the_lock_are_asked_for_nothing_else(make_fleet: Callable[..., PlannedFleet]) -> None:
    fleet = make_fleet("a")
    fleet.plans["a"], fleet.locks["a"] = HostPlan("a"), fleet.new.digest
    fleet.untried()
    preview = prepare(fleet)
    preview.require()
    assert (preview.pending, preview.seconds) == ((), 0.0)


def test_another_rollout_that_is_not_finished(make_fleet: Callable[..., PlannedFleet]) -> None:
    fleet = make_fleet("a")
    with journal.writing(journal.path_of(fleet.path), doing="test") as writer:
        writer.begin(sample_plan((Wave("canary", ("a",), canary=True),)))
        assert "the rollout 20261121T1054-7f3a is not finished" in refusal(fleet)
        writer.append(RolloutFinished({}))
    prepare(fleet).require()


def test_too_many_are_out_of_work_already(make_fleet: Callable[..., PlannedFleet]) -> None:
    fleet = make_fleet(*"abcd")
    fleet.drains.out = {"c": "gdsdeploy rollout 20260101T0000-aaaa: x", "d": ""}
    preview = prepare(fleet, exclude="d,c")
    assert preview.down == {"c": "it was drained by rollout 20260101T0000-aaaa", "d": "it is drained"}
    with pytest.raises(RolloutRefused, match="2 of at most 2 hosts are out of work already: c, d"):
        preview.require()


def test_a_scheduler_that_does_not_answer(
    make_fleet: Callable[..., PlannedFleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise DrainFailed("sinfo: unable to contact slurm controller", hint="Is slurmctld up?")

    monkeypatch.setattr(Drains, "states", fails)
    assert "sinfo: unable to contact slurm controller" in refusal(make_fleet("a"))


def test_the_lock_has_to_fit_the_fleet_file(make_fleet: Callable[..., PlannedFleet]) -> None:
    fleet = make_fleet("a")
    fleet.path.write_text(fleet.path.read_text().replace("os: debian-13", "os: debian-13\n    driver: '535'"))
    with pytest.raises(LockStale):
        prepare(fleet)


@pytest.mark.parametrize(
    ("limit", "exclude", "match"),
    [("x", None, "--limit: .* has no host 'x'"), (None, "x", "--exclude: .* has no host 'x'"),
     ("a", "a,b", "no host is left")],
)  # fmt: skip
def test_names_that_no_host_has(
    limit: str | None, exclude: str | None, match: str, make_fleet: Callable[..., PlannedFleet]
) -> None:
    with pytest.raises((NameUnknown, FleetInvalid), match=match):
        prepare(make_fleet("a", "b"), limit, exclude)


def test_a_host_that_is_skipped_keeps_nobody_back(make_fleet: Callable[..., PlannedFleet]) -> None:
    skipped = {"profile": "gds", "labels": {"gdsdeploy-skip": "CHG-4711"}}
    fleet = make_fleet("a", "b", rollout={})
    fleet.path.write_text(yaml.safe_dump({**fleet.value, "hosts": {"a": "gds", "b": skipped}}))
    fleet.plans["b"] = HostUnreachable("b: no answer")
    preview = prepare(fleet)
    preview.require()
    assert fleet.asked == ["a"]
    assert preview.plan.skipped == {"b": "it has the label gdsdeploy-skip"}
    with pytest.raises(FleetInvalid, match="no host is left"):
        prepare(fleet, "b")


def test_canaries_that_are_left_out_have_a_stand_in(make_fleet: Callable[..., PlannedFleet]) -> None:
    fleet = make_fleet("a", "b", "c", rollout={"canary": {"hosts": ["a"], "per_kind": False}})
    assert [wave.hosts for wave in prepare(fleet, "b,c").plan.waves] == [("b",), ("c",)]
    assert prepare(fleet).plan.waves[0].hosts == ("a",)
    assert prepare(fleet, exclude="a").plan.waves[0].canary
    fleet.path.write_text(fleet.path.read_text().replace("- a\n", "- x\n"))
    with pytest.raises(FleetInvalid, match="'x' names no host"):
        prepare(fleet, "b,c")


def test_a_builder_of_those_who_take_part_takes_part(make_fleet: Callable[..., PlannedFleet]) -> None:
    profiles = {
        "gds": {"os": "debian-13", "repositories": [], "builder": "build1"},
        "other": {"os": "debian-13", "repositories": []},
    }
    builders = {"build1": "gds", "build2": "other"}
    fleet = make_fleet("a", "b", profiles=profiles, builders=builders)
    chosen = choose_participants(fleet.fleet, fleet.path, "a", None)
    assert (chosen.names, dict(chosen.others)) == (["build1", "a"], {"b": "not in --limit"})
    waves = prepare(fleet, "a").plan.waves
    assert [(wave.name, wave.hosts, wave.drain) for wave in waves][:2] == [
        ("builders", ("build1",), False), ("canary", ("a",), True),
    ]  # fmt: skip


def test_times_come_from_earlier_rollouts(make_fleet: Callable[..., PlannedFleet]) -> None:
    fleet = make_fleet("a", "b", "c")
    story = Story(sample_plan((Wave("canary", ("a", "b"), canary=True),)))
    story.upgrade("a")
    story.upgrade("b", until=Step.VALIDATE, error={"message": "no"})
    story.undo("b")
    story.say(Kind.FINISHED, outcomes={})
    with journal.writing(journal.path_of(fleet.path), doing="test", wall=lambda: 0.0) as writer:
        writer.begin(story.plan)
    times = iter(event.time for event in story.events[1:])
    with journal.writing(journal.path_of(fleet.path), doing="test", wall=lambda: next(times)) as writer:
        writer.go_on(story.plan.id)
        writer.append_many([(event.host, event.payload) for event in story.events[1:]])
    fleet.plans["c"] = HostPlan("c", CHANGE[:1])
    preview = prepare(fleet)
    took = sum([4, 95, 12, 140, 180, 6, 3, 110, 40, 2])
    assert preview.plan.expected == {"a": took, "b": took, "c": 300.0}, "b failed, which shows nothing"
    assert preview.measured


def test_what_real_hosts_say(sshd: Callable[..., Sshd], tmp_path: Path) -> None:
    """Against a real SSH server on loopback that leads to this machine."""
    right = {"profile": "right"}
    fleet = LoopbackFleet(tmp_path, sshd(), {"gpu1": right, "gone": {**right, "port": free_port()}, "other": right})
    intent = load_fleet(fleet.path)
    lock = lockfile.read(lockfile.beside(fleet.path))
    record.keep(trial(lockfile.build({"right": lock.targets["right"]})))
    chosen = choose_participants(intent, fleet.path, "gpu1", None)
    preview = preconditions.prepare(intent, lockfile.read(lockfile.beside(fleet.path)), fleet.path, chosen, timeout=60)
    assert set(preview.down) == {"gone"}, "of those that take no part only who does not answer is down"
    # The one that takes part: its plan, what building would change since its builder takes no part, and its status.
    assert fleet.sessions() == 3 + 1, "the others are only knocked at"
    with pytest.raises(RolloutRefused) as caught:
        preview.require()
    assert "gpu1: it was never provisioned" in caught.value.message or "gpu1: it runs" in caught.value.message


def test_what_a_host_says_beside_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was never provisioned has no lock, and one without a word for itself is left out."""
    lock = "sha256:" + "1" * 64
    documents = [status(kernel="6.12", lock_digest=lock), status(kernel="6.13", devices=""), None]
    answers = [Answer(f"gpu{number}", document, None, 0.1) for number, document in enumerate(documents)]
    monkeypatch.setattr(transport, "fan_out", lambda *_, **__: iter(answers))
    host = work(Step.PREFLIGHT, {})
    states = preconditions.present_states(host.fleet, host.fleet_path, [], timeout=1)
    assert states == {f"gpu{number}": Status.model_validate(documents[number]) for number in (0, 1)}


def test_a_large_plan_stays_readable(make_fleet: Callable[..., PlannedFleet]) -> None:
    lines = shown.text(prepare(make_fleet(*(f"n{n}" for n in range(60)), rollout={})), time.time()).splitlines()
    assert max(map(len, lines)) < 140
    assert len(lines) < 40
    assert [line for line in lines if line.startswith("  ~ n[") and "-" in line[:12]], lines


def test_hosts_that_take_no_part_are_one_line_a_reason(make_fleet: Callable[..., PlannedFleet]) -> None:
    lines = shown.text(prepare(make_fleet(*(f"n{number}" for number in range(60))), "n1"), time.time()).splitlines()
    (line,) = [line for line in lines if "left out" in line]
    assert line == "– left out: n[0,2-59]: not in --limit"


def test_hosts_without_the_key_of_their_modules_are_refused_or_wait_for_a_person(
    make_fleet: Callable[..., PlannedFleet],
) -> None:
    fleet = make_fleet("a", "b", "c")
    key = Change("enrol", "/etc/gdsdeploy/modules.der", "absent", "enrolled", "secure-boot", REBOOT)
    fleet.plans |= {"b": HostPlan("b", (*CHANGE, key))}
    text = refusal(fleet)
    assert "  - b: Secure Boot is on, and the firmware doesn't have the key of the modules" in text
    assert "--enrol-keys" in text
    preview = prepare(fleet, enrol_keys=True)
    preview.require()
    assert [(wave.hosts, wave.console) for wave in preview.plan.waves] == [
        (("a",), False), (("c",), False), (("b",), True),
    ]  # fmt: skip
    assert "enrols" in shown.text(preview, time.time())
