"""How much the mounts of the fleet deliver while they are busy; only where that was asked for."""

from __future__ import annotations

from ..odirect.load import measured
from ..paths import MOUNTINFO
from .recorder import Recorder
from .storage import mount_of
from .wanted import Wanted


def collect(recorder: Recorder, wanted: Wanted) -> None:
    text = recorder.text(MOUNTINFO, limit=1024 * 1024) or "" if wanted.load else ""
    tried = recorder.document["odirect"]
    # Where the time runs out, what was asked for is not left unsaid.
    recorder.document["load"].update({path: {"error": "no time was left to read from it"} for path, _ in wanted.load})
    for path, seconds in wanted.load:
        if mount_of(path, text) != path:
            # The file would come to lie on what is below.
            recorder.document["load"][path] = {"error": "nothing is mounted there"}
        elif "error" in tried.get(path, {}):
            # It may be a server that is gone: nobody is sent there again.
            recorder.document["load"][path] = {"error": tried[path]["error"]}
        else:
            recorder.document["load"][path] = measured(path, seconds)
