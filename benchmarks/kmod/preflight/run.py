"""Pairs the quick way to a driver's symbol versions with building the whole driver, and the two modes of preflight.

    python benchmarks/kmod/preflight/run.py [--os debian-13] [--kernel 6.12.94] [--driver 550] [--json FILE]

Both run in throwaway roots with the real headers and the real driver source of the archive of this machine's apt;
nothing is installed.  It ends with an error unless both give the same versions.  See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from gdsdeploy import console
from gdsdeploy.host.kmod.symvers import read_symvers
from gdsdeploy.lock import repo_settings
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Target
from gdsdeploy.platform import stack_platform_for
from gdsdeploy.preflight import Answer, ingredients, trial
from gdsdeploy.preflight.choice import StackChoices, candidates
from gdsdeploy.preflight.root import Root, root
from gdsdeploy.repo.fetch import Fetcher
from gdsdeploy.repo.read import read
from gdsdeploy.zipapp import hostapp

PROGRAM = "/build/gdsdeploy-host.pyz"
#: Only the unit that exports nvidia_p2p_*, as `kmod build nvidia-fs --ahead` does it; argv: release, version, flavour.
UNIT = f"""
import json, sys
sys.path.insert(0, "{PROGRAM}")
from gdsdeploy.host.build.context import BuildContext, BuildRequest
from gdsdeploy.host.build.kbuild import Log, cores
from gdsdeploy.host.kmod.kernel import Kernel
from gdsdeploy.host.kmod.tree import find_trees, select
release, version, flavour = sys.argv[1:]
job = BuildRequest(Kernel(release), select(find_trees(), version, flavour), jobs=cores(), ahead=True)
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


def by_driver(throwaway: Root, target: Target) -> dict[str, int]:
    argv = ["python3", PROGRAM, "kmod", "build", "driver", "--kernel", target.kernel.release, "--peermem", "stub"]
    argv += ["--driver-version", target.driver.version, "--driver-flavour", target.driver.flavour]
    throwaway.run([*argv, "--output", "/build/driver/"], doing="build the driver")
    exports = read_symvers(str(throwaway.build / "driver" / "Module.symvers"))
    return {name: export.crc for name, export in exports.items() if name.startswith("nvidia_p2p_")}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--os", default="debian-13")
    parser.add_argument("--kernel", default="6.12.94")
    parser.add_argument("--driver", default="550.163.01-2")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    fleet = Fleet.model_validate({"version": 1, "profiles": {"gds": {"os": arguments.os}}, "hosts": {"gpu1": "gds"}})
    profile, platform = fleet.profiles["gds"], stack_platform_for(arguments.os)
    with Fetcher() as fetcher:
        repositories = repo_settings.repositories(fleet, "gds", platform)
        universe, indices = read(fetcher, repositories, platform.architecture(profile.arch), now=datetime.now(UTC))
        choices = StackChoices((arguments.kernel,), (arguments.driver,), ("newest",))
        (stack,) = candidates("gds", profile, platform, universe, indices, None, choices)
        target = stack.target
        if target is None:
            sys.exit(stack.problem)
        layers = ingredients.layers(target, platform, universe, fetcher, console.step)
    console.say(f"{stack.label}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    runs: dict[str, Run] = {}
    with root(layers) as throwaway:
        hostapp.build(throwaway.build / Path(PROGRAM).name)
        with Watch("symbol versions by the one unit that exports them") as quick:
            unit = by_unit(throwaway, target)
        with Watch("symbol versions by building the driver") as whole:
            driver = by_driver(throwaway, target)
    same = {name: crc for name, crc in unit.items() if name.startswith("nvidia_p2p_")} == driver
    runs |= {"unit": quick.run, "driver": whole.run}
    with tempfile.TemporaryDirectory() as state:
        # The build logs of a benchmark aren't kept.
        os.environ["GDSDEPLOY_STATE_DIR"] = state
        with Watch("a quick preflight: those versions, nvidia-fs and its audit") as preflight:
            record = trial.trial(stack, layers, "quick")
    runs["quick preflight"] = preflight.run
    loads = bool(record.compiled_modules) and all(module.loads is Answer.YES for module in record.compiled_modules)
    ratios = {name: round(whole.run.cpu / run.cpu, 1) for name, run in runs.items() if name != "driver"}
    clock = {name: round(whole.run.wall / run.wall, 1) for name, run in runs.items() if name != "driver"}
    console.data(f"{len(driver)} exported symbols, {'the same versions both ways' if same else 'DIFFERENT VERSIONS'}")
    for name in ratios:
        console.data(
            f"building the driver took {ratios[name]} times the processor time of: {name} (clock: {clock[name]})"
        )
    if arguments.json:
        document = {"stack": stack.label, "same": same, "runs": {k: asdict(v) for k, v in runs.items()},
                    "times_cpu": ratios, "times_wall": clock, "quick_ok": loads}  # fmt: skip
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0 if same and driver and loads else 1


if __name__ == "__main__":
    sys.exit(main())
