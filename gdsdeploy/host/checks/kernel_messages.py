"""Faults that the driver, nvidia-fs and nvidia-peermem reported in the kernel's log since the boot."""

from __future__ import annotations

from typing import List

from ..facts import HostFacts, require
from ..facts.kernel_messages import NVIDIA, NVIDIA_FS, PEERMEM, Message, messages
from ..model.expectation import Expectation
from .registry import Answer, capitalized, check, failed, not_applicable, passed

#: Different fixes that one hint names.
FIXES = 3
UNKNOWN_HINT = (
    "Keep a persistent journal (mkdir -p /var/log/journal; systemctl restart systemd-journald), and run this as root; "
    "after the next boot the check can decide"
)


@check(
    "driver.errors",
    "the driver has reported no fault since the boot",
    expects="only Xid errors that programs cause, no failed initialization",
    prevents="a GPU that fell off the bus, has memory errors or never came up, although all modules are loaded",
    unknown_hint=UNKNOWN_HINT,
    of_running=True,
)
def driver_errors(facts: HostFacts, _expectation: Expectation) -> Answer:
    return _judge(facts, NVIDIA)


@check(
    "nvidia-fs.errors",
    "nvidia-fs has reported no fault since it was last loaded",
    expects="only errors that programs cause",
    prevents="transfers that fail or hang because nvidia-fs can't pin or map GPU memory, although it is loaded",
    unknown_hint=UNKNOWN_HINT,
    of_running=True,
)
def nvidia_fs_errors(facts: HostFacts, expectation: Expectation) -> Answer:
    if not expectation.nvidia_fs_version:
        return not_applicable(f"not needed: the mode is {expectation.mode}")
    return _judge(facts, NVIDIA_FS)


@check(
    "peermem.errors",
    "nvidia-peermem has reported no fault since the boot",
    expects="only errors that programs cause",
    prevents="RDMA that can't register GPU memory, although nvidia-peermem is loaded",
    unknown_hint=UNKNOWN_HINT,
    of_running=True,
)
def peermem_errors(facts: HostFacts, expectation: Expectation) -> Answer:
    if expectation.rdma != "peermem":
        return not_applicable(f"not needed: the fleet asks for RDMA {expectation.rdma}")
    return _judge(facts, PEERMEM)


def _judge(facts: HostFacts, module: str) -> Answer:
    log = facts.kernel.log
    # A module that is loaded now has no failure to load any more.
    loaded = module == PEERMEM and facts.peermem.module.loaded is True
    reported = [m for m in messages(log.lines, module) if not (loaded and m.meaning.loading)]
    faults = [message for message in reported if message.meaning.fault]
    if faults:
        return failed(_kinds(faults), _hint(faults), [message.line for message in faults])
    require(log.since_boot)
    lines = [message.line for message in reported] + list(log.suppressed)
    note = "; the kernel left out repeated messages" if log.suppressed else ""
    words = f"no fault of this host: {_kinds(reported)}" if reported else "none in the kernel's messages"
    return passed(words + note, lines)


def _kinds(reported: List[Message]) -> str:
    return "; ".join(sorted({message.what for message in reported}))


def _hint(faults: List[Message]) -> str:
    fixes = list(dict.fromkeys(message.meaning.fix for message in faults))
    return ". ".join(capitalized(fix) for fix in fixes[:FIXES])
