"""The steps after the compiler: record the build inside the module, audit it, and only then place it."""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import Any, Dict, List, Sequence, Tuple

from ..audit.audit import Result, audit
from ..errors import BuildError
from ..io import atomic
from ..kmod.driver import Expected
from ..kmod.findings import ERROR, INCOMPLETE, outcome_of
from ..kmod.kernel import Export
from ..kmod.module import PROVENANCE, read_module
from ..kmod.tree import digest
from .context import BuildRequest, Built
from .kbuild import Log, first_error


def provenance(request: BuildRequest) -> Dict[str, str]:
    """What every build records inside the module, each key prefixed with PROVENANCE."""
    return {"driver": request.tree.version, "flavour": request.tree.flavour, "tree": digest(request.tree)}


def record(log: Log, file: str, entries: Dict[str, str]) -> None:
    """Append ``entries`` to the modinfo of the unsigned module ``file`` and read them back; raises BuildError."""
    section = file + ".modinfo"
    folder = os.path.dirname(file)
    dump = log.run(["objcopy", "--dump-section", ".modinfo=" + section, file], folder)
    if dump.status != 0:
        raise BuildError(f"cannot read the modinfo of {file}: {first_error(dump)}", "install binutils")
    with open(section, "ab") as data:
        for key, value in entries.items():
            data.write(f"{PROVENANCE}{key}={value}\0".encode())
    update = log.run(["objcopy", "--update-section", ".modinfo=" + section, file], folder)
    if update.status != 0 or read_module(file).provenance != entries:
        raise BuildError(f"cannot record the build in {file}: {first_error(update)}")


def audit_built(
    request: BuildRequest, log: Log, files: Sequence[str], extra: Dict[str, Export], what: str, *, peermem: bool = False
) -> List[Result]:
    """Audit what was built, in the order of ``files``; raises BuildError for any error, and for what can't be read."""
    kernel, tree = request.kernel, request.tree
    expected = Expected(tree.version, tree.flavour, digest(tree), peermem)
    results = audit(kernel, list(files), expected, extra)
    problems: List[str] = []
    for file, result in zip(files, results):
        name, module = os.path.basename(file), read_module(file)
        errors = [
            finding for finding in result["findings"] if outcome_of(finding) == ERROR or finding["id"] == INCOMPLETE
        ]
        problems += [f"{name}: [{finding['id']}] {finding['message']}" for finding in errors]
        if module.vermagic != kernel.vermagic():
            problems.append(f"{name}: [vermagic] is {module.vermagic!r}, the kernel's {kernel.vermagic()!r}")
        imports = any(symbol.startswith("nvidia_p2p_") for symbol in module.imports)
        if request.ahead and tree.flavour == "proprietary" and module.name == "nvidia_fs" and imports:
            # The audit itself finds this only with an installed driver.
            text = "[gpl-proprietary] links the proprietary driver's symbols; nvidia-fs needs the open modules"
            problems.append(text)
    if problems:
        message = f"{what} was built for kernel {kernel.release} against {tree.path}, but its audit says"
        raise BuildError(f"{message}: {'; '.join(problems)}", f"the log is {log.path}")
    return results


def place(files: Sequence[Tuple[str, str, Dict[str, Any]]]) -> List[Built]:
    """Put each (built file, target, audit result) into place atomically; raises BuildError."""
    try:
        with contextlib.ExitStack() as targets:
            for built, output, _result in files:
                target = targets.enter_context(atomic.replacing(output, make=False))
                with open(built, "rb") as file:
                    shutil.copyfileobj(file, target)
    except OSError as error:
        raise BuildError(f"cannot write {error.filename or output}: {error.strerror}") from None
    for _built, output, result in files:
        result["file"] = output
    return [Built(output, read_module(output), result) for _built, output, result in files]
