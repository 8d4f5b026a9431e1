"""What provision manages on a machine, and what its own programs would still change there.

Adds two sections to the document::

    managed  path → {kind: "file"|"folder"|"other", mode, uid, gid, sha256 of a file} | {"error"}
    answers  boot-default, reboot, modules, dkms, audit, signing, key → what that program answers | {"error": words}
"""

from __future__ import annotations

import glob
import os
import stat
from dataclasses import asdict
from functools import lru_cache
from typing import Any, Callable, Dict, List

from ..kmod.errors import KmodError
from ..kmod.vouch import sha256
from ..survey import Survey
from . import packages
from .recorder import Recorder, failure
from .wanted import Wanted

DKMS = "/var/lib/dkms"
#: Seconds for the digests of some hundred megabytes of modules, and for an audit, on a slow machine.
SECONDS = 120.0
TOTAL_SECONDS = 240.0


def collect_survey(survey: Survey) -> Dict[str, Any]:
    """Answer ``survey``; never raises for what a machine lacks."""
    recorder = Recorder(TOTAL_SECONDS)
    document = recorder.document
    document["host"]["uid"] = os.geteuid()
    document["managed"], document["answers"] = {}, {}
    recorder.attempt("packages", lambda: packages.installed(recorder, Wanted(tuple(survey.packages))), SECONDS)
    recorder.text("/etc/os-release")
    for name, argv in sorted(survey.commands.items()):
        recorder.command(name, argv, timeout=30)
    recorder.attempt("managed", lambda: _managed(document["managed"], survey.paths), SECONDS)
    for name, ask in _questions(survey):
        recorder.attempt(name, lambda name=name, ask=ask: _answer(document["answers"], name, ask), SECONDS)  # type: ignore[misc]
    return recorder.finish()


def _managed(section: Dict[str, Any], paths: List[str]) -> None:
    for path in paths:
        section[path] = look_at(path)


def look_at(path: str) -> Dict[str, Any]:
    """Kind, mode (octal text), owner and, of a file, the digest; links are followed, as the roles' modules do."""
    try:
        found = os.stat(path)
        kind = "file" if stat.S_ISREG(found.st_mode) else "folder" if stat.S_ISDIR(found.st_mode) else "other"
        value: Dict[str, Any] = {
            "kind": kind,
            "mode": "{:04o}".format(stat.S_IMODE(found.st_mode)),
            "uid": found.st_uid,
            "gid": found.st_gid,
        }
        if kind == "file":
            value["sha256"] = sha256(path)
    except OSError as error:
        return failure(error)
    return value


def _questions(survey: Survey) -> List[Any]:
    asked: List[Any] = []
    if survey.boot:
        asked.append(("boot-default", lambda: _boot_default(survey.kernel_release)))
    if survey.archive:
        asked.append(("modules", lambda: _modules(survey)))
    if survey.dkms:
        asked.append(("dkms", lambda: {"installed": [item for item in survey.dkms if _by_dkms(survey, item)]}))
    if survey.key:
        asked.append(("key", lambda: _told(survey.kernel_release)))
    if survey.audit and not (survey.key and any(not _by_dkms(survey, item) for item in survey.dkms)):
        asked.append(("audit", lambda: _audit(survey)))
    if survey.certificate:
        asked.append(("signing", lambda: _signing(survey)))
    if survey.modules:
        asked.append(("reboot", lambda: _reboot(survey)))
    return asked


def _answer(section: Dict[str, Any], name: str, ask: Callable[[], Any]) -> None:
    try:
        section[name] = ask()
    except KmodError as error:
        section[name] = {"error": error.message}


def _boot_default(release: str) -> Any:
    from .. import boot

    return boot.set_default(release, check=True)


def _modules(survey: Survey) -> Any:
    from ..kmod import pack

    return {"changes": pack.differences(survey.archive, _kernel(survey.kernel_release))}


@lru_cache(maxsize=1)
def _kernel(release: str) -> Any:
    """Walked once for all questions."""
    from ..kmod.kernel import Kernel

    return Kernel(release)


def _by_dkms(survey: Survey, item: str) -> bool:
    """As ``dkms status`` judges it, which takes most of a second of shell: built, and all of it among the kernel's."""
    from ..kmod.module import name_of

    built = glob.glob("{}/{}/{}/*/module/*.ko*".format(DKMS, item, survey.kernel_release))
    there = _kernel(survey.kernel_release).by_name if built else {}
    return bool(built) and all(name_of(path) in there for path in built)


def _told(release: str) -> Any:
    """What :func:`kmod.key.told` says, and which modules the machine has received and not changed since."""
    from ..kmod import key
    from ..kmod.errors import KernelError
    from ..kmod.vouch import received

    try:
        kernel = _kernel(release)
    except KernelError:
        return {**key.told(None, os.uname().machine), "received": {}}
    return {**key.told(kernel, os.uname().machine), "received": received(kernel)}


def _audit(survey: Survey) -> Any:
    from ..kmod import tree
    from ..kmod.audit import audit
    from ..kmod.driver import Expected

    digest = tree.digest(tree.expect(survey.driver_tree))
    expected = Expected(survey.driver_version, survey.driver_flavour, digest, False)
    results = audit(_kernel(survey.kernel_release), (), expected)
    return {
        "audited": [item["module"] for item in results],
        "objections": [
            "{}: [{}] {}".format(result["module"] or result["file"], item["id"], item["message"])
            for result in results
            if result["ok"] is not True
            for item in result["findings"]
            if item["severity"] == "error" or item["id"].endswith("-unknown")
        ],
    }


def _signing(survey: Survey) -> Any:
    from ..kmod import driver, mok, signing
    from ..kmod.audit import STACK

    answer: Dict[str, Any] = {"unsigned": [], "state": ""}
    certificate = signing.read_certificate_file(survey.certificate)
    if survey.signs:
        kernel = _kernel(survey.kernel_release)
        places = [driver.find(kernel, name) for name in STACK]
        files = [kernel.path(place.file) for place in places if place is not None]
        answer["unsigned"] = [path for path in files if not signing.is_signed(path, certificate)]
    if survey.enrols:
        answer["state"] = mok.enrol(survey.certificate, check=True, where_needed=True)["state"]
    return answer


def _reboot(survey: Survey) -> Any:
    from ..pending import pending

    return asdict(pending(survey.kernel_release, survey.modules))
