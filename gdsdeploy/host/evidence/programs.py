"""The GDS userland: whether libcufile accepts its configuration, and gdscheck's report."""

from __future__ import annotations

import glob
import os
import tempfile

from ..libcufile import probe
from ..paths import CUFILE, CUFILE_OPEN, CUFILE_SONAME, GDSCHECK, LIBRARY_FOLDERS, LIBRARY_PATTERN
from ..process import is_roots
from .recorder import FILE_LIMIT, Recorder
from .request import EvidenceRequest

#: Debian's gds-tools, then NVIDIA's.
GDSCHECKS = ("/usr/libexec/gds/tools/gdscheck", "/usr/local/cuda*/gds/tools/gdscheck")
GDSCHECK_SECONDS = 30.0


def collect(recorder: Recorder, request: EvidenceRequest) -> None:
    recorder.text(CUFILE, limit=256 * 1024)
    if request.cufile_path != CUFILE:
        recorder.text(request.cufile_path, limit=256 * 1024)
    for folder in LIBRARY_FOLDERS:
        for name in recorder.names(folder, LIBRARY_PATTERN):
            recorder.link(folder + "/" + name)
    paths = [path for pattern in GDSCHECKS for path in sorted(glob.glob(pattern))]
    recorder.document["listings"][GDSCHECK] = paths
    safe_paths = [path for path in paths if is_roots(path)]
    if safe_paths:
        _gdscheck(recorder, safe_paths[0])
    elif paths:
        recorder.gap(GDSCHECK, f"{paths[0]}: users other than root can replace it, so root doesn't run it")
    for path in probe.unsafe_libraries():
        recorder.gap(CUFILE_OPEN, f"{path}: users other than root can replace it, so root doesn't load it")
    ldconfig = recorder.document["commands"].get("ldconfig", {})
    if ldconfig.get("status") == 0 and not probe.is_anywhere(ldconfig["stdout"]):
        # A Python for nothing costs as much as a login.
        recorder.document["listings"][CUFILE_SONAME] = []
        return
    probe.probe(recorder.command, recorder.document["commands"], request.cufile_path)


def _gdscheck(recorder: Recorder, path: str) -> None:
    with tempfile.TemporaryDirectory(prefix="gdscheck-") as folder:
        log = os.path.join(folder, "cufile.log")
        # Only the log is redirected: this program doesn't write to its configured folder.
        argv = [*probe.without_cufile(), "CUFILE_LOGFILE_PATH=" + log, path, "-p"]
        recorder.command(GDSCHECK, argv, timeout=GDSCHECK_SECONDS, cwd=folder)
        recorder.document["commands"][GDSCHECK]["log"] = probe.tail(log, FILE_LIMIT)
