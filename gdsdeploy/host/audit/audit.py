"""Would these modules load on that kernel, and are they the expected ones?  Answered from files of any root alone.

A result is ``{"module": in-kernel name, "file": path in the root, "ok": true|false|null, "findings": [finding, …]}``, a
finding as in ``findings.py``.  ``ok`` is false with an error, null without one and with an unknown, else true.

The audit of modules that locked packages bring: also whether they are the packages' files, and who signed them.

The audit against a host's expectation, for the kernel guard and for evidence.
"""

from __future__ import annotations

import fnmatch
import os
import struct
from typing import Any, Container, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ..errors import ElfError, HostError
from ..kmod import driver as drivers, files, ofed
from ..kmod.driver import Expected
from ..kmod.flavour import large_pages
from ..kmod.kernel import GPL_COMPATIBLE, Export, Kernel, Symbols
from ..kmod.module import (
    ERROR,
    INCOMPLETE,
    UNKNOWN,
    Finding,
    Module,
    decisive,
    finding,
    name_of,
    outcome_of,
    some,
    unknown_finding,
)
from ..kmod.packaged import problems, vouched_files, whole
from ..kmod.packaged_file import PackagedFile
from ..model.expectation import Expectation
from ..secure_boot import signature
from ..secure_boot.signature import signed_by

#: What a GPUDirect Storage host loads, in the order of their dependencies.
STACK = ("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem", "nvidia_fs")

Result = Dict[str, Any]


def stack_files(kernel: Kernel) -> List[str]:
    """Paths of those of STACK that the kernel would load."""
    places = (drivers.find(kernel, name) for name in STACK)
    return [kernel.path(place.file) for place in places if place is not None]


def audit(
    kernel: Kernel,
    modules: Sequence[str] = (),
    expected: Optional[Expected] = None,
    extra: Optional[Mapping[str, Export]] = None,
    trusted: Sequence[str] = (),
) -> List[Result]:
    """Audit ``modules`` (in-kernel names or paths of files) or, without any, those of STACK that the kernel has.

    extra: exports of modules that will replace what is installed, such as a driver of which only the exporting unit was
    compiled.  trusted: files whose imports from the kernel were audited elsewhere on the same build of the kernel (see
    ``vouch``), besides those of an installed archive.
    """
    places = {name: drivers.find(kernel, name) for name in STACK}
    names = modules or [name for name in STACK if places[name] is not None]
    pairs = [_read(kernel, name) for name in names]
    chosen: Dict[str, Module] = {}
    # A file that was named explicitly takes the place of what is installed, and so does the exporter of ``extra``.
    named = {module.name for name, (_result, module) in zip(names, pairs) if module is not None and is_file(name)}
    named |= {name_of(export.module) for export in (extra or {}).values()}
    replaced = {place.file for name, place in places.items() if place is not None and name in named}
    for name, place in places.items():
        if place is not None:
            try:
                chosen[name] = kernel.read(place.file)
            except ElfError as error:
                if place.file not in replaced:
                    kernel.inputs.skip(error)
    for export in (extra or {}).values():
        chosen.pop(name_of(export.module), None)
    chosen.update((module.name, module) for _result, module in pairs if module is not None)
    symbols = Symbols(kernel, chosen.values(), extra or {}, replaced)
    files = {*trusted, *(() if symbols.complete else vouched_files(kernel))}
    for result, module in pairs:
        if module is not None:
            symbols.prepare(module, observe=module.path not in files)
            # Who made the package has built it with this kernel.
            is_trusted = module.path in files or (expected is not None and module.path in expected.packaged)
            result["findings"] += [
                *_vermagic(kernel, module),
                *_layout(kernel, module),
                *_imports(kernel, symbols, module, is_trusted),
                *_namespaces(kernel, symbols, module, is_trusted),
                *_license(kernel, symbols, module, is_trusted),
                *_exports(kernel, symbols, module, chosen),
                *_dependencies(kernel, module, {*chosen, *symbols.modules()}),
                *signature.findings(kernel, module.path),
                *drivers.findings(kernel, module, chosen, expected or Expected()),
            ]
    # The steps before may have left out what they couldn't read, for any of the modules.
    for result, module in pairs:
        if module is not None:
            result["findings"][:0] = _unread(kernel)
        result["ok"] = _verdict(result["findings"])
    return [result for result, _module in pairs]


def has_errors(results: Sequence[Result]) -> bool:
    """Whether any module has a finding with the outcome ``error``."""
    return any(result["ok"] is False for result in results)


def is_undecided(results: Sequence[Result]) -> bool:
    """Whether no module has an error, and one has an unknown."""
    return not has_errors(results) and any(result["ok"] is None for result in results)


def _verdict(findings: Sequence[Finding]) -> Optional[bool]:
    outcomes = {outcome_of(each) for each in findings}
    return False if ERROR in outcomes else None if UNKNOWN in outcomes else True


def is_file(name: str) -> bool:
    """Whether a word names a module's file, not a module."""
    return "/" in name or ".ko" in name


def file_of(kernel: Kernel, name: str) -> str:
    """The path of a module, by its name or its file; raises HostError where the kernel has none of that name."""
    if is_file(name):
        return os.path.abspath(name)
    place = drivers.find(kernel, name.replace("-", "_"))
    if place is None:
        raise HostError(f"kernel {kernel.release} has no module {name}", "build or install it first")
    return kernel.path(place.file)


def _read(kernel: Kernel, name: str) -> Tuple[Result, Optional[Module]]:
    """The result, with findings about the module's place only, and the module; None if it can't be read."""
    result: Result = {"module": "", "file": name, "ok": None, "findings": []}
    if is_file(name):
        place, file = None, os.path.abspath(name)
    else:
        name = result["module"] = name.replace("-", "_")
        place = drivers.find(kernel, name)
        if place is None:
            message = f"kernel {kernel.release} has no module {name}"
            hint = "build or install it for this kernel"
            return {**result, "file": "", "findings": [finding("missing", "error", message, hint)]}, None
        file = place.file
        result["file"] = kernel.shown(file)
    module = None
    try:
        module = kernel.read(file)
        result["module"] = module.name
    except ElfError as error:
        hint = error.hint or "build or install it again"
        result["findings"].append(finding("unreadable", "error", error.message, hint))
    if place is not None:
        result["findings"] += drivers.place_findings(kernel, name, place)
    return result, module


def _unread(kernel: Kernel) -> Iterator[Finding]:
    """A finding if anything that decides can't be read: without it, the other findings may be too few."""
    unread = kernel.inputs.unread
    if unread:
        first, more = next(iter(unread)), len(unread) - 1
        message = f"the audit is incomplete: {first}" + (f", and {more} more like it" if more else "")
        hint = next(filter(None, unread.values()), "make these files readable, or reinstall the packages they are of")
        yield unknown_finding(INCOMPLETE, message, hint)


def _vermagic(kernel: Kernel, module: Module) -> Iterator[Finding]:
    want, have = kernel.vermagic().split(), module.vermagic.split()
    hint = f"build it against the headers of kernel {kernel.release}"
    own = kernel.own_module
    if own is not None and own.machine != module.machine:
        yield finding("machine", "error", f"is for {module.machine}, the kernel for {own.machine}", hint)
    if not want:
        yield unknown_finding("vermagic-unknown", "neither modules nor headers tell what the kernel expects")
    elif have[1:] != want[1:] or (have != want and "modversions" not in want) or _pages(have) != _pages(want):
        message = f"has vermagic {module.vermagic!r}, the kernel {kernel.vermagic()!r}"
        yield finding("vermagic", "error", message, hint)
    elif have != want:
        # The kernel skips the release where it can compare symbol versions (kernel/module/version.c, same_magic).
        message = f"was built for kernel {have[0] if have else '?'}"
        message += f"; {kernel.release} takes it only while all symbol versions agree"
        yield finding("vermagic", "warning", message, hint)


def _pages(vermagic: List[str]) -> str:
    """The page size that a vermagic's release tells; the code has it compiled in, and symbol versions don't show it."""
    return large_pages(vermagic[0]) if vermagic else ""


def _imports(kernel: Kernel, symbols: Symbols, module: Module, is_trusted: bool) -> Iterator[Finding]:
    wrong: Dict[str, List[str]] = {}
    missing: List[str] = []
    unversioned: List[str] = []
    unknown: List[str] = []
    peer: Dict[str, Optional[int]] = {}
    versioned = kernel.versioned
    for symbol, crc in sorted(module.imports.items()):
        provider = symbols.find(symbol)
        if provider is None:
            if symbol in ofed.SYMBOLS:
                peer[symbol] = crc
            elif symbol not in module.weak:
                # No kernel exports what only the driver can.
                certain = symbols.complete or symbol.startswith("nvidia_p2p_")
                (missing if certain else unknown).append(symbol)
        elif versioned and provider.crc and crc is None:
            unversioned.append(f"{symbol} of {provider.module}")
        elif versioned and crc != provider.crc and (crc, provider.crc) != (None, 0):
            text = f"{symbol} (0x{crc or 0:08x}, exported 0x{provider.crc or 0:08x})"
            wrong.setdefault(provider.file or provider.module, []).append(text)
    for exporter, texts in sorted(wrong.items()):
        message = f"was built against other versions of {exporter}'s symbols: {some(texts)}"
        yield finding("symbol-crc", "error", message, "rebuild it against this kernel and this driver")
    if missing:
        hint = "build it with the symbols of the modules it needs (KBUILD_EXTRA_SYMBOLS), or install those"
        yield finding("symbol-missing", "error", f"nothing on this host exports {some(missing)}", hint)
    if unversioned:
        hint = "rebuild it with KBUILD_EXTRA_SYMBOLS naming the exporter's Module.symvers"
        yield finding("symbol-unversioned", "error", f"carries no symbol version for {some(unversioned)}", hint)
    if unknown and not is_trusted:
        hint = f"install the headers of kernel {kernel.release} to decide it"
        yield unknown_finding("symbol-unknown", f"the versions of {some(unknown)} are unknown", hint)
    if peer:
        yield from drivers.peer_memory(kernel, peer)


def _namespaces(kernel: Kernel, symbols: Symbols, module: Module, is_trusted: bool) -> Iterator[Finding]:
    """kernel/module/main.c, verify_namespace_is_imported; ``module:…`` names the modules that may (Linux 6.16)."""
    severity = "warning" if "CONFIG_MODULE_ALLOW_MISSING_NAMESPACE_IMPORTS" in kernel.config else "error"
    wrong: Dict[str, List[str]] = {}
    unknown: List[str] = []
    for symbol in sorted(module.imports.keys() - {"module_layout"}):
        provider = symbols.find(symbol)
        spaces = provider.namespaces if provider is not None else ()
        missing = [space for space in spaces if space not in module.namespaces and not _is_named(module.name, space)]
        if missing and provider is not None and provider.gpl is not None:
            wrong.setdefault(missing[0], []).append(symbol)
        elif missing:
            unknown.append(symbol)
    for space, names in wrong.items():
        message = f"uses symbols of the namespace {space} without importing it: {some(names)}"
        yield finding("symbol-namespace", severity, message, "build it from a source that supports this kernel")
    if unknown and not is_trusted and severity == ERROR:
        yield _undecided(kernel, f"whether it may use {some(unknown)} is unknown: they may be in a namespace")


def _license(kernel: Kernel, symbols: Symbols, module: Module, is_trusted: bool) -> List[Finding]:
    lookups = {symbol: symbols.find(symbol) for symbol in sorted(module.imports) if symbol != "module_layout"}
    providers = {symbol: provider for symbol, provider in lookups.items() if provider is not None}
    only = [symbol for symbol, provider in providers.items() if provider.gpl]
    maybe = [symbol for symbol, provider in providers.items() if provider.gpl is None]
    proprietary = (
        symbol for symbol, provider in providers.items() if provider.license and provider.license not in GPL_COMPATIBLE
    )
    if module.license not in GPL_COMPATIBLE:
        why, hint = f"has the license {module.license!r}", "use the open kernel modules of the driver"
    else:
        symbol = next(proprietary, "")
        if not symbol:
            return []
        why = f"uses {symbol} of the proprietary module {providers[symbol].module}"
        hint = "use the open kernel modules of the driver; nvidia-fs needs them from 2.17.5 on"
    if only:
        message = f"{why} and imports GPL-only symbols: {some(only)}"
        return [finding("gpl-proprietary", "error", message, hint)]
    if maybe and not is_trusted:
        return [_undecided(kernel, f"{why}, and whether symbols that it uses are GPL-only is unknown: {some(maybe)}")]
    return []


def _undecided(kernel: Kernel, message: str) -> Finding:
    return unknown_finding("symbol-unknown", message, f"install the headers of kernel {kernel.release} to decide it")


def _exports(kernel: Kernel, symbols: Symbols, module: Module, chosen: Mapping[str, Module]) -> Iterator[Finding]:
    """kernel/module/main.c, verify_exported_symbols."""
    others = {name: other.name for other in chosen.values() if other.name != module.name for name in other.exports}
    owners = {name: "the kernel" if symbols.kernel_exports(name) else others.get(name, "") for name in module.exports}
    for owner in sorted(set(owners.values()) - {""}):
        names = sorted(name for name in owners if owners[name] == owner)
        message = f"exports symbols that {owner} exports, too: {some(names)}; kernel {kernel.release} refuses it"
        yield finding("symbol-duplicate", "error", message, "remove the module that isn't needed, or build another one")


def _layout(kernel: Kernel, module: Module) -> Iterator[Finding]:
    """What kernels compare whether or not they compare symbol versions."""
    hint = f"build it against the headers of kernel {kernel.release}"
    own = kernel.own_module
    want = own.struct_size if own is not None else 0
    if want and module.struct_size and want != module.struct_size:
        message = f"has a struct module of {module.struct_size} bytes, kernel {kernel.release} one of {want}"
        yield finding("module-size", "error", message, hint)
    # An empty configuration is one that isn't known, and a kernel that is built without type data ignores it.
    uses_types = not kernel.config or "CONFIG_DEBUG_INFO_BTF_MODULES" in kernel.config
    if not uses_types or "CONFIG_MODULE_ALLOW_BTF_MISMATCH" in kernel.config:
        return
    try:
        problem, is_certain = _btf_problem(module.path)
    except ElfError as error:
        kernel.inputs.skip(error)
        return
    if problem and is_certain and kernel.config:
        message = f"has type data (.BTF) that kernel {kernel.release} refuses: {problem}"
        yield finding("type-data", "error", message, f"{hint}, or remove it: objcopy --remove-section=.BTF")
    elif problem:
        message = f"has type data (.BTF) of which it's unknown whether kernel {kernel.release} takes it: {problem}"
        yield unknown_finding("type-data-unknown", message, "remove it: objcopy --remove-section=.BTF")


def _dependencies(kernel: Kernel, module: Module, chosen: Container[str]) -> Iterator[Finding]:
    names = set(kernel.builtin)
    if kernel.is_headers_only:
        # A machine that only builds has the headers without the kernel, and they name its exporters.
        names |= {name_of(export.module) for export in kernel.symvers().values()}
    for name in module.depends:
        if name not in chosen and name not in kernel.by_name and name not in names:
            message = f"depends on module {name}, which kernel {kernel.release} doesn't have"
            hint = f"install the package that has it (linux-modules-extra-{kernel.release} on Ubuntu)"
            yield finding("dependency-missing", "error", message, hint)


def _is_named(module: str, namespace: str) -> bool:
    """Whether ``module:a,b-*`` allows this module."""
    kind, _, names = namespace.partition(":")
    patterns = [name.replace("-", "_") for name in names.split(",")]
    return kind == "module" and any(fnmatch.fnmatchcase(module, pattern) for pattern in patterns)


def audit_packaged(
    kernel: Kernel, modules: Sequence[str], expected: Expected, files: Sequence[PackagedFile]
) -> List[Result]:
    """As ``audit``, with ``package``, ``signer`` and ``keyring`` in the results of modules that packages bring.

    ``package``: NAME VERSION where the module is as that package has it; else empty, and a finding says why.
    ``signer``: as the signature names it; ``keyring``: where its key is, one of ``signature.KEYRINGS``, or empty.
    """
    intact = whole(kernel, files)
    results = audit(kernel, modules, expected._replace(packaged=intact))
    wrong = {problem.file.module: problem for problem in problems(kernel, files)}
    names = {kernel.path(file.file): file.origin for file in intact.values()}
    for result in results:
        problem = wrong.get(result["module"])
        if problem is not None:
            result["findings"].insert(0, finding("packaged-file", ERROR, problem.message, problem.hint))
            result["ok"] = False
        path = kernel.path(result["file"].partition(f"/lib/modules/{kernel.release}/")[2])
        signer, keyring = signed_by(kernel, path) if result["file"] else ("", "")
        result.update(package=names.get(path, ""), signer=signer, keyring=keyring)
    return results


def audit_expected(kernel: Kernel, expectation: Optional[Expectation]) -> List[Result]:
    """Audit the modules that ``expectation`` needs on ``kernel``; without one, NVIDIA's that are there."""
    if expectation is None:
        return audit(kernel)
    digest = ""
    # Hosts that get their modules from a builder have no driver source.
    if kernel.root == "/" and os.path.isdir(expectation.driver_tree):
        digest = files.digest(files.expect(expectation.driver_tree))
    expected = Expected(
        expectation.driver_version,
        expectation.driver_flavour,
        digest,
        peermem=expectation.rdma == "peermem",
        nvidia_fs_version=expectation.nvidia_fs_version,
    )
    # Of another kernel, the lock knows no packages.
    if expectation.packaged and kernel.release == expectation.kernel_release:
        return audit_packaged(kernel, expectation.modules(), expected, expectation.packaged)
    return audit(kernel, expectation.modules(), expected)


def objections(results: List[Result]) -> List[str]:
    """Why the modules are unreliable: ``module: message`` of every decisive finding."""
    return [
        f"{result['module'] or result['file']}: {finding['message']}"
        for result in results
        for finding in decisive(result["findings"])
    ]


#: Type data (BTF) of a module, as far as a kernel checks it without its own types: the layout is that of
#: Documentation/bpf/btf.rst, and kernel/bpf/btf.c refuses a module whose data breaks it.
_BTF_MAGIC = 0xEB9F
#: struct btf_header: magic, version, flags, its own length; offset and length of types, and of texts.
_BTF_HEADER = struct.Struct("<HBBIIIII")
#: struct btf_type: name, kind and count, size or another type.
_BTF_TYPE = struct.Struct("<III")
#: Kind → bytes that follow a type: once, and for each of its members.
_BTF_AFTER = {
    **dict.fromkeys((2, 7, 8, 9, 10, 11, 12, 16, 18), (0, 0)),
    **dict.fromkeys((1, 14, 17), (4, 0)),
    3: (12, 0),
    **dict.fromkeys((4, 5, 15, 19), (0, 12)),
    **dict.fromkeys((6, 13), (0, 8)),
}


def _btf_problem(path: str) -> Tuple[str, bool]:
    """(What is wrong with the type data of the module in ``path``, whether that's certain); empty: nothing is.

    A kind of type that isn't known here may be one of newer kernels.  Raises ElfError.
    """
    with files.open_plain(path) as file:
        elf = files.Elf(file, path)
        section = elf.section(".BTF")
        data = elf.content(section) if section is not None else b""
    if not data:
        return "", True
    if len(data) < _BTF_HEADER.size:
        return f"it ends after {len(data)} bytes", True
    magic, version, _flags, size, types, types_size, texts, texts_size = _BTF_HEADER.unpack_from(data)
    if magic != _BTF_MAGIC or version != 1:
        return f"its header is of version {version}, magic 0x{magic:04x}", version == 1
    if size < _BTF_HEADER.size or size + max(types + types_size, texts + texts_size) > len(data):
        return f"its header needs more than its {len(data)} bytes", True
    place, end = size + types, size + types + types_size
    while place <= end - _BTF_TYPE.size:
        info = _BTF_TYPE.unpack_from(data, place)[1]
        kind, count = info >> 24 & 0x1F, info & 0xFFFF
        if kind not in _BTF_AFTER:
            return f"a type is of kind {kind}", not kind
        once, each = _BTF_AFTER[kind]
        place += _BTF_TYPE.size + once + count * each
    return ("" if place == end else "its last type is truncated"), True
