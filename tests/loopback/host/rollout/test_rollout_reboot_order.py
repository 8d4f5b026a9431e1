"""A reboot happens once, and not while packages are half-way; real locks, an imitated boot, no real reboot."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdsdeploy.host import __main__ as program
from gdsdeploy.host.apply.packages import state as packages
from gdsdeploy.host.errors import RolloutError
from gdsdeploy.host.rollout import reboot
from tests.loopback.host.rollout.test_rollout_snapshot import STATUS

FIRST, SECOND = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"
LOCKS = ("lock-frontend", "lock")
#: Takes a lock as apt does, says so, and keeps it until its input ends.
HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def write(root: Path, path: str, text: str) -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def dpkg(root: Path, *states: tuple[str, str]) -> None:
    (root / "var/lib/dpkg/updates").mkdir(parents=True, exist_ok=True)
    rows = [STATUS.format(status=state, name=name, architecture="amd64", version="1") for state, name in states]
    write(root, "var/lib/dpkg/status", "".join(rows))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host whose orders to systemd are counted in the file ``ordered``."""
    write(tmp_path, "proc/sys/kernel/random/boot_id", FIRST + "\n")
    write(tmp_path, "proc/uptime", "100.00 1.0\n")
    dpkg(tmp_path, ("install ok installed", "bash"))
    for name in LOCKS:
        write(tmp_path, f"var/lib/dpkg/{name}", "")

    def later() -> None:
        with (tmp_path / "ordered").open("a") as file:
            file.write("x")

    monkeypatch.setattr(reboot, "_schedule", later)
    monkeypatch.setattr(reboot, "_is_stopping", lambda: False)
    monkeypatch.setattr(reboot, "inhibitors", list)
    monkeypatch.setattr(reboot.syslog, "syslog", lambda *words: None)
    return tmp_path


def orders(root: Path) -> int:
    return len((root / "ordered").read_text()) if (root / "ordered").exists() else 0


def order(root: Path, ident: str = FIRST) -> str:
    return reboot.order(ident, "plan-1", str(root))["did"]


def package(state: str) -> packages.Package:
    return packages.Package("linux-image-9", "amd64", "1", state)


def test_one_boot_is_rebooted_once(root: Path) -> None:
    assert [order(root), order(root), order(root)] == ["ordered", "already ordered", "already ordered"]
    assert orders(root) == 1
    marker = json.loads((root / "run/gdsdeploy/reboot.json").read_text())
    assert (marker["boot_id"], marker["rollout"]) == (FIRST, "plan-1")


def test_another_boot_is_left_alone(root: Path) -> None:
    write(root, "proc/sys/kernel/random/boot_id", SECOND + "\n")
    answer = reboot.order(FIRST, "plan-1", str(root))
    assert (answer["did"], answer["boot_id"], orders(root)) == ("already rebooted", SECOND, 0)
    assert order(root, SECOND) == "ordered", "an order of the boot before does not count in this one"


def test_a_marker_of_the_boot_before_does_not_keep_this_one(root: Path) -> None:
    order(root)
    write(root, "proc/sys/kernel/random/boot_id", SECOND + "\n")
    assert not reboot.of_this_boot(reboot.MARKER, str(root))
    assert order(root, SECOND) == "ordered"


def at_once(root: str, start: object, answers: object) -> None:
    start.wait()  # type: ignore[attr-defined]
    answers.put(reboot.order(FIRST, "", root)["did"])  # type: ignore[attr-defined]


def test_of_many_orders_at_the_same_time_one_counts(root: Path) -> None:
    context = multiprocessing.get_context("fork")
    start, answers = context.Event(), context.Queue()
    workers = [context.Process(target=at_once, args=(str(root), start, answers)) for _ in range(6)]
    for worker in workers:
        worker.start()
    start.set()
    outcomes = sorted(answers.get(timeout=300) for _ in workers)
    for worker in workers:
        worker.join()
    assert outcomes == ["already ordered"] * 5 + ["ordered"]
    assert orders(root) == 1


def test_an_order_that_systemd_lost_can_be_given_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order(root)
    write(root, "proc/uptime", f"{100 + reboot.PATIENCE - 1:.2f} 1.0\n")
    assert order(root) == "already ordered"
    write(root, "proc/uptime", f"{100 + reboot.PATIENCE + 1:.2f} 1.0\n")
    monkeypatch.setattr(reboot, "_is_stopping", lambda: True)
    assert order(root) == "already ordered", "a service may take long to stop"
    monkeypatch.setattr(reboot, "_is_stopping", lambda: False)
    assert (order(root), orders(root)) == ("ordered", 2)


def test_an_order_that_systemd_refuses_is_no_order(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise RolloutError("systemd", "systemd does not take the order")

    monkeypatch.setattr(reboot, "_schedule", refuse)
    with pytest.raises(RolloutError, match="does not take"):
        order(root)
    assert not reboot.of_this_boot(reboot.MARKER, str(root))


@pytest.fixture(params=LOCKS)
def holder(request: pytest.FixtureRequest, root: Path) -> Iterator[subprocess.Popen[str]]:
    path = root / "var/lib/dpkg" / request.param
    argv = [sys.executable, "-c", HOLDER, str(path)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.communicate()


def test_no_reboot_while_a_package_manager_works(root: Path, holder: subprocess.Popen[str]) -> None:
    write(root, f"proc/{holder.pid}/comm", "apt-get\n")
    with pytest.raises(RolloutError) as caught:
        order(root)
    assert caught.value.kind == "packages-busy"
    assert f"apt-get (process {holder.pid}) holds /var/lib/dpkg/lock" in caught.value.message
    assert (orders(root), reboot.of_this_boot(reboot.MARKER, str(root))) == (0, {})
    holder.communicate()
    assert order(root) == "ordered"


def test_looking_at_a_lock_does_not_take_it(root: Path) -> None:
    assert packages.locks(str(root)) == []
    with (root / "var/lib/dpkg/lock").open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        ("install ok half-configured", "iF"),
        ("install ok unpacked", "iU"),
        ("install ok half-installed", "iH"),
        ("install reinstreq half-installed", "iHR"),
    ],
)
def test_no_reboot_with_packages_half_way(root: Path, state: str, shown: str) -> None:
    dpkg(root, ("install ok installed", "bash"), (state, "linux-image-9"))
    assert packages.state(str(root))["broken"] == [{"package": "linux-image-9", "state": shown}]
    with pytest.raises(RolloutError, match="linux-image-9") as caught:
        order(root)
    assert (caught.value.kind, orders(root)) == ("packages-broken", 0)


def test_packages_that_are_gone_or_wait_for_a_trigger_are_no_obstacle(root: Path) -> None:
    dpkg(root, ("deinstall ok config-files", "old"), ("install ok installed", "bash"))
    assert order(root) == "ordered"
    assert [state for state in ("ii ", "it ", "iW ", "rc ", "un ", "hi ") if package(state).broken] == []
    assert all(package(state).broken for state in ("iF ", "iU ", "iH ", "iiR", "rH "))


def test_no_reboot_where_dpkg_was_interrupted(root: Path) -> None:
    write(root, "var/lib/dpkg/updates/0001", STATUS.format(
        name="bash", status="install ok installed", architecture="amd64", version="2"))  # fmt: skip
    with pytest.raises(RolloutError, match="dpkg was interrupted"):
        order(root)


def test_no_reboot_while_somebody_holds_it_up(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reboot, "inhibitors", lambda: ["backup (process 7) keeps this host from shutting down: runs"])
    with pytest.raises(RolloutError, match="backup") as caught:
        order(root)
    assert (caught.value.kind, orders(root)) == ("inhibited", 0)


#: As busctl prints it.
INHIBITORS = (
    'a(ssssuu) 3 "shutdown" "Unattended Upgrades Shutdown" "Stop ongoing upgrades" "delay" 0 612 '
    '"sleep:shutdown" "back \\"up\\"" "copies the disks" "block" 0 714 "idle" "player" "plays" "block" 1000 800\n'
)


def test_who_blocks_and_who_only_delays() -> None:
    assert reboot.blocking(INHIBITORS) == [
        'back "up" (process 714) keeps this host from shutting down: copies the disks'
    ]
    assert reboot.blocking("a(ssssuu) 0\n") == []
    assert reboot.blocking("") == []


@pytest.mark.parametrize("ident", ["", "1", "x" * 36, FIRST.upper().replace("1", "G")])
def test_what_is_no_boot_id_is_refused(ident: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        program.main(["rollout", "reboot", "--boot-id", ident])
    assert ended.value.code == 2
    assert "not a boot id" in capsys.readouterr().err


def test_the_command_answers_for_a_boot_that_has_passed(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["rollout", "reboot", "--boot-id", FIRST, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["did"], answer["kernel"]) == ("already rebooted", os.uname().release)
    assert answer["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
