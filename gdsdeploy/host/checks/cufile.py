"""libcufile, its configuration, and NVIDIA's gdscheck."""

from __future__ import annotations

import re
from typing import Callable, List, Pattern, Tuple, Union

from .. import gdscheck
from ..explain import explanation
from ..explain.nvidia_fs import HOOKS
from ..facts import HostFacts, UndecidedError, Unknown, require
from ..facts.cufile import ACCEPTED, REFUSAL, REJECTED, differences, refusal
from ..facts.driver import OPEN
from ..facts.processes import Program
from ..libcufile.counters import REASONS
from ..model.expectation import Expectation
from ..subjects.register import Answer, Steps, check, failed, not_applicable, passed

#: Segments of programs that ended which are no problem yet; the kernel has room for 4,096 by default.
DEAD_SEGMENTS = 1000


@check(
    "cufile.library",
    "the libcufile that programs load is the locked release",
    expects="libcufile {libcufile_version}",
    prevents="a second libcufile, from a CUDA toolkit or a Python package, which reads the configuration differently",
)
def library(facts: HostFacts, expectation: Expectation) -> Answer:
    version = facts.cufile.library
    if version is None:
        return failed("no libcufile is installed", "Provision the host again")
    if _is_locked(version, expectation):
        return passed("libcufile " + version)
    hint = "Provision again; to see which one the loader takes: ldconfig -p | grep libcufile"
    return failed("libcufile " + version, hint)


def _is_locked(version: str, expectation: Expectation) -> bool:
    """Whether a version from a file's name, of three or four numbers, is the locked one."""
    return (expectation.libcufile_version + ".").startswith(version + ".")


@check(
    "cufile.rendered",
    "the configuration of libcufile is the rendered one",
    expects="{cufile_path} with sha256 {cufile_sha256}",
    prevents="manual edits that were forgotten, and a file for another release",
    of_provision=True,
)
def rendered(facts: HostFacts, expectation: Expectation) -> Answer:
    path = expectation.cufile_path
    if not expectation.cufile_sha256:
        raise UndecidedError("the file is fitted to this host, and the host's facts don't decide its content")
    digest = require(facts.cufile.digests.get(path, Unknown(f"{path} was not looked at")))
    if digest is None:
        return failed(f"{path} does not exist", "Provision the host again")
    if digest == expectation.cufile_sha256:
        return passed(f"{path} as rendered")
    hint = "See the difference and put it into the fleet file: gdsdeploy provision --check --diff; then provision"
    return failed(f"{path} with sha256 {digest}", hint)


@check(
    "cufile.accepted",
    "the installed libcufile accepts its configuration",
    expects="{cufile_path} accepted by libcufile {libcufile_version}",
    prevents="a configuration that was valid for the previous release and now fails every program that opens cuFile",
)
def accepted(facts: HostFacts, _expectation: Expectation) -> Answer:
    acceptance, opened = facts.cufile.acceptance, facts.cufile.opened
    if acceptance == ACCEPTED:
        if opened.error is None:
            return passed("accepted (cuFileDriverOpen did not return afterwards)", opened.lines[-3:])
        if opened.error != 0:
            words = f"accepted (cuFileDriverOpen then returned {opened.error}: see the path of each mount)"
            return passed(words, opened.lines[:3])
        return passed("accepted")
    lines = refusal(opened) or ["no reason given"]
    hint = "Repair the value in the fleet file (profile, cufile) and provision again"
    return failed("refused: " + lines[0], hint, refusal(opened))


@check(
    "cufile.effective",
    "libcufile uses the values of its configuration",
    expects="every value of {cufile_path} that libcufile {libcufile_version} logs is the one in the file",
    prevents="a value that libcufile accepts and silently replaces",
    unknown_hint="libcufile's messages name what is missing; with allow_compat_mode false that is often nvidia-fs",
)
def effective(facts: HostFacts, _expectation: Expectation) -> Union[Answer, Steps]:
    config, values = facts.cufile.config, facts.cufile.effective
    if config is None or facts.cufile.acceptance != ACCEPTED:
        return not_applicable("no configuration is in effect: see cufile.rendered and cufile.accepted")
    if values is None:
        return _nothing_logged(facts)
    differing, compared = differences(config, values)
    if not differing:
        return passed(f"{compared} values as intended, of {len(values)} that libcufile logs")
    lines = [f"{value.key}: {value.effective} (the file has {value.intended})" for value in differing]
    hint = "Set values that the library supports in the fleet file (profile, cufile), and provision again"
    return failed("; ".join(lines), hint, lines)


def _nothing_logged(facts: HostFacts) -> Answer:
    """Without a GPU no release logs its values, and no program can use cuFile: there is nothing to compare."""
    opened = facts.cufile.opened
    end = "did not return" if opened.error is None else f"returned {opened.error}"
    if facts.driver.gpus:
        reason = "; ".join(opened.lines[:2]) or "it gave no reason"
        raise UndecidedError(f"cuFileDriverOpen {end} before libcufile logged its values: {reason}")
    return not_applicable(
        f"none to compare: this host has no GPU, so cuFileDriverOpen {end} before libcufile logged any"
    )


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
        if not isinstance(version, Unknown) and not _is_locked(version, expectation)
    ]


TOOL = "gds-tools"
#: gdscheck's words for the running driver (cufio-plat), since 1.9.
DRIVER_ROW = "Nvidia Driver Info Status"
#: Its reasons for giving up.
NO_GPU = re.compile(r"cuInit Failed|No cuda devices")
NO_NVIDIA_FS = re.compile(r"nvidia-fs driver is not loaded")
#: Lines that follow every reason.
GENERAL = re.compile(
    r"Platform verification|cuFile (initialization|configuration)|Invalid argument$|API error|not supported"
)
BY_HAND = "Compare by hand: gdscheck -p, and the findings of the other checks"


@check(
    "gdscheck.agrees",
    "gdscheck's report doesn't contradict the other checks",
    expects="the same driver, nvidia-fs and storage as found here",
    prevents="trust in one side alone: gdscheck also succeeds in compat mode, and gdsdeploy may be wrong",
    unknown_hint="Run it by hand and compare: gdscheck -p",
)
def agrees(facts: HostFacts, expectation: Expectation) -> Answer:
    if not facts.gdscheck.installed:
        if TOOL in expectation.packages:
            return failed("gdscheck is not installed", f"Install {TOOL}: provision the host again")
        logged = facts.gdscheck.logged
        if logged is None:
            return not_applicable("not installed, and the lock has no " + TOOL)
        return _compared(facts, logged)
    report = facts.gdscheck.report
    if report.verdict == gdscheck.REFUSED:
        return _refused(facts, report)
    if report.verdict == gdscheck.UNKNOWN:
        stray = "; ".join(report.strays[:2])
        raise UndecidedError("gdscheck's output is cut, mixed or not understood" + (": " + stray if stray else ""))
    if report.exit_status not in (None, 0):
        raise UndecidedError(f"gdscheck ended with status {report.exit_status} after a whole report")
    return _compared(facts, report)


def _compared(facts: HostFacts, report: gdscheck.Report) -> Answer:
    impossible = ["it claims an impossible direct path: " + why for why in report.contradictions]
    wrong = [*_driver(facts, report), *_nvidia_fs(facts, report), *_storage(facts, report), *impossible]
    if wrong:
        return failed("; ".join(wrong), BY_HAND, wrong)
    return passed(f"{report.verdict}: the same driver, nvidia-fs and storage")


def _refused(facts: HostFacts, report: gdscheck.Report) -> Answer:
    """It gave up: passes if the other checks found the same reason."""
    reason = "; ".join(line for line in report.errors if not GENERAL.search(line)) or "; ".join(report.errors)
    causes: Tuple[Tuple[Pattern[str], Callable[[], bool]], ...] = (
        (REFUSAL, lambda: facts.cufile.acceptance == REJECTED),
        (NO_GPU, lambda: not facts.pci.gpus),
        (NO_NVIDIA_FS, lambda: not facts.nvidia_fs.module.loaded),
    )
    same = [cause for pattern, cause in causes if any(map(pattern.search, report.errors))]
    if not same:
        return failed("it gives up: " + reason, BY_HAND, report.errors)
    if same[0]():
        return passed("it gives up for a reason found here too, and proves nothing: " + reason, report.errors)
    return failed("it gives up, which nothing found here explains: " + reason, BY_HAND, report.errors)


def _driver(facts: HostFacts, report: gdscheck.Report) -> List[str]:
    row = report.platform.get(DRIVER_ROW, "")
    flavour = facts.driver.flavour
    if row.startswith("Supported(") and flavour != OPEN:
        return ["it sees the open driver; found here: {}".format(flavour or "none loaded")]
    if row.startswith("Supported only on") and flavour == OPEN:
        return ["it sees the proprietary driver; found here: open"]
    return []


def _nvidia_fs(facts: HostFacts, report: gdscheck.Report) -> List[str]:
    loaded = facts.nvidia_fs.module.loaded
    version = facts.nvidia_fs.module.version if loaded else ""
    if report.nvidia_fs and not loaded:
        return [f"it sees nvidia-fs {report.nvidia_fs}, which is not loaded here"]
    # Where the configuration forces compat mode, the library doesn't look for nvidia-fs.
    forced = report.config.get("properties.force_compat_mode") == "true"
    if not report.nvidia_fs and loaded and not forced:
        return ["it does not see nvidia-fs, which is loaded here"]
    if report.nvidia_fs and not (version + ".").startswith(report.nvidia_fs + "."):
        return [f"it sees nvidia-fs {report.nvidia_fs}; loaded here is {version}"]
    return []


def _storage(facts: HostFacts, report: gdscheck.Report) -> List[str]:
    """The one row that can contradict: NVMe through nvidia-fs needs both nvidia-fs and hooks in the nvme driver."""
    row = report.storage.get("NVMe")
    if row is None or not row.supported or "p2pdma" in row.paths:
        return []
    symbols = facts.kernel.symbols
    if any(name in symbols for name in HOOKS["nvme"]):
        return []
    return [f"it says NVMe is {row.value}, but the nvme driver has no hooks for nvidia-fs"]
