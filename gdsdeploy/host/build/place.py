"""What happens to a module after the compiler: its build is recorded inside, it is audited, and only then placed."""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import Any, Dict, List, Sequence, Tuple

from ..audit.audit import Result, audit
from ..errors import BuildError
from ..io import atomic
from ..kmod.driver import Expected
from ..kmod.findings import ERROR, outcome_of
from ..kmod.module import PROVENANCE, read_module
from ..kmod.symvers import Export
from ..kmod.tree import digest
from .context import Built, Job
from .kbuild import Log, first_error


def provenance(job: Job) -> Dict[str, str]:
    """What every build records inside the module, each key with PROVENANCE before it."""
    return {"driver": job.tree.version, "flavour": job.tree.flavour, "tree": digest(job.tree)}


def record(log: Log, file: str, entries: Dict[str, str]) -> None:
    """Append ``entries`` to the modinfo of the module ``file``, so that modinfo(8) shows them; reads them back.

    It has to happen before the module is signed.
    """
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


def audited(
    job: Job, log: Log, files: Sequence[str], extra: Dict[str, Export], what: str, *, peermem: bool = False
) -> List[Result]:
    """Audit what was built, in the order of ``files``; raises BuildError for anything that is an error."""
    kernel, tree = job.kernel, job.tree
    expected = Expected(
        driver_version=tree.version, driver_flavour=tree.flavour, tree_digest=digest(tree), peermem=peermem
    )
    results = audit(kernel, list(files), expected, extra)
    problems: List[str] = []
    for file, result in zip(files, results):
        wrong = [item for item in result["findings"] if outcome_of(item) == ERROR]
        problems += ["{}: [{}] {}".format(os.path.basename(file), item["id"], item["message"]) for item in wrong]
        module = read_module(file)
        if module.vermagic != kernel.vermagic():
            text = "{}: [vermagic] is {!r}, the kernel's {!r}"
            problems.append(text.format(os.path.basename(file), module.vermagic, kernel.vermagic()))
        imports = any(name.startswith("nvidia_p2p_") for name in module.imports)
        if job.ahead and tree.flavour == "proprietary" and module.name == "nvidia_fs" and imports:
            # The audit itself sees this only in a driver that is installed.
            problems.append(
                "[gpl-proprietary] links the proprietary driver's symbols; nvidia-fs needs the open modules"
            )
    if problems:
        message = "{} was built for kernel {} against {}, but its audit says: {}"
        raise BuildError(message.format(what, kernel.release, tree.path, "; ".join(problems)), f"the log is {log.path}")
    return results


def placed(items: Sequence[Tuple[str, str, Dict[str, Any]]]) -> List[Built]:
    """Put (built file, where it goes, its audit) into place: each file is at every moment the old or the new one."""
    try:
        with contextlib.ExitStack() as targets:
            for built, output, _result in items:
                target = targets.enter_context(atomic.replacing(output, make=False))
                with open(built, "rb") as file:
                    shutil.copyfileobj(file, target)
    except OSError as error:
        raise BuildError(f"cannot write {error.filename or output}: {error.strerror}") from None
    done = []
    for _built, output, result in items:
        result["file"] = output
        done.append(Built(output, read_module(output), result))
    return done
