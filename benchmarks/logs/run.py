"""Times ``explain --log`` on 10 MB of real log lines.

    python benchmarks/logs/run.py [--megabytes N]

The lines are those of the recordings in tests/evidence, repeated, with other numbers each time.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from pathlib import Path

from gdsdeploy import console
from gdsdeploy.host.logs.judge import answer_to

EVIDENCE = Path(__file__).parents[2] / "tests" / "evidence"
LOGS = {
    "cufile.log of level TRACE": EVIDENCE / "h200" / "libcufile-1.15.1-trace.log",
    "cufile.log of level ERROR": EVIDENCE / "gpu" / "h200-1.15.1-no-udev" / "io-strict.log",
    "make.log": EVIDENCE / "kmod" / "nvfs-2.28.4.upstream-build.no-crc.log",
}


def added_to(count: int) -> Callable[[re.Match[str]], str]:
    return lambda match: str(int(match[0]) + count)


def large(path: Path, size: int) -> bytes:
    """At least ``size`` bytes of the lines of ``path``; numbers of four and more digits differ each time."""
    lines, pieces, total = path.read_text().splitlines(), [], 0
    count = 0
    while total < size:
        for line in lines:
            piece = re.sub(r"\b\d{4,}\b", added_to(count), line).encode()
            pieces.append(piece)
            total += len(piece) + 1
        count += 1
    return b"\n".join(pieces)


def main() -> None:
    """Print the seconds for each kind of log."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=10)
    size = parser.parse_args().megabytes * 10**6
    for name, path in LOGS.items():
        data = large(path, size)
        start, cpu = time.perf_counter(), time.process_time()
        answer = answer_to([(path.name, data)])
        seconds = f"{time.perf_counter() - start:.2f} s, {time.process_time() - cpu:.2f} s of processor time"
        console.data(f"{name}: {len(data) / 1e6:.0f} MB in {seconds}: {len(answer.causes)} causes")


if __name__ == "__main__":
    main()
