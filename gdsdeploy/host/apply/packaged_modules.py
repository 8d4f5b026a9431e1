"""Modules that locked packages bring: what has precedence over them leaves, and what is left is audited."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

from ..archive import pack
from ..audit.packaged import audit_packaged
from ..build.dkms import TIMEOUT
from ..errors import ApplyError, CannotTellError
from ..kmod.driver import Expected
from ..kmod.findings import ERROR, UNKNOWN, outcome_of
from ..kmod.kernel import Kernel, run_depmod
from ..kmod.packaged import STALE, problems, shadows
from ..kmod.packaged_file import PackagedFile
from ..kmod.vouch import FOLDER
from .host import ManagedHost
from .model import INSTALLS, Change

#: Kinds of changes: DKMS's build for this kernel leaves; modules.dep is written again.
UNBUILD, INDEX = "unbuild", "index"
#: Reason of what leaves.
SHADOWS = "shadows"


def observe(kernel: Kernel, expected: Expected, files: Sequence[PackagedFile]) -> Dict[str, Any]:
    """Plain data: ``shadows``, as ``packaged.shadows``; ``stale``: whether depmod has to run; ``objections``."""
    return {
        "shadows": shadows(kernel, files),
        "stale": any(problem.id == STALE for problem in problems(kernel, files)),
        "objections": objections(kernel, expected, files),
    }


def objections(kernel: Kernel, expected: Expected, files: Sequence[PackagedFile]) -> List[Dict[str, str]]:
    """``{"module", "id", "message", "hint"}`` of what is wrong or undecided, each module's file first."""
    wrong = problems(kernel, files)
    names = sorted({file.module for file in files} - {problem.file.module for problem in wrong})
    keys = ("id", "message", "hint")
    return [
        *({"module": one.file.module, **{key: getattr(one, key) for key in keys}} for one in wrong),
        *(
            {"module": result["module"] or result["file"], **{key: finding[key] for key in keys}}
            for result in (audit_packaged(kernel, names, expected, files) if names else ())
            for finding in result["findings"]
            if outcome_of(finding) in (ERROR, UNKNOWN)
        ),
    ]


def changes(release: str, observed: Dict[str, Any], pending: Sequence[Change]) -> List[Change]:
    """What leaves or is written again; without that, the objections.

    observed: an answer: what :func:`observe` has returned, or an error.  Raises CannotTellError.
    """
    awaits = any(change.kind in INSTALLS and change.resource.startswith("packages.") for change in pending)
    if observed["error"]:
        if awaits:
            # The kernel is to come.
            return []
        raise CannotTellError(f"the modules: {observed['error']}", observed["hint"], "modules")
    state = observed["value"]
    removals = [
        Change("delete", f"/lib/modules/{release}/{FOLDER}", "", "", SHADOWS)
        if name == FOLDER
        else Change(UNBUILD, name, release, "", SHADOWS)
        for name in state["shadows"]
    ]
    if state["stale"]:
        removals.append(Change(INDEX, f"/lib/modules/{release}/modules.dep", "", "", STALE))
    if removals or awaits:
        return removals
    return [Change("audit", entry["module"], "", "", entry["id"]) for entry in state["objections"]]


def settle(
    host: ManagedHost, release: str, expected: Expected, files: Sequence[PackagedFile], changes: Sequence[Change]
) -> None:
    """Make the changes, then audit; raises ApplyError of kind ``modules`` with every objection."""
    for change in changes:
        if change.kind == "delete":
            pack.remove_from(release, host.root)
        elif change.kind == UNBUILD:
            host.run(["dkms", "uninstall", change.subject, "-k", release], TIMEOUT)
            again = f"DKMS still has {change.subject}, and may install it again"
            host.notes.append(f"{again}; to prevent that: dkms remove {change.subject} --all")
    run_depmod(host.root, release, ApplyError, "run it by hand, and see what it says")
    host.forget()
    wrong = objections(Kernel(release, host.root), expected, files)
    if wrong:
        listed = "; ".join("{module}: [{id}] {message}".format(**entry) for entry in wrong)
        hint = next((entry["hint"] for entry in wrong if entry["hint"]), "gdsdeploy-host.pyz guard status shows more")
        message = f"the packaged modules for kernel {release} do not pass their audit: {listed}"
        raise ApplyError(message, hint, "modules")
