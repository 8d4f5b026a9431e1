"""The audit of modules that locked packages bring: also whether they are the packages' files, and who signed them."""

from __future__ import annotations

from dataclasses import replace
from typing import List, Sequence

from ..kmod.driver import Expected
from ..kmod.findings import ERROR, finding
from ..kmod.kernel import Kernel
from ..kmod.packaged import problems, whole
from ..kmod.packaged_file import PackagedFile
from ..secure_boot.signature import signed_by
from .audit import Result, audit


def audit_packaged(
    kernel: Kernel, modules: Sequence[str], expected: Expected, files: Sequence[PackagedFile]
) -> List[Result]:
    """As ``audit``, with ``package``, ``signer`` and ``keyring`` in the results of modules that packages bring.

    ``package``: NAME VERSION where the module is as that package has it; else empty, and a finding says why.
    ``signer``: as the signature names it; ``keyring``: where its key is, one of ``signature.KEYRINGS``, or empty.
    """
    intact = whole(kernel, files)
    results = audit(kernel, modules, replace(expected, packaged=intact))
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
