"""All facts of one host.

The parts of the stack that run on a host, in one line each.

The running kernel, driver, nvidia-fs, OFED and libcufile as the compatibility rules ask about them, and judged.

The report of NVIDIA's gdscheck about the host.
"""

from __future__ import annotations

import re
from typing import Any, Tuple

from ..model.compat import Rule
from ..subjects.boot import BootFacts
from ..subjects.cufile_json import VARIABLE, CufileFacts
from ..subjects.driver import DriverFacts, UserlandFacts
from ..subjects.environment import EnvironmentFacts
from ..subjects.foreign_files import ForeignFacts
from ..subjects.gdscheck import GdscheckFacts
from ..subjects.kernel import KernelFacts
from ..subjects.modules import AuditFacts
from ..subjects.nvidia_fs import NvidiaFsFacts
from ..subjects.packages import DriftFacts, PackageFacts
from ..subjects.pci import HardwareFacts, PciFacts
from ..subjects.peermem import P2pFacts, PeermemFacts, registrations
from ..subjects.processes import ProcessFacts
from ..subjects.rdma import NetworkFacts
from ..subjects.storage import StorageFacts
from ..subjects.system import OsFacts
from ..subjects.topology import Topology, topology_facts
from .document import Document, group_of, there
from .unknown import Facts, fact, given


class HostFacts(Facts):
    """One host at one moment, read from its evidence, however malformed that is."""

    def __init__(self, document: Document) -> None:
        super().__init__(document)
        #: UTC, RFC 3339
        self.collected_at = document.collected_at()
        #: how long the collection took
        self.seconds = document.seconds()
        #: collectors that didn't finish
        self.gaps = document.gaps()
        self.os = OsFacts(document)
        self.kernel = KernelFacts(document)
        self.boot = BootFacts(document)
        self.driver: DriverFacts = DriverFacts(document)
        self.nvidia_fs: NvidiaFsFacts = NvidiaFsFacts(document)
        self.peermem = PeermemFacts(document)
        self.audits = AuditFacts(document)
        self.p2p = P2pFacts(document)
        self.userland = UserlandFacts(document)
        self.packages = PackageFacts(document)
        self.drift = DriftFacts(document)
        self.foreign = ForeignFacts(document)
        self.environment = EnvironmentFacts(document)
        self.cufile = CufileFacts(document, self.environment.variables.get(VARIABLE))
        self.gdscheck = GdscheckFacts(document)
        self.storage = StorageFacts(document)
        self.pci: PciFacts = PciFacts(document)
        self.hardware = HardwareFacts(document, self.pci, self.driver)
        self.processes = ProcessFacts(document, self.cufile)
        self.network = NetworkFacts(document)
        #: the fleet's own rules, where they are known: the host's expectation has them
        self.rules: Tuple[Rule, ...] = ()

    @fact
    def name(self) -> str:
        """The name of the host, with which lines begin; one that is more than a name is in quotes."""
        name = self.document.host("name")
        return name if re.fullmatch(r"[A-Za-z0-9._-]+", name) else ascii(name)

    @fact
    def topology(self) -> Topology:
        return topology_facts(self.document, self.pci, self.driver)

    #: trials of GPU memory with adapters; empty where none was made
    registrations = given(registrations)

    @fact
    def memory(self) -> int:
        """Bytes."""
        lines = there(self.document.lines("/proc/meminfo"), "/proc/meminfo")
        total = re.match(r"MemTotal:\s+(\d{1,15}) kB", lines[0]) if lines else None
        return int(group_of(total, "/proc/meminfo has no MemTotal")) * 1024


def facts_from(evidence: Any, watched: bool = False) -> HostFacts:
    """Every fact, each to be read when it is asked for; never raises, however malformed the document is.

    watched: for checks.Memory.
    """
    return HostFacts(Document(evidence, watched))
