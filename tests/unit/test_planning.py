"""A machine that is as the lock wants it has an empty plan; whatever moves is named, with its reason and disruption.

The machine is imagined, from what the roles themselves would leave behind; a real one is in the lab's story.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy import lockfile, planning
from gdsdeploy.answer import Answer
from gdsdeploy.errors import HostUnreachable
from gdsdeploy.host import survey as surveys
from gdsdeploy.inventory import inventory
from gdsdeploy.load import load_fleet
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.plan import ARCHIVE, HostPlan
from gdsdeploy.planning import Machine

LAB = Path(__file__).parents[1] / "golden" / "lab"
LOCK = lockfile.read(LAB / "gdsdeploy.lock")
RELEASE = LOCK.targets["gds"].kernel.release
PREFERENCES = "/etc/apt/preferences.d/00-gdsdeploy.pref"

Evidence = dict[str, Any]
Change = Callable[[Evidence], None]


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        program = planning.sources(load_fleet(LAB / "fleet.yml"), LOCK, LAB).program
        # Packed once; it is the same for every test.
        patch.setattr(planning.hostapp, "keep", lambda *_: program)
        yield


def machine(name: str, fleet: Fleet | None = None, *, delivered: bool = True) -> Machine:
    fleet = fleet or load_fleet(LAB / "fleet.yml")
    group, values = planning.variables(inventory(fleet, LOCK, planning.sources(fleet, LOCK, LAB)))[name]
    if values["gds_modules_archive"]:
        archive = Path(values["gds_modules_archive"])
        archive.parent.mkdir(exist_ok=True)
        archive.write_bytes(b"modules") if delivered else archive.unlink(missing_ok=True)
    return Machine(fleet, LOCK, name, group, values)


def self_building() -> Fleet:
    fleet = load_fleet(LAB / "fleet.yml")
    profile = fleet.profiles["gds"].model_copy(update={"builder": None})
    return fleet.model_copy(update={"profiles": {"gds": profile}, "builders": {}})


def converged(made: Machine) -> Evidence:
    """What a machine answers on which the roles have nothing left to do."""
    survey, empty = made.survey, {"status": 0, "stdout": "", "stderr": ""}
    locked = {p.package: p for p in LOCK.targets["gds"].packages}
    lines = [f"{name}\t{locked[name].version}\t{locked[name].architecture}\thi \n" for name in survey.packages]
    evidence: Evidence = {
        "host": {"uname": {"machine": "x86_64"}},
        "files": {"/etc/os-release": 'ID=debian\nVERSION_ID="13"\n'},
        "commands": {
            **dict.fromkeys(survey.commands, empty),
            "dpkg-query": {**empty, "stdout": "".join(lines)},
        },
        "managed": {},
        "answers": {
            "boot-default": {"changes": []},
            "modules": {"changes": []},
            "audit": {"objections": []},
            "dkms": {"installed": ["nvidia-current-open/550.163.01", "nvidia-fs/2.19.7"]},
            "reboot": {"needed": False, "reasons": [], "unloaded": []},
        },
        "gaps": [],
    }
    entry = {"kind": "file", "mode": "0644", "uid": 0, "gid": 0}
    archive = hashlib.sha256(b"modules").hexdigest()
    evidence["managed"] = {path: {**entry, "sha256": archive} for path in survey.paths}
    files, undecided = made.expected(planning.managed_facts(evidence))
    assert undecided == []
    for item in files:
        if item.kind == "absent":
            evidence["managed"][item.path] = {"error": "ENOENT"}
            continue
        evidence["managed"][item.path] = {
            **entry,
            "kind": item.kind,
            "mode": item.mode or "0755",
            "sha256": item.sha256,
        }
    return evidence


def planned(made: Machine, evidence: Evidence) -> HostPlan:
    found = made.judge(Answer("host", evidence, None, 0.1))
    assert isinstance(found, HostPlan)
    return found


@pytest.mark.parametrize(("name", "fleet"), [("gpu1", None), ("build1", None), ("gpu1", self_building())])
def test_a_converged_machine_has_an_empty_plan(name: str, fleet: Fleet | None) -> None:
    made = machine(name, fleet)
    found = planned(made, converged(made))
    assert found.satisfied, found


def test_what_dkms_built_goes_with_its_driver_and_comes_again_only_where_it_is_built() -> None:
    old = "nvidia-open-kernel-dkms\t550.163.01-2", "nvidia-open-kernel-dkms\t535.261.03-1"
    for fleet, words in (
        (None, "remove nvidia-open-kernel-dkms, whose driver goes"),
        (self_building(), "upgrade nvidia-open-kernel-dkms"),
    ):
        made = machine("gpu1", fleet)
        evidence = converged(made)
        package(*old)(evidence)
        package("libcuda1\t550.163.01-2", "libcuda1\t535.261.03-1")(evidence)
        found = [action for action in planned(made, evidence).actions if "kernel-dkms" in action.what]
        assert [(action.what, action.found) for action in found] == [(words, "535.261.03-1")]
    # Of the driver that is there, it may be any: nothing is exchanged.
    made = machine("gpu1")
    evidence = converged(made)
    package(*old)(evidence)
    assert planned(made, evidence).satisfied


def edited(path: str, **entry: Any) -> Change:
    return lambda evidence: evidence["managed"][path].update(entry)


def gone(path: str) -> Change:
    return lambda evidence: evidence["managed"].update({path: {"error": "ENOENT"}})


def package(old: str, new: str) -> Change:
    def change(evidence: Evidence) -> None:
        run = evidence["commands"]["dpkg-query"]
        assert old in run["stdout"]
        run["stdout"] = run["stdout"].replace(old, new)

    return change


def answer(question: str, **value: Any) -> Change:
    return lambda evidence: evidence["answers"].update({question: value})


#: What enabling the gate makes.
ENABLED = "/etc/systemd/system/multi-user.target.wants/gds-gate.service"
#: What moved → role, words of the action, words of what was found, disruption of the whole plan.
DRIFTS: list[tuple[str, Change, str, str, str, str]] = [
    ("gpu1", edited("/etc/cufile.json", sha256="0" * 64), "gds_cufile", "/etc/cufile.json", "other content", "none"),
    ("gpu1", edited("/etc/cufile.json", mode="0600"), "gds_cufile", "/etc/cufile.json", "mode 0600", "none"),
    ("gpu1", edited("/etc/cufile.json", uid=1000), "gds_cufile", "/etc/cufile.json", "owner 1000:0", "none"),
    ("gpu1", gone(PREFERENCES), "gds_repo", PREFERENCES, "missing", "none"),
    ("gpu1", gone("/etc/apt/sources.list.d/gdsdeploy.sources"), "gds_repo", "gdsdeploy.sources", "missing", "none"),
    ("gpu1", gone("/etc/gdsdeploy/gate.json"), "gds_gate", "/etc/gdsdeploy/gate.json", "missing", "none"),
    ("gpu1", gone(ENABLED), "gds_gate", f"make {ENABLED}", "missing", "none"),
    ("gpu1", gone("/var/log/cufile"), "gds_cufile", "make the folder /var/log/cufile", "missing", "none"),
    ("gpu1", gone("/etc/modprobe.d/gdsdeploy.conf"), "gds_driver", "/etc/modprobe.d/gdsdeploy.conf", "missing", "none"),
    ("gpu1", gone("/etc/modules-load.d/gdsdeploy.conf"), "gds_driver", "modules-load.d", "missing", "none"),
    ("gpu1", gone("/etc/tmpfiles.d/gdsdeploy.conf"), "gds_cufile", "/etc/tmpfiles.d", "missing", "none"),
    ("gpu1", edited("/etc/gdsdeploy/expectation.json", sha256=""), "gds_host", "expectation.json", "other", "none"),
    ("gpu1", edited("/usr/lib/gdsdeploy/gdsdeploy-host.pyz", sha256=""), "gds_host", "host program", "other", "none"),
    ("build1", gone("/etc/dkms/nvidia-fs.conf"), "gds_modules", "/etc/dkms/nvidia-fs.conf", "missing", "none"),
    ("gpu1", package("libcufile0\t1.9.1.3~12.4.1-2", "libcufile0\t1.9.1.2~1-1"), "gds_cufile", "upgrade libcufile0",
     "1.9.1.2~1-1", "none"),
    ("gpu1", package("libcufile0\t1.9.1.3~12.4.1-2", "libcufile0\t1.20.0-1"), "gds_cufile", "downgrade libcufile0",
     "1.20.0-1", "none"),
    ("gpu1", package("libcuda1\t", "other\t"), "gds_driver", "install libcuda1", "not installed", "none"),
    ("gpu1", package("gds-tools\t1.9.1.3~12.4.1-2\tamd64\thi", "gds-tools\t1.9.1.3~12.4.1-2\tamd64\trc"), "gds_cufile",
     "install gds-tools", "not installed", "none"),
    ("gpu1", package("gds-tools\t1.9.1.3~12.4.1-2\tamd64\thi", "gds-tools\t1.9.1.3~12.4.1-2\tamd64\tii"), "gds_driver",
     "hold gds-tools", "1 not held", "none"),
    ("gpu1", answer("boot-default", changes=["/boot/grub/grubenv (saved_entry=x)"]), "gds_kernel",
     f"make {RELEASE} the kernel that boots", "saved_entry=x", "none"),
    ("gpu1", answer("modules", changes=["/lib/…/nvidia-fs.ko (other content)"]), "gds_modules", "put them in place",
     "other content", "reboot"),
    ("gpu1", answer("reboot", reasons=["the module nvidia-fs is not loaded"], unloaded=["nvidia-fs"]), "gds_modules",
     "load nvidia-fs", "not loaded", "module reload"),
    ("gpu1", answer("reboot", reasons=["the running kernel is 6.1, not 6.12"], unloaded=[]), "gds_reboot", "reboot",
     "the running kernel is 6.1", "reboot"),
    ("build1", answer("audit", objections=["nvidia_fs: [symbol-crc] was built against other versions"]), "gds_modules",
     "audit the modules", "symbol-crc", "none"),
    ("build1", edited(ARCHIVE.format(RELEASE), sha256="0" * 64), "gds_modules", "hand the audited modules", "another",
     "none"),
]  # fmt: skip


@pytest.mark.parametrize("drift", DRIFTS, ids=lambda drift: f"{drift[0]}-{drift[3][:30]}-{drift[4][:12]}")
def test_a_single_drift_is_named(drift: tuple[str, Change, str, str, str, str]) -> None:
    name, change, role, words, reason, disruption = drift
    made = machine(name)
    evidence = converged(made)
    change(evidence)
    found = planned(made, evidence)
    assert not found.satisfied
    assert found.unknown == ()
    (first, *others) = found.actions
    assert first.role == role
    assert words in first.what
    assert reason in first.found
    assert found.disruption == disruption
    # What follows from it: modules that are replaced are handed over, and loaded by a reboot.
    assert all(action.role == "gds_reboot" or "hand the" in action.what for action in others)


def test_a_builder_whose_modules_the_controller_lost_delivers_again() -> None:
    made = machine("build1", delivered=False)
    (action,) = planned(made, converged(made)).actions
    assert (action.role, action.found) == ("gds_modules", "the controller has none")


def test_a_host_whose_builder_has_not_delivered_waits_for_it() -> None:
    made = machine("gpu1", delivered=False)
    evidence = converged(made)
    found = planned(made, evidence)
    assert "which has to deliver them first" in found.actions[0].what


def test_what_dkms_has_not_built_is_built_and_loaded() -> None:
    made = machine("gpu1", self_building())
    evidence = converged(made)
    answer("dkms", installed=[])(evidence)
    found = planned(made, evidence)
    assert [action.what.split(" with ")[0] for action in found.actions] == [
        "build nvidia-current-open/550.163.01", "build nvidia-fs/2.19.7", "reboot",
    ]  # fmt: skip


def test_what_the_machine_has_configured_itself_decides_its_sources() -> None:
    """The same file that was right for a machine without sources of its own is wrong for one that has them."""
    made = machine("gpu1")
    evidence = converged(made)
    line = "/etc/apt/sources.list:deb http://mirror.example/debian trixie main contrib non-free non-free-firmware"
    (name,) = made.survey.commands
    evidence["commands"][name] = {"status": 0, "stdout": line, "stderr": ""}
    (action,) = planned(made, evidence).actions
    assert "gdsdeploy.sources" in action.what


def failed_program(name: str) -> Change:
    return lambda evidence: evidence["commands"].update({name: {"status": 127, "stdout": "", "stderr": "none"}})


UNKNOWN: dict[str, Change] = {
    "file": lambda evidence: evidence["managed"].update({"/etc/cufile.json": {"error": "EACCES"}}),
    "not asked": lambda evidence: evidence["managed"].pop("/etc/cufile.json"),
    "packages": failed_program("dpkg-query"),
    "boot": answer("boot-default", error="/boot/grub/grub.cfg is missing or cannot be read"),
    "modules": answer("modules", error="kernel has no modules"),
    "reboot": answer("reboot", error="x"),
    "gap": lambda evidence: evidence["gaps"].append({"collector": "managed", "reason": "stopped after 120 s"}),
    "sources": lambda evidence: failed_program(next(n for n in evidence["commands"] if n.startswith("__")))(evidence),
    "os": lambda evidence: evidence["files"].clear(),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_could_not_be_read_is_unknown_and_never_nothing_to_do(case: str) -> None:
    made = machine("gpu1")
    evidence = converged(made)
    UNKNOWN[case](evidence)
    found = planned(made, evidence)
    assert found.unknown
    assert found.actions == ()
    assert not found.satisfied


def test_nonsense_is_unknown() -> None:
    assert planned(machine("gpu1"), {"managed": 7, "answers": []}).unknown


def test_another_system_is_refused() -> None:
    made = machine("gpu1")
    evidence = converged(made)
    evidence["files"]["/etc/os-release"] = 'ID=debian\nVERSION_ID="12"\n'
    found = planned(made, evidence)
    assert "it runs debian-12 on x86_64, and its profile was locked for debian-13" in found.refusal
    assert not found.satisfied


def test_a_profile_that_forbids_reboots_is_told_of_one() -> None:
    fleet = self_building()
    profile = fleet.profiles["gds"].model_copy(update={"reboot": False})
    made = machine("gpu1", fleet.model_copy(update={"profiles": {"gds": profile}}))
    evidence = converged(made)
    answer("reboot", reasons=["the running kernel is another"], unloaded=[])(evidence)
    (action,) = planned(made, evidence).actions
    assert "leaves to you" in action.what


def test_a_host_without_a_kernel_of_its_own_is_never_rebooted() -> None:
    fleet = load_fleet(LAB / "fleet.yml")
    profile = fleet.profiles["gds"].model_copy(update={"own_kernel": False})
    made = machine("gpu1", fleet.model_copy(update={"profiles": {"gds": profile}}))
    assert (made.survey.boot, made.survey.modules) == (False, [])
    evidence = converged(made)
    assert not [path for path in evidence["managed"] if path.startswith("/etc/kernel/")]
    del evidence["answers"]["boot-default"]
    evidence["answers"]["reboot"] = {"needed": True, "reasons": ["the running kernel is 6.1"], "unloaded": ["nvidia"]}
    assert planned(made, evidence).satisfied
    evidence["answers"]["modules"] = {"changes": ["nvidia.ko (other content)"]}
    found = planned(made, evidence)
    assert [(action.role, action.disruption) for action in found.actions] == [("gds_modules", "none")]


def test_a_machine_that_gave_no_answer_has_its_error() -> None:
    error = HostUnreachable("gone")
    assert machine("gpu1").judge(Answer("gpu1", None, error, 0.0)) is error


def test_a_survey_survives_its_way_to_the_host() -> None:
    survey = machine("gpu1").survey
    assert surveys.from_json(survey.to_json()) == survey
    for wrong in ("[]", '{"version": 2}', survey.to_json().replace("boot", "boat", 1)):
        with pytest.raises(ValueError, match=r"version 1|unknown keys"):
            surveys.from_json(wrong)


def test_a_bare_machine_is_planned_whole() -> None:
    made = machine("gpu1")
    bare = copy.deepcopy(converged(made))
    bare["managed"] = {path: {"error": "ENOENT"} for path in made.survey.paths}
    bare["commands"]["dpkg-query"]["stdout"] = ""
    bare["answers"] = {
        "boot-default": {"error": "GRUB has no entry for kernel"},
        "modules": {"error": "kernel has no modules"},
        "reboot": {"needed": True, "reasons": [f"the running kernel is 6.1, not {RELEASE}"], "unloaded": []},
    }
    found = planned(made, bare)
    assert found.unknown == ()
    assert found.disruption == "reboot"
    roles = list(dict.fromkeys(action.role for action in found.actions))
    before = ["gds_repo", "gds_host", "gds_driver", "gds_kernel", "gds_cufile", "gds_modules"]
    assert roles == [*before, "gds_gate", "gds_reboot"]


def test_nvidia_peermem_is_loaded_by_its_unit_and_never_by_a_reboot() -> None:
    fleet = load_fleet(LAB / "fleet.yml")
    profile = fleet.profiles["gds"].model_copy(update={"rdma": "peermem"})
    made = machine("gpu1", fleet.model_copy(update={"profiles": {"gds": profile}}))
    assert "nvidia-peermem" in made.survey.modules
    evidence = converged(made)
    assert planned(made, evidence).satisfied
    reasons = ["the module nvidia-peermem is not loaded"]
    evidence["answers"]["reboot"] = {"needed": True, "reasons": reasons, "unloaded": ["nvidia-peermem"]}
    found = [(item.role, item.what, item.disruption) for item in planned(made, evidence).actions]
    assert found == [("gds_peermem", "load nvidia-peermem", "module reload")]


def test_a_machine_is_asked_whatever_may_decide_who_builds_its_modules() -> None:
    archive = ARCHIVE.format(RELEASE)
    for fleet, name, receives, builds in (
        (self_building(), "gpu1", True, True),
        (load_fleet(LAB / "fleet.yml"), "build1", False, True),
    ):
        survey = planning.Questions(fleet, LOCK, planning.sources(fleet, LOCK, LAB), [name]).surveys[name]
        assert survey.key
        assert (survey.archive == archive, survey.audit, bool(survey.dkms)) == (receives, builds, builds)
        assert archive in survey.paths
        assert ("/etc/dkms/nvidia-fs.conf" in survey.paths) is builds
