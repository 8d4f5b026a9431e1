"""A fleet of any size: the findings of a recorded host, with texts on each host that no other host has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gdsdeploy.errors import HostUnreachable
from gdsdeploy.host.facts import document
from gdsdeploy.host.model import expectation
from gdsdeploy.host.model.finding import FAIL, PASS, UNKNOWN, Finding
from gdsdeploy.report.model import HostReport, Report, trouble_from
from gdsdeploy.validate import fleet_validation
from tests.unit.report.sample_report import tree

RECORDED = Path(__file__).parents[2] / "evidence" / "hosts"
#: Of a thousand hosts: how many fail a check, could not tell one, and gave no evidence.
FAILING, UNSURE, SILENT = 20, 3, 2
#: Checks that fail, in turn.
CAUSES = ("packages.locked-versions", "cufile.rendered", "nvidia-fs.driver-tree", "driver.loaded-version")


def recorded() -> HostReport:
    """A real host; what its evidence could not tell passes."""
    text = (RECORDED / "lab-vm-provisioned.json").read_text()
    expected = expectation.from_json((RECORDED / "lab-vm.expectation.json").read_text())
    options = fleet_validation.ValidateOptions(day="2026-11-22")
    host = fleet_validation.host_report(expected, document.document("gpu", text), options, ())
    findings = tuple(replace(one, verdict=PASS, hint="") if one.verdict == UNKNOWN else one for one in host.findings)
    return replace(host, findings=findings, gaps=(), topology=tree())


def _findings(host: HostReport, name: str, number: int, failing: int) -> Iterator[Finding]:
    kind = number * 7919 % 1000
    for one in host.findings:
        if kind < failing and one.check == CAUSES[number % len(CAUSES)]:
            hint = f"Run `gdsdeploy provision fleet.yml --limit {name}`"
            yield replace(
                one, verdict=FAIL, found="another", hint=hint, evidence=[f"{name} said {n}" for n in range(9)]
            )
        elif failing <= kind < failing + UNSURE and one.check == "driver.errors":
            yield replace(one, verdict=UNKNOWN, hint="Run this as root", found="the kernel's log was not read")
        elif one.check.startswith("storage.path"):
            yield replace(one, evidence=[*one.evidence, f"serial S64GNX{number:08}", f"wwid eui.{number:032x}"])
        else:
            yield replace(one, evidence=list(one.evidence))


def large(hosts: int, failing: int = FAILING) -> Report:
    """gpu00000 and so on, of which ``failing`` of a thousand fail a check; the same each time."""
    base = recorded()
    down = HostUnreachable("no answer", hint="Check that the host is up")

    def host(number: int) -> HostReport:
        name = f"gpu{number:05}"
        if failing + UNSURE <= number * 7919 % 1000 < failing + UNSURE + SILENT:
            return HostReport(name, "gds", trouble=trouble_from(down))
        boot = f"3c7aef50-5a0e-4a0c-9e0e-{number:012}"
        return replace(
            base, host=name, boot_id=boot, seconds=1.0, findings=tuple(_findings(base, name, number, failing))
        )

    return Report("fleet.yml", "sha256:" + "5e" * 32, "2026-11-21T08:15:00Z", tuple(map(host, range(hosts))))
