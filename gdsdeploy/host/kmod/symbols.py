"""Who exports a symbol on one kernel, with which version, and whether to GPL-compatible modules only."""

from __future__ import annotations

from typing import AbstractSet, Collection, Dict, List, Mapping, NamedTuple, Optional, Set

from ..errors import ElfError
from .kernel import Kernel
from .module import Module
from .symvers import Export, digest_name

#: license texts that the kernel accepts for EXPORT_SYMBOL_GPL (include/linux/license.h)
GPL_COMPATIBLE = frozenset(
    ("GPL", "GPL v2", "GPL and additional rights", "Dual BSD/GPL", "Dual MIT/GPL", "Dual MPL/GPL")
)


class Provider(NamedTuple):
    """``module`` is an in-kernel name or ``vmlinux``; ``file`` is empty for those known by Module.symvers only.

    ``crc`` is None where the exporter has no versions, ``gpl`` where it is not known.
    """

    module: str
    file: str
    crc: Optional[int]
    gpl: Optional[bool]
    license: str = ""
    #: a symbol in a namespace is for modules that import it; of modules on disk it is not known
    namespace: str = ""


class Symbols:
    """Look-up over Module.symvers, the modules on disk and, without the former, what the kernel's modules import."""

    def __init__(
        self,
        kernel: Kernel,
        chosen: Collection[Module],
        extra: Mapping[str, Export],
        replaced: AbstractSet[str] = frozenset(),
    ) -> None:
        """chosen: modules that would be loaded whatever else lies around, e.g. the driver's; extra: see ``audit``.

        replaced: files in whose place others come.
        """
        self._kernel = kernel
        self._symvers = kernel.symvers()
        self._from_modules: Dict[str, Provider] = {}
        self._observed: Dict[str, int] = {}
        # A module under audit can't vouch for itself.
        audited = {module.name for module in chosen}
        self._not_observed = (module for module in kernel.observed() if module.name not in audited)
        self._files: Set[str] = set(replaced)
        #: whether a symbol that is not found is certainly missing
        self.complete = bool(self._symvers)
        for symbol, export in extra.items():
            self._from_modules[symbol] = Provider(digest_name(export.module), "", export.crc, export.gpl)
        for module in chosen:
            self._add(module)
        for files in kernel.by_name.values():
            if any(not file.startswith("kernel/") for file in files):
                self._add_name(files)

    def modules(self) -> Set[str]:
        """In-kernel names of the modules whose exports are known."""
        return {provider.module for provider in self._from_modules.values()}

    def prepare(self, module: Module, observe: bool = True) -> None:
        """Read what ``module`` depends on.

        observe: without Module.symvers, also the kernel's own modules, until each import of ``module`` is known.
        """
        for name in module.depends:
            self._add_name(self._kernel.by_name.get(name, []))
        if observe and not self.complete:
            unknown = module.imports.keys() - self._from_modules.keys() - self._observed.keys()
            while unknown:
                other = next(self._not_observed, None)
                if other is None:
                    return
                versions = {symbol: crc for symbol, crc in other.imports.items() if crc is not None}
                self._observed.update(versions)
                unknown -= versions.keys()

    def find(self, symbol: str) -> Optional[Provider]:
        """The exporter of ``symbol``; None when nothing known exports it."""
        # A module on disk that took the place of one of the kernel's own counts, not what the kernel was built with.
        if symbol in self._from_modules:
            return self._from_modules[symbol]
        export = self._symvers.get(symbol)
        if export is not None:
            return Provider(digest_name(export.module), "", export.crc, export.gpl, "", export.namespace)
        if symbol in self._observed:
            return Provider("vmlinux", "", self._observed[symbol], None)
        return None

    def _add_name(self, files: List[str]) -> None:
        choice = self._kernel.order.choose(files) if files else None
        if choice is None or choice.file in self._files:
            return
        self._files.add(choice.file)
        try:
            self._add(self._kernel.read(choice.file))
        except ElfError as error:
            self._kernel.inputs.skip(error)

    def _add(self, module: Module) -> None:
        for symbol, (crc, gpl) in module.exports.items():
            self._from_modules.setdefault(symbol, Provider(module.name, module.path, crc, gpl, module.license))
