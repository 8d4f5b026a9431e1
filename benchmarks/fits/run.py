"""Compiles the drivers and nvidia-fs of Debian's suites for the kernels in them, and compares with what rules predict.

    python benchmarks/fits/run.py [--suites NAME …] [--kernel REL …] [--flavour open …] [--json FILE] [--list]

Every stack is built and audited as `gdsdeploy kmod preflight` does it; nothing is installed.  Results are kept, and a
second run continues.  It fails if a stack works that a rule refuses, or fails though the rules know that it works.
The machine's apt has to know a Debian archive.  See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from gdsdeploy import console
from gdsdeploy.errors import GdsError
from gdsdeploy.host.model.compat import FITS, KINDS, REFUSED, UNKNOWN, Value, judge, rules_with, unknown_pairs
from gdsdeploy.lock import repo_settings
from gdsdeploy.lock.resolve import options
from gdsdeploy.lock.resolve.options import Option
from gdsdeploy.lock.resolve.target import base
from gdsdeploy.lock.resolve_fleet import read_repositories
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.platform import stack_platform_for
from gdsdeploy.preflight.record import NVIDIA_FS, Answer, is_build
from gdsdeploy.preflight.trial import Cell, StackChoices, preflight
from gdsdeploy.repo.fetch import Fetcher

#: Which suites are one archive, as a host of that release would have them.
SUITES: Final = {
    "bookworm": (["bookworm", "bookworm-updates", "bookworm-backports"], ["bookworm-security"]),
    "trixie": (["trixie", "trixie-updates", "trixie-backports"], ["trixie-security"]),
    "sid": (["sid", "experimental"], []),
}
OS: Final = {"bookworm": "debian-12", "trixie": "debian-13", "sid": "debian-13"}
FLAVOURS: Final = ("open", "proprietary")


@dataclass(frozen=True)
class Row:
    """One module of a stack: what rules say about it and the kernel, and what came out."""

    suites: str
    kernel: str
    kernel_package: str
    #: ``driver`` or ``nvidia_fs``
    module: str
    driver: str
    flavour: str
    nvidia_fs: str
    predicted: str
    rules: list[str]
    found: str
    error: str
    time: str

    @property
    def is_wrong(self) -> bool:
        """Whether the rules claimed something else than what came out."""
        return self.found in (Answer.YES, Answer.NO) and (
            self.predicted != UNKNOWN and (self.predicted == REFUSED) != (self.found == Answer.NO)
        )


def fleet_of(suites: str, flavour: str) -> Fleet:
    """A fleet with one profile, of these suites."""
    own, security = SUITES[suites]
    repositories = {"debian": {"suites": own}, **({"debian-security": {"suites": security}} if security else {})}
    profile = {
        "os": OS[suites],
        "repositories": [*repositories],
        "driver": {"version": "newest", "flavour": flavour},
        "kernel": "newest",
        "nvidia_fs": "newest",
    }
    return Fleet.model_validate(
        {"version": 1, "repositories": repositories, "profiles": {suites: profile}, "hosts": {"gpu1": suites}}
    )


def newest_of_series(kernels: Sequence[Option]) -> list[Option]:
    """The newest kernel of each series (6.12); the list has the newest first."""
    return list({".".join(each.version.split(".")[:2]): each for each in reversed(kernels)}.values())


def stacks(
    fleet: Fleet, wanted: Sequence[str], fetcher: Fetcher, now: datetime | None
) -> Iterator[tuple[Option, Option, list[Option]]]:
    """(kernel, driver, each nvidia-fs, newest first); the newest kernel of each series unless some are wanted."""
    ((name, profile),) = fleet.profiles.items()
    platform = stack_platform_for(profile.os)
    repositories = repo_settings.repositories(fleet, name, platform)
    universe, _ = read_repositories(fetcher, repositories, platform.architecture(profile.arch), now=now)
    drivers, kernels, sources = options.find(profile, platform, universe).levels[:3]
    chosen = [each for each in kernels if each.release in wanted] if wanted else newest_of_series(kernels)
    yield from ((kernel, driver, sources) for kernel in chosen for driver in drivers)


def predicted(fleet: Fleet, stack: tuple[Option, ...], subject: str) -> tuple[str, list[str]]:
    """The worst verdict about building and loading ``subject``, and the rules that say so."""
    ((_, profile),) = fleet.profiles.items()
    facts: dict[str, Value | None] = {**base(profile, stack_platform_for(profile.os))}
    for option in stack:
        facts |= option.facts
    verdicts = judge(facts, rules_with(()))
    about = [
        each
        for each in (*verdicts, *unknown_pairs(facts, verdicts))
        # nvidia-fs would not load beside some flavours of the driver.
        if is_build(each, subject) or (subject == NVIDIA_FS and {subject, "flavour"} <= each.subjects)
    ]
    worst = min((each.kind for each in about), key=KINDS.index, default=FITS)
    return worst, [each.rule for each in about if each.kind == worst]


def rows(suites: str, fleet: Fleet, stack: tuple[Option, ...], cell: Cell | None) -> Iterator[Row]:
    """What is said and found about the driver and about nvidia-fs; cell: None before it was tried."""
    kernel, driver, source = stack
    record = cell.record if cell else None
    for subject in ("driver", NVIDIA_FS):
        kind, rules = predicted(fleet, stack, subject)
        found = record.answer_of(subject) if record else Answer.NOT_TRIED
        yield Row(
            suites=suites,
            kernel=kernel.release,
            kernel_package=kernel.version,
            module=subject,
            driver=driver.version,
            flavour=next(iter(fleet.profiles.values())).driver.flavour,
            nvidia_fs=source.version,
            predicted=kind,
            rules=rules,
            found=found.value,
            error=_error(cell, subject) if found is not Answer.YES else "",
            time=record.time if record else "",
        )


def _error(cell: Cell | None, subject: str) -> str:
    if cell is None or cell.record is None:
        return cell.candidate.problem.splitlines()[0] if cell else ""
    failed = (each for each in cell.record.modules if (each.module == NVIDIA_FS) == (subject == NVIDIA_FS))
    # The compiler's own words come after the versions and the folder.
    return next((each.error.partition(": ")[2] or each.error for each in failed if each.error), "")


def line(row: Row) -> str:
    """A row of the table in docs/kernels.md."""
    version = row.nvidia_fs if row.module == NVIDIA_FS else f"{row.driver} ({row.flavour})"
    names = ", ".join(f"`{rule}`" for rule in row.rules if row.predicted == REFUSED)
    found = row.found + (" **wrong**" if row.is_wrong else "")
    error = f"`{row.error}`" if row.error else ""
    name = row.module.replace("_", "-")
    cells = [row.suites, row.kernel, name, version, f"{row.predicted} {names}".strip(), found, error]
    return f"| {' | '.join(cells)} |"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", nargs="+", choices=[*SUITES], default=[*SUITES])
    parser.add_argument("--flavour", nargs="+", choices=FLAVOURS, default=FLAVOURS)
    parser.add_argument("--kernel", nargs="+", default=[], metavar="REL", help="default: the newest of each series")
    parser.add_argument("--now", type=datetime.fromisoformat, help="for indices that have expired: the time to take")
    parser.add_argument("--list", action="store_true", help="compile nothing; print what rules predict")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    now = arguments.now.astimezone(UTC) if arguments.now else None
    done: list[Row] = []
    with Fetcher() as fetcher:
        for suites in arguments.suites:
            for flavour in arguments.flavour:
                fleet = fleet_of(suites, flavour)
                try:
                    chosen = list(stacks(fleet, arguments.kernel, fetcher, now))
                except GdsError as error:
                    console.say(f"{suites}: {error.message}")
                    continue
                for kernel, driver, sources in chosen:
                    # The newest nvidia-fs that may be installed beside the driver.
                    for source in sources:
                        stack, cell = (kernel, driver, source), None
                        choices = StackChoices(*((f"=={each.release or each.version}",) for each in stack))
                        if arguments.list:
                            break
                        (cell,) = preflight(fleet, None, [suites], choices, again=False, fetcher=fetcher, now=now)
                        if cell.record:
                            break
                    new = list(rows(suites, fleet, stack, cell))
                    done += new
                    for row in new:
                        console.data(line(row))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in done], indent=2) + "\n")
    wrong = [row for row in done if row.is_wrong]
    tried = sum(row.found in (Answer.YES, Answer.NO) for row in done)
    console.data(f"{len(done)} modules, {tried} decided, {len(wrong)} otherwise than predicted")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
