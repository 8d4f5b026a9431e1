"""Pairs apt without gdsdeploy's pins with apt that has them, on this machine's own package lists.

    python benchmarks/pins/run.py [--rounds N] [--package NAME] [--json FILE]

The pins are those that provision writes for the Debian 13 stack of tests/golden/lab.  For comparison it also measures
the same patterns as apt itself would take them.  Nothing is installed, and no file of this machine is written.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from gdsdeploy import console
from gdsdeploy.host.apply.packages import aptsources
from gdsdeploy.host.apply.packages.managers import Pin
from gdsdeploy.lock import lockfile
from gdsdeploy.platform.base import KEPT_OUT

LOCK = Path(__file__).parents[2] / "tests" / "golden" / "lab" / "gdsdeploy.lock"
BARE, PINNED, PATTERNS = "no pins", "gdsdeploy's pins", "patterns in place of names"
#: Branches of drivers and releases of CUDA, for made-up names.
BRANCHES, RELEASES = range(470, 620, 5), range(13)


def names() -> list[str]:
    """Made-up names of some hundred driver packages: Debian's lists have few, and NVIDIA's repository has many."""
    stems = sorted({word.partition("*")[0].rstrip("-") for word in KEPT_OUT})
    return [f"{stem}-{branch}" for stem in stems for branch in BRANCHES] + [
        f"{stem}-12-{release}" for stem in ("libcufile", "gds-tools", "nvidia-gds") for release in RELEASES
    ]


def preferences() -> dict[str, str]:
    """Side → the text of its preferences."""
    (target,) = lockfile.read(LOCK).targets.values()
    pins = [Pin(package.package, package.version) for package in target.packages]
    package_names = subprocess.run(["apt-cache", "pkgnames"], check=True, capture_output=True, text=True).stdout.split()
    denied = aptsources.names_to_deny(KEPT_OUT, [pin.package for pin in pins], [*package_names, *names()])
    return {
        BARE: "",
        PINNED: aptsources.preferences(pins, KEPT_OUT, denied, []),
        PATTERNS: aptsources.preferences(pins, (), KEPT_OUT, []),
    }


def commands(package: str) -> dict[str, list[str]]:
    """What a user waits for."""
    return {
        "apt-cache policy": ["apt-cache", "policy"],
        f"apt-get -s install {package}": ["apt-get", "-qq", "--simulate", "install", package],
        "apt-get -s upgrade": ["apt-get", "-qq", "--simulate", "upgrade"],
    }


def seconds(argv: Sequence[str]) -> float:
    """Processor time of one run; ends this program where it fails."""
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, "LC_ALL": "C"})
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            out.seek(0)
            sys.exit(f"{' '.join(argv)} ended with status {process.returncode}:\n{out.read()}")
    return usage.ru_utime + usage.ru_stime


def measure(work: Path, rounds: int, package: str) -> dict[str, dict[str, list[float]]]:
    """Command → side → processor seconds of each round; the sides alternate, and each begins a round in its turn."""
    cache = {"Dir::Cache": work / "cache", "Dir::Cache::pkgcache": "pkgcache.bin", "Debug::NoLocking": "1"}
    options: dict[str, list[str]] = {}
    (work / "cache/archives/partial").mkdir(parents=True)
    for number, (side, text) in enumerate(preferences().items()):
        folder = work / f"preferences{number}"
        folder.mkdir()
        (folder / "00-gdsdeploy.pref").write_text(text)
        settings = {**cache, "Dir::Etc::preferencesparts": folder, "Dir::Etc::preferences": "/dev/null"}
        options[side] = [f"--option={key}={value}" for key, value in settings.items()]
    runs_by_command: dict[str, dict[str, list[float]]] = {}
    for name, (program, *words) in commands(package).items():
        runs_by_command[name] = {side: [] for side in options}
        # The first run writes apt's binary cache, which all sides share.
        seconds([program, *options[BARE], *words])
        for turn in range(rounds):
            sides = list(options)
            for side in sides[turn % len(sides) :] + sides[: turn % len(sides)]:
                runs_by_command[name][side].append(seconds([program, *options[side], *words]))
    return runs_by_command


def report(runs_by_command: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, dict[str, float]]:
    """Print medians; returns command → side → the median of its ratios to the same round without pins."""
    ratios: dict[str, dict[str, float]] = {}
    for name, sides in runs_by_command.items():
        console.data(name)
        ratios[name] = {}
        for side, runs in sides.items():
            pairs = [mine / max(bare, 0.001) for mine, bare in zip(runs, sides[BARE], strict=True)]
            ratios[name][side] = statistics.median(pairs)
            console.data(f"  {side:<28} {statistics.median(runs):6.3f} s of processor  {ratios[name][side]:6.2f} times")
    return ratios


def main() -> None:
    """Measure in turn and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="runs of each side (default: 9)")
    parser.add_argument("--package", default="hello", help="package of the simulated installation (default: hello)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run and the ratios to FILE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gdsdeploy-bench-") as folder:
        runs_by_command = measure(Path(folder), arguments.rounds, arguments.package)
    ratios = report(runs_by_command)
    if arguments.json:
        arguments.json.write_text(json.dumps({"runs": runs_by_command, "ratios": ratios}, indent=2) + "\n")


if __name__ == "__main__":
    main()
