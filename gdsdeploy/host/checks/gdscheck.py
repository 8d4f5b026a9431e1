"""NVIDIA's gdscheck compared with gdsdeploy's findings: a second witness, never the only one."""

from __future__ import annotations

import re
from typing import List

from .. import gdscheck
from ..explain.nvidia_fs import HOOKS
from ..facts import HostFacts, UndecidedError, require
from ..facts.cufile import REFUSAL, REJECTED
from ..facts.gpu import OPEN
from ..facts.unknown import when_known
from ..model.expectation import Expectation
from .registry import Answer, check, failed, not_applicable, passed, subject

subject("gdscheck", after="cufile")

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
    if not require(facts.gdscheck.installed):
        if TOOL in expectation.packages:
            return failed("gdscheck is not installed", f"Install {TOOL}: provision the host again")
        logged = require(facts.gdscheck.logged)
        if logged is None:
            return not_applicable("not installed, and the lock has no " + TOOL)
        return _compared(facts, logged)
    report = require(facts.gdscheck.report)
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
    causes = (
        (REFUSAL, when_known(facts.cufile.acceptance, lambda acceptance: acceptance == REJECTED)),
        (NO_GPU, when_known(facts.pci.gpus, lambda gpus: not gpus)),
        (NO_NVIDIA_FS, when_known(facts.nvidia_fs.module.loaded, lambda loaded: not loaded)),
    )
    same = [cause for pattern, cause in causes if any(map(pattern.search, report.errors))]
    if not same:
        return failed("it gives up: " + reason, BY_HAND, report.errors)
    if require(same[0]):
        return passed("it gives up for a reason found here too, and proves nothing: " + reason, report.errors)
    return failed("it gives up, which nothing found here explains: " + reason, BY_HAND, report.errors)


def _driver(facts: HostFacts, report: gdscheck.Report) -> List[str]:
    row = report.platform.get(DRIVER_ROW, "")
    flavour = require(facts.driver.flavour)
    if row.startswith("Supported(") and flavour != OPEN:
        return ["it sees the open driver; found here: {}".format(flavour or "none loaded")]
    if row.startswith("Supported only on") and flavour == OPEN:
        return ["it sees the proprietary driver; found here: open"]
    return []


def _nvidia_fs(facts: HostFacts, report: gdscheck.Report) -> List[str]:
    loaded = require(facts.nvidia_fs.module.loaded)
    version = require(facts.nvidia_fs.module.version) if loaded else ""
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
    symbols = require(facts.kernel.symbols)
    if any(name in symbols for name in HOOKS["nvme"]):
        return []
    return [f"it says NVMe is {row.value}, but the nvme driver has no hooks for nvidia-fs"]
