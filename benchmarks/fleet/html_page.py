"""Writes the HTML page of a large fleet's report, and opens it in Chromium.

    python benchmarks/fleet/html_page.py [--hosts N …] [--fail PERCENT] [--rounds N] [--json FILE]

The findings are those of a recorded host, with different texts on each host; one host in forty does not pass.  A new
process writes each page.  See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import statistics
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from gdsdeploy import atomic, console
from gdsdeploy.report import html
from tests.packages import CHROMIUM
from tests.unit.report import sample_report


def write(hosts: int, failing: int, path: str) -> dict[str, float]:
    """Write the page: its size, processor time for each host, and what it adds to the memory of the report."""
    report = sample_report.large(hosts, failing)
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    atomic.write(Path(path), html.stream(report))
    cpu = time.process_time() - begin
    mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {
        "page_mib": Path(path).stat().st_size / (1 << 20),
        "cpu": cpu,
        "cpu_ms_a_host": cpu / hosts * 1000,
        "mib": mib,
    }


def load(browser: Browser, path: str) -> dict[str, float]:
    """Open the page until an arrow key moves in its matrix; then filter all hosts."""
    context = browser.new_context()
    page = context.new_page()
    begin = time.monotonic()
    page.goto(Path(path).as_uri())
    cell = page.locator("table[role=grid] [tabindex='0']")
    cell.focus()
    cell.press("ArrowDown")
    assert page.evaluate("document.activeElement.parentElement.rowIndex") == 2
    interactive = time.monotonic() - begin
    page.get_by_label("all hosts").check()
    begin = time.monotonic()
    page.get_by_label("Filter").fill("gpu00077")
    page.locator("tbody tr:only-child", has_text="gpu00077").wait_for()
    filtering = time.monotonic() - begin
    nodes = page.evaluate("document.querySelectorAll('*').length")
    context.close()
    return {"interactive": interactive, "filter": filtering, "nodes": nodes}


def main() -> None:
    """Measure, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--fail", type=float, default=2.0, help="percent of hosts that fail a check")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for hosts in arguments.hosts:
            path, rounds = f"{folder}/{hosts}.html", []
            for _ in range(arguments.rounds):
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    rounds.append(pool.apply(write, (hosts, round(arguments.fail * 10), path)) | load(browser, path))
            result = {key: round(statistics.median(each[key] for each in rounds), 2) for key in rounds[0]}
            results.append({"hosts": hosts, **result})
            console.data(
                "{hosts} hosts: {page_mib} MiB, {cpu} s of CPU ({cpu_ms_a_host} ms a host), {mib} MiB of memory; "
                "{nodes:.0f} nodes, {interactive} s until a key moves in the matrix, {filter} s to filter".format(
                    **results[-1]
                )
            )
        browser.close()
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
