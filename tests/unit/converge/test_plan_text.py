"""The text of a plan: alike hosts once, what hinders first, few lines for many hosts."""

from __future__ import annotations

from dataclasses import replace

from gdsdeploy.builds.assign import Supply
from gdsdeploy.converge import plan_report
from gdsdeploy.converge.diff import HostPlan
from gdsdeploy.errors import GdsError, HostUnreachable
from gdsdeploy.host.apply.model import Change, Refusal

LINES = 60
KEEPS = Supply("receive", "what it has received is in place", "a" * 32)
WRITE = Change("write", "/etc/modprobe.d/gdsdeploy.conf", "", "sha256:" + "5d" * 32, "missing", resource="cufile")
OWN = Change("write", "/var/lib/gdsdeploy/expectation.json", "", "", "content", resource="expectation")
REBOOT = Change("reboot", "kernel 6.12", "kernel 6.1", "kernel 6.12", "running", "reboot", "reboot")
UNLOAD = Change("unload", "nvidia_fs", "loaded", "", "in-place", "module reload", "packages.driver")


def plan_of(name: str, number: int) -> HostPlan:
    """As those of other hosts, but for the digest of a file that is its own."""
    own = replace(OWN, before="sha256:1", after=f"sha256:{number}" + "0" * 63)
    return HostPlan(name, (WRITE, own, REBOOT), supply=KEEPS)


def test_the_golden_text() -> None:
    plans: dict[str, HostPlan | GdsError] = {"build1": HostPlan("build1"), "gpu9": HostPlan("gpu9", (WRITE,))}
    plans |= {f"gpu{number}": plan_of(f"gpu{number}", number) for number in (1, 2, 3, 7)}
    for number in (4, 5):
        hint = f"gdsdeploy topology fleet.yml --limit gpu{number}"
        plans[f"gpu{number}"] = HostUnreachable(f"gpu{number} (192.0.2.{number}:22): cannot connect", hint=hint)
    plans["gpu6"] = HostPlan("gpu6", (WRITE,), refusals=(Refusal("os", "it runs debian-12", "Reinstall it"),))
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
