"""Which examples in the help of verbs no test executes, and why: marks for the page of commands.

``tests/loopback/test_site.py`` executes all others, in a folder with files of the names that examples use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

HOSTS = "needs your own hosts"
MODULES = "needs NVIDIA's modules; tests/kmod runs this verb"
SOURCES = "needs a driver's sources and a kernel's headers; tests/kmod runs this verb"
MACHINE = "depends on files of this machine"
#: (pattern of a command, why it isn't executed); the first match counts.
REASONS = (
    (r"gdsdeploy (init|plan|provision|remove|watch|support-bundle) ", HOSTS),
    (r"gdsdeploy validate fleet\.yml", HOSTS),
    (r"ansible-playbook -i inventory/hosts\.yml ", HOSTS),
    (r"gdsdeploy lock .*--adopt", HOSTS),
    (r"gdsdeploy lock .*--prove", "compiles a driver; tests/preflight runs this verb"),
    (r"gdsdeploy lock .*--sign", "needs your key; tests/loopback/test_signed_locks.py signs"),
    (r"gdsdeploy mirror ", "needs your signing key; tests/repos runs this verb"),
    (r"gdsdeploy rollout (start|resume|abort|rollback) ", HOSTS),
    (r"gdsdeploy topology fleet\.yml", HOSTS),
    (r"gdsdeploy sudoers .*\| ssh ", HOSTS),
    (r"gdsdeploy explain (?:--fleet \S+ )?gpu1(?! --evidence)", HOSTS),
    (r"gdsdeploy cufile render .* --diff", HOSTS),
    (r"gdsdeploy cufile check .* --here", MACHINE),
    (r"gdsdeploy doctor (?!--evidence)", MACHINE),
    (r"gdsdeploy fits --here", MACHINE),
    (r"gdsdeploy explain /data", MACHINE),
    (r"gdsdeploy kmod audit\b", MODULES),
    (r"gdsdeploy kmod build ", SOURCES),
    (r"gdsdeploy kmod trees .*--driver-version", SOURCES),
    (r"gdsdeploy kmod sign ", MODULES),
    (r"gdsdeploy kmod keygen ", "writes a key that this machine then trusts; tests/lab runs this verb"),
    (r"gdsdeploy kmod (un)?enrol ", "needs a host with Secure Boot; tests/lab runs this verb"),
    (r"gdsdeploy kmod builders .* --accept", HOSTS),
    (r"gdsdeploy kmod preflight ", "downloads packages and compiles; tests/preflight runs this verb"),
)
#: (pattern of a command, its exit code) where it isn't 0.
STATUSES = (
    (r"gdsdeploy diff before\.json after\.json(?! --json)", 33),
    (r"gdsdeploy rollout status .* --watch", 51),
    (r"gdsdeploy validate --evidence ", 31),
    (r"gdsdeploy doctor --evidence ", 30),
    (r"gdsdeploy fits driver=580\.126\.09 kernel=6\.19\.2 nvidia-fs", 30),
)


def marks(lines: Sequence[str]) -> str:
    """Comments before a block of these lines, each on a line; empty: every command is executed and ends with 0."""
    starts = [number for number, line in enumerate(lines) if number == 0 or not lines[number - 1].endswith("\\")]
    commands = {number + 1: lines[number] for number in starts}
    by_reason: dict[str, list[int]] = {}
    for number, command in commands.items():
        for pattern, reason in REASONS:
            if re.search(pattern, f"{command} "):
                by_reason.setdefault(reason, []).append(number)
                break
    return "".join(f"{comment}\n" for comment in (*_unexecuted(by_reason, commands), *_statuses(by_reason, commands)))


def _unexecuted(by_reason: Mapping[str, list[int]], commands: Mapping[int, str]) -> Iterator[str]:
    for reason, numbers in by_reason.items():
        word = "lines" if len(numbers) > 1 else "line"
        where = "" if len(numbers) == len(commands) else f", {word} {_ranges(numbers)}"
        yield f"<!-- not executed{where}: {reason} -->"


def _statuses(by_reason: Mapping[str, list[int]], commands: Mapping[int, str]) -> Iterator[str]:
    unexecuted = {number for numbers in by_reason.values() for number in numbers}
    for number, command in commands.items():
        for pattern, status in STATUSES:
            if number not in unexecuted and re.search(pattern, f"{command} "):
                yield f"<!-- exits with {status}, line {number} -->"


def _ranges(numbers: Sequence[int]) -> str:
    """1, 2, 3, 5: ``1-3, 5``."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
