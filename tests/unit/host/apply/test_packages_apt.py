"""Packages on a host with apt: what changes is predicted, done in one transaction, recorded and taken back."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

from gdsdeploy.host import process
from gdsdeploy.host.apply import registry
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.packages import left, managers, state as database
from gdsdeploy.host.errors import ApplyError, DesiredError
from gdsdeploy.host.process import Output
from tests.unit.host import cases
from tests.unit.host.apply.apt_host import TRANSACTION, AptHost, apt, packages, revert, run_case, short

__all__ = ["apt"]
CASES = cases.load("apply/apt_packages")


@pytest.mark.parametrize("name", CASES)
def test_case(name: str, apt: AptHost) -> None:
    run_case(apt, CASES[name], lambda _, desired: packages(**desired), "packages")


def test_no_call_asks_a_question_or_lets_needrestart_restart_services(apt: AptHost) -> None:
    """Everything that changes packages: a transaction, a removal, holds, and each repair."""
    chosen, host = managers.manager("apt"), ManagedHost(root=str(apt.root))
    apt.packages = {"half": ("1", "iF"), "gone": ("1", "iF"), "lost": ("1", "iHR"), "old": ("1", "ii")}
    chosen.refresh(host)
    chosen.refresh_offer(host)
    chosen.finish(host)
    apt.packages["gone"] = ("1", "iF")
    host.forget()
    apt.failing = {"dpkg --force": Output(1, "", "it fails")}
    chosen.repair(host, ["gone"])
    chosen.reinstall(host)
    chosen.install(host, [managers.Package("new", "1")], [])
    chosen.hold(host, ["new"])
    chosen.hold(host, ["new"], held=False)
    chosen.purge(host, ["old"])
    chosen.purge(host, ["new"], with_held=True)
    programs = [line.partition(" ")[0] for line in apt.changed]
    assert (programs.count("apt-get"), programs.count("apt-mark"), programs.count("dpkg")) == (6, 2, 2)
    for environment in apt.environments:
        assert environment == {
            "DEBIAN_FRONTEND": "noninteractive",
            "APT_LISTCHANGES_FRONTEND": "none",
            "LC_ALL": "C",
            "NEEDRESTART_SUSPEND": "1",
            "NEEDRESTART_MODE": "l",
        }


def test_what_an_earlier_transaction_removes_is_refused_there_only(apt: AptHost) -> None:
    apt.packages = {"tool": ("1", "ii")}
    apt.simulated = "Remv tool [1]\nInst driver (2 stack [all])\n"
    first, second = apt.check(packages("driver", packages="driver=2"), packages("cufile", packages="cufile=1"))
    assert [refusal.id for refusal in first.refusals] == ["removals"]
    assert second.refusals == []


def test_a_package_of_another_architecture_is_another_one(apt: AptHost) -> None:
    """What of i386 is replaced leaves, too; what of it is half-installed comes again as that; its hold is its own."""
    apt.packages = {"gl": ("1", "ii"), "gl:i386": ("1", "ii"), "driver:i386": ("1", "ii")}
    apt.offered = {"driver=2": "a", "driver:i386=2": "b", "lost:i386=1": "c"}
    apt.stanzas = {"driver=2": "Replaces: gl\n", "driver:i386=2": "Replaces: gl\n"}
    apt.simulated = (
        "Remv gl:i386 [1]\nRemv gl [1]\nInst driver (2 stack [amd64])\nInst driver:i386 [1] (2 stack [i386])\n"
    )
    (result,) = apt.check(packages(packages="driver=2"))
    assert [(change.subject, change.reason) for change in result.changes if change.kind == "remove"] == [
        ("gl:i386", "replaced-by"), ("gl", "replaced-by"),
    ]  # fmt: skip
    assert result.refusals == []
    apt.simulated = None
    apt.apply(packages(packages="driver=2"))
    assert apt.text(managers.INSTALLED) == "driver\n", "only that of i386 was there"
    apt.packages["lost:i386"] = ("1", "iHR")
    managers.manager("apt").reinstall(ManagedHost(root=str(apt.root)))
    assert apt.changed[-1].endswith(" lost:i386=1")
    assert left.parse("gl:i386=1 automatic\n") == [left.Left("gl:i386", "1", is_manual=False)]


INDEX = {"repository": "x", "uri": "http://x", "suite": "s", "components": ["main"], "host_keyring": "/k.gpg"}
SOURCES = {"resource": "repositories", "desired": {"manager": "apt", "indices": [INDEX]}}


PINS = {"resource": "pins", "desired": {"manager": "apt", "indices": [INDEX], "deny": ["libold"]}}


@pytest.mark.parametrize("earlier", [SOURCES, PINS], ids=["repositories", "pins"])
def test_until_repositories_and_pins_are_written_only_the_lock_is_known(apt: AptHost, earlier: dict[str, Any]) -> None:
    apt.packages = {"libold": ("1", "ii")}
    apt.simulated = "Remv libold [1]\nInst libcuda1 (550-2 x [amd64])\n"
    apt.write("/k.gpg", "key")
    result = apt.check(earlier, packages(packages="libcuda1=550-2"))[1]
    assert short([result]) == ["install libcuda1 550-2 missing", "hold libcuda1 held not-held"]
    assert (result.refusals, apt.simulations) == ([], [])
    why = "the host has no repositories and pins of this lock yet"
    assert result.report == {"removals": {"known": False, "why": why}}
    apt.apply(earlier)
    result = apt.check(earlier, packages(packages="libcuda1=550-2"))[1]
    assert [refusal.id for refusal in result.refusals] == ["removals"]
    assert result.report == {"removals": {"known": True, "why": ""}}


def test_nothing_is_installed_before_what_follows_could_be_refused(apt: AptHost) -> None:
    """The second set would take a tool away, and a plan says it once."""
    apt.packages = {"tool": ("1", "ii")}

    def resolve(words: list[str]) -> str:
        removal = "Remv tool [1]\n" if "cufile=2" in words else ""
        return removal + AptHost._simulate(apt, words)

    apt._simulate = resolve  # type: ignore[method-assign]
    pins = [{"package": name, "version": "2"} for name in ("driver", "cufile")]
    first = {"resource": "removals", "desired": {"manager": "apt", "pins": pins}}
    sets = packages("driver", packages="driver=2"), packages("cufile", packages="cufile=2")
    message = "the locked packages would remove installed ones that the lock doesn't replace: tool 1"
    results = apt.check(first, *sets)
    assert [[refusal.message for refusal in result.refusals] for result in results] == [[message], [], []]
    assert short(results[2:])[0] == "remove tool 1 dependency"
    with pytest.raises(ApplyError, match=message):
        apt.apply(first)
    assert apt.changed == []


def test_a_record_is_written_before_the_transaction(apt: AptHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in the middle, nothing of ours is left unrecorded; what did not come is not claimed."""
    events: list[str] = []
    run = apt.run

    def watch(argv: list[str], timeout: float, env: Any = None, **how: Any) -> Output:
        if " ".join(argv).startswith(TRANSACTION):
            events.append(apt.text("/var/lib/gdsdeploy/installed"))
            apt.packages["one"] = ("1", "iF")
            return Output(100, "", "dpkg: error processing package one\n")
        return run(argv, timeout, env, **how)

    monkeypatch.setattr(process, "run", watch)
    with pytest.raises(ApplyError, match="dpkg: error processing package one") as caught:
        apt.apply(packages(packages="one=1 two=1"))
    assert caught.value.kind == "failed"
    assert events == ["one\ntwo\n"]
    assert apt.text("/var/lib/gdsdeploy/installed") == "one\n"
    assert apt.text("/var/lib/gdsdeploy/held") == ""


def test_a_full_disk_is_told_from_other_failures(apt: AptHost) -> None:
    output = f"dpkg: error: failed to write ({os.strerror(errno.ENOSPC)})\n" + "more\n" * 30
    apt.failing[TRANSACTION] = Output(100, "", output)
    with pytest.raises(ApplyError, match="no space left") as caught:
        apt.apply(packages(packages="one=1"))
    assert caught.value.kind == "no-space"


HOLDER = {"path": "/var/lib/dpkg/lock-frontend", "pid": 812, "program": "unattended-upgr"}


def test_a_lock_of_another_process_is_waited_for_and_named(apt: AptHost, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(managers.time, "sleep", waits.append)
    monkeypatch.setattr(database, "locks", lambda _: [HOLDER])
    with pytest.raises(ApplyError, match=r"unattended-upgr \(process 812\), which holds /var/lib/dpkg") as caught:
        apt.apply(packages(packages="one=1"))
    assert caught.value.kind == "package-manager-locked"
    assert sum(waits) == managers.LOCK_SECONDS
    assert apt.changed == []
    monkeypatch.setattr(database, "locks", lambda _: [HOLDER] if len(waits) < 152 else [])
    waits.clear()
    monkeypatch.setattr(managers.time, "sleep", lambda seconds: waits.extend([seconds] * 76))
    assert short(apt.apply(packages(packages="one=1")))


def test_a_lock_that_is_taken_meanwhile_is_named_too(apt: AptHost, monkeypatch: pytest.MonkeyPatch) -> None:
    apt.failing[TRANSACTION] = Output(100, "", "E: Could not get lock\n")
    answers = iter([[], [HOLDER]])
    monkeypatch.setattr(database, "locks", lambda _: next(answers))
    with pytest.raises(ApplyError, match="process 812") as caught:
        apt.apply(packages(packages="one=1"))
    assert caught.value.kind == "package-manager-locked"


def test_a_build_that_fails_there_is_explained(apt: AptHost, monkeypatch: pytest.MonkeyPatch) -> None:
    def explain(*_: Any) -> None:
        raise ApplyError("nvidia/550: nv-dma.c does not compile", "take another kernel", "modules")

    monkeypatch.setattr(managers, "_explain_build", explain)
    apt.packages = {"nvidia-dkms": ("1", "iF")}
    apt.failing["dpkg --force-confdef"] = Output(1, "", "exit status 10\n")
    with pytest.raises(ApplyError, match=r"nv-dma\.c") as caught:
        apt.apply(packages(packages="one=1"))
    assert caught.value.kind == "modules"


@pytest.mark.parametrize("name", ["-y", "a b", "*", "../x", ""])
def test_what_is_no_name_reaches_no_command(apt: AptHost, name: str) -> None:
    resource = packages()
    resource["desired"]["packages"] = [{"package": name, "version": "1"}]
    with pytest.raises(DesiredError, match="not the name of a package"):
        apt.apply(resource)
    assert apt.changed == []


def test_what_was_installed_goes_in_one_transaction(apt: AptHost, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = f"linux-image-{os.uname().release}"
    apt.packages = {"before": ("1", "ii"), "theirs": ("1", "hi")}
    apt.apply(packages(packages=f"one=1 two=1 before=1 theirs=1 {kernel}=1"))
    apt.packages["two"] = ("1", "rc")
    expected = ["unhold before", f"unhold {kernel}", "unhold one", "remove one", "remove two"]
    assert revert(apt, "packages", check=True) == expected
    assert apt.changed == []
    assert revert(apt, "packages") == expected
    assert [line for line in apt.changed if "purge" in line] == [
        "apt-get --quiet --assume-yes --option=DPkg::Lock::Timeout=300 purge one two"
    ]
    assert apt.packages == {"before": ("1", "ii"), "theirs": ("1", "hi"), kernel: ("1", "ii")}
    assert apt.text("/var/lib/gdsdeploy/installed") == f"{kernel}\n", "it goes after a reboot"
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "h", "another", "v", "x86_64")))
    assert revert(apt, "packages") == [f"remove {kernel}"]
    assert revert(apt, "packages") == []
    assert apt.text("/var/lib/gdsdeploy/installed") == ""


def test_modules_are_unloaded_before_packages_that_exchange_them(apt: AptHost) -> None:
    apt.packages = dict.fromkeys(("nvidia-fs", "nvidia-dkms-580-open", "libcufile-13-0"), ("1", "ii"))
    apt.failing = {"systemctl --quiet is-active": Output(3, "", "")}
    table = "nvidia_peermem 1 0 - Live 0x0 (OE)\nnvidia_fs 1 0 - Live 0x0 (OE)\nnvidia 1 1 nvidia_fs, Live 0x0 (OE)\n"
    apt.write("/proc/modules", table)
    assert [line for line in short(apt.check(packages(packages="libcufile-13-0=2"))) if "unload" in line] == []
    resource = packages(packages="nvidia-dkms-580-open=2")
    checked = apt.check(resource)
    assert short(checked)[:2] == ["unload nvidia_peermem loaded in-place", "unload nvidia_fs loaded in-place"]
    assert [change.disruption for change in checked[0].changes[:2]] == ["module reload"] * 2
    apt.apply(resource)
    assert apt.changed[:2] == ["rmmod nvidia_peermem", "rmmod nvidia_fs"]
    assert apt.text("/run/gdsdeploy/unloaded") == "nvidia_fs\nnvidia_peermem\n"
    apt.write("/proc/modules", table.replace("nvidia_fs 1 0", "nvidia_fs 1 2"))
    for change in (
        lambda host: registry.resource("packages").revert(host),
        lambda _: apt.apply(packages(packages="nvidia-fs=2")),
    ):
        apt.write("/var/lib/gdsdeploy/installed", "nvidia-fs\n")
        apt.changed.clear()
        with pytest.raises(ApplyError, match="nvidia_fs has 2 references that belong to no visible process") as caught:
            change(ManagedHost(root=str(apt.root)))
        assert caught.value.kind == "in-use"
        assert [line for line in apt.changed if not line.startswith("apt-mark")] == []


def test_a_check_names_what_uses_a_module_that_leaves(apt: AptHost) -> None:
    apt.packages = {"nvidia-fs": ("1", "ii")}
    apt.write("/proc/modules", "nvidia_fs 1 3 lnet, Live 0x0 (OE)\nnvidia_peermem 1 0 - Live 0x0 (OE)\n")
    apt.write("/proc/7/comm", "python3\n")
    (apt.root / "proc/7/fd").mkdir()
    (apt.root / "proc/7/fd/3").symlink_to("/dev/nvidia-fs0")
    (result,) = apt.check(packages(packages="nvidia-fs=2"))
    assert [(change.subject, change.users) for change in result.changes if change.kind == "unload"] == [
        ("nvidia_peermem", ()),
        ("nvidia_fs", ("python3 (process 7) has /dev/nvidia-fs0 open", "the module lnet uses nvidia_fs")),
    ]
    (change, *_) = [change for change in result.to_json()["changes"] if change["subject"] == "nvidia_fs"]
    assert change["users"] == result.changes[1].users


def test_the_unit_of_peermem_stops_with_its_module_and_an_rdma_program_keeps_both(apt: AptHost) -> None:
    """An RDMA program that also has a GPU loses its registrations when the module goes."""
    apt.packages = {"nvidia-dkms-580-open": ("1", "ii")}
    apt.write("/proc/modules", "nvidia_peermem 1 0 - Live 0x0 (OE)\n")
    for pid, files in {7: ("/dev/infiniband/uverbs0", "/dev/nvidia0"), 8: ("/dev/infiniband/uverbs0",)}.items():
        apt.write(f"/proc/{pid}/comm", "python3\n")
        (apt.root / f"proc/{pid}/fd").mkdir()
        for number, file in enumerate(files):
            (apt.root / f"proc/{pid}/fd/{number}").symlink_to(file)
    resource = packages(packages="nvidia-dkms-580-open=2")
    with pytest.raises(ApplyError) as caught:
        apt.apply(resource)
    message = "nvidia_peermem can't be unloaded: python3 (process 7) has /dev/infiniband/uverbs0 open"
    assert caught.value.message == message
    (apt.root / "proc/7/fd/1").unlink()
    apt.apply(resource)
    assert [line for line in apt.changed if "systemctl" in line or "rmmod" in line] == [
        "systemctl --quiet is-active gds-peermem.service",
        "systemctl stop gds-peermem.service",
    ]
    assert apt.text("/run/gdsdeploy/unloaded") == "gds-peermem.service\nnvidia_peermem\n"
