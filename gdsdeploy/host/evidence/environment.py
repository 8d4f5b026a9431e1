"""Where programs run here: in a container or not, and with which variables of libcufile."""

from __future__ import annotations

import os

from ..paths import CGROUP, CONTAINER_FILES, ENROOT, VARIABLE_FILES, VARIABLE_FOLDERS, VARIABLE_NAMES
from .recorder import Recorder
from .wanted import Wanted

#: Words of container managers in the control group of the first process.
MANAGERS = r"docker|kubepods|containerd|libpod|crio|/lxc|enroot"
VARIABLES = r"CUFILE_[A-Z]"


def collect(recorder: Recorder, _wanted: Wanted) -> None:
    for path in CONTAINER_FILES:
        recorder.text(path)
    recorder.excerpt(CGROUP, MANAGERS)
    kept = [name for name in os.environ if name.startswith(("CUFILE_", ENROOT)) or name in VARIABLE_NAMES]
    recorder.document["environment"] = {name: os.environ[name] for name in sorted(kept)}
    for path in VARIABLE_FILES:
        recorder.excerpt(path, VARIABLES)
    for folder in VARIABLE_FOLDERS:
        for name in recorder.names(folder):
            if name.endswith((".sh", ".conf")):
                recorder.excerpt(folder + "/" + name, VARIABLES)
    # What a container may lack of the host it runs on.
    recorder.names("/run/udev")
    recorder.names("/dev/infiniband")
