"""The stack's kernel modules: their files, the audit of both kernels', and why one isn't loaded."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass, field
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from ..facts.document import Document
from ..facts.unknown import Facts, UndecidedError, fact, follows, given, if_known, known, require
from ..io import cache
from ..kmod.module import ERROR, NOTE, UNKNOWN, build_id_of, files_to_load, outcome_of, read_once, substitute_of
from ..model import causes, compat
from ..model.expectation import Expectation
from ..paths import BUILD_ID, MODPROBE, PROBE_FOLDERS, SOURCES
from ..secure_boot.firmware import WORDS
from . import quote
from .boot import blocking
from .condition import Cause, Condition, condition, listed_cause, required
from .kernel import NOUVEAU, NVIDIA, NVIDIA_FS, PEERMEM
from .register import Answer, Steps, Words, check, collector, failed, passed
from .types import EvidenceRequest, HostFacts, Recorder

#: Imports kept: those of the driver, of peer memory, of storage hooks, and the two that tie a module to its kernel.
IMPORTS = re.compile(r"nvidia_|^nv[A-Z_]|peer_memory|nvfs|^module_layout$|^_printk$|^printk$")
EXPORTS = re.compile(r"^nvidia_p2p_|peer_memory|nvfs")


@collector("modules")
def collect_modules(recorder: Recorder, _request: EvidenceRequest) -> None:
    """The files that modprobe would load, and the driver's sources, which hosts that receive modules don't have."""
    from ..kmod.files import find_trees

    inputs = modprobe_inputs(recorder)
    for name in (NVIDIA, NVIDIA_FS, PEERMEM):
        output = recorder.command(MODPROBE + name, ["modprobe", "--show-depends", name], inputs=inputs).stdout
        replacement = substitute_of(output)
        if replacement:
            argv = ["modprobe", "--show-depends", "--ignore-install", replacement]
            output = recorder.command(MODPROBE + replacement, argv, inputs=inputs).stdout
        for path in files_to_load(output):
            if path.rpartition("/")[2].startswith("nv") and path not in recorder.document["modules"]:
                recorder.value("modules", path, digest)
        recorder.command("modinfo:" + name, ["modinfo", "-n", name], inputs=inputs)
    recorder.command(MODPROBE + NOUVEAU, ["modprobe", "--show-depends", NOUVEAU], inputs=inputs)
    recorder.names(SOURCES, "nvidia*")
    trees = {tree.path: tree for tree in find_trees(SOURCES)}
    for path in trees:
        recorder.value("trees", path, lambda place: trees[place].as_dict())


def modprobe_inputs(recorder: Recorder) -> Optional[cache.Inputs]:
    """What decides which files modprobe would load: depmod's lists, its own configuration and the command line.

    None where it has options that this program doesn't know.
    """
    words = recorder.text("/proc/cmdline")
    if words is None or "MODPROBE_OPTIONS" in os.environ:
        return None
    release = recorder.document["host"]["uname"]["release"]
    paths = (f"/lib/modules/{release}", *PROBE_FOLDERS, "/usr/bin/kmod", "/etc/modprobe.conf")
    return cache.Inputs(tuple(map(recorder.at, paths)), (words,))


def digest(path: str) -> Dict[str, Any]:
    """The relevant parts of a module file, as JSON; raises ElfError."""
    module = read_once(path)
    value = asdict(module)
    value["imports"] = _some(module.imports, IMPORTS)
    value["imports_total"] = len(module.imports)
    value["exports"] = {name: list(symbol) for name, symbol in _some(module.exports, EXPORTS).items()}
    value["exports_total"] = len(module.exports)
    value["weak"] = [name for name in module.weak if IMPORTS.search(name)]
    return value


def _some(symbols: Mapping[str, Any], pattern: re.Pattern[str]) -> Dict[str, Any]:
    return {name: symbols[name] for name in sorted(symbols) if pattern.search(name)}


@collector("audits")
def collect_audits(recorder: Recorder, request: EvidenceRequest) -> None:
    from ..boot.loader import loader

    def audit(which: str, release: str) -> None:
        from ..audit.audit import audit_expected
        from ..kmod.kernel import Kernel

        def results(_: str) -> Dict[str, Any]:
            kernel = recorder.kernels[release] = Kernel(release)
            return {"release": release, "results": audit_expected(kernel, request.expectation)}

        recorder.value("audits", which, results)

    section = recorder.document["audits"]
    if request.expectation is not None and not request.expectation.own_kernel:
        # The host's machine chooses the kernel, and there it is the lock's.
        section["running"] = {"error": "the kernel that runs is not this host's to choose"}
        return audit("next", request.expectation.kernel_release)
    running = recorder.document["host"]["uname"]["release"]
    audit("running", running)
    following = recorder.value("audits", "next", lambda _: loader().kernels()["next"])
    if following == running:
        section["next"] = section["running"]
    elif not following:
        section["next"] = {"error": "the boot loader does not say which kernel is next"}
    elif isinstance(following, str):
        audit("next", following)
    return None


@dataclass(frozen=True)
class ModuleFile:
    """A module file on disk.  Texts are empty where it says nothing."""

    path: str
    #: in-kernel name
    name: str
    version: str
    srcversion: str
    #: in hex, without the header of its note; earlier recordings have the header
    build_id: str
    license: str
    #: kernel release that it was built for: first word of its vermagic
    kernel: str
    depends: Tuple[str, ...]
    #: what gdsdeploy's build recorded: ``driver``, ``flavour``, ``tree``, ``source``
    provenance: Mapping[str, str] = field(default_factory=dict)
    #: symbol → CRC or None; those of interest
    imports: Mapping[str, Optional[int]] = field(default_factory=dict)
    exports: Mapping[str, Optional[int]] = field(default_factory=dict)


#: Names in DKMS, and packages, that bring a module, as regular expressions.
_OF_DRIVER = (r"nvidia(?!-fs|-peer)(-[a-z0-9]+)*", r"(nvidia(?!-fs).*-dkms|kmod-nvidia.*|nvidia-dkms-.*)$")
_BRING = {NVIDIA: _OF_DRIVER, NVIDIA_FS: ("nvidia-fs", r"nvidia-fs(-dkms)?$"), PEERMEM: _OF_DRIVER}


class ModuleFacts(Facts):
    """A module by its in-kernel name.  ``version`` and the like are the loaded one's; empty where it has none."""

    def __init__(self, document: Document, name: str) -> None:
        """``name`` as modprobe is asked for it, e.g. ``nvidia-fs``."""
        super().__init__(document)
        self._asked, self.name = name, name.replace("-", "_")
        self._folder = "/sys/module/" + self.name

    @property
    def asked(self) -> str:
        """Its name as modprobe accepts it."""
        return self._asked

    @property
    def words(self) -> str:
        """It as the subject of a sentence."""
        return "the nvidia module" if self._asked == NVIDIA else self._asked

    @fact
    def loaded(self) -> bool:
        modules = known(lambda: self.document.text("/proc/modules"))
        if isinstance(modules, str) and any(line.split()[:1] == [self.name] for line in modules.splitlines()):
            return True
        # A module that is built into the kernel is in no list, but has its folder in /sys/module.
        version = known(lambda: self.document.text(self._folder + "/version"))
        if isinstance(version, str):
            return True
        require(modules)
        return require(version) is not None

    version: str = follows(lambda self: self.document.line(self._folder + "/version") or "")

    srcversion: str = follows(lambda self: self.document.line(self._folder + "/srcversion") or "")

    build_id: str = follows(lambda self: build_id_of(self.document.text(self._folder + BUILD_ID, "binaries") or ""))

    @fact
    def path(self) -> Optional[str]:
        """The file that modprobe would load now, and so at the next boot of this kernel; None: it finds none."""
        run = self.document.ran(MODPROBE + self._asked)
        replacement = substitute_of(run.stdout)
        if replacement:
            run = self.document.ran(MODPROBE + replacement)
        if "not found in directory" in run.stderr:
            return None
        files = files_to_load(run.stdout)
        if run.status != 0 or not files:
            output = run.stderr.strip() or run.stdout.strip() or "nothing"
            raise UndecidedError(f"modprobe --show-depends {self._asked} says: {output}")
        return files[-1]

    #: what is in it
    file: Optional[ModuleFile] = follows(
        lambda self: self.path and _module_file(self.path, self.document.module(self.path))
    )

    @property
    def its_file(self) -> ModuleFile:
        """The file, if it is known to be the loaded one; raises UndecidedError otherwise."""
        if self.file is None:
            raise UndecidedError(f"modprobe finds no file for {self.name}")
        if self.loaded and not self.is_its_file():
            reason = f"the loaded {self.name} is not the file {self.file.path}, the only one that can be read"
            raise UndecidedError(reason)
        return self.file

    def is_its_file(self) -> bool:
        """Whether the loaded module is the file that modprobe would load: the build id decides, else srcversion.

        srcversion says less: it does not change with the driver that a module was built against.
        """
        if self.file is None:
            return False
        for name in ("build_id", "srcversion"):
            loaded, on_disk = getattr(self, name), getattr(self.file, name)
            if loaded and on_disk:
                return bool(loaded == on_disk)
        raise UndecidedError(f"neither a build id nor a srcversion of the loaded {self.name} can be compared")


#: Texts in a module's record that are fields of ModuleFile, and the other keys with their types.
_TEXTS = ("name", "version", "srcversion", "build_id", "license")
_SHAPE = {
    **dict.fromkeys((*_TEXTS, "vermagic"), str),
    **dict.fromkeys(("provenance", "imports", "exports"), dict),
    "depends": list,
}


def _module_file(path: str, record: Mapping[str, Any]) -> ModuleFile:
    """The record as a module file; raises UndecidedError if a key is missing."""
    for key, kind in _SHAPE.items():
        if not isinstance(record.get(key), kind):
            raise UndecidedError(f"the record of {path} has no {key}")
    exports = {key: row[0] if isinstance(row, list) and row else None for key, row in record["exports"].items()}
    return ModuleFile(
        path=path,
        **{**{key: record[key] for key in _TEXTS}, "build_id": build_id_of(record["build_id"])},
        kernel=(record["vermagic"].split() or [""])[0],
        depends=tuple(str(value) for value in record["depends"]),
        provenance={key: str(value) for key, value in record["provenance"].items()},
        imports=_crcs(record["imports"]),
        exports=_crcs(exports),
    )


def _crcs(values: Mapping[str, Any]) -> Dict[str, Optional[int]]:
    return {name: value if isinstance(value, int) else None for name, value in values.items()}


class AuditFinding(NamedTuple):
    """``severity`` is ``error``, ``warning`` or ``note``, ``outcome`` as in kmod/findings.py."""

    id: str
    severity: str
    message: str
    hint: str
    outcome: str


class ModuleAudit(NamedTuple):
    """One module; ``ok`` is None where no finding is an error, but one is undecided."""

    #: in-kernel name
    module: str
    file: str
    ok: Optional[bool]
    findings: Tuple[AuditFinding, ...]
    #: NAME VERSION of the locked package that brings it, who signed it, and where the kernel has that key
    package: str = ""
    signer: str = ""
    keyring: str = ""

    @property
    def origin(self) -> str:
        """Which package brings it, and who signed it."""
        from ..secure_boot.signature import KEYRINGS

        keyring = KEYRINGS.get(self.keyring, self.keyring)
        return f"packaged by {self.package}, " + (f"signed by {self.signer}, {keyring}" if self.signer else "unsigned")


class KernelAudit(NamedTuple):
    release: str
    modules: Tuple[ModuleAudit, ...]


class AuditFacts(Facts):
    """What the audit found of the modules of the running kernel, and of the one that boots next."""

    running = given(lambda document: _audit(document, "running"))
    next = given(lambda document: _audit(document, "next"))


def _audit(document: Document, which: str) -> KernelAudit:
    record = document.record("audits", which)
    if record is None:
        raise UndecidedError(f"the modules of the {which} kernel were not audited")
    release, results = record.get("release"), record.get("results")
    if not isinstance(release, str) or not isinstance(results, list):
        raise UndecidedError(f"the record of the audit of the {which} kernel is no such record")
    return KernelAudit(release, tuple(_audited(result if isinstance(result, dict) else {}) for result in results))


def _audited(record: Mapping[str, Any]) -> ModuleAudit:
    ok, findings = record.get("ok"), record.get("findings")
    rows = [row for row in findings if isinstance(row, dict)] if isinstance(findings, list) else []
    return ModuleAudit(
        ok=ok if isinstance(ok, bool) and isinstance(findings, list) else None,
        findings=tuple(
            AuditFinding(**_texts(row, "id", "severity", "message", "hint"), outcome=outcome_of(row)) for row in rows
        ),
        **_texts(record, "module", "file", "package", "signer", "keyring"),
    )


def _texts(record: Mapping[str, Any], *keys: str) -> Dict[str, Any]:
    return {key: str(record.get(key, "")) for key in keys}


P2P = "nvidia_p2p_"
#: The kernel's messages about untrusted modules; they don't name the module.
REFUSED = r"[Ll]oading of .* is rejected|[Ll]oading of unsigned module|Lockdown: .*module|Key was rejected"
FOREIGN = r"disagrees about version of symbol|no symbol version for|Unknown symbol"
GPL = r"GPL-only symbols|from proprietary module"
#: The driver's names in DKMS after which the packages of nvidia-fs, NVIDIA's and Debian's, have it built.
_DKMS_DRIVER = re.compile(r"nvidia(-current)?(-open)?[/,]")
PROVISION = "; with gdsdeploy: gdsdeploy provision"
#: The fix of a module that was built for another driver or kernel, as data/causes.json has it.
AGAIN = causes.row("module.other-kernel").fix


def loaded(facts: HostFacts, module: ModuleFacts) -> Condition:
    """The driver counts as loaded where it shows its version."""
    holds = (lambda: facts.driver.version is not None) if module.asked == NVIDIA else (lambda: module.loaded)
    return Condition(holds, lambda: not_loaded(facts, module))


def not_loaded(facts: HostFacts, module: ModuleFacts) -> Cause:
    """The cause for a module that is known not to be loaded."""
    what = f"{module.words} is not loaded"
    cause = listed_cause("module.not-loaded", _absent(module), what, module=module.asked)
    return _because(facts, module, what, REASONS) or cause._replace(id=f"{module.asked}.not-loaded")


def has_file(facts: HostFacts, module: ModuleFacts) -> Condition:
    """Modprobe finds a file for the running kernel."""
    what = f"modprobe finds no file of {module.words}"
    fix = f"install the package that has it for this kernel, or build it: dkms autoinstall{PROVISION}"
    cause = listed_cause("module.not-installed", (), what, fix)._replace(id=f"{module.asked}.not-installed")
    return Condition(
        lambda: module.file is not None,
        lambda: _because(facts, module, what, (in_container, no_modules, no_file)) or cause,
    )


#: Yields the second half of "it is not loaded: …", if it is the reason.  The last word of its id follows the module's
#: name in the cause's id.
Reason = Callable[["HostFacts", ModuleFacts], Iterator[Cause]]


def _because(facts: HostFacts, module: ModuleFacts, what: str, reasons: Tuple[Reason, ...]) -> Optional[Cause]:
    """The first reason; one that meets a fact that isn't known is none."""
    for reason in reasons:
        cause = if_known(lambda: next(reason(facts, module), None), None)  # noqa: B023 - it is called at once
        if cause is not None:
            ident = f"{module.asked}.{cause.id.rpartition('.')[2]}"
            return cause._replace(id=ident, what=f"{what}: {cause.what}")
    return None


def _absent(module: ModuleFacts) -> Tuple[str, ...]:
    return (f"/proc/modules: no {module.name}",)


def forbidden(facts: HostFacts, module: ModuleFacts) -> Iterator[Cause]:
    """Blocked in modprobe.d or on the kernel's command line."""
    if module.name in facts.boot.forbidden:
        lines = blocking(facts.document, module.name)
        where = next(iter(lines), "the kernel's command line")
        evidence = tuple(f"{place}: {line}" for place, line in lines.items())[: quote.LINES]
        evidence = evidence or quote.file(facts, "/proc/cmdline")
        yield listed_cause("module.forbidden", evidence, f"{where} blocks it", place=where, module=module.asked)


def in_container(facts: HostFacts, module: ModuleFacts) -> Iterator[Cause]:
    """A container shares its host's kernel, and can neither see nor load that kernel's module files."""
    container = facts.environment.container
    if container is not None:
        values = {"container": container, "module": module.asked}
        yield listed_cause("module.not-on-container-host", _absent(module), **values)


def no_modules(facts: HostFacts, _module: ModuleFacts) -> Iterator[Cause]:
    """The running kernel has no folder of modules, as in machines that boot a kernel from outside."""
    release, names = facts.kernel.release, facts.document.names("/lib/modules")
    if release not in (names or ()):
        evidence = ("/lib/modules: {}".format(", ".join(names) if names else "there is no such folder"),)
        what = f"there are no module files for the running kernel {release}"
        fix = f"install that kernel's packages, or boot a kernel that has its modules{PROVISION}"
        yield listed_cause("module.not-installed", evidence, what, fix)


def no_file(facts: HostFacts, module: ModuleFacts) -> Iterator[Cause]:
    """Modprobe finds no file for the running kernel: never installed, or never built for it."""
    if module.file is None:
        yield _not_built(facts, module)


def _not_built(facts: HostFacts, module: ModuleFacts) -> Cause:
    release = if_known(lambda: facts.kernel.release, "the running kernel")
    build = f"install the kernel's headers, and build it: dkms autoinstall -k {release}{PROVISION}"
    lines = if_known(lambda: facts.packages.dkms, ())
    name_in_dkms, packages = _BRING[module.asked]
    in_dkms = [line for line in lines if re.match(f"(?:{name_in_dkms})[/,]", line)]
    if in_dkms:
        built = any("installed" in line for line in in_dkms)
        if not built and module.asked == NVIDIA_FS and not any(_DKMS_DRIVER.match(line) for line in lines):
            return _no_dkms_driver(lines)
        what = "DKMS built it for other kernels, not for " if built else "DKMS has it, but hasn't built it for "
        against, fixed = _known_not_to_build(facts, module, in_dkms)
        fix = f"install {fixed}, or boot a kernel that it is built for{PROVISION}" if fixed else build
        evidence = (*quote.with_source("dkms", in_dkms), *against)
        return listed_cause("module.not-built", evidence, what + release, fix)
    # Where another module stands for the name, as on Debian, modprobe's answer is about that one.
    run = if_known(lambda: facts.document.attempted(MODPROBE + module.asked), None)
    behind = substitute_of(run.stdout) if run else None
    evidence = quote.program(facts, MODPROBE + (behind or module.asked))
    for package in sorted(if_known(lambda: facts.packages.installed, {})):
        if re.match(packages, package):
            what = f"{package} is installed, but has no module for {release}"
            return listed_cause("module.not-built", evidence, what, build)
    return listed_cause("module.not-installed", evidence)


#: Module → how the rules name it and who made it.
_IN_RULES = {NVIDIA: ("driver", "driver_origin"), NVIDIA_FS: ("nvidia_fs", "nvidia_fs_origin")}


def _known_not_to_build(facts: HostFacts, module: ModuleFacts, in_dkms: List[str]) -> Tuple[Tuple[str, ...], str]:
    """What the compatibility rules say against NVIDIA's release of this version, and which version they name.

    DKMS's line doesn't tell who packaged it.  Debian's and Ubuntu's own packages have other names there.
    """
    from .stack import running_kernel

    versions = {
        match.group(1) for line in in_dkms for match in [re.match(r"nvidia(?:-open|-fs)?[/,] ?([\d.]+)", line)] if match
    }
    if module.asked not in _IN_RULES or len(versions) != 1:
        return (), ""
    subject, origin = _IN_RULES[module.asked]
    parts = {subject: versions.pop(), origin: "nvidia", "kernel": running_kernel(facts), "arch": facts.os.machine}
    rules = {rule.id: rule for rule in compat.rules_with(facts.rules)}
    refused = [rules[verdict.rule] for verdict in compat.judge(parts, rules.values()) if not verdict.allowed]
    fixed = next((rule.fixed for rule in refused if rule.fixed), "")
    return tuple(f"compatibility rule {rule.id}: {rule.says} ({rule.source})"[:300] for rule in refused), fixed


def _no_dkms_driver(lines: Tuple[str, ...]) -> Cause:
    """The package's dkms.conf has BUILD_DEPENDS nvidia; Ubuntu's -server driver is nvidia-srv, a prebuilt one is none.

    dkms build fails with 13 from 3.1.4 on, autoinstall with 11 in 3.0.11 to 3.4.0; newer ones skip it with status 0.
    """
    what = "DKMS builds it only after a driver that it calls nvidia, and it knows no such driver"
    return listed_cause("build.no-dkms-driver", quote.with_source("dkms", list(lines)), what)


def other_kernel(facts: HostFacts, module: ModuleFacts) -> Iterator[Cause]:
    """The file was built for another kernel."""
    file, release = module.file, facts.kernel.release
    if file is not None and file.kernel != release:
        what = f"its file was built for {file.kernel or 'an unknown kernel'}, but {release} runs"
        yield listed_cause("module.other-kernel", (f"{file.path}: vermagic {file.kernel}",), what)


def proprietary(facts: HostFacts, module: ModuleFacts) -> Iterator[Cause]:
    """nvidia-fs from 2.17.5 on links against symbols that only GPL-compatible modules may use."""
    if module.asked != NVIDIA_FS:
        return
    log = quote.messages(facts, rf"nvidia_fs.*({GPL})")
    file = _file(module)
    links = file is not None and any(name.startswith(P2P) for name in file.imports)
    if log or (links and facts.driver.flavour == "proprietary"):
        evidence = log or quote.file(facts, "/proc/driver/nvidia/version")
        what = "it may not use the symbols of the proprietary driver"
        yield listed_cause("nvidia-fs.proprietary-driver", evidence, what)


def other_rdma_core(facts: HostFacts, module: ModuleFacts) -> Iterator[Cause]:
    """Peer memory uses symbols of the driver and of the RDMA core: OFED's change when OFED is installed again."""
    log = quote.messages(facts, rf"\b(?:nvidia_peermem|nv_peer_mem): (?:{FOREIGN}) (?:ib|rdma)_")
    if module.asked == PEERMEM and log:
        what = "it was built against another RDMA core than the loaded one, which OFED or DOCA brings"
        yield listed_cause("nvidia-peermem.other-rdma-core", log, what)


def other_symbols(facts: HostFacts, module: ModuleFacts) -> Iterator[Cause]:
    """Built against another driver or kernel: symbols or their versions differ."""
    evidence = quote.messages(facts, rf"\b{module.name}: ({FOREIGN})") or _differing(facts, module)
    if evidence:
        yield listed_cause("nvidia-fs.symbol-mismatch", evidence, "it was built against another driver")


def _differing(facts: HostFacts, module: ModuleFacts) -> Tuple[str, ...]:
    """How the two module files differ, where the kernel has logged nothing yet."""
    mine, theirs = _file(module), _file(facts.driver.module)
    if mine is None or theirs is None or module.asked == NVIDIA or not is_versioned(mine, theirs):
        return ()
    return tuple(differing(mine, theirs).values())[: quote.LINES]


def is_versioned(mine: ModuleFile, theirs: ModuleFile) -> bool:
    """Whether one of them has versions of symbols: without any, the kernel checks none."""
    return any(crc is not None for crc in (*mine.imports.values(), *theirs.exports.values()))


def differing(mine: ModuleFile, theirs: ModuleFile) -> Dict[str, str]:
    """Imported symbol of the driver → how what one module file needs differs from what the driver's exports."""
    exports = {name: f"exports {_crc(crc)}" for name, crc in theirs.exports.items()}
    return {
        name: f"{name}: {mine.path} needs {_crc(crc)}, {theirs.path} {exports.get(name, 'does not export it')}"
        for name, crc in sorted(mine.imports.items())
        if name.startswith(P2P) and (crc is None or theirs.exports.get(name) != crc)
    }


def _crc(value: Optional[int]) -> str:
    return "no version" if value is None else f"0x{value:08x}"


def refused_signature(facts: HostFacts, module: ModuleFacts) -> Iterator[Cause]:
    """The kernel accepts signed modules only, as under Secure Boot, and trusts no key that signed this one."""
    file = _file(module)
    is_on = if_known(lambda: facts.kernel.secure_boot, False)
    locked = if_known(lambda: facts.kernel.lockdown, "") in ("integrity", "confidentiality")
    parameter = if_known(lambda: facts.document.line("/sys/module/module/parameters/sig_enforce"), None)
    if not (is_on or locked or parameter == "Y"):
        return
    record = if_known(lambda: facts.document.module(file.path), {}) if file is not None else {}
    is_unsigned = "signature" in record and record["signature"] is None
    # The kernel's messages don't name the module, so they count only where signatures are enforced.
    log = quote.messages(facts, REFUSED)
    if log or is_unsigned:
        evidence = log or (f"{file.path if file else module.asked}: no signature",)
        what = "the kernel refuses modules that aren't signed with a trusted key"
        what += " (Secure Boot is on)" if is_on else ""
        yield listed_cause("module.refused-signature", evidence, what)


def stub(facts: HostFacts, module: ModuleFacts) -> Iterator[Cause]:
    """Without OFED nvidia-peermem is built as a stub, whose initialisation ends with EINVAL."""
    if module.asked == PEERMEM and facts.peermem.stub:
        file = _file(module)
        evidence = (f"{file.path if file else module.asked}: doesn't import ib_register_peer_memory_client",)
        yield listed_cause("nvidia-peermem.stub", evidence, "it's a stub, built without OFED's peer memory symbols")


def no_gpu(facts: HostFacts, module: ModuleFacts) -> Iterator[Cause]:
    log = quote.messages(facts, r"NVRM: No NVIDIA GPU found")
    if module.asked == NVIDIA and log:
        yield listed_cause("nvidia.no-gpu", log, "it finds no GPU")


def nouveau(facts: HostFacts, module: ModuleFacts) -> Iterator[Cause]:
    if module.asked == NVIDIA and NOUVEAU in facts.kernel.modules:
        yield listed_cause(
            "nvidia.nouveau", quote.file(facts, "/proc/modules", r"^nouveau "), "nouveau drives the GPUs"
        )


def driver_missing(facts: HostFacts, module: ModuleFacts) -> Iterator[Cause]:
    if module.asked != NVIDIA and facts.driver.version is None:
        evidence = quote.file(facts, "/proc/driver/nvidia/version")
        yield listed_cause("nvidia-fs.driver-missing", evidence, "it needs the driver, which is not loaded")


def nothing_loads_it(facts: HostFacts, module: ModuleFacts) -> Iterator[Cause]:
    names = facts.boot.autoloaded
    if module.name not in names:
        evidence = ("modules-load.d: {}".format(", ".join(names) or "names no module"),)
        yield listed_cause("module.not-autoloaded", evidence, module=module.asked)


def _file(module: ModuleFacts) -> Optional[ModuleFile]:
    return if_known(lambda: module.file, None)


#: The root cause first.
REASONS: Tuple[Reason, ...] = (
    *(forbidden, in_container, no_modules, no_file, other_kernel, proprietary, other_rdma_core, other_symbols),
    *(refused_signature, stub, no_gpu, nouveau, driver_missing, nothing_loads_it),
)


def check_module_file(
    word: str,
    name: str,
    module_of: Callable[[HostFacts], ModuleFacts],
    unless: Words = lambda _facts, _expectation: "",
    *,
    replaced: str,
    not_built: str,
) -> None:
    """Register ``word``.loaded-file and ``word``.built-for-kernel for one module.

    replaced, not_built: what the two checks prevent.
    """
    check(
        word + ".loaded-file",
        f"the loaded {name} is the file that modprobe would load",
        expects="the same build in memory and on disk",
        prevents=replaced,
        of_running=True,
        unless=unless,
    )(lambda facts, _: _same_file(facts, module_of(facts)))
    check(
        word + ".built-for-kernel",
        f"{name} was built for the running kernel",
        expects="vermagic {kernel_release}",
        prevents=not_built,
        of_running=True,
        unless=unless,
        expected=lambda facts, _: f"vermagic {facts.kernel.release}",
    )(lambda facts, _: _same_kernel(facts, module_of(facts)))


def _same_file(facts: HostFacts, module: ModuleFacts) -> Steps:
    """Whether a reboot would load the same module again."""
    file = module.file
    yield Condition(lambda: module.loaded, lambda: not_loaded(facts, module))
    yield has_file(facts, module)
    assert file is not None
    yield _loaded_is(module, file)
    yield passed(file.path)


@condition
def _loaded_is(module: ModuleFacts, file: ModuleFile) -> Condition:
    evidence = (
        f"loaded: version {module.version} build id {module.build_id}",
        f"file:   version {file.version} build id {file.build_id}",
    )
    return required(module.is_its_file(), "module.other-file", evidence, file=file.path)


def _same_kernel(facts: HostFacts, module: ModuleFacts) -> Steps:
    yield has_file(facts, module)
    for other in other_kernel(facts, module):
        yield Condition(False, other._replace(what=f"{module.words}: {other.what}"))
    file = module.file
    assert file is not None
    yield passed(f"vermagic {file.kernel} in {file.path}")


HINT = "Provision the host again: it builds or brings the modules of the lock for this kernel"


@check(
    "modules.running",
    "the running kernel's module files can be loaded, and are those of the lock",
    expects="modules that pass the audit on the running kernel",
    prevents="files that the kernel refuses when they are loaded again: silent compat mode after a reload",
    of_running=True,
)
def running(facts: HostFacts, expectation: Expectation) -> Answer:
    return _judge(facts.audits.running, expectation)


@check(
    "modules.next-boot",
    "the modules that the next boot will load pass the same audit",
    expects="modules that pass the audit on the kernel that boots next",
    prevents="a host that is healthy until it reboots into a kernel without its modules",
)
def next_boot(facts: HostFacts, expectation: Expectation) -> Answer:
    return _judge(facts.audits.next, expectation)


def _judge(audit: KernelAudit, expectation: Expectation) -> Answer:
    names, by_name = expectation.modules(), {module.module: module for module in audit.modules}
    modules = [by_name[name] for name in names if name in by_name]
    findings = [(module.module, finding) for module in modules for finding in module.findings]
    evidence = [
        f"{name}: {finding.severity} [{finding.id}] {finding.message}"
        for name, finding in findings
        if finding.severity != NOTE
    ]
    missing = [name for name in names if name not in by_name]
    if missing:
        return failed("kernel {} has no module {}".format(audit.release, ", ".join(missing)), HINT, evidence)
    for name, finding in findings:
        if finding.outcome == ERROR:
            return failed(f"{name} on kernel {audit.release}: {finding.message}", finding.hint or HINT, evidence)
    for module in modules:
        if module.ok is not True:
            undecided = [(finding.message, finding.hint) for finding in module.findings if finding.outcome == UNKNOWN]
            reason, hint = undecided[0] if undecided else ("the audit has no result", "")
            raise UndecidedError(f"{module.module} on kernel {audit.release}: {reason}", hint)
    packaged = [f"{module.module}: {module.origin}" for module in modules if module.package]
    return passed("; ".join(["{} on kernel {}".format(", ".join(names), audit.release), *packaged]), evidence)


#: Findings of the audit that are about signatures.
_REFUSED = (
    "unsigned", "signature-malformed", "signature-wrong", "signature-key", "signature-key-pending",
    "signature-key-revoked",
)  # fmt: skip
_UNDECIDED = ("signature-key-unknown", "secure-boot-unknown", "enforcement-unknown")
_SIGN = "Sign the modules with an enrolled key: docs/secure-boot.md"


@check(
    "secure-boot.signatures",
    "every module of the stack has a signature that its kernel accepts",
    expects="signed with an enrolled key, where the kernel asks for signatures",
    prevents="modules that Secure Boot refuses after the reboot into a kernel that they were built for unsigned",
    of_running=True,
)
def signatures(facts: HostFacts, expectation: Expectation) -> Answer:
    state = facts.kernel.secure_boot_state
    kernels = (facts.audits.running, facts.audits.next)
    modules = [(f"{each.module} on kernel {one.release}", each) for one in kernels for each in one.modules]
    findings = [
        (finding, f"{name}: {finding.message}")
        for name, module in modules
        for finding in module.findings
        if module.module in expectation.modules() and finding.severity != NOTE
    ]
    refused = [(finding, message) for finding, message in findings if finding.id in _REFUSED]
    if refused:
        return failed(refused[0][1], refused[0][0].hint or _SIGN, [message for _, message in refused])
    for finding, message in findings:
        if finding.id in _UNDECIDED:
            raise UndecidedError(message)
    words, lockdown = WORDS[state], if_known(lambda: facts.kernel.lockdown, "none")
    if lockdown != "none":
        words += f", the kernel is locked down ({lockdown})"
    packaged = list(dict.fromkeys(f"{name}: {module.origin}" for name, module in modules if module.package))
    words += "; the kernel would refuse no module of the stack for its signature"
    return passed("; ".join([words, *packaged[:1]]), packaged)
