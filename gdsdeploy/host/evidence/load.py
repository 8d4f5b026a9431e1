"""The read rate of the fleet's mounts under load, where the caller requested it."""

from __future__ import annotations

from ..paths import MOUNTINFO
from .recorder import Recorder
from .request import EvidenceRequest
from .storage import mount_of


def collect(recorder: Recorder, request: EvidenceRequest) -> None:
    text = recorder.text(MOUNTINFO, limit=1024 * 1024) or "" if request.load else ""
    audits, section = recorder.document["odirect"], recorder.document["load"]
    # These stay where the time runs out.
    section.update({path: {"error": "no time was left to read from it"} for path, _ in request.load})
    for path, seconds in request.load:
        if mount_of(path, text) != path:
            # The scratch file would lie on the filesystem below.
            section[path] = {"error": "nothing is mounted there"}
        elif "error" in audits.get(path, {}):
            # The server may be gone: don't wait for it twice.
            section[path] = {"error": audits[path]["error"]}
        else:
            from ..odirect.load import measured

            section[path] = measured(path, seconds)
