"""Pairs one unit's symbol versions with building the driver.

    python benchmarks/kmod/preflight/run.py [--fleet FILE] [--kernel 6.12.95] [--driver 550] [--rounds 2] [--json FILE]

Both run in throwaway roots with the real headers and the real driver source of the archive of this machine's apt;
nothing is installed.  It ends with an error unless both give the same versions.  See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from gdsdeploy import console
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.fleetfile.rules import rules_of
from gdsdeploy.host.kmod.kernel import read_symvers
from gdsdeploy.lock import repo_settings
from gdsdeploy.lock.resolve_fleet import read_repositories
from gdsdeploy.lock.sources import PackageReader
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Target
from gdsdeploy.platform import stack_platform_for
from gdsdeploy.preflight import trial
from gdsdeploy.preflight.trial import Root, StackChoices, candidates, throwaway_root
from gdsdeploy.repo.fetch import Fetcher
from gdsdeploy.zipapp import hostapp

PROGRAM = "/build/gdsdeploy-host.pyz"
#: Only the unit that exports nvidia_p2p_*, as `kmod build nvidia-fs --ahead` does it; argv: release, version, flavour.
UNIT = f"""
import json, os, sys
sys.path.insert(0, "{PROGRAM}")
from gdsdeploy.host.build.kbuild import BuildContext, BuildRequest
from gdsdeploy.host.build.kbuild import Log
from gdsdeploy.host.kmod.kernel import Kernel
from gdsdeploy.host.kmod.files import find_trees, select
release, version, flavour = sys.argv[1:]
tree = select(find_trees(), version, flavour)
job = BuildRequest(Kernel(release), tree, jobs=len(os.sched_getaffinity(0)), ahead=True)
found = BuildContext(job, "/build").versions(Log("/build/unit.log")).extra
print(json.dumps({{name: export.crc for name, export in found.items()}}))
"""


@dataclass(frozen=True)
class Run:
    """What one thing took: seconds of the clock, and of all processors."""

    what: str
    wall: float
    cpu: float


class Watch:
    """Measures everything that is started inside the block."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.run = Run(what, 0, 0)

    def __enter__(self) -> Watch:
        self._wall, self._cpu = time.monotonic(), _cpu()
        return self

    def __exit__(self, *_: object) -> None:
        self.run = Run(self.what, round(time.monotonic() - self._wall, 1), round(_cpu() - self._cpu, 1))
        console.say(f"  {self.what}: {self.run.wall} s by the clock, {self.run.cpu} s of processors")


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def by_unit(throwaway: Root, target: Target) -> dict[str, int]:
    argv = ["python3", "-c", UNIT, target.kernel.release, target.driver.version, target.driver.flavour]
    results: dict[str, int] = json.loads(throwaway.run(argv, doing="compile the unit").stdout)
    return results


def _build(target: Target) -> list[str]:
    argv = ["python3", PROGRAM, "kmod", "build", "driver", "--kernel", target.kernel.release, "--peermem", "stub"]
    return [*argv, "--driver-version", target.driver.version, "--driver-flavour", target.driver.flavour]


def by_driver(throwaway: Root, target: Target) -> dict[str, int]:
    throwaway.run([*_build(target), "--output", "/build/driver/"], doing="build the driver")
    exports = read_symvers(str(throwaway.build / "driver" / "Module.symvers"))
    return {name: export.crc for name, export in exports.items() if name.startswith("nvidia_p2p_")}


def stack(arguments: argparse.Namespace) -> tuple[Target, list[str]]:
    """The target and the layers of its root."""
    suites = {"debian": {"suites": ["trixie", "trixie-updates", "bookworm-backports"]}}
    value = {"version": 1, "repositories": suites, "profiles": {"gds": {"os": "debian-13"}}, "hosts": {"gpu1": "gds"}}
    fleet = load_fleet(arguments.fleet) if arguments.fleet else Fleet.model_validate(value)
    name = next(iter(fleet.profiles))
    profile = fleet.profiles[name]
    platform = stack_platform_for(profile.os)
    with Fetcher() as fetcher:
        repositories = repo_settings.repositories(fleet, name, platform)
        universe, indices = read_repositories(
            fetcher, repositories, platform.architecture(profile.arch), now=datetime.now(UTC)
        )
        choices = StackChoices((arguments.kernel,), (arguments.driver,), ("newest",))
        sources = PackageReader(fetcher, indices, console.step).source_tree
        (candidate,) = candidates(name, profile, platform, universe, indices, sources, None, choices, rules_of(fleet))
        if candidate.target is None:
            sys.exit(candidate.problem)
        console.say(f"{candidate.label}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
        return candidate.target, trial.layers(candidate.target, platform, universe, fetcher)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fleet", type=Path, help="default: Debian 13 with the backports of 12")
    parser.add_argument("--kernel", default="6.12.95")
    parser.add_argument("--driver", default="550.163.01-2")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    target, layers = stack(arguments)
    runs: list[Run] = []
    same = True
    for number in range(arguments.rounds):
        steps = {"unit": by_unit, "driver": by_driver}
        answers = {}
        for what in (*steps,) if number % 2 == 0 else (*reversed(steps),):
            with throwaway_root(layers) as throwaway:
                hostapp.build(throwaway.build / Path(PROGRAM).name)
                with Watch(what) as watch:
                    answers[what] = steps[what](throwaway, target)
            runs.append(watch.run)
        unit = {name: crc for name, crc in (answers["unit"] or {}).items() if name.startswith("nvidia_p2p_")}
        same = same and bool(unit) and unit == answers["driver"]
    cpu = {what: median(run.cpu for run in runs if run.what == what) for what in ("unit", "driver")}
    console.data(f"unit: {cpu['unit']:.0f} s of processors, {cpu['unit'] / cpu['driver']:.2f} of building the driver")
    console.data("the same symbol versions" if same else "DIFFERENT SYMBOL VERSIONS")
    if arguments.json:
        document = {"same": same, "runs": [asdict(run) for run in runs], "median_cpu": cpu}
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
