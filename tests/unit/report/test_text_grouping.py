"""The text for a terminal at the size of a fleet: alike hosts once, causes by the hosts they hit, few lines."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from gdsdeploy.host.model.finding import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, Finding
from gdsdeploy.report import formats, model
from gdsdeploy.report.model import HostReport, Report, Trouble, causes

LINES = 60


def finding(check: str, verdict: str = FAIL, **more: object) -> Finding:
    values = {"title": f"{check} is right", "expected": "the locked one", "found": "another one", **more}
    hint = "Run `gdsdeploy provision fleet.yml --limit HOST`"
    return Finding(check, verdict, hint=hint, **values)  # type: ignore[arg-type]


def host(name: str, *findings: Finding, **more: object) -> HostReport:
    named = tuple(replace(each, hint=each.hint.replace("HOST", name)) for each in findings)
    return HostReport(name, "gds", named, **{"stack": (("kernel", "6.12"),), **more})  # type: ignore[arg-type]


def report(*hosts: HostReport) -> Report:
    return Report("fleet.yml", "sha256:0", "2026-11-21T08:15:00Z", hosts)


def shown(report: Report, *, verbose: bool = False) -> str:
    """Everything that `gdsdeploy validate` prints, 80 columns wide."""
    out = io.StringIO()
    Console(file=out, width=80).print(formats.fleet_table(report, verbose=verbose))
    rows = "\n".join(line.rstrip() for line in out.getvalue().splitlines())
    return f"{formats.summary(report)}\n{rows}\n\n{formats.details(report, verbose=verbose)}"


def never_provisioned(name: str) -> HostReport:
    """Many checks fail, with long evidence that differs from host to host."""
    evidence = [f"{name}: line {number}" for number in range(30)]
    failing = [finding(f"driver.check{number}", found="a\n" * 20, evidence=evidence) for number in range(20)]
    return host(name, *failing, *(finding(f"gds.check{number}", UNKNOWN) for number in range(20)))


def test_five_hundred_identical_hosts_take_few_lines() -> None:
    output = shown(report(*(never_provisioned(f"node{number}") for number in range(1, 501))))
    assert len(output.splitlines()) <= LINES
    assert "✗ driver.check0 (FAIL) on 500 hosts: node[1-500]\n" in output
    assert "what to do: Run `gdsdeploy provision fleet.yml --limit 'node[1-500]'`\n" in output
    assert "    | on node1:\n" in output
    assert "(--verbose shows everything)" in output


def test_many_kinds_of_hosts_take_few_lines_too() -> None:
    hosts = [host(f"n{n}x{n * n}", *(finding(f"a.b{each}") for each in range(n))) for n in range(1, 60)]
    assert len(shown(report(*hosts)).splitlines()) <= LINES
    assert "and 47 more; --verbose" in shown(report(*hosts))


def test_the_golden_text() -> None:
    kernel, cufile = finding("kernel.running", found="6.1"), finding("cufile.rendered", evidence=["a", "b"])
    lost = [
        host(
            f"gpu{n}",
            trouble=Trouble("HostUnreachable", f"gpu{n} (192.0.2.{n}:22): cannot connect", "Start it", 20),
            stack=(),
        )
        for n in (20, 21)
    ]
    good = [host(f"gpu{n}", finding("os.release", PASS), finding("rdma.link", NOT_APPLICABLE)) for n in range(1, 8)]
    bad = [host(f"gpu{n}", kernel, cufile) for n in (8, 9, 11)]
    assert (
        shown(report(*good, *bad, host("login", cufile), *lost))
        == """\
7 of 13 hosts pass, 4 FAIL, 2 UNREACHABLE; 14 checked, 7 not applicable

host             verdict        ✓  ✗  ?  –  runs         storage paths
gpu[8-9,11] (3)  ✗ FAIL         0  2  0  0  kernel 6.12  -
login            ✗ FAIL         0  1  0  0  kernel 6.12  -
gpu[20-21] (2)   ! UNREACHABLE  -  -  -  -  -            -
gpu[1-7] (7)     ✓ pass         1  0  0  1  kernel 6.12  -

✗ cufile.rendered (FAIL) on 4 hosts: gpu[8-9,11], login
    cufile.rendered is right
    expected:   the locked one
    found:      another one
    what to do: Run `gdsdeploy provision fleet.yml --limit 'gpu[8-9,11],login'`
    | a
    | b
✗ kernel.running (FAIL) on 3 hosts: gpu[8-9,11]
    kernel.running is right
    expected:   the locked one
    found:      6.1
    what to do: Run `gdsdeploy provision fleet.yml --limit 'gpu[8-9,11]'`
! HostUnreachable on 2 hosts: gpu[20-21]
    cannot connect
    what to do: Start it"""
    )


def test_causes_come_by_the_hosts_that_they_hit() -> None:
    rare, common = finding("a.rare"), finding("b.common")
    each = report(host("n1", rare, common), host("n2", common), host("n3", replace(common, found="a third one")))
    assert [(next(iter(one.values())).found, list(one)) for one in causes(each, FAIL)] == [
        ("another one", ["n1", "n2"]), ("another one", ["n1"]), ("a third one", ["n3"]),
    ]  # fmt: skip


def test_verbose_keeps_every_host_and_every_line() -> None:
    hosts = [never_provisioned(f"node{number * 2}") for number in range(100)]
    output = shown(report(*hosts), verbose=True)
    for number in range(100):
        assert output.count(f"| node{number * 2}: line 29\n") == 20
    assert "more" not in output


def test_evidence_that_differs_is_one_cause_unless_verbose() -> None:
    same = report(*(host(f"n{n}", finding("a.b", evidence=[f"pid {n}"])) for n in (1, 2)))
    assert [list(one) for one in causes(same, FAIL)] == [["n1", "n2"]]
    assert [list(one) for one in causes(same, FAIL, evidence=True)] == [["n1"], ["n2"]]


def test_a_name_is_replaced_as_a_whole_word() -> None:
    assert model.general("gpu1 (192.0.2.1:22): gpu1 is not gpu10, gpu1.example or x-gpu1", "gpu1") == (
        "HOST is not gpu10, gpu1.example or x-gpu1"
    )
    assert model.for_all("run `x --limit gpu1`, not --limit gpu11", ["gpu1", "gpu2", "a"]) == (
        "run `x --limit 'a,gpu[1-2]'`, not --limit gpu11"
    )
    assert model.for_all("x --limit gpu1", ["gpu1"]) == "x --limit gpu1"
    assert model.for_all("x --limit a0x0", [f"a{n}x{n}" for n in range(99)]) == "x --limit HOST,…"


def test_blocks_are_shown_in_full_while_there_is_room() -> None:
    blocks = [[f"heading {number}", *["line"] * 9] for number in range(20)]
    lines = model.shown(blocks)
    assert len([line for line in lines if line == "line"]) == 9 * (model.LINES // 10)
    assert lines[-1] == f"and {20 - model.LINES // 10 - model.HEADINGS} more; --verbose shows everything"
    assert len(model.shown(blocks, whole=True)) == 200
    assert len(model.shown([["a"] * 100])) == model.LINES + 1, "no block takes more than all the room"
