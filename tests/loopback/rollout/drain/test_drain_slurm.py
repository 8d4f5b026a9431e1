"""Drains by the real Slurm on loopback: jobs that must end first, drains of others, reboots by Slurm itself."""

from __future__ import annotations

import dataclasses
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gdsdeploy.cancel import Stop
from gdsdeploy.errors import DrainFailed, FleetInvalid, Interrupted
from gdsdeploy.host.gate import gate, gate as gate_slurm
from gdsdeploy.host.gate.gate import Node, node_from
from gdsdeploy.model.rollout import Standing, Step, Task
from gdsdeploy.model.rollout_settings import Drain
from gdsdeploy.rollout import drain, session
from gdsdeploy.rollout.drain import SchedulerAway, State, reason_of
from gdsdeploy.run import which
from tests.loopback import loopback_slurm
from tests.loopback.loopback_slurm import Slurm
from tests.patience import SURELY, wait_for
from tests.unit.rollout.asked import BOOT, KERNEL, needed, status, work

REASON = reason_of("20261121T1054-7f3a", "driver 550.163.01 to 560.35.03")
OTHER = reason_of("20261120T0900-0001", "driver 535.1 to 550.163.01")
HOSTS = ("gpu1", "gpu2", "gpu3")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    """Nodes node-gpu1 …, whose Slurm keeps nodes down that reboot unasked."""
    nodes = [f"node-{host}" for host in HOSTS]
    with loopback_slurm.cluster(*nodes, ReturnToService="1", RebootProgram="/bin/true") as daemons:
        yield daemons


@pytest.fixture
def slurm(cluster: Slurm) -> Iterator[Slurm]:
    """Every node in, no job."""
    for node in cluster.nodes:
        cluster.until(lambda state: state.states == ["IDLE"], node)
    yield cluster
    subprocess.run(["scancel", "--user=root"], check=True)
    cluster.settle()


@pytest.fixture
def drainer(slurm: Slurm, tmp_path: Path) -> drain.Slurm:
    return drain.Slurm(["scontrol"], "node-{host}", tmp_path, pause=0.2, patience=1)


class Lines(list[str]):
    """Lines that were told; ``wait`` for one."""

    def __call__(self, line: str) -> None:
        self.append(line)

    def wait(self, text: str) -> str:
        assert wait_for(lambda: any(text in line for line in self)), self
        return next(line for line in self if text in line)


def submit(slurm: Slurm, node: str, script: str, name: str = "train") -> str:
    """A job that runs."""
    argv = [
        "sbatch",
        "--parsable",
        f"--nodelist={node}",
        f"--job-name={name}",
        "--output=/dev/null",
        f"--wrap={script}",
    ]
    job = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()
    slurm.until(lambda state: "ALLOCATED" in state.states, node)
    return job


def in_thread(work: Callable[[], object]) -> Callable[[], object]:
    """Begin ``work``; the answer waits for its end, and returns or raises what it does."""
    ended: list[object] = []

    def run() -> None:
        try:
            ended.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def wait() -> object:
        thread.join(300)
        assert ended, "it did not end"
        if isinstance(ended[0], BaseException):
            raise ended[0]
        return ended[0]

    return wait


def test_a_running_job_ends_before_its_node_is_drained(slurm: Slurm, drainer: drain.Slurm, tmp_path: Path) -> None:
    mark, lines = tmp_path / "ended", Lines()
    job = submit(slurm, "node-gpu1", f"while [ ! -e {tmp_path}/go ]; do sleep 0.1; done; touch {mark}")
    waiting = in_thread(lambda: drainer.drain("gpu1", REASON, timeout=30, progress=lines))
    assert lines.wait(f"job {job}") == f"waiting for job {job} of root (train, running, time left UNLIMITED)"
    assert set(slurm.show("node-gpu1").states) == {"ALLOCATED", "DRAIN"}
    (tmp_path / "go").touch()
    assert waiting() == {"drained": True, "reason": REASON, "was": ""}
    assert mark.exists()
    assert slurm.show("node-gpu1").states == ["IDLE", "DRAIN"]

    refused = subprocess.run(["srun", "--immediate=1", "--nodelist=node-gpu1", "true"], capture_output=True)
    assert refused.returncode != 0
    again = Lines()
    assert drainer.drain("gpu1", REASON, timeout=30, progress=again) == {"drained": True, "reason": REASON, "was": ""}
    assert again == []

    assert drainer.undrain("gpu1", REASON, progress=lines) == {"returned": True, "reason": ""}
    assert drainer.undrain("gpu1", REASON, progress=lines) == {"returned": True, "reason": ""}
    slurm.until(lambda state: state.states == ["IDLE"], "node-gpu1")
    subprocess.run(["srun", "--immediate=15", "--nodelist=node-gpu1", "true"], check=True)


def test_a_job_that_does_not_end_is_named_and_the_drain_stays(slurm: Slurm, drainer: drain.Slurm) -> None:
    job = submit(slurm, "node-gpu1", "sleep 60", name="a|b\nc")
    # Anybody names jobs.
    with pytest.raises(DrainFailed, match=rf"gpu1 is not free of work after 1 s .*job {job} of root \(a\|b, running"):
        drainer.drain("gpu1", REASON, timeout=1, progress=Lines())
    assert slurm.show("node-gpu1").reason == REASON
    # A node whose job is suspended says that it is idle.
    slurm.scontrol("suspend", job)
    slurm.until(lambda state: "IDLE" in state.states, "node-gpu1")
    with pytest.raises(DrainFailed, match=rf"job {job} of root \(a\|b, suspended"):
        drainer.drain("gpu1", REASON, timeout=1, progress=Lines())
    assert drainer.undrain("gpu1", REASON, progress=Lines())["returned"]


def test_a_wish_to_stop_ends_the_wait_and_leaves_the_drain(slurm: Slurm, drainer: drain.Slurm) -> None:
    job, stop, lines = submit(slurm, "node-gpu1", "sleep 60"), Stop(), Lines()

    def work() -> object:
        with stop.scope():
            return drainer.drain("gpu1", REASON, timeout=30, progress=lines)

    waiting = in_thread(work)
    lines.wait(f"job {job}")
    stop.request()
    with pytest.raises(Interrupted):
        waiting()
    assert slurm.show("node-gpu1").reason == REASON


def test_a_drain_of_somebody_else_is_kept_whatever_happens(slurm: Slurm, drainer: drain.Slurm) -> None:
    slurm.set("DRAIN", "DIMM in slot [3] is bad, ask ops@site", "node-gpu1")
    theirs = slurm.show("node-gpu1").reason
    answer = drainer.drain("gpu1", REASON, timeout=60, progress=Lines())
    assert answer == {"drained": False, "reason": theirs, "was": theirs}
    assert drainer.undrain("gpu1", REASON, progress=Lines()) == {"returned": False, "reason": theirs}
    assert "DRAIN" in slurm.show("node-gpu1").states
    # Also one that was set over this rollout's.
    drainer.drain("gpu2", REASON, timeout=60, progress=Lines())
    slurm.set("DRAIN", "fan 3 is loud", "node-gpu2")
    assert drainer.undrain("gpu2", REASON, progress=Lines()) == {"returned": False, "reason": "fan 3 is loud"}
    # And that of another rollout is not this one's to end, only to take over.
    drainer.drain("gpu3", OTHER, timeout=60, progress=Lines())
    assert drainer.undrain("gpu3", REASON, progress=Lines()) == {"returned": False, "reason": OTHER}
    assert drainer.drain("gpu3", REASON, timeout=60, progress=Lines()) == {
        "drained": True,
        "reason": REASON,
        "was": OTHER,
    }
    assert drainer.undrain("gpu3", OTHER, progress=Lines()) == {"returned": False, "reason": REASON}
    assert drainer.undrain("gpu3", REASON, progress=Lines())["returned"]


def test_planning_sees_who_is_out_and_why(slurm: Slurm, drainer: drain.Slurm) -> None:
    slurm.set("DOWN", "fan 3 has stopped", "node-gpu1")
    drainer.drain("gpu2", OTHER, timeout=60, progress=Lines())
    assert drainer.states(["gpu1", "gpu2", "gpu3", "gpu9"]) == {
        "gpu1": State(True, "fan 3 has stopped"),
        "gpu2": State(True, OTHER),
        "gpu3": State(False),
    }


def test_a_reboot_leaves_the_node_drained_and_the_return_takes_it_up(slurm: Slurm, drainer: drain.Slurm) -> None:
    """With ReturnToService=1 Slurm takes a node down that rebooted unasked; UNDRAIN would leave it so."""
    drainer.drain("gpu1", REASON, timeout=60, progress=Lines())
    slurm.reboot_unasked("node-gpu1")
    assert slurm.show("node-gpu1").reason == REASON
    assert drainer.look("gpu1", REASON) is Standing.OURS
    assert drainer.undrain("gpu1", REASON, progress=Lines()) == {"returned": True, "reason": ""}
    slurm.until(lambda state: state.states == ["IDLE"], "node-gpu1")


def test_a_node_that_was_down_before_gets_its_reason_back(slurm: Slurm, drainer: drain.Slurm) -> None:
    slurm.set("DOWN", "fan 3 has stopped", "node-gpu1")
    answer = drainer.drain("gpu1", REASON, timeout=60, progress=Lines())
    assert answer == {"drained": True, "reason": f"{REASON}; was: fan 3 has stopped", "was": "fan 3 has stopped"}
    assert drainer.drain("gpu1", REASON, timeout=60, progress=Lines())["was"] == "fan 3 has stopped"
    assert drainer.undrain("gpu1", REASON, progress=Lines()) == {"returned": False, "reason": "fan 3 has stopped"}
    node = slurm.show("node-gpu1")
    assert "DRAIN" not in node.states
    assert node.reason == "fan 3 has stopped"
    # What Slurm itself had against a host that did not answer is over when it was validated.
    slurm.set("DOWN", "Not responding", "node-gpu2")
    assert drainer.drain("gpu2", REASON, timeout=60, progress=Lines())["was"] == "Not responding"
    assert drainer.undrain("gpu2", REASON, progress=Lines()) == {"returned": True, "reason": ""}


@pytest.mark.parametrize(
    ("was", "answer", "states"),
    [
        ("bad PSU", {"returned": False, "reason": "bad PSU"}, ["DOWN", "DRAIN"]),
        ("Not responding", {"returned": True, "reason": ""}, ["IDLE"]),
    ],
)
def test_a_node_that_slurm_took_up_by_itself_is_down_again(
    slurm: Slurm, drainer: drain.Slurm, was: str, answer: dict[str, object], states: list[str]
) -> None:
    """With ReturnToService=2 a node that was down is idle after its reboot, and has only the rollout's drain."""
    slurm.set("DRAIN", f"{REASON}; was: {was}", "node-gpu1")
    assert drainer.undrain("gpu1", REASON, progress=Lines()) == answer
    slurm.until(lambda node: node.states == states, "node-gpu1")
    assert drainer.undrain("gpu1", REASON, progress=Lines()) == answer


def test_who_keeps_a_node_out_is_asked_before_it_is_disturbed(slurm: Slurm, drainer: drain.Slurm) -> None:
    def look(host: str = "gpu1") -> Standing:
        return drainer.look(host, REASON)

    assert look() is Standing.WORKS
    drainer.drain("gpu1", REASON, timeout=60, progress=Lines())
    assert look() is Standing.OURS
    slurm.set("DRAIN", "DIMM 3 is bad", "node-gpu1")
    assert look() is Standing.THEIRS
    # A person returned it, jobs began, and only then it was drained again.
    slurm.set("UNDRAIN", "", "node-gpu1")
    assert look() is Standing.WORKS
    submit(slurm, "node-gpu1", "sleep 60")
    slurm.set("DRAIN", "DIMM 3 is bad", "node-gpu1")
    assert look() is Standing.WORKS
    subprocess.run(["scancel", "--user=root"], check=True)
    slurm.until(lambda node: "IDLE" in node.states, "node-gpu1")
    # It is down, and comes up by itself as soon as it answers.
    slurm.set("DOWN", "fan 3", "node-gpu2")
    assert look("gpu2") is Standing.WORKS
    slurm.set("DRAIN", OTHER, "node-gpu1")
    with pytest.raises(DrainFailed, match=r"rollout 20261120T0900-0001 has drained this host meanwhile"):
        look()
    with pytest.raises(DrainFailed, match="Node node-gpu9 not found"):
        look("gpu9")


def test_a_host_that_a_person_returns_during_a_pause_is_drained_again(slurm: Slurm, drainer: drain.Slurm) -> None:
    """Its jobs end before it reboots."""
    rebooting = work(
        Step.REBOOT,
        {"rollout status": status(kernel=KERNEL), "boot needed": needed("nvidia is another", running=KERNEL),
         "rollout reboot": {}, "apply --release": {}},
        {"boot_id": BOOT}, reload=False,
    )  # fmt: skip
    object.__setattr__(rebooting, "drainer", drainer)
    draining = dataclasses.replace(rebooting, task=Task("gpu1", Step.DRAIN))
    session._perform(draining)
    slurm.set("RESUME", "", "node-gpu1")
    job = submit(slurm, "node-gpu1", "sleep 60")
    assert session._perform(rebooting) == {"standing": Standing.WORKS, "begun": False}
    assert rebooting.calls("rollout", "reboot") == []
    waiting = in_thread(lambda: session._perform(draining))
    slurm.until(lambda node: {"ALLOCATED", "DRAIN"} <= set(node.states), "node-gpu1")
    subprocess.run(["scancel", job], check=True)
    assert isinstance(answer := waiting(), dict)
    assert answer["drained"]
    assert session._perform(rebooting) == {"how": "reboot", "boot_id": BOOT}
    assert len(rebooting.calls("rollout", "reboot")) == 1
    assert drainer.undrain("gpu1", reason_of(rebooting.rollout, "done"), progress=Lines())["returned"]


def test_two_rollouts_of_one_host_do_not_take_it_from_each_other_for_ever(slurm: Slurm, drainer: drain.Slurm) -> None:
    """The second one may take over what the first left behind; the first one, which lives, lets go."""
    job, lines = submit(slurm, "node-gpu1", "sleep 60"), Lines()
    first = in_thread(lambda: drainer.drain("gpu1", REASON, timeout=30, progress=lines))
    lines.wait(f"job {job}")
    second = in_thread(lambda: drainer.drain("gpu1", OTHER, timeout=30, progress=Lines()))
    with pytest.raises(DrainFailed, match="the rollout 20261120T0900-0001 has drained this host meanwhile"):
        first()
    subprocess.run(["scancel", job], check=True)
    assert second() == {"drained": True, "reason": OTHER, "was": REASON}
    assert drainer.undrain("gpu1", REASON, progress=Lines()) == {"returned": False, "reason": OTHER}


def test_a_reboot_that_slurm_was_asked_for_comes_first(slurm: Slurm, drainer: drain.Slurm) -> None:
    """It would otherwise reboot the host under the rollout as soon as no job is left, and lift the drain."""
    lines = Lines()
    slurm.scontrol("reboot", "ASAP", "nextstate=RESUME", "reason=firmware", "node-gpu1")
    waiting = in_thread(lambda: drainer.drain("gpu1", REASON, timeout=30, progress=lines))
    lines.wait("the reboot that Slurm was asked for")
    slurm.until(lambda state: "REBOOT_ISSUED" in state.states, "node-gpu1")
    slurm.reboot_node("node-gpu1")
    answer = waiting()
    assert isinstance(answer, dict)
    assert answer["drained"]
    assert answer["reason"].startswith(REASON)
    assert not set(slurm.show("node-gpu1").states) & {"REBOOT_REQUESTED", "REBOOT_ISSUED"}
    assert drainer.undrain("gpu1", REASON, progress=lines)["returned"]


def test_the_gate_and_a_rollout_keep_out_of_each_others_way(slurm: Slurm, drainer: drain.Slurm) -> None:
    node = "node-gpu1"
    gate_slurm.apply_step(gate.CLOSED, "driver.flavour failed", node)
    was = "gdsdeploy: driver.flavour failed"
    assert drainer.drain("gpu1", REASON, timeout=60, progress=Lines()) == {
        "drained": True,
        "reason": REASON,
        "was": was,
    }
    # The host boots, and its gate opens: the rollout has yet to validate it.
    assert "keeps its reason" in gate_slurm.apply_step(gate.CLOSED, "the gate has not judged this boot", node)
    assert gate_slurm.apply_step(gate.OPEN, "24 checks passed", node) == f"{node} stays out: {REASON}"
    assert "DRAIN" in slurm.show(node).states
    assert drainer.undrain("gpu1", REASON, progress=Lines()) == {"returned": True, "reason": ""}
    # What the gate finds from then on is its own, also if this is the second try to return the node.
    gate_slurm.apply_step(gate.CLOSED, "storage.path:/mnt/nvme failed", node)
    answer = {"returned": False, "reason": "gdsdeploy: storage.path:/mnt/nvme failed"}
    assert drainer.undrain("gpu1", REASON, progress=Lines()) == answer
    assert gate_slurm.apply_step(gate.OPEN, "24 checks passed", node) == f"{node} is resumed"


def test_the_gate_on_a_node_that_was_down_before_either(slurm: Slurm, drainer: drain.Slurm) -> None:
    slurm.set("DOWN", "fan 3 has stopped", "node-gpu1")
    gate_slurm.apply_step(gate.CLOSED, "driver.flavour failed", "node-gpu1")
    drainer.drain("gpu1", REASON, timeout=60, progress=Lines())
    assert slurm.show("node-gpu1").reason == f"{REASON}; was: fan 3 has stopped"
    assert drainer.undrain("gpu1", REASON, progress=Lines()) == {"returned": False, "reason": "fan 3 has stopped"}


def test_before_a_rollout_it_is_asked_whether_all_of_it_is_possible(
    slurm: Slurm, drainer: drain.Slurm, tmp_path: Path
) -> None:
    assert drainer.check(HOSTS) == []
    assert drainer.check(["gpu1", "gpu8", "gpu9"]) == ["Slurm knows no node node-gpu8 (gpu8), node-gpu9 (gpu9)"]
    nobody = ["setpriv", "--reuid=65534", "--clear-groups", "scontrol"]
    assert drain.Slurm(nobody, "node-{host}", Path("/")).check(["gpu1"]) == [
        "Slurm does not let this user drain nodes: slurm_update error: Invalid user id"
    ]
    one = drain.Slurm(["scontrol"], "node-gpu1", tmp_path).check(["gpu1", "gpu2"])
    assert one == ["rollout.drain.node names a node that another host has, 1 times: node-gpu1"]
    missing = drain.Slurm(["/nowhere/scontrol"], "{host}", tmp_path).check(["gpu1"])
    assert missing == ["cannot ask for Slurm's nodes: /nowhere/scontrol is not installed"]


def test_a_node_that_slurm_does_not_know_fails_at_once(drainer: drain.Slurm) -> None:
    begin = time.monotonic()
    with pytest.raises(DrainFailed, match="Node node-gpu9 not found"):
        drainer.drain("gpu9", REASON, timeout=600, progress=Lines())
    assert time.monotonic() - begin < SURELY


def test_a_controller_that_is_away_for_a_moment_is_asked_again(slurm: Slurm, tmp_path: Path) -> None:
    """A stand-in for scontrol that fails like the real one the first time, and then is the real one."""
    program = tmp_path / "scontrol"
    program.write_text(
        f'#!/bin/sh\n[ -e {tmp_path}/tried ] && exec scontrol "$@"\ntouch {tmp_path}/tried\n'
        "echo 'slurm_load_node error: Unable to contact slurm controller (connect failure)'\nexit 1\n"
    )
    program.chmod(0o755)
    (tmp_path / "squeue").symlink_to(which("squeue"))
    drainer = drain.Slurm([str(program)], "node-{host}", tmp_path, pause=0.1, patience=5)
    assert drainer.drain("gpu1", REASON, timeout=10, progress=Lines())["drained"]
    assert drainer.undrain("gpu1", REASON, progress=Lines())["returned"]


def test_a_scontrol_that_hangs_or_fails_ends_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gdsdeploy.rollout.drain.SECONDS", 0.3)
    program = tmp_path / "scontrol"
    program.write_text("#!/bin/sh\nexec sleep 30\n")
    program.chmod(0o755)
    drainer = drain.Slurm(["./scontrol"], "{host}", tmp_path, pause=0.1, patience=0.5)
    with pytest.raises(SchedulerAway, match="cannot ask for the node gpu1: no end after"):
        drainer.drain("gpu1", REASON, timeout=1, progress=Lines())
    program.write_text("#!/bin/sh\necho 'out of cheese' >&2\nexit 3\n")
    with pytest.raises(SchedulerAway, match=r"(?s)status 3.*scontrol --oneliner show node gpu1.*out of cheese"):
        drainer.undrain("gpu1", REASON, progress=Lines())
    program.write_text("#!/bin/sh\necho 'No nodes in the system'\n")
    with pytest.raises(DrainFailed, match="something else than a node"):
        drainer.drain("gpu1", REASON, timeout=1, progress=Lines())


def test_words_survive_the_shell_at_the_other_end_of_ssh(slurm: Slurm, tmp_path: Path) -> None:
    """An ssh that does what the real one does: it joins its words, and a shell takes them apart."""
    program = tmp_path / "ssh"
    program.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    program.chmod(0o755)
    drainer = drain.Slurm([str(program), "head", "scontrol"], "node-{host}", tmp_path, pause=0.1, patience=1)
    reason = reason_of("1", "it's $HOME; `id` 'now'")
    assert drainer.drain("gpu1", reason, timeout=60, progress=Lines())["reason"] == reason
    assert slurm.show("node-gpu1").reason == reason
    assert drainer.undrain("gpu1", reason, progress=Lines())["returned"]


def test_a_program_that_is_no_scontrol_is_refused(tmp_path: Path) -> None:
    settings = Drain(by="slurm", program=("ssh", "head"))
    with pytest.raises(FleetInvalid, match="does not name scontrol: ssh head"):
        drain.drainer(settings, tmp_path)
    drainer = drain.drainer(Drain(by="slurm", program=("ssh", "head", "/opt/slurm/bin/scontrol")), tmp_path)
    assert isinstance(drainer, drain.Slurm)


@pytest.mark.parametrize(
    ("state", "out"),
    [
        ("IDLE", False),
        ("MIXED*", False),
        ("IDLE+MAINTENANCE+RESERVED", False),
        ("IDLE~", False),
        ("IDLE+CLOUD+POWERED_DOWN", False),
        ("IDLE+NOT_RESPONDING", False),
        ("IDLE+REBOOT_REQUESTED", False),
        ("DOWN*", True),
        ("DOWN*+DRAIN", True),
        ("DOWN+REBOOT_ISSUED", True),
        ("MIXED+DRAIN", True),
        ("IDLE+DRAIN+MAINTENANCE", True),
        ("IDLE+FAIL", True),
        ("IDLE+INVALID_REG", True),
    ],
)
def test_states_of_nodes(state: str, out: bool) -> None:
    node = node_from(f"NodeName=n1 Arch=x86_64 State={state} ThreadsPerCore=1")
    assert drain.Slurm(["scontrol"], "{host}", Path())._state(node).out is out


def test_a_maintenance_reservation_does_not_hold_a_drain_up() -> None:
    change = drain.Slurm(["scontrol"], "{host}", Path())._out(
        Node("n1", ["IDLE", "MAINTENANCE", "RESERVED"], ""), REASON
    )
    assert change == ["State=DRAIN", f"Reason={REASON}"]
