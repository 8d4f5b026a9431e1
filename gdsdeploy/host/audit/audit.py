"""Would these modules load on that kernel, and are they the ones that were meant?  Answered from files alone.

Works on any root folder and any kernel release inside it, running or not.  Nothing is loaded and no program is started.

A result is ``{"module": in-kernel name, "file": path in the root, "ok": true|false|null, "findings": [finding, …]}``, a
finding as in ``findings.py``.  ``ok`` is false if a finding has the outcome ``error``, null if none has and one has the
outcome ``unknown``, else true.
"""

from __future__ import annotations

import fnmatch
import os
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence

from ..errors import ElfError
from ..kmod import driver as drivers
from ..kmod import ofed
from ..kmod.driver import Expected
from ..kmod.findings import ERROR, UNKNOWN, Finding, finding, outcome_of, some, unknown_finding
from ..kmod.kernel import Kernel
from ..kmod.module import Module
from ..kmod.symbols import GPL_COMPATIBLE, Symbols
from ..kmod.symvers import Export, digest_name
from ..kmod.vouch import vouched
from ..rootdir import read_text
from ..secure_boot import signature

#: What a GPUDirect Storage host loads, in the order of their dependencies.
STACK = ("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem", "nvidia_fs")

Result = Dict[str, Any]


def audit(
    kernel: Kernel,
    modules: Sequence[str] = (),
    expected: Optional[Expected] = None,
    extra: Optional[Mapping[str, Export]] = None,
    vouched_files: Sequence[str] = (),
) -> List[Result]:
    """Audit ``modules`` (in-kernel names or paths of files) or, without any, those of STACK that are there.

    extra: exports of modules that will take the place of what is installed, such as a driver of which only the
    exporting unit was compiled.  vouched_files: files whose imports from the kernel itself were audited elsewhere on
    the same build of the kernel (see ``vouch``); those of an installed archive are known without.
    """
    expected = expected or Expected()
    found = {name: drivers.find(kernel, name) for name in STACK}
    results: List[Result] = []
    chosen: Dict[str, Module] = {}
    jobs: List[_Job] = []
    for wanted in modules or [name for name in STACK if found[name] is not None]:
        job = _job(kernel, wanted)
        results.append(job.result)
        if job.module is not None:
            jobs.append(job)
    for name in STACK:
        place = found[name]
        if place is not None:
            try:
                chosen[name] = kernel.read(place.file)
            except ElfError:
                continue
    for export in (extra or {}).values():
        chosen.pop(digest_name(export.module), None)
    # A file that was named explicitly is meant to take the place of what is installed.
    chosen.update((job.module.name, job.module) for job in jobs if job.module is not None)
    symbols = Symbols(kernel, chosen.values(), extra or {})
    known = {*vouched_files, *(() if symbols.complete else vouched(kernel))}
    for job in jobs:
        assert job.module is not None
        job.run(kernel, symbols, chosen, expected, job.module.path in known)
    for result in results:
        result["ok"] = _verdict(result["findings"])
    return results


def failed(results: Sequence[Result]) -> bool:
    """Whether any module has a finding with the outcome ``error``."""
    return any(result["ok"] is False for result in results)


def undecided(results: Sequence[Result]) -> bool:
    return not failed(results) and any(result["ok"] is None for result in results)


def _verdict(findings: Sequence[Finding]) -> Optional[bool]:
    outcomes = {outcome_of(item) for item in findings}
    return False if ERROR in outcomes else None if UNKNOWN in outcomes else True


def _job(kernel: Kernel, wanted: str) -> _Job:
    if "/" in wanted or ".ko" in wanted:
        job = _Job("", wanted)
        job.read(kernel, os.path.abspath(wanted))
        return job
    name = wanted.replace("-", "_")
    place = drivers.find(kernel, name)
    job = _Job(name, "" if place is None else f"/lib/modules/{kernel.release}/{place.file}")
    if place is None:
        message = f"kernel {kernel.release} has no module {name}"
        job.add("missing", "error", message, "build or install it for this kernel")
        return job
    job.read(kernel, place.file)
    job.findings += drivers.place_findings(kernel, name, place)
    return job


class _Job:
    """The audit of one module."""

    def __init__(self, name: str, file: str) -> None:
        self.module: Optional[Module] = None
        self.findings: List[Finding] = []
        self.result: Result = {"module": name, "file": file, "ok": None, "findings": self.findings}

    def add(self, ident: str, severity: str, message: str, hint: str = "") -> None:
        self.findings.append(finding(ident, severity, message, hint))

    def add_unknown(self, ident: str, message: str, hint: str = "") -> None:
        self.findings.append(unknown_finding(ident, message, hint))

    def read(self, kernel: Kernel, file: str) -> None:
        try:
            self.module = kernel.read(file)
            self.result["module"] = self.module.name
        except ElfError as error:
            self.add("unreadable", "error", error.message, error.hint or "build or install it again")

    def run(self, kernel: Kernel, symbols: Symbols, chosen: Dict[str, Module], expected: Expected, known: bool) -> None:
        assert self.module is not None
        symbols.prepare(self.module, observe=not known)
        self._vermagic(kernel, self.module)
        self._imports(kernel, symbols, self.module, known)
        self._namespaces(kernel, symbols, self.module)
        self._license(symbols, self.module)
        self._dependencies(kernel, self.module, {*chosen, *symbols.modules()})
        self.findings += signature.findings(kernel, self.module.path)
        self.findings += drivers.findings(kernel, self.module, chosen, expected)

    def _vermagic(self, kernel: Kernel, module: Module) -> None:
        want, have = kernel.vermagic().split(), module.vermagic.split()
        hint = f"build it against the headers of kernel {kernel.release}"
        own = kernel.own_module()
        if own is not None and own.machine != module.machine:
            self.add("machine", "error", f"is for {module.machine}, the kernel for {own.machine}", hint)
        if not want:
            self.add_unknown("vermagic-unknown", "neither modules nor headers tell what the kernel expects")
        elif have[1:] != want[1:] or (have != want and "modversions" not in want):
            self.add(
                "vermagic",
                "error",
                f"has vermagic {module.vermagic!r}, the kernel {kernel.vermagic()!r}",
                hint,
            )
        elif have != want:
            # The kernel skips the release where it can compare symbol versions (kernel/module/version.c, same_magic).
            message = "was built for kernel {}; {} takes it only while all symbol versions agree"
            self.add("vermagic", "warning", message.format(have[0] if have else "?", kernel.release), hint)

    def _imports(self, kernel: Kernel, symbols: Symbols, module: Module, known: bool) -> None:
        versioned = kernel.versioned
        wrong: Dict[str, List[str]] = {}
        missing: List[str] = []
        unversioned: List[str] = []
        unknown: List[str] = []
        peer: Dict[str, Optional[int]] = {}
        for symbol, crc in sorted(module.imports.items()):
            provider = symbols.find(symbol)
            if provider is None:
                if symbol in ofed.SYMBOLS:
                    peer[symbol] = crc
                elif symbol not in module.weak:
                    # No kernel exports what only the driver can.
                    certain = symbols.complete or symbol.startswith("nvidia_p2p_")
                    (missing if certain else unknown).append(symbol)
            elif versioned and provider.crc is not None and crc is None:
                unversioned.append(f"{symbol} of {provider.module}")
            elif versioned and crc != provider.crc:
                text = f"{symbol} (0x{crc or 0:08x}, exported 0x{provider.crc or 0:08x})"
                wrong.setdefault(provider.file or provider.module, []).append(text)
        for exporter, texts in sorted(wrong.items()):
            message = f"was built against other versions of {exporter}'s symbols: {some(texts)}"
            self.add("symbol-crc", "error", message, "rebuild it against this kernel and this driver")
        if missing:
            hint = "build it with the symbols of the modules it needs (KBUILD_EXTRA_SYMBOLS), or install those"
            self.add("symbol-missing", "error", f"nothing on this host exports {some(missing)}", hint)
        if unversioned:
            hint = "rebuild it with KBUILD_EXTRA_SYMBOLS naming the exporter's Module.symvers"
            self.add("symbol-unversioned", "error", f"carries no symbol version for {some(unversioned)}", hint)
        if unknown and not known:
            hint = f"install the headers of kernel {kernel.release} to decide it"
            self.add_unknown("symbol-unknown", f"cannot tell the versions of {some(unknown)}", hint)
        if peer:
            self.findings += drivers.peer_memory(kernel, peer)

    def _namespaces(self, kernel: Kernel, symbols: Symbols, module: Module) -> None:
        """kernel/module/main.c, verify_namespace_is_imported; ``module:…`` names the modules that may (Linux 6.16)."""
        wrong: Dict[str, List[str]] = {}
        for symbol in sorted(module.imports):
            provider = symbols.find(symbol)
            space = provider.namespace if provider is not None else ""
            if space and space not in module.namespaces and not _named(module.name, space):
                wrong.setdefault(space, []).append(symbol)
        severity = "warning" if "CONFIG_MODULE_ALLOW_MISSING_NAMESPACE_IMPORTS" in kernel.config else "error"
        for space, names in wrong.items():
            message = f"uses symbols of the namespace {space} without importing it: {some(names)}"
            self.add("symbol-namespace", severity, message, "build it from a source that is made for this kernel")

    def _license(self, symbols: Symbols, module: Module) -> None:
        providers = {symbol: symbols.find(symbol) for symbol in module.imports if symbol not in ("module_layout",)}
        only = sorted(symbol for symbol, item in providers.items() if item is not None and item.gpl)
        if not only:
            return
        if module.license not in GPL_COMPATIBLE:
            message = f"has the license {module.license!r} and imports GPL-only symbols: {some(only)}"
            self.add("gpl-proprietary", "error", message, "use the open kernel modules of the driver")
            return
        for symbol, item in sorted(providers.items()):
            if item is not None and item.license and item.license not in GPL_COMPATIBLE:
                message = (
                    "uses GPL-only symbols ({}) and {} of the proprietary module {}: the kernel allows one of them"
                )
                hint = "use the open kernel modules of the driver; nvidia-fs needs them from 2.17.5 on"
                self.add("gpl-proprietary", "error", message.format(some(only), symbol, item.module), hint)
                return

    def _dependencies(self, kernel: Kernel, module: Module, chosen: Iterable[str]) -> None:
        builtin = read_text(kernel.root, f"/lib/modules/{kernel.release}/modules.builtin")
        names = {os.path.basename(line)[:-3].replace("-", "_") for line in builtin.splitlines()}
        if kernel.own_module() is None:
            # A machine that only builds has the headers without the kernel, and they say what exports something there.
            names |= {os.path.basename(item.module).replace("-", "_") for item in kernel.symvers().values()}
        for name in module.depends:
            if name not in chosen and name not in kernel.by_name and name not in names:
                message = f"depends on module {name}, which kernel {kernel.release} does not have"
                hint = f"install the package that has it (linux-modules-extra-{kernel.release} on Ubuntu)"
                self.add("dependency-missing", "error", message, hint)


def _named(module: str, namespace: str) -> bool:
    """Whether ``module:a,b-*`` allows this module."""
    kind, _, names = namespace.partition(":")
    patterns = [name.replace("-", "_") for name in names.split(",")]
    return kind == "module" and any(fnmatch.fnmatchcase(module, pattern) for pattern in patterns)
