"""All facts of one host.

The parts of the stack that run on a host, in one line each.

The running kernel, driver, nvidia-fs, OFED and libcufile as the compatibility rules ask about them, and judged.

The report of NVIDIA's gdscheck about the host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from .. import gdscheck
from ..kmod.flavour import flavour_of, has_nvme_hooks
from ..model import compat
from ..model.compat import Rule, Value, Version, kernel_version
from ..model.system import family_of
from ..paths import CUFILE_OPEN, GDSCHECK
from .cufile import CufileFacts, cufile_facts
from .document import Document, once_for_alike
from .driver import (
    DriverFacts,
    NvidiaFsFacts,
    P2pFacts,
    PeermemFacts,
    driver_facts,
    nvidia_fs_facts,
    p2p_facts,
    peermem_facts,
)
from .environment import VARIABLE, EnvironmentFacts, UserlandFacts, environment_facts, userland_facts
from .kernel import AuditFacts, BootFacts, KernelFacts, OsFacts, audit_facts, boot_facts, kernel_facts, os_facts
from .packages import DriftFacts, ForeignFacts, Package, PackageFacts, drift_facts, foreign_facts, package_facts
from .pci import HardwareFacts, PciFacts, Topology, hardware_facts, pci_facts, topology_facts
from .processes import ProcessFacts, process_facts
from .rdma import NetworkFacts, Registration, memory, network_facts, registrations
from .storage import StorageFacts, storage_facts
from .unknown import Maybe, Unknown, decided, require, when_known

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
    return _judge(tuple(_parts(facts, mode, rdma).items()), tuple(own))


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


def _parts(facts: HostFacts, mode: str, rdma: str) -> Dict[str, Maybe[Optional[Value]]]:
    """Subject → value; None: this host has no such part.

    Left out, so that no rule about them speaks: the GPU's class, which the check gpu.class judges; and the packages of
    sources and their makers, because a module that runs has been built.
    """
    kernel = running_kernel(facts)
    return {
        "driver": facts.driver.version,
        "flavour": facts.driver.flavour,
        "kernel": kernel,
        "kernel_package": when_known(kernel, lambda names: names[-1]),
        "kernel_flavour": when_known(facts.kernel.release, _flavour),
        "nvme_hooks": _nvme_hooks(facts),
        "nvidia_fs": _nvidia_fs(facts),
        "libcufile": facts.cufile.library,
        "cuda": when_known(facts.cufile.library, _cuda),
        "doca": when_known(facts.packages.installed, lambda rows: _of_package(rows, DOCA, "DOCA")),
        "mode": mode,
        "rdma": rdma,
        "arch": facts.os.machine,
        "dkms": when_known(facts.packages.installed, lambda rows: _of_package(rows, ("dkms",), "DKMS")),
        "dkms_signs": facts.packages.dkms_signs,
        "secure_boot": when_known(facts.kernel.secure_boot, lambda is_on: "on" if is_on else "off"),
        "os": facts.os.name,
        "family": when_known(facts.os.name, family_of),
    }


def _of_package(installed: Mapping[str, Tuple[Package, ...]], names: Sequence[str], owner: str) -> Maybe[Optional[str]]:
    """Upstream's version of the first of these packages that is there; None: none is."""
    version = next((installed[name][0].version for name in names if installed.get(name)), None)
    if version is None:
        return None
    match = re.match(r"(?:\d{1,9}:)?(\d{1,9}(?:\.\d{1,9})+)", version)
    return match.group(1) if match else Unknown(f"no version in {owner}'s {version!r}")


@decided
def running_kernel(facts: HostFacts) -> Maybe[Version]:
    """The names of the kernel that runs, as of one on offer: the package's version is in ``uname -r`` or ``-v``.

    Of a kernel that a site built, what ``uname -r`` prints.
    """
    release, build = require(facts.kernel.release), facts.document.host("uname", "version")
    own, words = flavour_of(release), build if isinstance(build, str) else ""
    debian = re.search(r"\bDebian (\d[0-9A-Za-z.+~]{0,40}-[0-9A-Za-z.+~]{1,20})", words)
    ubuntu = re.match(r"#(\d[0-9.~]{0,20})-Ubuntu\b", words)
    if debian:
        return kernel_version(release, debian.group(1))
    if own and ubuntu and own.vendor == "ubuntu":
        # Release 6.14.0-37-generic, #37~24.04.1-Ubuntu: its package is 6.14.0-37.37~24.04.1.
        return kernel_version(release, f"{release[: -len(own.name) - 1]}.{ubuntu.group(1)}")
    package = re.match(r"(.+)\.(?:x86_64|aarch64)(?:\+.*)?$", release)
    if not re.match(r"\d{1,9}(?:\.\d{1,9})+", release):
        return Unknown(f"no version in the kernel's release {release!r}")
    return kernel_version(release, package.group(1) if own and package else "")


def _flavour(release: str) -> Optional[str]:
    flavour = flavour_of(release)
    return flavour.name if flavour else None


@decided
def _nvme_hooks(facts: HostFacts) -> Maybe[Optional[str]]:
    """Whose nvme lets nvidia-fs in: that of a kernel which has hooks, or OFED's or DOCA's, which takes its place."""
    if not has_nvme_hooks(require(facts.kernel.release)):
        return "ofed"
    return "ofed" if any(name.startswith(_NVME) for name in require(facts.packages.installed)) else "kernel"


def _nvidia_fs(facts: HostFacts) -> Maybe[Optional[str]]:
    module = facts.nvidia_fs.module
    if module.loaded is not True:
        return module.loaded if isinstance(module.loaded, Unknown) else None
    return when_known(module.version, lambda version: version or Unknown("the loaded nvidia-fs shows no version"))


def _cuda(library: Optional[str]) -> Maybe[Optional[str]]:
    """The major release of CUDA that a libcufile belongs to."""
    if library is None:
        return None
    match = re.match(r"(\d{1,9})\.(\d{1,9})", library)
    number = (int(match.group(1)), int(match.group(2))) if match else (0, 0)
    return next((cuda for first, cuda in CUDA if number >= first), Unknown(f"no release of CUDA for {library}"))


@dataclass(frozen=True)
class GdscheckFacts:
    """``installed``: the host has a gdscheck."""

    installed: Maybe[bool]
    #: its output
    report: Maybe[gdscheck.Report]
    #: the same rows as libcufile logged them when its driver was opened; None: it stopped before it logged them
    logged: Maybe[Optional[gdscheck.Report]]

    @property
    def best(self) -> Optional[gdscheck.Report]:
        """The report in libcufile's log, else that of gdscheck; None without either."""
        report = self.logged if isinstance(self.logged, gdscheck.Report) else self.report
        return report if isinstance(report, gdscheck.Report) else None

    def row(self, label: str) -> Optional[gdscheck.Row]:
        """The library's own row about a kind of storage; None: there is none."""
        return self.best.storage.get(label) if self.best is not None else None


def gdscheck_facts(document: Document) -> GdscheckFacts:
    logged = when_known(document.attempted(CUFILE_OPEN), lambda run: gdscheck.parse_log(run.log))
    return GdscheckFacts(
        when_known(document.names(GDSCHECK), bool),
        when_known(document.ran(GDSCHECK), lambda run: gdscheck.parse(run.stdout + "\n" + run.stderr, run.status)),
        when_known(logged, lambda report: report if report.complete else None),
    )


@dataclass(frozen=True)
class HostFacts:
    """One host at one moment."""

    name: Maybe[str]
    #: UTC, RFC 3339
    collected_at: str
    #: how long the collection took
    seconds: float
    #: collectors that didn't finish
    gaps: Tuple[str, ...]
    os: OsFacts
    kernel: KernelFacts
    boot: BootFacts
    driver: DriverFacts
    nvidia_fs: NvidiaFsFacts
    peermem: PeermemFacts
    audits: AuditFacts
    p2p: P2pFacts
    userland: UserlandFacts
    packages: PackageFacts
    drift: DriftFacts
    foreign: ForeignFacts
    cufile: CufileFacts
    gdscheck: GdscheckFacts
    storage: StorageFacts
    pci: PciFacts
    hardware: HardwareFacts
    topology: Maybe[Topology]
    environment: EnvironmentFacts
    processes: ProcessFacts
    network: NetworkFacts
    #: trials of GPU memory with adapters; empty where none was made
    registrations: Maybe[Tuple[Registration, ...]]
    #: bytes
    memory: Maybe[int]
    #: the evidence itself, to quote from
    document: Document = field(repr=False, compare=False)
    #: the fleet's own rules, where they are known: the host's expectation has them
    rules: Tuple[Rule, ...] = field(default=(), repr=False)


def _plain(name: Union[str, Unknown]) -> Union[str, Unknown]:
    """The name of a host, with which lines begin; one that is more than a name is in quotes."""
    return ascii(name) if isinstance(name, str) and not re.fullmatch(r"[A-Za-z0-9._-]+", name) else name


def facts_from(evidence: Any) -> HostFacts:
    """Read every fact; never raises, however malformed the document is."""
    document = Document(evidence)
    driver, pci = driver_facts(document), pci_facts(document)
    environment = environment_facts(document)
    cufile = cufile_facts(document, environment.variables.get(VARIABLE))
    return HostFacts(
        name=_plain(document.host("name")),
        collected_at=document.collected_at(),
        seconds=document.seconds(),
        gaps=document.gaps(),
        os=os_facts(document),
        kernel=kernel_facts(document),
        boot=boot_facts(document),
        driver=driver,
        nvidia_fs=nvidia_fs_facts(document),
        peermem=peermem_facts(document),
        audits=audit_facts(document),
        p2p=p2p_facts(document),
        userland=userland_facts(document),
        packages=package_facts(document),
        drift=drift_facts(document),
        foreign=foreign_facts(document),
        cufile=cufile,
        gdscheck=gdscheck_facts(document),
        storage=storage_facts(document),
        pci=pci,
        hardware=hardware_facts(document, pci, driver),
        topology=topology_facts(document, pci, driver),
        environment=environment,
        processes=process_facts(document, cufile),
        network=network_facts(document),
        registrations=registrations(document),
        memory=memory(document),
        document=document,
    )


#: Parts of the stack, from the kernel's surroundings up.
STACK = ("os", "kernel", "driver", "nvidia-fs", "libcufile")


def stack(facts: HostFacts) -> List[Tuple[str, str]]:
    """(part, version) in the order of STACK; without the parts that aren't installed or aren't known."""
    module = facts.nvidia_fs.module
    driver = [word for word in (facts.driver.version, facts.driver.flavour) if isinstance(word, str)]
    nvidia_fs = module.version if module.loaded is True else ""
    versions = (facts.os.name, facts.kernel.release, " ".join(driver), nvidia_fs, facts.cufile.library)
    return [(part, version) for part, version in zip(STACK, versions) if isinstance(version, str) and version]
