"""Time the audit of a root's modules, and depmod's check of them; standard library only, to run in a separate root.

    python3 measure.py PROGRAM.pyz RELEASE ROOT ROUNDS

Prints one JSON object: {audit, depmod: {seconds, cpu_seconds, peak_mib}, modules, bytes, verdicts, findings}.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import time
from pathlib import Path


def run(argv: list[str], output: Path) -> tuple[float, float, float, int]:
    """Seconds by the clock and of processors, peak memory in MiB, exit status."""
    begun = time.monotonic()
    child = os.posix_spawnp(
        argv[0],
        argv,
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, str(output), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)],
    )
    _, status, used = os.wait4(child, 0)
    return time.monotonic() - begun, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, os.WEXITSTATUS(status)


def median(argv: list[str], output: Path, rounds: int) -> dict[str, float]:
    runs = [run(argv, output) for _ in range(rounds)]
    if any(status not in (0, 1, 3) for *_, status in runs):
        sys.exit(f"{argv} ended with {runs}")
    return {
        "seconds": round(statistics.median(sample[0] for sample in runs), 2),
        "cpu_seconds": round(statistics.median(sample[1] for sample in runs), 2),
        "peak_mib": round(max(sample[2] for sample in runs), 1),
    }


def main(program: str, release: str, root: str, rounds: int) -> None:
    output = Path(program).with_name("measured.out")
    place = Path(root, "lib/modules", release)
    audit = [sys.executable, program, "kmod", "audit", "--kernel", release, "--root", root, "--json"]
    measurements = {"audit": median(audit, output, rounds)}
    results = json.loads(output.read_text())
    files = [Path(root, result["file"].lstrip("/")) for result in results if result["file"]]
    depmod = shutil.which("depmod", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if depmod:
        symvers = os.path.realpath(place / "build" / "Module.symvers")
        if root != "/" and not symvers.startswith(os.path.realpath(root)):
            symvers = root + symvers
        argv = [depmod, "-n", "-e", "-E", symvers, "-b", root, release]
        measurements["depmod"] = median(argv, output, rounds)
    output.unlink()
    document = {
        **measurements,
        "modules": len(results),
        "mib": round(sum(result.stat().st_size for result in files) / (1 << 20), 1),
        "verdicts": {result["module"]: result["ok"] for result in results},
        "findings": sorted({finding["id"] for result in results for finding in result["findings"]}),
    }
    sys.stdout.write(json.dumps(document) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
