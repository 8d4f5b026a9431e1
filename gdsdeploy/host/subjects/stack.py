"""What runs together: kernel, driver, nvidia-fs, OFED and libcufile as the compatibility rules judge them."""

from __future__ import annotations

import re
from typing import Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..facts.document import collected, group_of, once_for_alike
from ..facts.unknown import Maybe, UndecidedError, Unknown, if_known, known
from ..kmod.flavour import flavour_of, has_nvme_hooks
from ..model import compat
from ..model.compat import Rule, Value, Version, kernel_version
from ..model.expectation import Expectation
from . import filesystem
from .condition import COMPAT, NOTES, NVIDIA_FS, P2PDMA, Cause, rule
from .cufile_json import p2pdma_enabled, requests_p2pdma
from .register import Answer, check, failed, passed
from .types import HostFacts, Mount

#: Packages of DOCA whose version is that of its kernel modules.
DOCA = ("doca-ofed", "doca-all", "doca-networking", "doca-roce")
#: What the names of packages with OFED's kernel modules begin with.
OFED = ("mlnx-ofed-kernel", "mlnx-ofa_kernel", "kmod-mlnx-ofa_kernel")
#: What the names of packages with OFED's or DOCA's nvme begin with, on apt.
_NVME = "mlnx-nvme"
#: First libcufile of a CUDA release (the rules gds-1.N-nvidia-fs of compat.yml name the releases).
CUDA = (((1, 15), "13"), ((1, 5), "12"), ((1, 0), "11"))


class Judgement(NamedTuple):
    """What the rules say about a running set."""

    #: rule → what it says and what runs
    forbidden: Mapping[str, str]
    warnings: Mapping[str, str]
    #: rule that would forbid it with some value of an unknown part → why the part is unknown
    undecided: Mapping[str, str]
    rules: Mapping[str, Rule]


def judge(facts: HostFacts, mode: str, rdma: str, own: Sequence[Rule]) -> Judgement:
    """Judge what runs.  mode, rdma: the profile's, with compat.yml's names.  own: the fleet's rules."""
    parts = tuple((subject, known(value)) for subject, value in combination(facts, mode, rdma).items())
    return _judge(parts, tuple(own))


@once_for_alike
def _judge(parts: Tuple[Tuple[str, Maybe[Optional[Value]]], ...], own: Tuple[Rule, ...]) -> Judgement:
    rules = compat.rules_with(own)
    unknown = {subject: value.reason for subject, value in parts if isinstance(value, Unknown)}
    decided = {subject: value for subject, value in parts if not isinstance(value, Unknown)}
    verdicts = compat.judge(decided, rules)
    return Judgement(
        forbidden={verdict.rule: verdict.words for verdict in verdicts if not verdict.allowed},
        # What runs has been built.
        warnings={verdict.rule: verdict.words for verdict in compat.without_builds(verdicts) if verdict.warning},
        undecided={
            rule: unknown.get(subject) or f"{subject} {decided[subject]} doesn't tell"
            for rule, subject in compat.undecided(decided, unknown.keys(), rules)
        },
        rules={rule.id: rule for rule in rules},
    )


def combination(facts: HostFacts, mode: str, rdma: str) -> Dict[str, Callable[[], Optional[Value]]]:
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


def mode(facts: HostFacts) -> str:
    """The mode that is set up, by compat.yml's names."""
    if if_known(lambda: p2pdma_enabled(facts), False):
        return P2PDMA
    return NVIDIA_FS if if_known(lambda: facts.nvidia_fs.module.loaded, True) else COMPAT


#: Parts of the stack, from the kernel's surroundings up.
STACK = ("os", "kernel", "driver", "nvidia-fs", "libcufile")


def parts(facts: HostFacts) -> List[Tuple[str, Maybe[Optional[str]]]]:
    """(part, version) in the order of STACK; None: this host has no such part."""
    flavour = if_known(lambda: facts.driver.flavour, None)
    versions = (
        known(lambda: facts.os.name),
        known(lambda: facts.kernel.release),
        known(lambda: facts.driver.version and " ".join(filter(None, (facts.driver.version, flavour)))),
        known(lambda: _nvidia_fs(facts)),
        known(lambda: facts.cufile.library),
    )
    return list(zip(STACK, versions))


def stack(facts: HostFacts) -> List[Tuple[str, str]]:
    """(part, version) in the order of STACK; without the parts that aren't installed or aren't known."""
    return [(part, version) for part, version in parts(facts) if isinstance(version, str) and version]


def ofed(facts: HostFacts) -> Optional[str]:
    """DOCA or OFED with upstream's version; None: neither is installed."""
    own = tuple(name for name in facts.packages.installed if name.startswith(OFED))
    versions = {"DOCA": _of_package(facts, DOCA, "DOCA"), "OFED": _of_package(facts, own, "OFED")}
    return next((f"{name} {version}" for name, version in versions.items() if version), None)


#: A warning without one of these is about programs, not about a path.
OF_PATHS = {"nvidia_fs", "mode"}


@rule(NOTES, 90)
def notes(facts: HostFacts, mount: Mount) -> Iterator[Cause]:
    if if_known(lambda: requests_p2pdma(facts, lambda: filesystem.storage_of(facts, mount)), False):
        return
    verdict = judge(facts, NVIDIA_FS, "none", facts.rules)
    of_paths = [name for name in verdict.warnings if OF_PATHS & verdict.rules[name].looks_at]
    yield from causes(verdict, (*verdict.forbidden, *of_paths))


def causes(verdict: Judgement, names: Iterable[str]) -> Iterator[Cause]:
    """What these rules forbid or warn about."""
    for name in names:
        broken = verdict.rules[name]
        words = verdict.forbidden.get(name) or verdict.warnings[name]
        ident = "stack.forbidden" if name in verdict.forbidden else "stack.warning"
        chosen = "versions that go together; with gdsdeploy: gdsdeploy lock FLEET chooses them"
        fix = f"install {broken.fixed or chosen}"
        yield Cause(ident, words, fix, (f"compatibility rule {name}: {broken.source}"[:200],))


@check(
    "stack.compatible",
    "no compatibility rule forbids what runs together",
    expects="kernel, driver, nvidia-fs, DOCA and libcufile that the rules of compat.yml allow together",
    prevents="a host that drifted into a combination that fails at the first transfer or the next build",
    of_running=True,
)
def compatible(facts: HostFacts, expectation: Expectation) -> Answer:
    verdict = judge(facts, expectation.mode, expectation.rdma, expectation.rules)
    runs = ", ".join(f"{part} {version}" for part, version in stack(facts))
    if verdict.forbidden:
        rules = [verdict.rules[name] for name in verdict.forbidden]
        fixes = "; ".join(dict.fromkeys(rule.fixed for rule in rules if rule.fixed))
        hint = "Provision the host again" + (f"; the rules name what fits: {fixes}" if fixes else "")
        words = "; ".join(f"[{name}] {words}" for name, words in verdict.forbidden.items())
        return failed(words, hint, [f"{rule.id}: {rule.known}: {rule.source}" for rule in rules])
    if verdict.undecided:
        raise UndecidedError("; ".join(f"[{name}] {reason}" for name, reason in verdict.undecided.items()))
    warnings = [f"{name}: {words}" for name, words in verdict.warnings.items()]
    note = f"; rules with a warning: {', '.join(verdict.warnings)}" if warnings else ""
    return passed(runs + note, warnings)
