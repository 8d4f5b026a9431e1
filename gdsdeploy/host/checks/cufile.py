"""libcufile, its configuration, and NVIDIA's gdscheck."""

from __future__ import annotations

from typing import List, Union

from ..explain import explanation
from ..facts import HostFacts, UndecidedError, Unknown, require
from ..libcufile.counters import REASONS
from ..model.expectation import Expectation
from ..subjects.libcufile import is_locked
from ..subjects.processes import Program
from ..subjects.register import Answer, Steps, check, failed, not_applicable, passed

#: Segments of programs that ended which are no problem yet; the kernel has room for 4,096 by default.
DEAD_SEGMENTS = 1000


@check(
    "cufile.processes",
    "no running program's own configuration keeps it off the direct path",
    expects="running programs with libcufile have no configuration or variable that forces compat mode",
    prevents="jobs that go through CPU memory on a healthy host, because of their own cufile.json or variable",
    unknown_hint="Run this as root: it reads /proc/PID/maps and environ, and the file that the environment names",
)
def running(facts: HostFacts, expectation: Expectation) -> Union[Answer, Steps]:
    if expectation.mode == "compat":
        return not_applicable("not asked: the mode is compat")
    points = [str(entry["mount"]) for entry in expectation.storage]
    explained = explanation.programs(facts, explanation.mounts_at(facts, points))
    causes = [(each.program.label, cause) for each in explained for cause in each.causes]
    if causes:
        lines = [f"{label}: {cause.what}" for label, cause in causes]
        quotes = [line for _, cause in causes for line in cause.evidence]
        hint = "See each program's configuration: gdsdeploy explain HOST. Correct the file, and start the program again"
        return failed("; ".join(lines), hint, [*lines, *quotes])
    for point in points if explained else []:
        facts.storage.mount_of(point)  # where it isn't known, a program's denylist may name it
    for each in explained:
        if each.unseen:
            raise UndecidedError(f"{each.program.label}: {each.unseen[0]}")
    require(facts.processes.complete)
    if not explained:
        return not_applicable("no running program uses libcufile")
    differing = [
        f"{each.program.label}: {explanation.configuration(each.program)}" for each in explained if each.differs is True
    ]
    return passed(f"{len(explained)} programs; {len(differing)} with another configuration", differing)


@check(
    "cufile.bundled",
    "running programs have loaded the locked libcufile",
    expects="libcufile {libcufile_version} in every program that uses it",
    prevents="a libcufile from a Python package or an image, which reads the configuration differently",
    unknown_hint="Run this as root: it reads /proc/PID/maps",
)
def bundled(facts: HostFacts, expectation: Expectation) -> Union[Answer, Steps]:
    programs = facts.processes.programs
    others = [line for program in programs for line in _others(program, expectation)]
    if others:
        hint = (
            "Install the locked release in that environment or image, or start the program with the host's:"
            " LD_LIBRARY_PATH or LD_PRELOAD names it. A program that started before an upgrade needs a restart"
        )
        return failed("; ".join(others), hint, others)
    for program in programs:
        for version in program.libraries.values():
            require(version)
    require(facts.processes.complete)
    if not programs:
        return not_applicable("no running program uses libcufile")
    return passed(f"{len(programs)} programs, each with the locked one")


@check(
    "cufile.statistics",
    "programs with libcufile keep statistics that gdsdeploy watch can read, if the fleet asks for them",
    expects="profile.cufile_stats is 0 or 3 in {cufile_path}, and few programs have left their statistics behind",
    prevents="jobs whose path can't be seen from outside, and dead shared memory that later programs stumble over",
    unknown_hint="Run this as root: it reads /proc/PID/maps and /proc/sysvipc/shm",
)
def statistics(facts: HostFacts, _expectation: Expectation) -> Union[Answer, Steps]:
    level = facts.cufile.setting("profile", "cufile_stats", 0)
    if level in (1, 2):
        return failed(
            f"profile.cufile_stats is {level}, which has no paths, and from 1.16 on nothing for other processes",
            "Set cufile_stats: 3 in the profile of the fleet file, or 0, and provision again",
        )
    dead = facts.processes.dead_segments
    if dead > DEAD_SEGMENTS:
        words = f"{dead} segments of shared memory are left of programs that ended"
        return failed(words, "Remove them on the host: gdsdeploy-host.pyz watch --collect")
    if level != 3:
        return passed("off")
    programs = facts.processes.programs
    silent = [f"{each.label}: {REASONS[each.counters][0]}" for each in programs if isinstance(each.counters, str)]
    return passed(f"{len(programs)} programs, {len(silent)} without; {dead} left of programs that ended", silent)


def _others(program: Program, expectation: Expectation) -> List[str]:
    """Libraries of a program that are another release."""
    return [
        f"{program.label}: libcufile {version} ({path})"
        for path, version in program.libraries.items()
        if not isinstance(version, Unknown) and not is_locked(version, expectation)
    ]
