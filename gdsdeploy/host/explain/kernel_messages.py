"""Faults in the kernel's log that stop or endanger a direct path."""

from __future__ import annotations

from typing import Iterator, Optional

from ..facts import HostFacts
from ..facts.kernel_messages import NVIDIA, NVIDIA_FS, Message, messages
from ..facts.storage import Mount
from ..facts.unknown import when_known
from . import blocks, cause, p2pdma_keys, quote, reference, shared
from .cause import Cause, Condition
from .rules import NOTES, rule

#: Rows after which no transfer of nvidia-fs works → the cause.  After a bug it can't be unloaded either.
BROKEN = {"nvidia-fs-bug": "nvidia-fs.stopped", "nvidia-fs-access": "nvidia-fs.access-ok"}


@rule(cause.NVIDIA_FS, 40)
def stopped(facts: HostFacts, _mount: Optional[Mount] = None) -> Iterator[Condition]:
    """An error in nvidia-fs that the kernel stopped, or one that every transfer meets, leaves it loaded without use."""
    stops = [m for m in messages(facts.kernel.log.lines, NVIDIA_FS) if m.meaning.id in BROKEN]
    obstacle = _obstacle(facts, stops[-1]) if stops else None
    yield Condition(False if stops else when_known(facts.kernel.messages, lambda _: True), obstacle)


@rule(NOTES, 80)
def notes(facts: HostFacts, mount: Mount) -> Iterator[Cause]:
    """Faults that don't rule the path out, though they may end a transfer on it."""
    modules = {NVIDIA: "driver.reported-fault"}
    if p2pdma_keys.requests(facts, blocks.storage_of(facts, mount)) is not True:
        modules[NVIDIA_FS] = "nvidia-fs.reported-fault"
    for module, ident in modules.items():
        for message in messages(facts.kernel.log.lines, module):
            if message.meaning.fault:
                yield _cause(ident, facts, message)


def _obstacle(facts: HostFacts, message: Message) -> Cause:
    evidence = quote.with_source(facts.kernel.log.source, [message.line])
    return shared.cause(BROKEN[message.meaning.id], evidence, message.what)


def _cause(ident: str, facts: HostFacts, message: Message) -> Cause:
    evidence = quote.with_source(facts.kernel.log.source, [message.line])
    section = "NVIDIA Xid Errors" if message.xid else reference.INSTALL
    return Cause(ident, message.what, message.meaning.fix, evidence, section)
