"""Why a module is not loaded: rules in order, of which the first match gives the cause.

Compatibility rules that forbid what runs, or warn about it, are told as far as they concern the path through nvidia-fs.
p2pdma.py judges the other path by what the running kernel and driver show, which says more than their versions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterator, Optional, Tuple

from ..facts import HostFacts
from ..facts.driver import PROPRIETARY, ModuleFacts, ModuleFile
from ..facts.host_facts import judge
from ..facts.unknown import if_known
from ..kmod.module import substitute_of
from ..model import causes
from ..paths import MODPROBE
from ..subjects import filesystem, quote, reference
from ..subjects.condition import DIRECT_PATH, NOT_LOADED, NOTES, NVIDIA_FS, Cause, Condition, ranked, rule
from ..subjects.cufile_json import requests_p2pdma
from ..subjects.storage import Mount

P2P = "nvidia_p2p_"
MODULES = "/lib/modules"
#: The kernel's messages about untrusted modules; they don't name the module.
REFUSED = r"[Ll]oading of .* is rejected|[Ll]oading of unsigned module|Lockdown: .*module|Key was rejected"
FOREIGN = r"disagrees about version of symbol|no symbol version for|Unknown symbol"
GPL = r"GPL-only symbols|from proprietary module"
#: The driver's names in DKMS after which the packages of nvidia-fs, NVIDIA's and Debian's, have it built.
_DKMS_DRIVER = re.compile(r"nvidia(-current)?(-open)?[/,]")
AGAIN = "build it again for the running kernel and driver: run gdsdeploy provision, and let it reboot the host"


@dataclass(frozen=True)
class Subject:
    """A module that should be loaded.  ``name`` as modprobe accepts it, ``words`` as the subject of a sentence."""

    name: str
    words: str
    module: ModuleFacts
    #: regular expressions for its names in DKMS, and for packages that contain it
    in_dkms: str
    packages: str


@dataclass(frozen=True)
class Reason:
    """The second half of "it is not loaded: …"; ``id`` follows the module's name in the cause's id."""

    id: str
    what: str
    fix: str
    evidence: Tuple[str, ...]
    reference: str


def driver(facts: HostFacts) -> Subject:
    packages = r"(nvidia(?!-fs).*-dkms|kmod-nvidia.*|nvidia-dkms-.*)$"
    return Subject("nvidia", "the nvidia module", facts.driver.module, r"nvidia(?!-fs|-peer)(-[a-z0-9]+)*", packages)


def nvidia_fs(facts: HostFacts) -> Subject:
    return Subject("nvidia-fs", "nvidia-fs", facts.nvidia_fs.module, "nvidia-fs", r"nvidia-fs(-dkms)?$")


def peermem(facts: HostFacts) -> Subject:
    by = driver(facts)
    return Subject("nvidia-peermem", "nvidia-peermem", facts.peermem.module, by.in_dkms, by.packages)


def not_loaded(facts: HostFacts, subject: Subject) -> Cause:
    """The cause for a module that is known not to be loaded."""
    what = f"{subject.words} is not loaded"
    for why in ranked(NOT_LOADED):
        reason = why(facts, subject)
        if reason is not None:
            ident = f"{subject.name}.{reason.id}"
            return Cause(ident, f"{what}: {reason.what}", reason.fix, reason.evidence, reason.reference)
    fix = f"load it and read the kernel's messages: modprobe {subject.name}; dmesg | tail"
    return Cause(f"{subject.name}.not-loaded", what, fix, _absent(subject), reference.INSTALL)


def _absent(subject: Subject) -> Tuple[str, ...]:
    return (f"/proc/modules: no {subject.module.name}",)


@rule(DIRECT_PATH, 10)
def driver_runs(facts: HostFacts, _mount: Optional[Mount]) -> Iterator[Condition]:
    """Both direct paths need a running driver."""
    yield Condition(lambda: facts.driver.version is not None, lambda: not_loaded(facts, driver(facts)))


@rule(NOT_LOADED, 10)
def forbidden(facts: HostFacts, subject: Subject) -> Optional[Reason]:
    """Blocked in modprobe.d or on the kernel's command line."""
    if subject.module.name not in facts.boot.forbidden:
        return None
    pattern = re.compile(r"(blacklist|install)\s+{}\b".format(re.sub("[-_]", "[-_]", subject.name)))
    lines = [(place, line) for place, line in quote.fragments(facts) if pattern.match(line)]
    where = lines[0][0] if lines else "the kernel's command line"
    evidence = tuple(f"{place}: {line}" for place, line in lines[: quote.LINES]) or quote.file(facts, "/proc/cmdline")
    fix = f"remove it from {where}, rebuild the initramfs and load the module: modprobe {subject.name}"
    return Reason("forbidden", f"{where} blocks it", fix, evidence, reference.FORBIDDING)


@rule(NOT_LOADED, 20)
def in_container(facts: HostFacts, subject: Subject) -> Optional[Reason]:
    """A container shares its host's kernel, and can neither see nor load that kernel's module files."""
    container = facts.environment.container
    if container is None:
        return None
    what = f"this is {container}, and its host's kernel hasn't loaded the module"
    fix = f"load it on the host: modprobe {subject.name}; if that fails, run on the host: gdsdeploy explain"
    return Reason("not-on-container-host", what, fix, _absent(subject), reference.INSTALL)


@rule(NOT_LOADED, 30)
def no_modules(facts: HostFacts, _subject: Subject) -> Optional[Reason]:
    """The running kernel has no folder of modules, as in machines that boot a kernel from outside."""
    release, names = facts.kernel.release, facts.document.names(MODULES)
    if release in (names or ()):
        return None
    evidence = ("{}: {}".format(MODULES, ", ".join(names) if names else "there is no such folder"),)
    what = f"there are no module files for the running kernel {release}"
    fix = "install that kernel's packages, or boot a kernel that has its modules; then run gdsdeploy provision again"
    return Reason("not-installed", what, fix, evidence, reference.INSTALL)


@rule(NOT_LOADED, 40)
def no_file(facts: HostFacts, subject: Subject) -> Optional[Reason]:
    """Modprobe finds no file for the running kernel: never installed, or never built for it."""
    if subject.module.file is not None:
        return None
    release = if_known(lambda: facts.kernel.release, "the running kernel")
    build = f"install the kernel's headers and run dkms autoinstall -k {release}; or run gdsdeploy provision again"
    lines = if_known(lambda: facts.packages.dkms, ())
    in_dkms = [line for line in lines if re.match(f"(?:{subject.in_dkms})[/,]", line)]
    if in_dkms:
        built = any("installed" in line for line in in_dkms)
        if not built and subject.name == "nvidia-fs" and not any(_DKMS_DRIVER.match(line) for line in lines):
            return _no_dkms_driver(lines)
        what = "DKMS built it for other kernels, not for " if built else "DKMS has it, but hasn't built it for "
        return Reason("not-built", what + release, build, quote.with_source("dkms", in_dkms), reference.DKMS)
    # Where another module stands for the name, as on Debian, modprobe's answer is about that one.
    run = if_known(lambda: facts.document.attempted(MODPROBE + subject.name), None)
    behind = substitute_of(run.stdout) if run else None
    evidence = quote.program(facts, MODPROBE + (behind or subject.name))
    for package in sorted(if_known(lambda: facts.packages.installed, {})):
        if re.match(subject.packages, package):
            what = f"{package} is installed, but has no module for {release}"
            return Reason("not-built", what, build, evidence, reference.DKMS)
    fix = "install it: gdsdeploy provision, or your distribution's package"
    return Reason("not-installed", "it is not installed", fix, evidence, reference.INSTALL)


def _no_dkms_driver(lines: Tuple[str, ...]) -> Reason:
    """The package's dkms.conf has BUILD_DEPENDS nvidia; Ubuntu's -server driver is nvidia-srv, a prebuilt one is none.

    dkms build fails with 13 from 3.1.4 on, autoinstall with 11 in 3.0.11 to 3.4.0; newer ones skip it with status 0.
    """
    what = "DKMS builds it only after a driver that it calls nvidia, and it knows no such driver"
    fix = "run gdsdeploy provision, whose recipe names the driver that is there"
    return Reason("no-dkms-driver", what, fix, quote.with_source("dkms", list(lines)), reference.DKMS)


@rule(NOT_LOADED, 50)
def other_kernel(facts: HostFacts, subject: Subject) -> Optional[Reason]:
    """The file was built for another kernel."""
    file, release = _file(subject), facts.kernel.release
    if file is None or file.kernel == release:
        return None
    what = f"its file was built for {file.kernel or 'an unknown kernel'}, but {release} runs"
    return Reason("other-kernel", what, AGAIN, (f"{file.path}: vermagic {file.kernel}",), reference.DKMS)


@rule(NOT_LOADED, 60)
def proprietary(facts: HostFacts, subject: Subject) -> Optional[Reason]:
    """nvidia-fs from 2.17.5 on links against symbols that only GPL-compatible modules may use."""
    if subject.name != "nvidia-fs":
        return None
    log = quote.messages(facts, rf"nvidia_fs.*({GPL})")
    file = _file(subject)
    links = file is not None and any(name.startswith(P2P) for name in file.imports)
    if not log and not (links and facts.driver.flavour == PROPRIETARY):
        return None
    evidence = log or quote.file(facts, "/proc/driver/nvidia/version")
    what = "it may not use the symbols of the proprietary driver"
    return _shared("nvidia-fs.proprietary-driver", what, evidence)


def _shared(ident: str, what: str, evidence: Tuple[str, ...]) -> Reason:
    """A reason whose fix and reference logs show as well."""
    row = causes.row(ident)
    return Reason(ident.partition(".")[2], what, row.fix, evidence, row.reference)


@rule(NOT_LOADED, 65)
def other_rdma_core(facts: HostFacts, subject: Subject) -> Optional[Reason]:
    """Peer memory uses symbols of the driver and of the RDMA core: OFED's change when OFED is installed again."""
    names = "nvidia_peermem|nv_peer_mem"
    log = quote.messages(facts, rf"\b(?:{names}): (?:{FOREIGN}) (?:ib|rdma)_")
    if subject.name != "nvidia-peermem" or not log:
        return None
    what = "it was built against another RDMA core than the loaded one, which OFED or DOCA brings"
    return _shared("nvidia-peermem.other-rdma-core", what, log)


@rule(NOT_LOADED, 70)
def other_symbols(facts: HostFacts, subject: Subject) -> Optional[Reason]:
    """Built against another driver or kernel: symbols or their versions differ."""
    evidence = quote.messages(facts, rf"\b{subject.module.name}: ({FOREIGN})") or _differing(facts, subject)
    if not evidence:
        return None
    what = "it was built against another driver"
    return Reason("symbol-mismatch", what, AGAIN, evidence, reference.INSTALL)


def _differing(facts: HostFacts, subject: Subject) -> Tuple[str, ...]:
    """How the two module files differ, where the kernel has logged nothing yet."""
    mine, theirs = _file(subject), _file(driver(facts))
    if mine is None or theirs is None or mine is theirs:
        return ()
    wrong = []
    for name, crc in sorted(mine.imports.items()):
        if name.startswith(P2P) and name not in theirs.exports:
            wrong.append(f"{mine.path}: imports {name}, which {theirs.path} does not export")
        elif name.startswith(P2P) and crc is not None and theirs.exports[name] not in (None, crc):
            wrong.append(f"{mine.path}: needs another version of {name} than {theirs.path} has")
    return tuple(wrong[: quote.LINES])


@rule(NOT_LOADED, 80)
def refused_signature(facts: HostFacts, subject: Subject) -> Optional[Reason]:
    """The kernel accepts signed modules only, as under Secure Boot, and trusts no key that signed this one."""
    file = _file(subject)
    is_on = if_known(lambda: facts.kernel.secure_boot, False)
    locked = if_known(lambda: facts.kernel.lockdown, "") in ("integrity", "confidentiality")
    parameter = if_known(lambda: facts.document.line("/sys/module/module/parameters/sig_enforce"), None)
    if not (is_on or locked or parameter == "Y"):
        return None
    record = if_known(lambda: facts.document.module(file.path), {}) if file is not None else {}
    is_unsigned = "signature" in record and record["signature"] is None
    # The kernel's messages don't name the module, so they count only where signatures are enforced.
    log = quote.messages(facts, REFUSED)
    if not log and not is_unsigned:
        return None
    evidence = log or (f"{file.path if file else subject.name}: no signature",)
    what = "the kernel refuses modules that aren't signed with a trusted key"
    what += " (Secure Boot is on)" if is_on else ""
    return _shared("module.refused-signature", what, evidence)


@rule(NOT_LOADED, 90)
def stub(facts: HostFacts, subject: Subject) -> Optional[Reason]:
    """Without OFED nvidia-peermem is built as a stub, whose initialisation ends with EINVAL."""
    if subject.name != "nvidia-peermem" or not facts.peermem.stub:
        return None
    file = _file(subject)
    evidence = (f"{file.path if file else subject.name}: doesn't import ib_register_peer_memory_client",)
    return _shared("nvidia-peermem.stub", "it's a stub, built without OFED's peer memory symbols", evidence)


@rule(NOT_LOADED, 100)
def no_gpu(facts: HostFacts, subject: Subject) -> Optional[Reason]:
    log = quote.messages(facts, r"NVRM: No NVIDIA GPU found")
    if subject.name != "nvidia" or not log:
        return None
    return _shared("nvidia.no-gpu", "it finds no GPU", log)


@rule(NOT_LOADED, 110)
def nouveau(facts: HostFacts, subject: Subject) -> Optional[Reason]:
    if subject.name != "nvidia" or "nouveau" not in facts.kernel.modules:
        return None
    evidence = quote.file(facts, "/proc/modules", r"^nouveau ")
    return _shared("nvidia.nouveau", "nouveau drives the GPUs", evidence)


@rule(NOT_LOADED, 120)
def driver_missing(facts: HostFacts, subject: Subject) -> Optional[Reason]:
    if subject.name == "nvidia" or facts.driver.version is not None:
        return None
    evidence = quote.file(facts, "/proc/driver/nvidia/version")
    return _shared("nvidia-fs.driver-missing", "it needs the driver, which is not loaded", evidence)


@rule(NOT_LOADED, 130)
def nothing_loads_it(facts: HostFacts, subject: Subject) -> Optional[Reason]:
    names, name = facts.boot.autoloaded, subject.name
    if subject.module.name in names:
        return None
    evidence = ("modules-load.d: {}".format(", ".join(names) or "names no module"),)
    fix = f"load it now: modprobe {name}; and at every boot: echo {name} > /etc/modules-load.d/{name}.conf"
    return Reason("not-autoloaded", "nothing loads it at boot", fix, evidence, reference.LOADING)


def _file(subject: Subject) -> Optional[ModuleFile]:
    return if_known(lambda: subject.module.file, None)


#: A warning without one of these is about programs, not about a path.
OF_PATHS = {"nvidia_fs", "mode"}
#: nvidia_fs.py judges it by what nvidia-fs was built against, where the rule warns about every new driver.
JUDGED_ELSEWHERE = {"nvidia-fs-p2p-abi-580"}


@rule(NOTES, 90)
def notes(facts: HostFacts, mount: Mount) -> Iterator[Cause]:
    if if_known(lambda: requests_p2pdma(facts, lambda: filesystem.storage_of(facts, mount)), False):
        return
    verdict = judge(facts, NVIDIA_FS, "none", facts.rules)
    for name, words in {**verdict.forbidden, **verdict.warnings}.items():
        broken = verdict.rules[name]
        if name in verdict.warnings and (name in JUDGED_ELSEWHERE or not OF_PATHS & broken.looks_at):
            continue
        ident = "stack.forbidden" if name in verdict.forbidden else "stack.warning"
        fix = f"install {broken.fixed}" if broken.fixed else "install versions that go together: gdsdeploy lock FLEET"
        yield Cause(ident, words, fix, (f"compatibility rule {name}: {broken.source}"[:200],))
