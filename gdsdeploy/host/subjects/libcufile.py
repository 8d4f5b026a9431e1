"""libcufile itself: the release that programs load, whether it takes its configuration, and whose files it registers.

Which files cuFileHandleRegister takes, and the error that it returns for the others, was seen with every release from
1.4.0 to 1.20.0 (tests/loopback/cufile/test_cufile_library.py).
"""

from __future__ import annotations

import posixpath
import re
from typing import Iterator, List, NamedTuple, Optional, Tuple

from ..facts.document import TIMED_OUT, Document, Ran, group_of
from ..facts.unknown import UndecidedError, Unknown, if_known, known, require
from ..io.wording import span
from ..libcufile import probe
from ..model.expectation import Expectation
from ..paths import CUFILE, CUFILE_CONTROL, CUFILE_OPEN, LIBRARY_FOLDERS, LIBRARY_PATTERN
from . import quote
from .condition import USABLE, Cause, Condition, listed_cause, numbers, required, rule
from .register import Answer, Steps, check, failed, passed
from .types import HostFacts, Mount

#: CUresult of cuInit on a host without a GPU: CUDA_ERROR_NO_DEVICE.
NO_DEVICE = 100
ACCEPTED, REJECTED = "accepted", "rejected"
#: libcufile's words for a configuration that it refuses (the same in 1.4.0 to 1.20.0).
REFUSAL = re.compile(r"failed to load (user )?config|cuFile configuration load error|error reading config")
#: cuFileDriverOpen's result for it: -EINVAL up to 1.15, CU_FILE_DRIVER_INVALID_PROPS in 1.20.
INVALID = (-22, 5002)
#: Lines before a refusal with its reason.
_REASON = (
    r"json|config|invalid|specified:|aligned|multiple of|slab|parsing error|LargestUInt|initialization failed"
    r"|requires objectValue|mount point|cufio-px-pool"
)
#: Its words when it ends the process: over a section that is no object, a number beyond 32 bits, or sizes of slabs
#: without counts (seen in 1.4.0 to 1.20.0).
_ENDED = re.compile(r"LargestUInt|Json|file index :cufio-px-pool")


class Opened(NamedTuple):
    """The result of ``cuFileDriverOpen``: its CUfileOpError and CUresult, None where it didn't return."""

    error: Optional[int]
    cuda_error: Optional[int]
    hung: bool
    #: seconds before the evidence was collected
    age: float
    #: the library's messages: its output, then its log
    lines: Tuple[str, ...]
    #: its log lists the configuration in force
    listed: bool

    @property
    def when(self) -> str:
        """How old the answer is, where a later look has kept it; empty where libcufile was opened for this one."""
        return f" {span(self.age)} ago; what its answer depends on hasn't changed since" if self.age else ""

    @property
    def refusal(self) -> List[str]:
        """The library's own lines about a refused configuration."""
        return [line for line in self.lines if re.search(_REASON, line)]


def opened(document: Document, name: str = CUFILE_OPEN) -> Opened:
    run = document.attempted(name)
    said = probe.said(run.stdout)
    if said.problem:
        raise UndecidedError("libcufile was " + said.problem)
    if not said.loaded:
        output = run.stderr.strip() or run.stdout.strip() or "it printed nothing"
        raise UndecidedError("no program could ask libcufile: " + output)
    age, listed = document.age(name), probe.lists_configuration(run.log)
    return Opened(said.error, said.cuda_error, run.status == TIMED_OUT, age, _messages(run), listed)


def _messages(run: Ran) -> Tuple[str, ...]:
    # At level INFO the log has every effective value; errors have the other levels.
    logged = [line for line in run.log.splitlines() if re.search(r"\] (ERROR|WARN|NOTICE) ", line)]
    lines = (run.stdout + "\n" + run.stderr).splitlines() + logged
    return tuple(line.strip() for line in lines if line.strip() and not line.startswith("gdsdeploy:"))


def acceptance(document: Document) -> str:
    """See ``libcufile/probe.py``: a listed configuration, or a refused control, shows that it is accepted."""
    real = opened(document)
    if real.error in INVALID or any(REFUSAL.search(line) for line in real.lines):
        return REJECTED
    if real.listed:
        return ACCEPTED
    if real.error is None and not real.hung:
        if any(_ENDED.search(line) for line in real.lines):
            return REJECTED
        raise UndecidedError("libcufile died: {}".format("; ".join(real.lines[-2:]) or "no message"))
    control = opened(document, CUFILE_CONTROL)
    if any(REFUSAL.search(line) for line in control.lines):
        return ACCEPTED
    reason = "; ".join(control.lines[:2]) or "no message"
    raise UndecidedError(f"libcufile stops before it reads its configuration: {reason}")


def installed(document: Document) -> Optional[str]:
    """File name version of the library that the loader takes, e.g. ``1.9.1``: NVIDIA and Debian name it so."""
    said = probe.said(document.attempted(CUFILE_OPEN).stdout)
    match = re.search(r"/libcufile\.so\.(\d+\.\d+\S*)", said.library)
    if match:
        return match.group(1)
    if not said.problem.startswith("not loaded"):
        raise UndecidedError("the name of the loaded libcufile has no version")
    for folder in LIBRARY_FOLDERS:
        names = document.existing(f"{folder}/{LIBRARY_PATTERN}")
        if names:
            return _behind(document, folder, names)
    for folder in reversed(LIBRARY_FOLDERS):
        document.names(f"{folder}/{LIBRARY_PATTERN}")
    return None


def _behind(document: Document, folder: str, names: Tuple[str, ...]) -> str:
    soname = "libcufile.so.0"
    target = if_known(lambda: document.link(folder + "/" + soname), None)
    file = soname if target is None else posixpath.basename(target)
    match = re.match(r"libcufile\.so\.(\d+\.\d+\S*)$", file) if soname in names else None
    return group_of(match, "no version in the names " + ", ".join(names))


def release(facts: HostFacts) -> Optional[str]:
    """The release of libcufile: from the name of its file, else from its log; None where none is installed.

    Raises UndecidedError where neither has it.
    """
    of_file, logged = known(lambda: facts.cufile.library), if_known(lambda: facts.gdscheck.logged, None)
    return logged.release if isinstance(of_file, Unknown) and logged and logged.release else require(of_file)


def is_locked(version: str, expectation: Expectation) -> bool:
    """Whether a version from a file's name, of three or four numbers, is the locked one."""
    return (expectation.libcufile_version + ".").startswith(version + ".")


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
    if is_locked(version, expectation):
        return passed("libcufile " + version)
    hint = "Provision again; to see which one the loader takes: ldconfig -p | grep libcufile"
    return failed("libcufile " + version, hint)


def accepts(facts: HostFacts) -> Condition:
    """If libcufile refuses its configuration, every cuFile call fails."""

    def refused() -> Cause:
        lines = facts.cufile.opened.refusal
        what = "libcufile refuses its configuration: {}".format(lines[0] if lines else "no reason given")
        fix = (
            "correct the value that libcufile names, in the fleet file where that has it (profile, cufile); this lists"
            f" every problem: gdsdeploy cufile check {CUFILE}"
        )
        return listed_cause("cufile.refused", quote.with_source("libcufile", lines), what, fix)

    return Condition(lambda: facts.cufile.acceptance != REJECTED, refused)


@rule(USABLE, 10)
def usable(facts: HostFacts, _mount: Optional[Mount] = None) -> Iterator[Condition]:
    yield accepts(facts)


@check(
    "cufile.accepted",
    "the installed libcufile accepts its configuration",
    expects="{cufile_path} accepted by libcufile {libcufile_version}",
    prevents="a configuration that was valid for the previous release and now fails every program that opens cuFile",
)
def accepted(facts: HostFacts, _expectation: Expectation) -> Steps:
    yield accepts(facts)
    opened = facts.cufile.opened
    if opened.error is None:
        yield passed("accepted (cuFileDriverOpen did not return afterwards)", opened.lines[-3:])
    elif opened.error != 0:
        words = f"accepted{opened.when} (cuFileDriverOpen then returned {opened.error}: see the path of each mount)"
        yield passed(words, opened.lines[:3])
    else:
        yield passed("accepted" + opened.when)


#: The first release that returns NEWER for a file that it can't register; those before return OLDER.
CHANGED, OLDER, NEWER = (1, 15), 5030, 5027
#: The first release that registers files for compat mode which no earlier one takes.
SILENT = (1, 16)


def registration_error(version: str) -> int:
    """The error for a file whose disk udev doesn't know, or whose filesystem isn't supported."""
    return NEWER if numbers(version) >= CHANGED else OLDER


def registration_failure(facts: HostFacts) -> str:
    """``cuFileHandleRegister fails with …``, by the release of libcufile where that is known."""
    version = if_known(lambda: release(facts), None)
    error = f"{NEWER} ({OLDER} before libcufile 1.15)" if version is None else registration_error(version)
    return f"cuFileHandleRegister fails with {error}"


def registers_silently(facts: HostFacts) -> Tuple[Cause, ...]:
    """What goes for each file in compat mode: newer releases register it as if nothing were amiss."""
    version = if_known(lambda: release(facts), None)
    if version is None or numbers(version) < SILENT:
        return ()
    return (listed_cause("cufile.silent-compat", (f"libcufile: {version}",)),)


@rule(USABLE, 30)
def udev(facts: HostFacts, mount: Optional[Mount]) -> Iterator[Condition]:
    """When a file is registered, libcufile looks up its disk in udev's database."""
    device = if_known(lambda: mount.device, None) if mount is not None else None
    if device is None:
        return
    container = if_known(lambda: facts.environment.container, None)
    what = f"udev has no ID_FS_USAGE for {device.name}, so {registration_failure(facts)}"
    # The table's fix is for a container.
    fix = "record it: udevadm trigger --subsystem-match=block; in a container, also mount the host's /run/udev"
    if container:
        what, fix = f"{what} (this is {container})", ""
    evidence = (f"/run/udev/data/b{device.number}: no ID_FS_USAGE",)
    yield required(lambda: device.udev_usage is not None, "udev.no-database", evidence, what, fix)
