"""The audit of the running kernel's modules, and of those that the next boot would load."""

from __future__ import annotations

from typing import Any, Dict

from ..audit.expected import audit_expected
from ..boot import grub
from ..errors import HostError
from ..kmod.kernel import Kernel
from .recorder import Recorder
from .request import EvidenceRequest


def collect(recorder: Recorder, request: EvidenceRequest) -> None:
    section = recorder.document["audits"]
    if request.expectation is not None and not request.expectation.own_kernel:
        # The host's machine chooses the kernel, and there it is the lock's.
        section["running"] = {"error": "the kernel that runs is not this host's to choose"}
        section["next"] = _audit(request.expectation.kernel_release, request)
        return
    running = recorder.document["host"]["uname"]["release"]
    section["running"] = _audit(running, request)
    try:
        following = grub.default_kernel()["next"]
    except HostError as error:
        section["next"] = {"error": error.message}
        return
    if not following:
        section["next"] = {"error": "the boot loader does not say which kernel is next"}
    else:
        section["next"] = section["running"] if following == running else _audit(following, request)


def _audit(release: str, request: EvidenceRequest) -> Dict[str, Any]:
    try:
        return {"release": release, "results": audit_expected(Kernel(release), request.expectation)}
    except HostError as error:
        return {"error": error.message}
