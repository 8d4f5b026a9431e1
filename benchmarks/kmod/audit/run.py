"""Seconds and peak memory of auditing a real driver's modules and nvidia-fs, in the three forms that hosts have.

    python benchmarks/kmod/audit/run.py [--os debian-13] [--kernel 6.12.94] [--driver 550.163.01-2] [--rounds 5]
    python benchmarks/kmod/audit/run.py --root DIR --kernel REL       # of a root that is there

Without --root the driver and nvidia-fs of the archive of this machine's apt are built for that kernel, in a throwaway
root with its real headers; nothing is installed.  Beside it, `depmod -n -e -E Module.symvers`, which reads every module
of the kernel and says which symbols of which are missing or of another version.  See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gdsdeploy import console
from gdsdeploy.host.model.compat import rules_with
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

MEASURE = Path(__file__).with_name("measure.py")
PROGRAM = "gdsdeploy-host.pyz"
#: argv: release, form, rounds; the modules that were built are in /build/modules.
FORMS = r"""
set -e
place=/lib/modules/$1/updates/dkms
mkdir -p $place
cp /build/modules/*.ko $place
case $2 in stripped|xz) strip --strip-debug $place/*.ko ;; esac
case $2 in xz) xz --check=crc32 $place/*.ko ;; esac
depmod -a $1
exec python3 /build/measure.py /build/gdsdeploy-host.pyz $1 / $3
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path)
    parser.add_argument("--os", default="debian-13")
    parser.add_argument("--kernel", default="6.12.94")
    parser.add_argument("--driver", default="550.163.01-2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    console.say(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    results = {"as it is": in_root(options)} if options.root else built(options)
    for form, result in results.items():
        audit, depmod = result["audit"], result.get("depmod")
        text = f"{form}: {result['modules']} modules, {result['mib']} MiB: {audit['seconds']} s by the clock"
        text += f", {audit['cpu_seconds']} s of processors, {audit['peak_mib']} MiB of memory"
        if depmod:
            text += f"; depmod {depmod['seconds']} s, {depmod['cpu_seconds']} s, {depmod['peak_mib']} MiB"
        console.data(text)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    return 0


def in_root(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        hostapp.build(Path(folder) / PROGRAM)
        argv = [sys.executable, MEASURE, f"{folder}/{PROGRAM}", options.kernel, options.root, str(options.rounds)]
        done = subprocess.run([str(word) for word in argv], check=True, capture_output=True, text=True)
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def built(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    target, layers = stack(options)
    with throwaway_root(layers) as place:
        hostapp.build(place.build / PROGRAM)
        shutil.copy(MEASURE, place.build)
        with console.step("Building the driver and nvidia-fs"):
            build(place, target)
        results = {}
        for form in ("as built", "stripped", "xz"):
            words = ["sh", "-c", FORMS, "sh", target.kernel.release, form, str(options.rounds)]
            results[form] = json.loads(place.run(words, doing="audit").stdout.splitlines()[-1])
    return results


def stack(options: argparse.Namespace) -> tuple[Target, list[str]]:
    fleet = Fleet.model_validate({"version": 1, "profiles": {"gds": {"os": options.os}}, "hosts": {"gpu1": "gds"}})
    profile, platform = fleet.profiles["gds"], stack_platform_for(options.os)
    with Fetcher() as fetcher:
        repositories = repo_settings.repositories(fleet, "gds", platform)
        universe, indices = read_repositories(
            fetcher, repositories, platform.architecture(profile.arch), now=datetime.now(UTC)
        )
        choices = StackChoices((options.kernel,), (options.driver,), ("newest",))
        sources = PackageReader(fetcher, indices, console.step).source_tree
        (choice,) = candidates("gds", profile, platform, universe, indices, sources, None, choices, rules_with(()))
        if choice.target is None:
            sys.exit(choice.problem)
        return choice.target, trial.layers(choice.target, platform, universe, fetcher)


def build(place: Root, target: Target) -> None:
    assert target.nvidia_fs is not None
    argv = ["python3", f"/build/{PROGRAM}", "kmod", "build", "driver", "nvidia-fs", "--peermem", "stub"]
    argv += ["--kernel", target.kernel.release, "--source", target.nvidia_fs.source_tree]
    argv += ["--driver-version", target.driver.version, "--driver-flavour", target.driver.flavour]
    place.run([*argv, "--output", "/build/modules/"], doing="build the driver and nvidia-fs")


if __name__ == "__main__":
    sys.exit(main())
