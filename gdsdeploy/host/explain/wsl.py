"""Windows' subsystem for Linux: its kernel has no nvidia-fs, and no PCI tree in which libcufile could find devices."""

from __future__ import annotations

from typing import Iterator, Optional

from ..facts import HostFacts, Unknown
from ..facts.storage import Mount
from . import quote, shared
from .cause import Condition
from .rules import DIRECT, rule

VERSION, MARK = "/proc/version", "(?i)microsoft"


@rule(DIRECT, 5)
def direct(facts: HostFacts, _mount: Optional[Mount]) -> Iterator[Condition]:
    """WSL's kernel names its maker in its version (rapidsai/kvikio issue 11: libcufile aborts there)."""
    text = facts.document.text(VERSION)
    if isinstance(text, str) and "microsoft" in text.lower():
        yield Condition(False, shared.cause("platform.wsl", quote.file(facts, VERSION, MARK)))
    elif isinstance(text, Unknown):
        yield Condition(text)
