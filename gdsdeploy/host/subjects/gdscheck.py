"""What libcufile and NVIDIA's gdscheck answer on the host, and whether the other checks agree with gdscheck."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import resource
import tempfile
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Optional, Pattern, Tuple

from ..facts.document import Document
from ..facts.unknown import Facts, UndecidedError, fact, given, if_known, require
from ..io import cache
from ..io.mounts import PSEUDO
from ..io.reading import beginning
from ..libcufile import probe
from ..model.expectation import Expectation
from ..paths import (
    CUFILE,
    CUFILE_OPEN,
    CUFILE_SONAME,
    FABRIC_STATES,
    GDSCHECK,
    LIBRARY_FOLDERS,
    LIBRARY_PATTERN,
    NVFS,
    NVIDIA,
    PCI,
    RECOVERY,
)
from ..process import is_roots
from ..subjects.driver import OPEN
from . import libcufile
from .kernel import BOOT_ID, SOURCES as LOGS
from .register import Answer, check, collector, failed, not_applicable, passed
from .types import EvidenceRequest, HostFacts, Recorder

if TYPE_CHECKING:
    from ..gdscheck.reader import Report, Row

#: Debian's gds-tools, then NVIDIA's.
GDSCHECKS = ("/usr/libexec/gds/tools/gdscheck", "/usr/local/cuda*/gds/tools/gdscheck")
GDSCHECK_SECONDS = 30.0
#: Bytes kept of the log that it makes libcufile write.
LOG_LIMIT = 64 * 1024


#: Files of the kernel, and folders of it of which the names count, that libcufile's answer depends on.
_KERNEL_FILES = (
    BOOT_ID,
    *(NVIDIA + path for path in ("/version", "/params", "/gpus/*/information")),
    *(NVFS + path for path in ("/version", "/devcount")),
    "/sys/class/infiniband/*/ports/*/state",
)
_KERNEL_FOLDERS = (PCI, "/sys/module", "/sys/block", "/sys/class/infiniband")
#: A node or a folder of a module that comes back has another number.
_NODES = ("/dev/nvidia*", "/dev/nvidia-caps/*", "/dev/infiniband/*", "/sys/module/nvidia*")
_FILE_LIMIT = 64 * 1024
#: Where the loader has the libraries' paths from: ldconfig writes it.
_LOADER_CACHE = "/etc/ld.so.cache"
#: udev's records of block devices.
_UDEV = "/run/udev/data/b*"
#: Variables of the loader, of CUDA and of NVIDIA's libraries; those of cuFile aren't handed on.
_VARIABLES = ("LD_", "CUDA_", "NV")


def _inputs(recorder: Recorder, config: str) -> cache.Inputs:
    """All that decides what libcufile answers to its configuration at ``config``, but for faults of hardware.

    Of these, the kernel's messages and nvidia-smi tell.
    """
    commands = recorder.document["commands"]
    listed = commands.get("ldconfig", {}).get("stdout", "")
    libraries = [*(line.rpartition(" => ")[2] for line in listed.splitlines()), *probe.libraries()]
    mounts = recorder.mounts().by_id.values()
    words = [
        *libraries,
        *map(_content, _paths(*_KERNEL_FILES)),
        *_paths(*(folder + "/*" for folder in _KERNEL_FOLDERS)),
        *map(_node, _paths(*_NODES)),
        *(mount.line for mount in mounts if not PSEUDO.match(mount.filesystem)),
        *(f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(_VARIABLES)),
        str(resource.getrlimit(resource.RLIMIT_MEMLOCK)),
        *(line for log in LOGS for line in Document(recorder.document).printed(log).splitlines() if "NVRM" in line),
        *(commands.get(name, {}).get("stdout", "") for name in (RECOVERY, FABRIC_STATES)),
    ]
    files = [path for path in libraries if path.startswith("/")]
    return cache.Inputs((*files, CUFILE, config, _LOADER_CACHE, *_paths(_UDEV)), words)


def _paths(*patterns: str) -> List[str]:
    return [path for pattern in patterns for path in sorted(glob.glob(pattern))]


def _content(path: str) -> str:
    with contextlib.suppress(OSError):
        path += " " + beginning(path, _FILE_LIMIT).decode("utf-8", "replace")
    return path


def _node(path: str) -> str:
    with contextlib.suppress(OSError):
        status = os.stat(path)
        path += f" {status.st_ino} {status.st_rdev} {status.st_mode} {status.st_uid} {status.st_gid}"
    return path


def _keep(
    recorder: Recorder, name: str, inputs: cache.Inputs, run: Callable[[], None], lasts: Callable[[], bool], fresh: bool
) -> None:
    """Record the programs that ``run`` records, or what they printed while ``inputs`` were the same.

    lasts: whether what they printed may be kept.  fresh: run them in any case.
    """
    commands: Dict[str, Any] = recorder.document["commands"]
    others = set(commands)

    def read() -> Optional[Dict[str, Any]]:
        run()
        records = {name: record for name, record in commands.items() if name not in others}
        for record in records.values():
            record["asked_at"] = recorder.document["collected_at"]
        return records if lasts() else None

    commands.update(cache.of(name, inputs, read, fresh) or {})


def _lasts(commands: Mapping[str, Any]) -> bool:
    """Whether libcufile opened without an error, or found no GPU; other errors may pass by themselves."""
    said = probe.said(commands[CUFILE_OPEN]["stdout"])
    return said.cuda_error == libcufile.NO_DEVICE or (
        said.error == 0 and "] ERROR " not in commands[CUFILE_OPEN]["log"]
    )


def _open_libcufile(recorder: Recorder, path: str, inputs: cache.Inputs, fresh: bool) -> None:
    """Record which libraries there are, and what the one that programs load says to the configuration at ``path``."""
    for library in recorder.paths(*LIBRARY_FOLDERS, pattern=LIBRARY_PATTERN):
        recorder.link(library)
    for unsafe in probe.unsafe_libraries():
        recorder.gap(CUFILE_OPEN, f"{unsafe}: users other than root can replace it, so root doesn't load it")
    ldconfig = recorder.document["commands"].get("ldconfig", {})
    if ldconfig.get("status") == 0 and not probe.is_anywhere(ldconfig["stdout"]):
        # A Python for nothing costs as much as a login.
        recorder.document["listings"][CUFILE_SONAME] = []
    else:
        commands = recorder.document["commands"]
        run = partial(probe.probe, recorder.command, commands, path)
        _keep(recorder, CUFILE_OPEN, inputs, run, partial(_lasts, commands), fresh)


@collector("programs")
def collect_programs(recorder: Recorder, request: EvidenceRequest) -> None:
    for path in (CUFILE, request.cufile_path):
        recorder.text(path, limit=256 * 1024)
    inputs = _inputs(recorder, request.cufile_path)
    _run_gdscheck(recorder, inputs, request.fresh)
    _open_libcufile(recorder, request.cufile_path, inputs, request.fresh)


def _run_gdscheck(recorder: Recorder, inputs: cache.Inputs, fresh: bool) -> None:
    paths = [path for pattern in GDSCHECKS for path in sorted(glob.glob(pattern))]
    recorder.document["listings"][GDSCHECK] = paths
    safe_paths = [path for path in paths if is_roots(path)]
    if not safe_paths:
        for path in paths[:1]:
            recorder.gap(GDSCHECK, f"{path}: users other than root can replace it, so root doesn't run it")
        return
    commands = recorder.document["commands"]

    def run() -> None:
        with tempfile.TemporaryDirectory(prefix="gdscheck-") as folder:
            log = os.path.join(folder, "cufile.log")
            # Only the log is redirected: this program doesn't write to its configured folder.
            argv = [*probe.without_cufile(), "CUFILE_LOGFILE_PATH=" + log, safe_paths[0], "-p"]
            recorder.command(GDSCHECK, argv, timeout=GDSCHECK_SECONDS, cwd=folder)
            commands[GDSCHECK]["log"] = probe.tail(log, LOG_LIMIT)

    inputs = inputs._replace(paths=(*inputs.paths, *safe_paths))
    _keep(recorder, GDSCHECK, inputs, run, lambda: bool(commands[GDSCHECK]["status"] == 0), fresh)


class GdscheckFacts(Facts):
    """The report of NVIDIA's gdscheck."""

    #: the host has a gdscheck
    installed = given(lambda document: bool(document.names(GDSCHECK)))

    @fact
    def report(self) -> Report:
        """Its output."""
        # The collector of this page has no use for the readers.
        from ..gdscheck import reader

        run = self.document.ran(GDSCHECK)
        return reader.parse((run.stdout + "\n" + run.stderr).split("\n"), run.status)

    @fact
    def logged(self) -> Optional[Report]:
        """The same rows as libcufile logged them when its driver was opened; None: it stopped before it logged them."""
        from ..gdscheck import reader

        report = reader.parse_log(self.document.attempted(CUFILE_OPEN).log)
        return report if report.complete else None

    @property
    def best(self) -> Optional[Report]:
        """The report in libcufile's log, else that of gdscheck; None without either."""
        return if_known(lambda: self.logged, None) or if_known(lambda: self.report, None)

    def row(self, label: str) -> Optional[Row]:
        """The library's own row about a kind of storage; None: there is none."""
        return self.best.storage.get(label) if self.best is not None else None


TOOL = "gds-tools"
#: gdscheck's words for the running driver (cufio-plat), since 1.9.
DRIVER_ROW = "Nvidia Driver Info Status"
#: Its reasons for giving up.
NO_GPU = re.compile(r"cuInit Failed|No cuda devices")
NO_NVIDIA_FS = re.compile(r"nvidia-fs driver is not loaded")
#: Lines that follow every reason.
GENERAL = r"Platform verification|cuFile (initialization|configuration)|Invalid argument$|API error|not supported"
BY_HAND = "Compare by hand: gdscheck -p, and the findings of the other checks"


@check(
    "gdscheck.agrees",
    "gdscheck's report doesn't contradict the other checks",
    expects="the same driver, nvidia-fs and storage as found here",
    prevents="trust in one side alone: gdscheck also succeeds in compat mode, and gdsdeploy may be wrong",
    unknown_hint="Run it by hand and compare: gdscheck -p",
)
def agrees(facts: HostFacts, expectation: Expectation) -> Answer:
    from ..gdscheck import reader

    if not facts.gdscheck.installed:
        if TOOL in expectation.packages:
            return failed("gdscheck is not installed", f"Install {TOOL}: provision the host again")
        logged = facts.gdscheck.logged
        if logged is None:
            return not_applicable("not installed, and the lock has no " + TOOL)
        return _compared(facts, logged)
    report = facts.gdscheck.report
    if report.verdict == reader.REFUSED:
        return _refused(facts, report)
    if report.verdict == reader.UNKNOWN:
        stray = "; ".join(report.strays[:2])
        raise UndecidedError("gdscheck's output is cut, mixed or not understood" + (": " + stray if stray else ""))
    if report.exit_status not in (None, 0):
        raise UndecidedError(f"gdscheck ended with status {report.exit_status} after a whole report")
    return _compared(facts, report)


def _compared(facts: HostFacts, report: Report) -> Answer:
    wrong = list(_contradictions(facts, report))
    if wrong:
        return failed("; ".join(wrong), BY_HAND, wrong)
    return passed(f"{report.verdict}: the same driver, nvidia-fs and storage")


def _contradictions(facts: HostFacts, report: Report) -> Iterator[str]:
    from .nvidia_fs import hooks

    row, flavour = report.platform.get(DRIVER_ROW, ""), facts.driver.flavour
    if row.startswith("Supported(") and flavour != OPEN:
        yield "it sees the open driver; found here: {}".format(flavour or "none loaded")
    elif row.startswith("Supported only on") and flavour == OPEN:
        yield "it sees the proprietary driver; found here: open"
    module, seen = facts.nvidia_fs.module, report.nvidia_fs
    if seen and not (module.version + ".").startswith(seen + "."):
        yield f"it sees nvidia-fs {seen}; loaded here is {module.version if module.loaded else 'none'}"
    elif module.loaded and not seen and report.config.get("properties.force_compat_mode") != "true":
        # Where the configuration forces compat mode, the library doesn't look for nvidia-fs.
        yield "it does not see nvidia-fs, which is loaded here"
    nvme = report.storage.get("NVMe")
    # The one row that can contradict: NVMe through nvidia-fs needs both nvidia-fs and hooks in the nvme driver.
    by_nvidia_fs = nvme is not None and nvme.supported and "p2pdma" not in nvme.paths
    if nvme is not None and by_nvidia_fs and not require(next(hooks(facts, "nvme")).holds):
        yield f"it says NVMe is {nvme.value}, but the nvme driver has no hooks for nvidia-fs"
    yield from (f"it claims an impossible direct path: {why}" for why in report.contradictions)


def _refused(facts: HostFacts, report: Report) -> Answer:
    """It gave up: passes if the other checks found the same reason."""
    reason = "; ".join(line for line in report.errors if not re.search(GENERAL, line)) or "; ".join(report.errors)
    causes: Tuple[Tuple[Pattern[str], Callable[[], bool]], ...] = (
        (libcufile.REFUSAL, lambda: facts.cufile.acceptance == libcufile.REJECTED),
        (NO_GPU, lambda: not facts.pci.gpus),
        (NO_NVIDIA_FS, lambda: not facts.nvidia_fs.module.loaded),
    )
    same = [cause for pattern, cause in causes if any(map(pattern.search, report.errors))]
    if not same:
        return failed("it gives up: " + reason, BY_HAND, report.errors)
    if same[0]():
        return passed("it gives up for a reason found here too, and proves nothing: " + reason, report.errors)
    return failed("it gives up, which nothing found here explains: " + reason, BY_HAND, report.errors)
