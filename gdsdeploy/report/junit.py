"""The report as JUnit XML: a suite per host, a case per check.

A failed check is a ``failure``; one that could not tell, and a host that gave no evidence, is an ``error``: CI systems
count both, and neither passes.  One that is waived is ``skipped``, with the waiver; one
that is not applicable is ``skipped``, with the reason.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET  # nosec B405 # it only writes

from gdsdeploy.host.model.finding import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, WAIVED, Finding
from gdsdeploy.report.model import HostReport, Report, check_id

#: Characters that XML 1.0 cannot carry even as references.
_UNFIT = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(report: Report) -> str:
    """One ``testsuites`` document."""
    root = ET.Element("testsuites", name=_fit(f"gdsdeploy validate {report.fleet}"))
    for host in report.hosts:
        root.append(_suite(report, host))
    for key in ("tests", "failures", "errors", "skipped"):
        root.set(key, str(sum(int(suite.get(key, "0")) for suite in root)))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _suite(report: Report, host: HostReport) -> ET.Element:
    cases = len(host.findings) + (1 if host.trouble else 0)
    suite = ET.Element(
        "testsuite",
        name=_fit(host.host),
        hostname=_fit(host.host),
        timestamp=report.when.removesuffix("Z"),
        time=f"{host.seconds:.3f}",
        tests=str(cases),
        failures=str(host.count(FAIL)),
        errors=str(host.count(UNKNOWN) + (1 if host.trouble else 0)),
        skipped=str(host.count(WAIVED) + host.count(NOT_APPLICABLE)),
    )
    properties = ET.SubElement(suite, "properties")
    for name, value in (("lock", report.lock_digest), ("boot_id", host.boot_id), *host.stack):
        ET.SubElement(properties, "property", name=_fit(name), value=_fit(value))
    for finding in host.findings:
        suite.append(_case(host, finding))
    if host.trouble:
        case = ET.SubElement(suite, "testcase", classname=_fit(host.host), name="reachable", time="0")
        error = ET.SubElement(case, "error", type=host.trouble.kind, message=_fit(host.trouble.message))
        error.text = _fit(host.trouble.hint)
    return suite


def _case(host: HostReport, finding: Finding) -> ET.Element:
    name = _fit(finding.check)
    case = ET.Element("testcase", classname=_fit(f"{host.host}.{check_id(finding)}"), name=name, time="0")
    if finding.verdict == NOT_APPLICABLE:
        ET.SubElement(case, "skipped", type=finding.verdict, message=_fit(finding.found))
    elif finding.verdict != PASS:
        tag = {FAIL: "failure", WAIVED: "skipped"}.get(finding.verdict, "error")
        message = f"{finding.title}: expected {finding.expected}, found {finding.found}"
        if finding.waiver and finding.verdict == WAIVED:
            message = f"waived until {finding.waiver['until']}: {finding.waiver['reason']}; {message}"
        detail = ET.SubElement(case, tag, type=finding.verdict, message=_fit(message))
        lines = [f"expected: {finding.expected}", f"found: {finding.found}", f"what to do: {finding.hint}"]
        detail.text = _fit("\n".join([*lines, *(f"| {line}" for line in finding.evidence)]))
    return case


def _fit(text: str) -> str:
    return _UNFIT.sub("\ufffd", text)
