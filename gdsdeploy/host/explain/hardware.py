"""Faults of the driver and of nvidia-fs in the kernel's log."""

from __future__ import annotations

from typing import Iterator, Optional

from ..facts import HostFacts
from ..facts.unknown import if_known
from ..subjects import condition as cause
from ..subjects import filesystem, quote, reference
from ..subjects.condition import NOTES, Cause, Condition, listed_cause, rule
from ..subjects.cufile_json import requests_p2pdma
from ..subjects.kernel import NVIDIA, NVIDIA_FS, Message, messages
from ..subjects.storage import Mount

#: Rows after which no transfer of nvidia-fs works → the cause.  After a bug it can't be unloaded either.
BROKEN = {"nvidia-fs-bug": "nvidia-fs.stopped", "nvidia-fs-access": "nvidia-fs.access-ok"}


@rule(cause.NVIDIA_FS, 40)
def stopped(facts: HostFacts, _mount: Optional[Mount] = None) -> Iterator[Condition]:
    """An error in nvidia-fs that the kernel stopped, or one that every transfer meets, leaves it loaded without use."""
    stops = [m for m in messages(facts.kernel.log.lines, NVIDIA_FS) if m.meaning.id in BROKEN]
    if stops:
        yield Condition(False, _obstacle(facts, stops[-1]))
    else:
        yield Condition(lambda: isinstance(facts.kernel.messages, tuple))


@rule(NOTES, 80)
def fault_notes(facts: HostFacts, mount: Mount) -> Iterator[Cause]:
    """Faults that don't rule the path out, though they may end a transfer on it."""
    modules = {NVIDIA: "driver.reported-fault"}
    if not if_known(lambda: requests_p2pdma(facts, lambda: filesystem.storage_of(facts, mount)), False):
        modules[NVIDIA_FS] = "nvidia-fs.reported-fault"
    for module, ident in modules.items():
        for message in messages(facts.kernel.log.lines, module):
            if message.meaning.fault:
                yield _cause(ident, facts, message)


def _obstacle(facts: HostFacts, message: Message) -> Cause:
    evidence = quote.with_source(facts.kernel.log.source, [message.line])
    return listed_cause(BROKEN[message.meaning.id], evidence, message.what)


def _cause(ident: str, facts: HostFacts, message: Message) -> Cause:
    evidence = quote.with_source(facts.kernel.log.source, [message.line])
    section = "NVIDIA Xid Errors" if message.xid else reference.INSTALL
    return Cause(ident, message.what, message.meaning.fix, evidence, section)
