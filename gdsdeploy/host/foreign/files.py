"""Files and DKMS trees that no package and no record of gdsdeploy explains."""

from __future__ import annotations

from typing import Iterable, List, Optional, Sequence, Set, Tuple

from ..facts.foreign import File, ForeignFacts, Library, ModuleFile, is_shipped
from ..facts.unknown import UndecidedError, require
from .model import ForeignInstall, Locked, Trace
from .registry import recognizer

#: The mark of gdsdeploy's own cufile.json, in its first lines.
OWN_CUFILE = "Rendered by gdsdeploy"


@recognizer("runfile-driver")
def runfile_driver(facts: ForeignFacts, _locked: Locked) -> Optional[ForeignInstall]:
    """Its program for the removal; its log alone stays behind after that."""
    files = _without_package(require(facts.driver_programs))
    log = "; ".join(" ".join(line.split()) for line in facts.installer_log[:2])
    return ForeignInstall(
        "runfile-driver", tuple(Trace(path, log if not at else "") for at, path in enumerate(files)), True
    )


@recognizer("runfile-cuda")
def runfile_cuda(facts: ForeignFacts, _locked: Locked) -> Optional[ForeignInstall]:
    return ForeignInstall("runfile-cuda", tuple(Trace(path) for path in _without_package(require(facts.cuda_programs))))


@recognizer("module-without-record")
def module_without_record(facts: ForeignFacts, locked: Locked) -> Optional[ForeignInstall]:
    """Files that neither a package nor DKMS nor gdsdeploy has put into the locked kernel's folder."""
    files = _modules(facts, locked) or ()
    alone = [file for file in files if not file.dkms and not file.own and require(file.owner) == ""]
    traces = [
        Trace(f"/lib/modules/{locked.kernel_release}/{file.file}", "depmod prefers it" if file.chosen else "")
        for file in sorted(alone, key=lambda file: not file.chosen)
    ]
    return ForeignInstall("module-without-record", tuple(traces), any(file.chosen for file in alone))


@recognizer("module-loader")
def module_loader(facts: ForeignFacts, _locked: Locked) -> Optional[ForeignInstall]:
    return ForeignInstall(
        "module-loader", tuple(Trace(path) for path in _without_package(require(facts.module_loaders)))
    )


@recognizer("dkms-by-hand")
def dkms_by_hand(facts: ForeignFacts, locked: Locked) -> Optional[ForeignInstall]:
    """Packages of DKMS whose sources no package has.

    One that is installed for the locked kernel writes the same files as the lock's.  One that installs itself does so
    when the locked kernel comes, if that isn't there yet.
    """
    trees = [tree for tree in require(facts.dkms) if require(tree.owner) == ""]
    coming = bool(trees) and _modules(facts, locked) is None
    breaks = [tree for tree in trees if locked.kernel_release in tree.releases or (coming and tree.autoinstall)]
    traces = [
        Trace(f"{tree.name}/{tree.version}", f"{tree.source}; {', '.join(tree.releases) or 'installed for no kernel'}")
        for tree in sorted(trees, key=lambda tree: tree not in breaks)
    ]
    return ForeignInstall("dkms-by-hand", tuple(traces), bool(breaks))


@recognizer("library-without-package")
def library_without_package(facts: ForeignFacts, _locked: Locked) -> Optional[ForeignInstall]:
    """Only the first file of each name counts: programs get that one."""
    sonames: Set[str] = set()
    alone: List[Tuple[Library, bool]] = []
    for library in require(facts.libraries):
        if require(library.owner) == "":
            alone.append((library, library.soname not in sonames))
        sonames.add(library.soname)
    traces = [Trace(one.path, f"programs get it as {one.soname}" if is_first else "") for one, is_first in alone]
    return ForeignInstall("library-without-package", tuple(traces), any(is_first for _, is_first in alone))


@recognizer("cufile-json")
def cufile_json(facts: ForeignFacts, _locked: Locked) -> Optional[ForeignInstall]:
    """Neither gdsdeploy's nor as its package ships it."""
    config = require(facts.cufile)
    if config is None:
        return None
    place, _, text = config
    if OWN_CUFILE in text or is_shipped(text, facts.cufile_digests):
        return None
    return ForeignInstall("cufile-json", (Trace(place),))


@recognizer("driver-container")
def driver_container(facts: ForeignFacts, _locked: Locked) -> Optional[ForeignInstall]:
    """Its root folder is mounted where the operator's other containers look for the driver."""
    if not require(facts.driver_root):
        return None
    loaded = require(facts.nvidia_loaded)
    trace = Trace("/run/nvidia/driver", "a mount point; nvidia is loaded" if loaded else "a mount point")
    return ForeignInstall("driver-container", (trace,), loaded)


def _without_package(files: Iterable[File]) -> List[str]:
    return [file.path for file in files if require(file.owner) == ""]


def _modules(facts: ForeignFacts, locked: Locked) -> Optional[Sequence[ModuleFile]]:
    """Those of the locked kernel; None where the host doesn't have it yet."""
    if locked.kernel_release not in facts.modules:
        raise UndecidedError(f"the modules of kernel {locked.kernel_release} were not looked at")
    return require(facts.modules[locked.kernel_release])
