"""Packages on a host with apt: what changes is predicted, done in one transaction, recorded and taken back."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import process
from gdsdeploy.host.apply import registry
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.packages import managers
from gdsdeploy.host.apply.packages import state as database
from gdsdeploy.host.errors import ApplyError, DesiredError
from gdsdeploy.host.process import Output
from tests.unit.host.apply.apt_host import AptHost, apt, packages, short

__all__ = ["apt"]
TRANSACTION = (
    "apt-get --quiet --assume-yes --option=DPkg::Lock::Timeout=300 --option=Dpkg::Options::=--force-confdef "
    "--option=Dpkg::Options::=--force-confold --no-install-recommends --allow-downgrades --allow-change-held-packages "
    "install "
)


def transactions(apt: AptHost) -> list[str]:
    return [line[len(TRANSACTION) :] for line in apt.changed if line.startswith(TRANSACTION)]


def converges(apt: AptHost, *resources: dict[str, Any]) -> list[str]:
    """The changes that a check predicts, which are those that are made, and which leave nothing to do."""
    expected = short(apt.check(*resources))
    assert short(apt.apply(*resources)) == expected
    done = list(apt.changed)
    assert short(apt.check(*resources)) == []
    assert short(apt.apply(*resources)) == []
    assert apt.changed == []
    apt.changed = done
    return expected


def test_a_host_without_anything_gets_the_locked_versions_held(apt: AptHost) -> None:
    resource = packages(wanted="libcuda1=550-2 nvidia-smi=550-2")
    assert converges(apt, resource) == [
        "install libcuda1 550-2 missing",
        "install nvidia-smi 550-2 missing",
        "hold libcuda1 held not-held",
        "hold nvidia-smi held not-held",
    ]
    assert transactions(apt) == ["libcuda1=550-2 nvidia-smi=550-2"]
    assert apt.text("/var/lib/gdsdeploy/installed") == "libcuda1\nnvidia-smi\n"
    assert apt.text("/var/lib/gdsdeploy/held") == "libcuda1\nnvidia-smi\n"


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
    chosen.unhold(host, ["new"])
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


def test_what_the_resolver_adds_and_removes_is_a_change_too(apt: AptHost) -> None:
    apt.packages = {"libold": ("1", "ii")}
    apt.simulated = (
        "Remv libold [1]\nInst libnew (2 Debian:13 [amd64])\nInst libc6 [2.40] (2.41 Debian:13 [amd64])\n"
        "Inst libcuda1 (550-2 Debian:13 [amd64])\nConf libnew (2 Debian:13 [amd64])\n"
    )
    assert short(apt.check(packages(wanted="libcuda1=550-2"))) == [
        "remove libold 1 dependency",
        "install libcuda1 550-2 missing",
        "install libnew 2 dependency",
        "upgrade libc6 2.40>2.41 dependency",
        "hold libcuda1 held not-held",
    ]
    with pytest.raises(ApplyError, match="doesn't replace: libold 1"):
        apt.apply(packages(wanted="libcuda1=550-2"))
    assert apt.changed == []
    apt.write("/var/lib/gdsdeploy/installed", "libold\n")
    apt.apply(packages(wanted="libcuda1=550-2"))
    assert apt.text("/var/lib/gdsdeploy/installed") == "libcuda1\nlibold\n", "dependencies are apt's own to remove"


def test_a_look_simulates_each_transaction_once_after_those_before_it(apt: AptHost) -> None:
    results = apt.check(packages("driver", wanted="driver=2"), packages("cufile", wanted="cufile=1"))
    assert apt.simulations == ["install driver=2", "install driver=2 cufile=1"]
    assert [short([result])[0] for result in results] == ["install driver 2 missing", "install cufile 1 missing"]


def test_what_an_earlier_transaction_removes_is_refused_there_only(apt: AptHost) -> None:
    apt.packages = {"tool": ("1", "ii")}
    apt.simulated = "Remv tool [1]\nInst driver (2 stack [all])\n"
    first, second = apt.check(packages("driver", wanted="driver=2"), packages("cufile", wanted="cufile=1"))
    assert [refusal.id for refusal in first.refusals] == ["removals"]
    assert second.refusals == []


def test_versions_decide_between_upgrade_and_downgrade(apt: AptHost) -> None:
    apt.packages = dict.fromkeys(("one", "two", "three"), ("1:2.0-1", "ii"))
    resource = packages(wanted="one=1:10.0-1 two=9.9-1 three=1:2.0~rc1-1")
    assert [line.partition(" ")[0] for line in short(apt.check(resource))[:3]] == ["upgrade", "downgrade", "downgrade"]


def test_what_was_there_before_is_not_recorded_as_ours(apt: AptHost) -> None:
    apt.packages = {"dkms": ("3.0-1", "ii"), "kept": ("1", "hi")}
    converges(apt, packages(wanted="dkms=3.2-1 kept=1 new=1"))
    assert apt.text("/var/lib/gdsdeploy/installed") == "new\n"
    assert apt.text("/var/lib/gdsdeploy/held") == "dkms\nnew\n", "what somebody else holds is not ours to let go"


def test_a_hold_that_a_move_loses_comes_back_without_being_a_change(apt: AptHost) -> None:
    apt.packages = {"libcuda1": ("1", "hi"), "libcufile0": ("1", "hi")}
    apt.write("/var/lib/gdsdeploy/held", "libcuda1\nlibcufile0\n")
    driver = packages(wanted="libcuda1=2", along="libcufile0=2")
    cufile = packages("cufile", wanted="libcufile0=2")
    assert converges(apt, driver, cufile) == ["upgrade libcufile0 1>2 version", "upgrade libcuda1 1>2 version"]
    assert {state for _, state in apt.packages.values()} == {"hi"}


def test_what_depends_on_the_old_driver_leaves_with_it_and_comes_again(apt: AptHost) -> None:
    apt.packages = {"driver": ("1", "hi"), "source": ("1", "hi")}
    apt.write("/var/lib/gdsdeploy/held", "driver\nsource\n")
    driver = packages(wanted="driver=2", leaving="source=2", locked="driver source")
    build = packages("modules", wanted="source=2", locked="driver source")
    assert converges(apt, driver, build) == [
        "remove source 1 leaving",
        "upgrade driver 1>2 version",
        "install source 2 missing",
        "hold source held not-held",
    ]
    assert transactions(apt) == ["driver=2 source-", "source=2"]


def test_what_was_built_for_this_version_may_stay(apt: AptHost) -> None:
    apt.packages = {"driver": ("1", "hi"), "source": ("2", "hi")}
    assert "remove" not in " ".join(short(apt.check(packages(wanted="driver=2", leaving="source=2"))))
    apt.packages["driver"] = ("2", "hi")
    assert short(apt.check(packages(wanted="driver=2", leaving="source=3"))) == [], "without a move nothing leaves"


def test_obsolete_holds_of_ours_go_first_and_kernels_keep_theirs(apt: AptHost) -> None:
    apt.packages = dict.fromkeys(("driver", "old", "theirs", "linux-image-6.1"), ("1", "hi"))
    apt.write("/var/lib/gdsdeploy/held", "driver\nlinux-image-6.1\nold\n")
    resource = packages(wanted="driver=2", locked="driver")
    assert converges(apt, resource) == ["unhold old held not-locked", "upgrade driver 1>2 version"]
    assert apt.changed[0] == "apt-mark unhold old"
    assert apt.text("/var/lib/gdsdeploy/held") == "driver\nlinux-image-6.1\n"
    apt.packages["driver"] = ("1", "hi")
    assert short(apt.check(packages(wanted="driver=2"))) == ["upgrade driver 1>2 version"], "nothing is known"


INDEX = {"repository": "x", "uri": "http://x", "suite": "s", "components": ["main"], "host_keyring": "/k.gpg"}
SOURCES = {"resource": "repositories", "desired": {"manager": "apt", "indices": [INDEX]}}


def test_with_sources_that_cannot_be_read_only_the_lock_is_predicted(apt: AptHost) -> None:
    apt.simulated = "Remv libold [1]\nInst libcuda1 (550-2 x [amd64])\n"
    apt.write("/k.gpg", "key")
    words = "E: Failed to fetch http://x/dists/s/InRelease  Could not resolve 'x'"
    apt.failing["apt-get --config-file="] = Output(100, "", f"W: other\n{words}\nE: Some index files failed.\n")
    result = apt.check(SOURCES, packages(wanted="libcuda1=550-2"))[1]
    assert short([result]) == ["install libcuda1 550-2 missing", "hold libcuda1 held not-held"]
    assert result.refusals == []
    why = f"this host can't read the repositories that it will have: {words[3:]}"
    assert result.report == {"removals": {"known": False, "why": why}}


def test_without_room_for_a_look_only_the_lock_is_predicted(apt: AptHost, monkeypatch: pytest.MonkeyPatch) -> None:
    apt.write("/k.gpg", "key")
    monkeypatch.setattr("gdsdeploy.host.apply.host.SCRATCH", str(apt.root / "none"))
    result = apt.check(SOURCES, packages(wanted="libcuda1=550-2"))[1]
    assert short([result]) == ["install libcuda1 550-2 missing", "hold libcuda1 held not-held"]
    assert result.report["removals"]["known"] is False


def test_sources_to_come_are_read_into_a_folder_of_the_look(apt: AptHost) -> None:
    """The host's own sources and lists are there, too; what apt may touch of them is a copy."""
    apt.packages = {"libold": ("1", "ii")}
    apt.simulated = "Remv libold [1]\nInst libcuda1 (550-2 x [amd64])\n"
    apt.write("/k.gpg", "key")
    apt.write("/etc/apt/sources.list.d/own.list", "deb http://own s main\n")
    lists = "/var/lib/apt/lists/"
    for name in ("own_InRelease", "own_Packages", "lock"):
        apt.write(lists + name, name)
    links: dict[str, bool] = {}
    run = apt.run

    def look(argv: list[str], *words: Any, **more: Any) -> Output:
        if argv[-1] == "update":
            (option,) = [word for word in argv if word.startswith("--config-file=")]
            folder = Path(option.partition("=")[2]).parents[1]
            texts["conf"] = (folder / "configuration/apt.conf").read_text()
            texts["ours"] = (folder / "sources/gdsdeploy.sources").read_text()
            links.update({path.name: path.is_symlink() for path in folder.glob("[ls]*/*") if not path.is_dir()})
        return run(argv, *words, **more)

    texts: dict[str, str] = {}
    process.run = look  # the fixture puts it back
    result = apt.check(SOURCES, packages(wanted="libcuda1=550-2"))[1]
    assert links == {"own.list": True, "gdsdeploy.sources": False, "own_InRelease": False, "own_Packages": True}
    assert texts["conf"].startswith("#clear APT::Update;\n"), "hooks of the host's own updates"
    assert "URIs: http://x\n" in texts["ours"]
    assert [refusal.id for refusal in result.refusals] == ["removals"]
    assert result.report == {"removals": {"known": True, "why": ""}}
    assert (apt.looks, apt.changed) == (1, [])


def test_a_transaction_that_apt_refuses_is_never_no_change(apt: AptHost) -> None:
    apt.failing["apt-get --assume-yes --simulate"] = Output(100, "", "E: Unable to correct problems\n")
    result = apt.check(packages(wanted="libcuda1=550-2"))[0]
    assert (result.changes, result.unknown) == ([], ["apt-get --assume-yes: E: Unable to correct problems"])


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
        apt.apply(packages(wanted="one=1 two=1"))
    assert caught.value.kind == "failed"
    assert events == ["one\ntwo\n"]
    assert apt.text("/var/lib/gdsdeploy/installed") == "one\n"
    assert apt.text("/var/lib/gdsdeploy/held") == ""


def test_what_apt_did_not_install_although_it_ended_well_is_said(apt: AptHost) -> None:
    apt.failing["apt-get --quiet"] = Output(0, "", "")
    with pytest.raises(ApplyError, match="did not install: one=1") as caught:
        apt.apply(packages(wanted="one=1"))
    assert caught.value.kind == "verify"


def test_a_full_disk_is_told_from_other_failures(apt: AptHost) -> None:
    output = f"dpkg: error: failed to write ({os.strerror(errno.ENOSPC)})\n" + "more\n" * 30
    apt.failing[TRANSACTION] = Output(100, "", output)
    with pytest.raises(ApplyError, match="no space left") as caught:
        apt.apply(packages(wanted="one=1"))
    assert caught.value.kind == "no-space"


HOLDER = {"path": "/var/lib/dpkg/lock-frontend", "pid": 812, "program": "unattended-upgr"}


def test_a_lock_of_another_process_is_waited_for_and_named(apt: AptHost, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(managers.time, "sleep", waits.append)
    monkeypatch.setattr(database, "locks", lambda _: [HOLDER])
    with pytest.raises(ApplyError, match=r"unattended-upgr \(process 812\), which holds /var/lib/dpkg") as caught:
        apt.apply(packages(wanted="one=1"))
    assert caught.value.kind == "package-manager-locked"
    assert sum(waits) == managers.LOCK_SECONDS
    assert apt.changed == []
    monkeypatch.setattr(database, "locks", lambda _: [HOLDER] if len(waits) < 152 else [])
    waits.clear()
    monkeypatch.setattr(managers.time, "sleep", lambda seconds: waits.extend([seconds] * 76))
    assert short(apt.apply(packages(wanted="one=1")))


def test_a_lock_that_is_taken_meanwhile_is_named_too(apt: AptHost, monkeypatch: pytest.MonkeyPatch) -> None:
    apt.failing[TRANSACTION] = Output(100, "", "E: Could not get lock\n")
    answers = iter([[], [HOLDER]])
    monkeypatch.setattr(database, "locks", lambda _: next(answers))
    with pytest.raises(ApplyError, match="process 812") as caught:
        apt.apply(packages(wanted="one=1"))
    assert caught.value.kind == "package-manager-locked"


def test_what_was_interrupted_is_finished_first(apt: AptHost) -> None:
    apt.packages = {"other": ("1", "iU"), "one": ("1", "iF")}
    apt.simulated = "garbage"
    expected = ["install other 1 unfinished", "install one 1 missing", "hold one held not-held"]
    assert short(apt.check(packages(wanted="one=1"))) == expected
    assert short(apt.apply(packages(wanted="one=1"))) == expected
    assert apt.changed[0] == "dpkg --force-confdef --force-confold --configure --pending"
    assert apt.text("/var/lib/gdsdeploy/installed") == "", "it was there, half-way"


def test_what_cannot_be_finished_may_be_replaced(apt: AptHost) -> None:
    """A build that failed: the locked version, or the removal, is the repair."""
    apt.packages = {"driver": ("1", "iF"), "source": ("1", "iU")}
    apt.failing["dpkg --force-confdef"] = Output(1, "", "post-installation script returned error exit status 10\n")
    resource = packages(wanted="driver=2", leaving="source=2")
    with pytest.raises(ApplyError, match="half-installed"):
        apt.apply(packages(wanted="other=2"))
    apt.simulated = "Remv source [1]\nInst driver [1] (2 x [all])\n"
    apt.packages["source"] = ("1", "ii")
    apt.apply(resource)
    assert apt.packages == {"driver": ("2", "hi")}


def test_what_cannot_be_finished_never_hides_a_removal(apt: AptHost) -> None:
    apt.packages = {"driver": ("1", "iF"), "decode": ("1", "ii")}
    apt.failing["dpkg --force-confdef"] = Output(1, "", "it fails\n")
    apt.simulated = "Remv decode [1]\nInst driver [1] (2 x [all])\n"
    (result,) = apt.check(packages(wanted="driver=2"))
    assert [refusal.id for refusal in result.refusals] == ["removals"]
    with pytest.raises(ApplyError, match="doesn't replace: decode 1"):
        apt.apply(packages(wanted="driver=2"))
    assert "install" not in " ".join(apt.changed)


def test_a_package_that_has_to_be_installed_again_is_repaired(apt: AptHost) -> None:
    apt.packages = {"lost": ("1", "iHR")}
    assert short(apt.check(packages(wanted="driver=2")))[0] == "install lost 1 half-installed"
    apt.apply(packages(wanted="driver=2"))
    assert apt.packages["lost"] == ("1", "ii")
    apt.packages = {"lost": ("1", "iHR")}
    apt.simulated = "Remv slurm [1]\nInst lost [1] (1 x [all])\n"
    with pytest.raises(ApplyError, match="to install them again, apt would remove slurm") as caught:
        apt.apply(packages(wanted="driver=2"))
    assert (caught.value.kind, apt.packages["lost"]) == ("half-installed", ("1", "iHR"))


def test_what_stays_unfinished_is_refused_with_the_commands(apt: AptHost) -> None:
    apt.packages = {"other": ("1", "iF")}
    apt.failing["dpkg --force-confdef"] = Output(1, "", "post-installation script returned error exit status 10\n")
    with pytest.raises(ApplyError, match=r"other: half-installed[^\0]*exit status 10") as caught:
        apt.apply(packages(wanted="one=1"))
    assert caught.value.kind == "half-installed"
    assert "dpkg --configure -a" in caught.value.hint


def test_a_build_that_fails_there_is_explained(apt: AptHost, monkeypatch: pytest.MonkeyPatch) -> None:
    def explain(*_: Any) -> None:
        raise ApplyError("nvidia/550: nv-dma.c does not compile", "take another kernel", "modules")

    monkeypatch.setattr(managers, "_explain_build", explain)
    apt.packages = {"nvidia-dkms": ("1", "iF")}
    apt.failing["dpkg --force-confdef"] = Output(1, "", "exit status 10\n")
    with pytest.raises(ApplyError, match=r"nv-dma\.c") as caught:
        apt.apply(packages(wanted="one=1"))
    assert caught.value.kind == "modules"


@pytest.mark.parametrize("name", ["-y", "a b", "*", "../x", ""])
def test_what_is_no_name_reaches_no_command(apt: AptHost, name: str) -> None:
    resource = packages()
    resource["desired"]["wanted"] = [{"package": name, "version": "1"}]
    with pytest.raises(DesiredError, match="not the name of a package"):
        apt.apply(resource)
    assert apt.changed == []


def revert(apt: AptHost, *, check: bool = False) -> list[str]:
    host = ManagedHost(check=check, root=str(apt.root))
    apt.changed.clear()
    return [f"{change.kind} {change.subject}" for change in registry.resource("packages").revert(host)]


def test_what_was_installed_goes_in_one_transaction(apt: AptHost, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = f"linux-image-{os.uname().release}"
    apt.packages = {"before": ("1", "ii"), "theirs": ("1", "hi")}
    apt.apply(packages(wanted=f"one=1 two=1 before=1 theirs=1 {kernel}=1"))
    apt.packages["two"] = ("1", "rc")
    expected = ["unhold before", f"unhold {kernel}", "unhold one", "remove one", "remove two"]
    assert revert(apt, check=True) == expected
    assert apt.changed == []
    assert revert(apt) == expected
    assert [line for line in apt.changed if "purge" in line] == [
        "apt-get --quiet --assume-yes --option=DPkg::Lock::Timeout=300 purge one two"
    ]
    assert apt.packages == {"before": ("1", "ii"), "theirs": ("1", "hi"), kernel: ("1", "ii")}
    assert apt.text("/var/lib/gdsdeploy/installed") == f"{kernel}\n", "it goes after a reboot"
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "h", "another", "v", "x86_64")))
    assert revert(apt) == [f"remove {kernel}"]
    assert revert(apt) == []
    assert apt.text("/var/lib/gdsdeploy/installed") == ""


def test_packages_that_go_along_are_said(apt: AptHost) -> None:
    apt.packages = {"one": ("1", "ii"), "needs-one": ("3", "ii")}
    apt.write("/var/lib/gdsdeploy/installed", "one\n")
    apt.simulated = "Purg needs-one [3]\nPurg one [1]\n"
    assert revert(apt, check=True) == ["remove one", "remove needs-one"]


def test_modules_are_unloaded_before_packages_that_exchange_them(apt: AptHost) -> None:
    apt.packages = dict.fromkeys(("nvidia-fs", "nvidia-dkms-580-open", "libcufile-13-0"), ("1", "ii"))
    apt.failing = {"systemctl --quiet is-active": Output(3, "", "")}
    table = "nvidia_peermem 1 0 - Live 0x0 (OE)\nnvidia_fs 1 0 - Live 0x0 (OE)\nnvidia 1 1 nvidia_fs, Live 0x0 (OE)\n"
    apt.write("/proc/modules", table)
    assert [line for line in short(apt.check(packages(wanted="libcufile-13-0=2"))) if "unload" in line] == []
    resource = packages(wanted="nvidia-dkms-580-open=2")
    checked = apt.check(resource)
    assert short(checked)[:2] == ["unload nvidia_peermem loaded in-place", "unload nvidia_fs loaded in-place"]
    assert [change.disruption for change in checked[0].changes[:2]] == ["module reload"] * 2
    apt.apply(resource)
    assert apt.changed[:2] == ["rmmod nvidia_peermem", "rmmod nvidia_fs"]
    assert apt.text("/run/gdsdeploy/unloaded") == "nvidia_fs\nnvidia_peermem\n"
    apt.write("/proc/modules", table.replace("nvidia_fs 1 0", "nvidia_fs 1 2"))
    for change in (
        lambda host: registry.resource("packages").revert(host),
        lambda _: apt.apply(packages(wanted="nvidia-fs=2")),
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
    (result,) = apt.check(packages(wanted="nvidia-fs=2"))
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
    resource = packages(wanted="nvidia-dkms-580-open=2")
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
