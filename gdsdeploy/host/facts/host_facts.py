"""All facts of one host.

The parts of the stack that run on a host, in one line each.

The running kernel, driver, nvidia-fs, OFED and libcufile as the compatibility rules ask about them, and judged.

The report of NVIDIA's gdscheck about the host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from ..kmod.flavour import flavour_of, has_nvme_hooks
from ..model import compat
from ..model.compat import Rule, Value, Version, kernel_version
from ..subjects.cufile_json import VARIABLE, CufileFacts
from ..subjects.environment import EnvironmentFacts
from ..subjects.gdscheck import GdscheckFacts
from ..subjects.pci import HardwareFacts, PciFacts
from ..subjects.peer_memory import P2pFacts, registrations
from ..subjects.processes import ProcessFacts
from ..subjects.rdma import NetworkFacts
from ..subjects.storage import StorageFacts
from ..subjects.topology import Topology, topology_facts
from ..subjects.userland import UserlandFacts
from .document import Document, collected, group_of, once_for_alike, there
from .driver import DriverFacts, NvidiaFsFacts, PeermemFacts
from .kernel import AuditFacts, BootFacts, KernelFacts, OsFacts
from .packages import DriftFacts, ForeignFacts, PackageFacts
from .unknown import Facts, Maybe, Unknown, fact, given, if_known, known

#: Packages of DOCA whose version is that of its kernel modules.
DOCA = ("doca-ofed", "doca-all", "doca-networking", "doca-roce")
#: What the names of packages with OFED's or DOCA's nvme begin with, on apt.
_NVME = "mlnx-nvme"
#: First libcufile of a CUDA release (the rules gds-1.N-nvidia-fs of compat.yml name the releases).
CUDA = (((1, 15), "13"), ((1, 5), "12"), ((1, 0), "11"))


@dataclass(frozen=True)
class Judgement:
    """What the rules say about a running set."""

    #: rule → what it says and what runs
    forbidden: Mapping[str, str]
    warnings: Mapping[str, str]
    #: rule that would forbid it with some value of an unknown part → why the part is unknown
    undecided: Mapping[str, str]
    rules: Mapping[str, Rule]


def judge(facts: HostFacts, mode: str, rdma: str, own: Sequence[Rule]) -> Judgement:
    """Judge what runs.  mode, rdma: the profile's, with compat.yml's names.  own: the fleet's rules."""
    parts = tuple((subject, known(value)) for subject, value in _parts(facts, mode, rdma).items())
    return _judge(parts, tuple(own))


@once_for_alike
def _judge(parts: Tuple[Tuple[str, Maybe[Optional[Value]]], ...], own: Tuple[Rule, ...]) -> Judgement:
    rules = compat.rules_with(own)
    unknown = {subject: value.reason for subject, value in parts if isinstance(value, Unknown)}
    combination = {subject: value for subject, value in parts if not isinstance(value, Unknown)}
    verdicts = compat.judge(combination, rules)
    return Judgement(
        forbidden={verdict.rule: verdict.words for verdict in verdicts if not verdict.allowed},
        warnings={verdict.rule: verdict.words for verdict in verdicts if verdict.warning},
        undecided={
            rule: unknown.get(subject) or f"{subject} {combination[subject]} doesn't tell"
            for rule, subject in compat.undecided(combination, unknown.keys(), rules)
        },
        rules={rule.id: rule for rule in rules},
    )


def _parts(facts: HostFacts, mode: str, rdma: str) -> Dict[str, Callable[[], Optional[Value]]]:
    """Subject → value; None: this host has no such part.

    Left out, so that no rule about them speaks: the GPU's class, which the check gpu.class judges; and the packages of
    sources and their makers, because a module that runs has been built.
    """
    return {
        "driver": lambda: facts.driver.version,
        "flavour": lambda: facts.driver.flavour,
        "kernel": lambda: running_kernel(facts),
        "kernel_package": lambda: running_kernel(facts)[-1],
        "kernel_flavour": lambda: _flavour(facts.kernel.release),
        "nvme_hooks": lambda: _nvme_hooks(facts),
        "nvidia_fs": lambda: _nvidia_fs(facts),
        "libcufile": lambda: facts.cufile.library,
        "cuda": lambda: _cuda(facts.cufile.library),
        "doca": lambda: _of_package(facts, DOCA, "DOCA"),
        "mode": lambda: mode,
        "rdma": lambda: rdma,
        "arch": lambda: facts.os.machine,
        "dkms": lambda: _of_package(facts, ("dkms",), "DKMS"),
        "dkms_signs": lambda: facts.packages.dkms_signs,
        "secure_boot": lambda: "on" if facts.kernel.secure_boot else "off",
        "os": lambda: facts.os.name,
        "family": lambda: facts.os.family,
    }


def _of_package(facts: HostFacts, names: Sequence[str], owner: str) -> Optional[str]:
    """Upstream's version of the first of these packages that is there; None: none is."""
    installed = facts.packages.installed
    version = next((installed[name][0].version for name in names if installed.get(name)), None)
    if version is None:
        return None
    match = re.match(r"(?:\d{1,9}:)?(\d{1,9}(?:\.\d{1,9})+)", version)
    return group_of(match, f"no version in {owner}'s {version!r}")


def running_kernel(facts: HostFacts) -> Version:
    """The names of the kernel that runs, as of one on offer: the package's version is in ``uname -r`` or ``-v``.

    Of a kernel that a site built, what ``uname -r`` prints.
    """
    release, build = facts.kernel.release, if_known(lambda: facts.document.host("uname", "version"), "")
    own = flavour_of(release)
    debian = re.search(r"\bDebian (\d[0-9A-Za-z.+~]{0,40}-[0-9A-Za-z.+~]{1,20})", build)
    ubuntu = re.match(r"#(\d[0-9.~]{0,20})-Ubuntu\b", build)
    if debian:
        return kernel_version(release, debian.group(1))
    if own and ubuntu and own.vendor == "ubuntu":
        # Release 6.14.0-37-generic, #37~24.04.1-Ubuntu: its package is 6.14.0-37.37~24.04.1.
        return kernel_version(release, f"{release[: -len(own.name) - 1]}.{ubuntu.group(1)}")
    package = re.match(r"(.+)\.(?:x86_64|aarch64)(?:\+.*)?$", release)
    collected(re.match(r"\d{1,9}(?:\.\d{1,9})+", release), f"no version in the kernel's release {release!r}")
    return kernel_version(release, package.group(1) if own and package else "")


def _flavour(release: str) -> Optional[str]:
    flavour = flavour_of(release)
    return flavour.name if flavour else None


def _nvme_hooks(facts: HostFacts) -> str:
    """Whose nvme lets nvidia-fs in: that of a kernel which has hooks, or OFED's or DOCA's, which takes its place."""
    if not has_nvme_hooks(facts.kernel.release):
        return "ofed"
    return "ofed" if any(name.startswith(_NVME) for name in facts.packages.installed) else "kernel"


def _nvidia_fs(facts: HostFacts) -> Optional[str]:
    module = facts.nvidia_fs.module
    return collected(module.version or None, "the loaded nvidia-fs shows no version") if module.loaded else None


def _cuda(library: Optional[str]) -> Optional[str]:
    """The major release of CUDA that a libcufile belongs to."""
    if library is None:
        return None
    match = re.match(r"(\d{1,9})\.(\d{1,9})", library)
    number = (int(match.group(1)), int(match.group(2))) if match else (0, 0)
    return collected(next((cuda for first, cuda in CUDA if number >= first), None), f"no release of CUDA for {library}")


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
        self.driver = DriverFacts(document)
        self.nvidia_fs = NvidiaFsFacts(document)
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
        self.pci = PciFacts(document)
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


def facts_from(evidence: Any) -> HostFacts:
    """Every fact, each to be read when it is asked for; never raises, however malformed the document is."""
    return HostFacts(Document(evidence))


#: Parts of the stack, from the kernel's surroundings up.
STACK = ("os", "kernel", "driver", "nvidia-fs", "libcufile")


def stack(facts: HostFacts) -> List[Tuple[str, str]]:
    """(part, version) in the order of STACK; without the parts that aren't installed or aren't known."""
    driver = [if_known(lambda: facts.driver.version, None), if_known(lambda: facts.driver.flavour, None)]
    module = facts.nvidia_fs.module
    versions = (
        if_known(lambda: facts.os.name, None),
        if_known(lambda: facts.kernel.release, None),
        " ".join(filter(None, driver)),
        if_known(lambda: module.version if module.loaded else "", None),
        if_known(lambda: facts.cufile.library, None),
    )
    return [(part, version) for part, version in zip(STACK, versions) if version]
