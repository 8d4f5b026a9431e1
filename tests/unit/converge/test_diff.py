"""What a host answers to ``apply --check`` becomes a plan: variants, what is to come, refusals, unknowns; its text."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gdsdeploy import console
from gdsdeploy.builds.assign import Supply
from gdsdeploy.converge import diff, plan_report
from gdsdeploy.converge.diff import BUILD, DISRUPTIONS, KEEP, RECEIVE, HostPlan, Result, change, plan, variants
from gdsdeploy.errors import GdsError, HostUnreachable
from gdsdeploy.host.apply import model
from gdsdeploy.host.apply.model import Change, Refusal
from gdsdeploy.host.subjects.foreign import ForeignInstall, Trace

WANT = "a" * 32
ARCHIVE, OTHER = "1" * 64, "2" * 64
BUILDS = Supply("build", "", WANT)
DELIVERS = replace(BUILDS, delivers=True)
FROM_BUILDER = Supply("receive", "", WANT, builder="build1")
CACHED = Supply("receive", "", WANT, cached=True)
RECEIVES = Supply("receive", "", WANT)
WRITE = Change("write", "/etc/cufile.json", "", "sha256:1", "missing", resource="cufile")
BUILT = Change("build", "nvidia/1", "", "6.12", "stale", resource="modules")
PACK = Change("pack", "/var/lib/gdsdeploy/modules-6.12.tar", "", "", "missing", resource="modules")
RECEIVED = Change("receive", "/var/lib/gdsdeploy/modules-6.12.tar", "", "", "not-delivered", resource="modules")
REBOOT = Change("reboot", "kernel 6.12", "kernel 6.1", "kernel 6.12", "running", "reboot", "reboot")


def modules(*changes: Change, archive: str = ARCHIVE) -> Result:
    return Result("modules", changes, report={"archive": archive})


def answer(*build: Change, archive: str = ARCHIVE) -> dict[str, list[Result]]:
    """A host that has the archive ARCHIVE in place, and would build what ``build`` says."""
    return {
        BUILD: [modules(*build, archive=archive), Result("reboot")],
        KEEP: [modules(archive=archive), Result("reboot")],
        RECEIVE: [modules(RECEIVED, archive=archive), Result("reboot", (REBOOT,))],
    }


def kinds(result: HostPlan) -> list[str]:
    return [change.kind for change in result.changes]


def test_the_worst_change_says_what_it_does_to_work() -> None:
    load = Change("load", "nvidia", "", "", "not-loaded", "module reload", "loaded")
    assert plan("a", {BUILD: [Result("x", (WRITE, load))]}, BUILDS, None).disruption == "module reload"
    assert plan("a", {BUILD: [Result("x", (load, REBOOT, WRITE))]}, BUILDS, None).disruption == "reboot"


@pytest.mark.parametrize(
    ("supply", "archive", "expected"),
    [
        (BUILDS, None, ["build"]),
        (DELIVERS, None, ["build", "pack"]),
        (DELIVERS, OTHER, ["build", "pack"]),
        (RECEIVES, None, []),
        (CACHED, ARCHIVE, []),
        (CACHED, OTHER, ["receive", "reboot"]),
        (FROM_BUILDER, None, ["receive", "reboot"]),
    ],
)
def test_the_way_to_its_modules_decides(supply: Supply, archive: str | None, expected: list[str]) -> None:
    assert kinds(plan("a", answer(BUILT, PACK), supply, archive)) == expected


def test_a_builder_packs_only_what_the_controller_lacks() -> None:
    assert kinds(plan("a", answer(PACK), DELIVERS, ARCHIVE)) == [], "any build of its key is as good"
    assert kinds(plan("a", answer(), DELIVERS, None)) == ["pack"], "it has packed, and the controller has lost it"
    assert plan("a", answer(), DELIVERS, ARCHIVE).satisfied


def test_an_archive_is_received_under_its_digest() -> None:
    (result, _) = plan("a", answer(), CACHED, OTHER).changes
    assert (result.after, result.reason) == (f"sha256:{OTHER}", "content")
    (result, _) = plan("a", answer(archive=""), CACHED, OTHER).changes
    assert result.reason == "missing"
    (result, _) = plan("a", answer(), FROM_BUILDER, None).changes
    assert (result.after, result.reason) == ("", "not-delivered")


def test_a_certificate_that_is_to_come_is_a_change_and_no_refusal() -> None:
    waits = Result("signing", refusals=(Refusal("not-delivered", "no certificate yet"),))
    result = plan("a", {KEEP: [waits, modules()]}, RECEIVES, None)
    assert result.refusal == ""
    assert [(change.kind, change.resource, change.reason) for change in result.changes] == [
        ("receive", "signing", "not-delivered")
    ]


def test_a_refusal_is_said_and_space_only_where_something_is_installed() -> None:
    space = Refusal("space", "there is no room")
    system = Refusal("os", "it runs debian-12")
    assert plan("a", {BUILD: [Result("preflight", refusals=(space,)), modules()]}, BUILDS, None).satisfied
    result = plan("a", {BUILD: [Result("preflight", refusals=(system, space)), modules(BUILT)]}, BUILDS, None)
    assert result.refusal == "it runs debian-12; there is no room"
    result = plan("a", {BUILD: [Result("preflight", refusals=(system,))]}, BUILDS, None)
    assert (result.refusal, result.satisfied) == ("it runs debian-12", False)


def test_what_could_not_be_read_is_never_nothing_to_do() -> None:
    result = plan("a", {BUILD: [Result("cufile", unknown=("EACCES", "EACCES")), modules()]}, BUILDS, None)
    assert result.unknown == ("EACCES",)
    assert (result.changes, result.satisfied) == ((), False)


def test_it_is_said_that_removals_are_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    reports = [
        {"removals": {"known": True, "why": ""}},
        {"removals": {"known": False, "why": "no answer"}},
        {"removals": {"known": False, "why": "no answer"}},
        {"removals": {"known": False}},
        {"removals": "?"},
    ]
    results = [Result(f"packages.{n}", (WRITE,), report=report) for n, report in enumerate(reports)]
    result = plan("a", {BUILD: results}, BUILDS, None)
    assert result.removals_unknown == ("no answer", "the host gives no reason")
    assert "  ? it is unknown which packages would leave: no answer" in plan_report.text({"a": result})
    assert "--tags" not in plan_report.text({"a": result}), "repositories and pins are there"
    result = replace(result, changes=(replace(WRITE, resource="pins"),))
    command = "to have the plan name them: gdsdeploy provision FLEET --limit a --tags gds_preflight,gds_repo"
    assert command in plan_report.text({"a": result})
    (host,) = json.loads(plan_report.to_json({"a": result}, {}, fleet="f", lock_digest="d"))["hosts"].values()
    assert host["removals"] == {"known": False, "why": ["no answer", "the host gives no reason"]}
    assert plan("a", {BUILD: results[:1]}, BUILDS, None).removals_unknown == ()


def test_refusals_keep_their_ids_and_hints() -> None:
    refusals = (Refusal("removals", "x would leave", "run: dnf remove x"), Refusal("os", "it runs debian-12"))
    result = plan("a", {BUILD: [Result("packages.driver", (WRITE,), refusals)]}, BUILDS, None)
    assert result.refusal == "x would leave; it runs debian-12"
    text = plan_report.text({"a": result})
    assert "  provision would refuse it: x would leave\n      hint: run: dnf remove x\n" in text
    (host,) = json.loads(plan_report.to_json({"a": result}, {}, fleet="f", lock_digest="d"))["hosts"].values()
    assert host["refusals"][0] == {"id": "removals", "message": "x would leave", "hint": "run: dnf remove x"}


def test_what_uses_a_module_is_named() -> None:
    unload = Change("unload", "nvidia_fs", "loaded", "", "in-place", "module reload", "packages.driver", ("python3",))
    result = HostPlan("a", (unload, WRITE))
    words = "found loaded, and its packages change; wanted nothing  [module reload]\n      in use: python3\n"
    assert words in plan_report.text({"a": result})
    assert diff.change_to_json(unload)["users"] == ["python3"]
    assert change(unload.to_json()) == unload


def test_two_resources_may_want_the_same_folder() -> None:
    folder = Change("make", "/etc/gdsdeploy", "", "0755", "missing", resource="program")
    again = replace(folder, resource="expectation")
    assert plan("a", {BUILD: [Result("program", (folder,)), Result("x", (again, WRITE))]}, BUILDS, None).changes == (
        folder,
        WRITE,
    )


def test_a_reboot_that_the_profile_leaves_to_a_person_is_said() -> None:
    result = plan("a", {BUILD: [Result("reboot", (REBOOT,), report={"allowed": False})]}, BUILDS, None)
    assert "  - reboot into kernel 6.12, which its profile leaves to you: found" in plan_report.text({"a": result})


def test_disruptions_are_those_of_hosts() -> None:
    assert DISRUPTIONS == model.DISRUPTIONS


def test_changes_of_one_kind_share_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    holds = [Change("hold", f"p{n}", "", "held", "not-held", resource="packages.driver") for n in range(5)]
    result = HostPlan("a", (*holds, WRITE))
    text = plan_report.text({"a": result})
    assert "  - hold p0, p1, p2 and 2 more: found not held; wanted held\n" in text
    assert "  - write /etc/cufile.json: found missing; wanted sha256:1" in text
    console.data(plan_report.text({"a": HostPlan("a", (replace(WRITE, subject="/etc/\x1b[2J"),))}))
    assert "\x1b" not in capsys.readouterr().out


def reported(*installs: ForeignInstall, unknown: tuple[str, ...] = ()) -> Result:
    report = {"foreign": {"installs": [install.to_json() for install in installs], "unknown": list(unknown)}}
    return Result("preflight", report=report)


def test_what_others_have_installed_is_in_the_plan() -> None:
    """A refusal has what would win; the rest has a line of its own."""
    pin = ForeignInstall("pin", (Trace("/etc/apt/preferences", "x"),), True)
    hold = ForeignInstall("hold", (Trace("libcufile-12-8", "1.13"),))
    result = plan("a", {BUILD: [reported(pin, hold, unknown=("no rpm",)), Result("x", (WRITE,))]}, BUILDS, None)
    assert (result.foreign, result.foreign_unknown) == ((pin, hold), ("no rpm",))
    text = plan_report.text({"a": result})
    assert (
        "  provision takes this over: packages of the lock are held in another version: libcufile-12-8 (1.13)\n" in text
    )
    assert "  ? it is unknown what others have installed: no rpm\n" in text
    assert "/etc/apt/preferences" not in text
    document = json.loads(plan_report.to_json({"a": result}, {}, fleet="f", lock_digest="d"))
    assert document["hosts"]["a"]["foreign"] == {"installs": [pin.to_json(), hold.to_json()], "unknown": ["no rpm"]}


@pytest.mark.parametrize(
    "foreign",
    [
        [],
        {"installs": []},
        {"installs": {}, "unknown": []},
        *({"installs": [install], "unknown": []} for install in [
            None, [], {"kind": "no-such", "breaks": True, "traces": []}, {"kind": "pin", "breaks": [], "traces": []},
            {"kind": "pin", "breaks": True, "traces": [{"name": 1, "detail": ""}]},
            {"kind": "pin", "breaks": True, "traces": ["x"]}, {"kind": ["pin"], "breaks": True, "traces": []},
        ]),
        {"installs": [], "unknown": [1]},
    ],
)  # fmt: skip
def test_a_malformed_report_of_them_is_named(foreign: Any) -> None:
    entry = {"name": "preflight", "report": {"foreign": foreign}}
    with pytest.raises(ValueError, match="foreign"):
        variants({"build": [entry]})


# --- what a host says is checked -------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {
    "name": "cufile",
    "changes": [WRITE.to_json()],
    "refusals": [{"id": "os", "message": "m", "hint": "h"}],
    "unknown": ["u"],
    "report": {"a": 1},
    "diffs": [],
}


@pytest.mark.parametrize(
    "value",
    [
        None, [], 7, "x", {"build": None}, {"build": {}}, {"build": [7]}, {"build": [{}]},
        *({"build": [{**GOOD, key: value}]} for key, value in [
            ("name", 7), ("name", None), ("changes", {}), ("changes", [7]), ("changes", ["write"]), ("changes", None),
            ("refusals", 7), ("refusals", [[]]), ("refusals", [{"id": 1}]), ("unknown", "u"), ("unknown", [{}]),
            ("report", []), ("report", "x"), ("unknown", ["x" * (1 << 18)]),
        ]),
        *({"build": [{**GOOD, "changes": [{**WRITE.to_json(), key: value}]}]} for key, value in [
            ("kind", "explode"), ("kind", None), ("kind", ["write"]), ("subject", 7), ("disruption", "war"),
            ("after", {}), ("reason", []), ("users", "python3"), ("users", [7]), ("users", None),
        ]),
    ],
)  # fmt: skip
def test_a_malformed_answer_is_named(value: Any) -> None:
    with pytest.raises(ValueError, match=r"Input should be |Field required|unknown kind|a text of"):
        variants(value)


def test_half_a_character_can_be_written() -> None:
    result = change({**WRITE.to_json(), "subject": "/etc/\ud800"})
    result.subject.encode()


def test_every_package_that_goes_is_named_with_its_reason() -> None:
    going = (
        Change("remove", "old-smi", "1", "", "replaced-by", by="driver"),
        Change("remove", "rival", "1", "", "conflicts", by="driver"),
        Change("remove", "decode", "1", "", "needs", by="driver"),
        Change("remove", "gl", "1", "", "allowed", by="driver"),
    )
    text = plan_report.text({"a": HostPlan("a", going)})
    for name, words in (
        ("old-smi", "1, which driver replaces"),
        ("rival", "1, which driver excludes"),
        ("decode", "1, which needs another version of driver"),
        ("gl", "1, which its profile lists in `removes`"),
    ):
        assert f"  - remove {name}: found {words}; wanted nothing" in text.splitlines()
    report = json.loads(plan_report.to_json({"a": HostPlan("a", going)}, {}, fleet="f", lock_digest="d"))
    assert [action["by"] for action in report["hosts"]["a"]["actions"]] == ["driver"] * 4


LINES = 60
KEEPS = Supply("receive", "what it has received is in place", "a" * 32)
MODPROBE = Change("write", "/etc/modprobe.d/gdsdeploy.conf", "", "sha256:" + "5d" * 32, "missing", resource="cufile")
OWN = Change("write", "/var/lib/gdsdeploy/expectation.json", "", "", "content", resource="expectation")
UNLOAD = Change("unload", "nvidia_fs", "loaded", "", "in-place", "module reload", "packages.driver")


def plan_of(name: str, number: int) -> HostPlan:
    """As those of other hosts, but for the digest of a file that is its own."""
    own = replace(OWN, before="sha256:1", after=f"sha256:{number}" + "0" * 63)
    return HostPlan(name, (MODPROBE, own, REBOOT), supply=KEEPS)


def test_the_golden_text() -> None:
    plans: dict[str, HostPlan | GdsError] = {"build1": HostPlan("build1"), "gpu9": HostPlan("gpu9", (MODPROBE,))}
    plans |= {f"gpu{number}": plan_of(f"gpu{number}", number) for number in (1, 2, 3, 7)}
    for number in (4, 5):
        hint = f"gdsdeploy topology fleet.yml --limit gpu{number}"
        plans[f"gpu{number}"] = HostUnreachable(f"gpu{number} (192.0.2.{number}:22): cannot connect", hint=hint)
    plans["gpu6"] = HostPlan("gpu6", (MODPROBE,), refusals=(Refusal("os", "it runs debian-12", "Reinstall it"),))
    assert (
        plan_report.text(plans)
        == """\
1 of 9 hosts: nothing to do, 5 changes, 1 refused, 2 not asked

host            plan             changes  disruption
gpu[4-5] (2)    ! not asked      -        -
gpu6            ! refused        1        none
gpu[1-3,7] (4)  ~ changes        3        reboot
gpu9            ~ changes        1        none
build1          ✓ nothing to do  0        none

! 2 hosts: gpu[4-5]:
  cannot connect
      hint: gdsdeploy topology fleet.yml --limit 'gpu[4-5]'
! gpu6:
  provision would refuse it: it runs debian-12
      hint: Reinstall it
  - write /etc/modprobe.d/gdsdeploy.conf: found missing; wanted sha256:5d5d5d5d5d5d…
~ 4 hosts: gpu[1-3,7]:
  keeps its modules: what it has received is in place
  - write /etc/modprobe.d/gdsdeploy.conf: found missing; wanted sha256:5d5d5d5d5d5d…
  - write /var/lib/gdsdeploy/expectation.json: found other content; wanted sha256:…
  - reboot into kernel 6.12: found kernel 6.1; wanted kernel 6.12  [reboot]
~ gpu9:
  - write /etc/modprobe.d/gdsdeploy.conf: found missing; wanted sha256:5d5d5d5d5d5d…"""
    )


def test_five_hundred_identical_hosts_take_few_lines() -> None:
    installs = [Change("install", f"p{number}", "", "1", resource="packages.driver") for number in range(80)]
    plans = {f"n{n}": replace(plan_of(f"n{n}", n), changes=(*installs, *plan_of("", n).changes)) for n in range(500)}
    text = plan_report.text(plans)
    assert len(text.splitlines()) <= LINES
    assert "~ 500 hosts: n[0-499]:\n" in text
    assert "more lines (--verbose shows everything)" in text
    whole = plan_report.text(plans, whole=True)
    assert whole.count("  - install p") == 80
    assert "verbose" not in whole


def test_processes_that_use_a_module_differ_between_hosts_that_are_alike() -> None:
    users = {f"n{n}": (f"python3 (process {n}) has /dev/nvidia-fs0 open",) for n in (1, 2)}
    text = plan_report.text({name: HostPlan(name, (replace(UNLOAD, users=used),)) for name, used in users.items()})
    assert "~ 2 hosts: n[1-2]:\n" in text
    assert "      in use: python3 (process …) has /dev/nvidia-fs0 open" in text
