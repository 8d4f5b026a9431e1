"""Machines without the PCI tree that libcufile expects: WSL, and some virtual machines, where older releases abort."""

from __future__ import annotations

from typing import Iterator, Optional

from ..facts import HostFacts
from ..facts.document import Ran
from ..facts.storage import Mount
from ..paths import CUFILE_OPEN
from . import quote, shared
from .cause import Condition
from .rules import DIRECT, USABLE, rule

VERSION, MAKER = "/proc/version", "(?i)microsoft"
#: What libcufile prints before it aborts, with the place in its source (rapidsai/kvikio issues 11 and 97).
ABORTED = "Assertion failure, file index :cufio-udev"


@rule(USABLE, 5)
def usable(facts: HostFacts, _mount: Optional[Mount] = None) -> Iterator[Condition]:
    """The library ended the program that opened it here; it does so with every other program."""
    ran = facts.document.attempted(CUFILE_OPEN)
    lines = (ran.stdout + ran.stderr).splitlines() if isinstance(ran, Ran) else []
    evidence = quote.with_source("libcufile", [line for line in lines if ABORTED in line])
    if evidence:
        yield Condition(False, shared.cause("platform.no-pci-tree", evidence))


@rule(DIRECT, 5)
def direct(facts: HostFacts, _mount: Optional[Mount]) -> Iterator[Condition]:
    """WSL's kernel names its maker in its version."""
    text = facts.document.text(VERSION)
    if isinstance(text, str) and "microsoft" in text.lower():
        yield Condition(False, shared.cause("platform.wsl", quote.file(facts, VERSION, MAKER)))
