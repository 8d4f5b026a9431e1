"""Pairs `gdsdeploy lock` of the Debian 13 stack with `apt-get -s install` of the same packages from the same indices.

    python benchmarks/lock/run.py [--rounds N] [--json FILE]

Both read one copy of Debian's signed indices from disk, made in a temporary folder from the archive that this
machine's own apt uses; nothing is installed and no file of this machine is written.  See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import yaml

from gdsdeploy import console
from gdsdeploy.lock import repo_settings
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.platform import stack_platform_for
from gdsdeploy.repo import apt
from gdsdeploy.repo.fetch import Fetcher

OS, ARCHITECTURE = "debian-13", "amd64"
#: Measured programs: apt reads its lists, like gdsdeploy, or uses its binary cache of them.
OURS, APT, CACHED = "gdsdeploy lock", "apt-get -s install", "apt-get -s install, its cache warm"


@dataclass(frozen=True)
class Run:
    """What one process took: seconds of the clock, seconds of the processors, and MiB at its peak."""

    wall: float
    cpu: float
    peak: float


def copy_indices(root: Path) -> dict[str, apt.Repository]:
    """Debian's own signed indices below ``root``, one folder a repository; returns the repositories by name."""
    intent = {"version": 1, "profiles": {"gds": {"os": OS}}, "hosts": {"gpu1": "gds"}}
    copies: dict[str, apt.Repository] = {}
    with Fetcher() as fetcher:
        for repository in repo_settings.repositories(Fleet.model_validate(intent), "gds", stack_platform_for(OS)):
            assert isinstance(repository, apt.Repository)
            copies[repository.name] = repository
            for suite in repository.suites:
                release = apt.release(fetcher, repository, suite, now=datetime.now(UTC))
                folder = root / repository.name / "dists" / suite
                folder.mkdir(parents=True)
                (folder / "InRelease").write_bytes(fetcher.small(release.base + "InRelease"))
                for component in repository.components:
                    path = f"{component}/binary-{ARCHITECTURE}/Packages.xz"
                    sha256, size = release.files[path]
                    (folder / path).parent.mkdir(parents=True)
                    (folder / path).write_bytes(fetcher.small(release.base + path, limit=size))
                    assert (folder / path).stat().st_size == size, f"{path} ({sha256}) is cut short"
    return copies


def fleet_file(root: Path, work: Path, repositories: Mapping[str, apt.Repository]) -> Path:
    """A fleet file that takes everything from the copy."""
    content = {
        "version": 1,
        "repositories": {name: {"uri": f"file://{root / name}"} for name in repositories},
        "profiles": {"gds": {"os": OS}},
        "hosts": {"gpu1": "gds"},
    }
    path = work / "fleet.yml"
    path.write_text(yaml.safe_dump(content))
    return path


def apt_root(root: Path, work: Path, repositories: Mapping[str, apt.Repository]) -> list[str]:
    """An empty machine whose apt knows the copy; returns apt-get's options for it."""
    private = work / "apt"
    for folder in ("etc/apt.conf.d", "etc/preferences.d", "etc/sources.list.d", "state/lists/partial",
                   "cache/archives/partial"):  # fmt: skip
        (private / folder).mkdir(parents=True)
    (private / "status").touch()
    lines = [
        f"deb [signed-by={r.keyring}] file:{root / r.name} {suite} {' '.join(r.components)}"
        for r in repositories.values()
        for suite in r.suites
    ]
    (private / "etc" / "sources.list").write_text("\n".join(lines) + "\n")
    options = {
        "Dir": private, "Dir::Etc": private / "etc", "Dir::State": private / "state", "Dir::Cache": private / "cache",
        "Dir::State::status": private / "status", "APT::Architecture": ARCHITECTURE,
        "APT::Architectures": ARCHITECTURE, "APT::Sandbox::User": "", "Acquire::Languages": "none",
        "APT::Install-Recommends": "false",
    }  # fmt: skip
    return [word for key, value in options.items() for word in ("-o", f"{key}={value}")]


def measure(argv: Sequence[str], env: Mapping[str, str]) -> tuple[Run, str]:
    """Run a program to its end; returns what it took and its output, or ends this program with its errors."""
    with tempfile.TemporaryFile("w+") as out:
        begin = time.monotonic()
        process = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT, env=dict(env))
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.monotonic() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        text = out.read()
    if process.returncode != 0:
        sys.exit(f"{argv[0]} ended with status {process.returncode}:\n{text}")
    return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024), text


def agree(plan: str, expected: Mapping[str, str]) -> None:
    """End this program unless apt would install exactly the versions that the lock has."""
    installed = dict(re.findall(r"^Inst (\S+) \((\S+) ", plan, re.MULTILINE))
    different = {name: installed.get(name) for name in expected if installed.get(name) != expected[name]}
    if different:
        sys.exit(f"apt would install something else: {different}")


def median(runs: Sequence[Run]) -> Run:
    return Run(*(statistics.median(getattr(run, key) for run in runs) for key in ("wall", "cpu", "peak")))


def main() -> None:
    """Measure in pairs and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="pairs to measure (default: 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run and the ratios to FILE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gdsdeploy-bench-") as folder:
        results = compare(Path(folder), arguments.rounds)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


def compare(work: Path, rounds: int) -> dict[str, object]:
    """Prepare both sides, run them in turn, and print what they took."""
    root = work / "archive"
    repositories = copy_indices(root)
    fleet = fleet_file(root, work, repositories)
    apt_get = ["apt-get", "-q", *apt_root(root, work, repositories)]
    lists_alone = ["-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache="]
    own_cache = ["-o", "Dir::Cache::pkgcache=pkgcache.bin", "-o", "Dir::Cache::srcpkgcache=srcpkgcache.bin"]
    ours = [sys.executable, "-m", "gdsdeploy", "lock", "--upgrade", str(fleet)]
    env = {**os.environ, "GDSDEPLOY_CACHE_DIR": str(work / "cache"), "LC_ALL": "C.UTF-8"}
    # Before the first pair each has unpacked the lists for itself: apt-get update, and the first lock.
    measure([*apt_get, *own_cache, "update"], env)
    measure(ours, env)
    target = yaml.safe_load((work / "gdsdeploy.lock").read_text())["targets"]["gds"]
    expected = {package["package"]: package["version"] for package in target["packages"]}
    install = ["--simulate", "install", *(f"{name}={version}" for name, version in expected.items())]
    sides = {OURS: ours, APT: [*apt_get, *lists_alone, *install], CACHED: [*apt_get, *own_cache, *install]}
    measure(sides[CACHED], env)
    runs: dict[str, list[Run]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, argv in sides.items():
            took, text = measure(argv, env)
            runs[name].append(took)
            if name != OURS:
                agree(text, expected)
    medians = {name: median(each) for name, each in runs.items()}
    console.data(f"{len(expected)} packages, the same versions from all; medians of {rounds} rounds:")
    for name, each in medians.items():
        console.data(f"  {name:<38} {each.wall:6.2f} s  {each.cpu:6.2f} s of processor  {each.peak:5.0f} MiB at peak")
    a = medians[OURS]
    ratios = {name: {"wall": b.wall / a.wall, "cpu": b.cpu / a.cpu, "peak": a.peak / b.peak}
              for name, b in medians.items() if name != OURS}  # fmt: skip
    for name, ratio in ratios.items():
        console.data(f"{OURS} is {ratio['wall']:.2f} times as fast as {name} ({ratio['cpu']:.2f} by processor time) "
            f"and takes {ratio['peak']:.2f} times its memory")  # fmt: skip
    return {"rounds": rounds, "runs": {n: [asdict(r) for r in each] for n, each in runs.items()}, "ratios": ratios}


if __name__ == "__main__":
    main()
