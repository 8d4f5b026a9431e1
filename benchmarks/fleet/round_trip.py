"""Whether the verbs read what the verbs wrote, of a fleet of hosts of the usual size, and what that costs.

    python benchmarks/fleet/round_trip.py [--hosts N …] [--json FILE]

Hosts are simulated as in validate.py.  See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import validate

from gdsdeploy import console

PERCENT = 2.0


def verdicts(report: Path) -> list[tuple[str, ...]]:
    """What each host's checks say, in the fleet's order."""
    hosts = json.loads(report.read_text())["hosts"].values()
    return [tuple(finding["verdict"] for finding in host["findings"]) for host in hosts]


def round_trip(folder: Path, hosts: int) -> dict[str, dict[str, float]]:
    """Step → seconds, memory, and the size (MiB) of what it wrote; ends the program where something is not the same."""
    fleet, bundle = str(validate.write_fleet(folder, hosts)), folder / "case.tar.gz"
    output, report = folder / "output", folder / "report.json"

    def step(*verb: str) -> dict[str, float]:
        result = validate.measure(folder, PERCENT, list(verb))
        written = bundle if verb[0] == "support-bundle" else output
        return {**result, "written": written.stat().st_size / 2**20}

    steps = {"validate --json": step("validate", fleet, "--json")}
    output.rename(report)
    steps["diff"] = step("diff", str(report), str(report))
    steps["support-bundle"] = step("support-bundle", fleet, "--hide-names", "-o", str(bundle))
    steps["validate --evidence"] = step("validate", "--evidence", str(bundle), "--json")
    if verdicts(output) != verdicts(report) or len(verdicts(report)) != hosts:
        raise SystemExit("the verdicts of the bundle aren't those of the hosts")
    return steps


def main() -> None:
    """Measure one round of each size."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = {}
    for hosts in arguments.hosts:
        with tempfile.TemporaryDirectory() as folder:
            results[hosts] = round_trip(Path(folder), hosts)
        for step, result in results[hosts].items():
            console.say(f"{hosts} hosts, {step}: { ({key: round(value, 1) for key, value in result.items()}) }")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
