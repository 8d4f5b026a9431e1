"""Why a module is not loaded: rules in order, the first that fits gives the cause."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Callable, Optional, Tuple

from ..facts import HostFacts, Unknown
from ..facts.document import Ran
from ..facts.gpu import PROPRIETARY
from ..facts.modules import ModuleFacts, ModuleFile
from ..kmod import modprobe
from ..paths import MODPROBE
from . import quote, reference
from .cause import Cause

P2P = "nvidia_p2p_"
MODULES = "/lib/modules"
#: How the kernel says that it took a module for untrusted; the lines do not name the module.
REFUSED = r"[Ll]oading of .* is rejected|[Ll]oading of unsigned module|Lockdown: .*module|Key was rejected"
FOREIGN = r"disagrees about version of symbol|no symbol version for|Unknown symbol"
GPL = r"GPL-only symbols|from proprietary module"


@dataclass(frozen=True)
class Subject:
    """A module that should be loaded.  ``name`` as modprobe takes it, ``words`` as a sentence begins with it."""

    name: str
    words: str
    module: ModuleFacts
    #: regular expressions for the names of it in DKMS, and of packages that bring it
    in_dkms: str
    packages: str


@dataclass(frozen=True)
class Reason:
    """The second half of "it is not loaded: …"; ``id`` is what follows the module's name in the cause's id."""

    id: str
    what: str
    fix: str
    evidence: Tuple[str, ...]
    reference: str


def driver(facts: HostFacts) -> Subject:
    packages = r"(nvidia(?!-fs).*-dkms|kmod-nvidia.*|nvidia-dkms-.*)$"
    return Subject("nvidia", "the nvidia module", facts.driver.module, r"nvidia(-current)?(-open)?", packages)


def nvidia_fs(facts: HostFacts) -> Subject:
    return Subject("nvidia-fs", "nvidia-fs", facts.nvidia_fs.module, "nvidia-fs", r"nvidia-fs(-dkms)?$")


def peermem(facts: HostFacts) -> Subject:
    by = driver(facts)
    return Subject("nvidia-peermem", "nvidia-peermem", facts.peermem.module, by.in_dkms, by.packages)


def not_loaded(facts: HostFacts, subject: Subject) -> Cause:
    """The cause of a module that is known not to be loaded."""
    for rule in RULES:
        reason = rule(facts, subject)
        if reason is not None:
            what = f"{subject.words} is not loaded: {reason.what}"
            ident = f"{subject.name}.{reason.id}"
            return Cause(ident, what, reason.fix, reason.evidence, reason.reference)
    fix = f"load it and read what the kernel says: modprobe {subject.name}; dmesg | tail"
    evidence = (f"/proc/modules: no {subject.module.name}",)
    return Cause(subject.name + ".not-loaded", subject.words + " is not loaded", fix, evidence, reference.INSTALL)


def forbidden(facts: HostFacts, subject: Subject) -> Optional[Reason]:
    """Kept out in modprobe.d or on the kernel's command line."""
    if not isinstance(facts.boot.forbidden, tuple) or subject.module.name not in facts.boot.forbidden:
        return None
    pattern = re.compile(r"(blacklist|install)\s+{}\b".format(re.sub("[-_]", "[-_]", subject.name)))
    seen = [f"{place}: {line}" for place, line in quote.fragments(facts) if pattern.match(line)]
    where = seen[0].split(": ")[0] if seen else "the kernel's command line"
    evidence = tuple(seen[: quote.LINES]) or quote.file(facts, "/proc/cmdline")
    fix = f"take it out of {where}, rebuild the initramfs and load the module: modprobe {subject.name}"
    return Reason("forbidden", f"{where} forbids it", fix, evidence, reference.FORBIDDING)


def in_container(facts: HostFacts, subject: Subject) -> Optional[Reason]:
    """A container has its host's kernel, and can neither see nor load that kernel's module files."""
    if not isinstance(facts.environment.container, str):
        return None
    what = f"this is {facts.environment.container}, and the kernel of its host has not loaded it"
    fix = "load it on the host, outside of the container, and ask there why it is not: gdsdeploy explain"
    evidence = (f"/proc/modules: no {subject.module.name}",)
    return Reason("not-on-container-host", what, fix, evidence, reference.INSTALL)


def no_modules(facts: HostFacts, _subject: Subject) -> Optional[Reason]:
    """The running kernel has no folder of modules at all, as in machines that boot a kernel from outside."""
    release, names = facts.kernel.release, facts.document.names(MODULES)
    if not isinstance(release, str) or isinstance(names, Unknown) or release in (names or ()):
        return None
    evidence = ("{}: {}".format(MODULES, ", ".join(names) if names else "there is no such folder"),)
    what = f"there are no module files for the running kernel {release}"
    fix = "install the packages of that kernel, or boot one whose modules are there; then provision the host again"
    return Reason("not-installed", what, fix, evidence, reference.INSTALL)


def no_file(facts: HostFacts, subject: Subject) -> Optional[Reason]:
    """No file that modprobe finds for the running kernel: never installed, or never built for it."""
    if subject.module.file is not None:
        return None
    release = facts.kernel.release if isinstance(facts.kernel.release, str) else "the running kernel"
    build = "build it for this kernel: install its headers and run dkms autoinstall -k {}; or provision the host again"
    lines = facts.packages.dkms if isinstance(facts.packages.dkms, tuple) else ()
    known = [line for line in lines if re.match(f"(?:{subject.in_dkms})[/,]", line)]
    if known:
        built = [line for line in known if "installed" in line]
        what = "DKMS has it, but not built for " if not built else "DKMS has built it for other kernels, not for "
        return Reason("not-built", what + release, build.format(release), quote.placed("dkms", known), reference.DKMS)
    installed = facts.packages.installed
    names = sorted(installed) if isinstance(installed, dict) else []
    have = [name for name in names if re.match(subject.packages, name)]
    evidence = _modprobe(facts, subject)
    if have:
        what = f"{have[0]} is installed, but there is no module of it for {release}"
        return Reason("not-built", what, build.format(release), evidence, reference.DKMS)
    fix = "install it: gdsdeploy provision, or the package of your distribution"
    return Reason("not-installed", "it is not installed", fix, evidence, reference.INSTALL)


def _modprobe(facts: HostFacts, subject: Subject) -> Tuple[str, ...]:
    """What modprobe says, of the module behind the name where another one stands for it, as on Debian."""
    run = facts.document.attempted(MODPROBE + subject.name)
    behind = modprobe.replacement(run.stdout) if isinstance(run, Ran) else None
    return quote.program(facts, MODPROBE + (behind or subject.name))


def other_kernel(facts: HostFacts, subject: Subject) -> Optional[Reason]:
    """The file was built for another kernel."""
    file = _file(subject)
    if file is None or not isinstance(facts.kernel.release, str) or file.kernel == facts.kernel.release:
        return None
    what = "its file was built for {}, and {} runs".format(file.kernel or "no known kernel", facts.kernel.release)
    evidence = (f"{file.path}: vermagic {file.kernel}",)
    return Reason("other-kernel", what, "build it for this kernel: provision the host again", evidence, reference.DKMS)


def proprietary(facts: HostFacts, subject: Subject) -> Optional[Reason]:
    """nvidia-fs from 2.17.5 on links against symbols that only GPL-compatible modules may use."""
    if subject.name != "nvidia-fs":
        return None
    said = quote.messages(facts, rf"nvidia_fs.*({GPL})")
    file = _file(subject)
    links = file is not None and any(name.startswith(P2P) for name in file.imports)
    if not said and not (facts.driver.flavour == PROPRIETARY and links):
        return None
    evidence = said or quote.file(facts, "/proc/driver/nvidia/version")
    what = "it may not use the symbols of the proprietary driver"
    fix = "install the open kernel modules of the driver and reboot, or nvidia-fs 2.17.4 or older"
    return Reason("proprietary-driver", what, fix, evidence, reference.OPEN_DRIVER)


def other_symbols(facts: HostFacts, subject: Subject) -> Optional[Reason]:
    """Built against another driver or kernel: symbols or their versions differ."""
    said = quote.messages(facts, rf"\b{subject.module.name}: ({FOREIGN})")
    evidence = said or _differing(facts, subject)
    if not evidence:
        return None
    fix = "build it again, against the driver that runs: provision the host again and let it reboot"
    return Reason("symbol-mismatch", "it was built against another driver", fix, evidence, reference.INSTALL)


def _differing(facts: HostFacts, subject: Subject) -> Tuple[str, ...]:
    """What modprobe's two files say of each other, where the kernel has not spoken yet."""
    mine, theirs = _file(subject), _file(driver(facts))
    if mine is None or theirs is None or mine is theirs:
        return ()
    wrong = []
    for name, crc in sorted(mine.imports.items()):
        if name.startswith(P2P) and name not in theirs.exports:
            wrong.append(f"{mine.path}: imports {name}, which {theirs.path} does not export")
        elif name.startswith(P2P) and crc is not None and theirs.exports[name] not in (None, crc):
            wrong.append(f"{mine.path}: wants another version of {name} than {theirs.path} has")
    return tuple(wrong[: quote.LINES])


def refused_signature(facts: HostFacts, subject: Subject) -> Optional[Reason]:
    """The kernel takes signed modules only, as under Secure Boot, and trusts no key of this one's."""
    file = _file(subject)
    enforced = facts.kernel.secure_boot is True or facts.kernel.lockdown in ("integrity", "confidentiality")
    enforced = enforced or facts.document.line("/sys/module/module/parameters/sig_enforce") == "Y"
    unsigned = False
    if file is not None:
        record = facts.document.module(file.path)
        unsigned = isinstance(record, dict) and "signature" in record and record["signature"] is None
    # The kernel's words do not name the module, so they count only where it takes signed ones alone.
    said = quote.messages(facts, REFUSED) if enforced else ()
    if not said and not (enforced and unsigned):
        return None
    evidence = said or (f"{file.path if file else subject.name}: no signature",)
    what = "the kernel refuses modules that no trusted key has signed"
    what += " (Secure Boot is on)" if facts.kernel.secure_boot is True else ""
    fix = "sign it with a key that is enrolled: mokutil --import the key that DKMS signs with, reboot and confirm"
    return Reason("refused-signature", what, fix, evidence, reference.SIGNING)


def stub(facts: HostFacts, subject: Subject) -> Optional[Reason]:
    """nvidia-peermem that was built without OFED ends its initialisation with EINVAL."""
    if subject.name != "nvidia-peermem" or facts.peermem.stub is not True:
        return None
    file = _file(subject)
    evidence = (f"{file.path if file else subject.name}: does not import ib_register_peer_memory_client",)
    what = "it is a stub, built without the peer memory symbols of OFED"
    fix = "install MLNX_OFED or DOCA and build the driver after it, or use DMA-BUF, which needs no nvidia-peermem"
    return Reason("stub", what, fix, evidence, reference.SOFTWARE)


def no_gpu(facts: HostFacts, subject: Subject) -> Optional[Reason]:
    said = quote.messages(facts, r"NVRM: No NVIDIA GPU found")
    if subject.name != "nvidia" or not said:
        return None
    fix = "check that the GPU is seated, powered and shown: lspci -d 10de:"
    return Reason("no-gpu", "it finds no GPU", fix, said, reference.HARDWARE)


def nouveau(facts: HostFacts, subject: Subject) -> Optional[Reason]:
    modules = facts.kernel.modules
    if subject.name != "nvidia" or not isinstance(modules, frozenset) or "nouveau" not in modules:
        return None
    evidence = quote.file(facts, "/proc/modules", r"^nouveau ")
    fix = "forbid nouveau in /etc/modprobe.d, rebuild the initramfs and reboot; provisioning does so"
    return Reason("nouveau", "nouveau has the GPUs", fix, evidence, reference.OPEN_DRIVER)


def driver_missing(facts: HostFacts, subject: Subject) -> Optional[Reason]:
    if subject.name == "nvidia" or facts.driver.version is not None:
        return None
    evidence = quote.file(facts, "/proc/driver/nvidia/version")
    fix = "load the driver first: modprobe nvidia"
    return Reason("driver-missing", "it needs the driver, which is not loaded", fix, evidence, reference.INSTALL)


def nothing_loads_it(facts: HostFacts, subject: Subject) -> Optional[Reason]:
    names = facts.boot.autoloaded
    if not isinstance(names, tuple) or subject.module.name in names:
        return None
    evidence = ("modules-load.d: {}".format(", ".join(names) or "names no module"),)
    fix = "load it now: modprobe {0}; and at every boot: put {0} into a file in /etc/modules-load.d"
    fix = fix.format(subject.name)
    return Reason("not-autoloaded", "nothing loads it at boot", fix, evidence, reference.LOADING)


def _file(subject: Subject) -> Optional[ModuleFile]:
    return subject.module.file if isinstance(subject.module.file, ModuleFile) else None


#: From the root outwards.
RULES: Tuple[Callable[[HostFacts, Subject], Optional[Reason]], ...] = (
    forbidden,
    in_container,
    no_modules,
    no_file,
    other_kernel,
    proprietary,
    other_symbols,
    refused_signature,
    stub,
    no_gpu,
    nouveau,
    driver_missing,
    nothing_loads_it,
)
