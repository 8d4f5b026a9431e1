"""A read and a write through cuFile for each mount that the fleet names and each GPU, where there is one."""

from __future__ import annotations

from ..paths import MOUNTINFO, NVIDIA
from ..proof import proof
from .recorder import Recorder
from .request import EvidenceRequest
from .storage import mount_of


def collect(recorder: Recorder, request: EvidenceRequest) -> None:
    if not request.scratch:
        return
    text = recorder.text(MOUNTINFO, limit=1024 * 1024) or ""
    # Where direct I/O couldn't even be tried, the server may be gone: don't wait for it twice.
    audits = recorder.document["odirect"]
    folders = [path for path in request.scratch if mount_of(path, text) == path and "trials" in audits.get(path, {})]
    if folders and recorder.names(NVIDIA + "/gpus"):
        config = recorder.text(request.cufile_path, limit=256 * 1024) or ""
        proof.prove(recorder.command, folders, proof.configuration(config, request.cufile_path))
