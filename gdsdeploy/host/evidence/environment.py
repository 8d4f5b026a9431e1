"""The environment of programs: in a container or not, and libcufile's variables."""

from __future__ import annotations

import os

from ..paths import (
    CGROUP,
    CONTAINER_FILES,
    ENROOT,
    OWN_NAME,
    OWN_PARENTS,
    VARIABLE_FILES,
    VARIABLE_FOLDERS,
    VARIABLE_NAMES,
)
from .recorder import Recorder
from .request import EvidenceRequest

#: Words of container managers in the control group of the first process.
MANAGERS = r"docker|kubepods|containerd|libpod|crio|/lxc|enroot"
VARIABLES = r"CUFILE_[A-Z]"


def collect(recorder: Recorder, _request: EvidenceRequest) -> None:
    for path in CONTAINER_FILES:
        recorder.text(path)
    recorder.excerpt(CGROUP, MANAGERS)
    names = [name for name in os.environ if name.startswith(("CUFILE_", ENROOT)) or name in VARIABLE_NAMES]
    recorder.document["environment"] = {name: os.environ[name] for name in sorted(names)}
    for path in VARIABLE_FILES:
        recorder.excerpt(path, VARIABLES)
    for folder in VARIABLE_FOLDERS:
        for name in recorder.names(folder):
            if name.endswith((".sh", ".conf")):
                recorder.excerpt(folder + "/" + name, VARIABLES)
    for folder in OWN_PARENTS:
        recorder.names(folder, OWN_NAME)
    # A container may not have these of its host.
    recorder.names("/run/udev")
    recorder.names("/dev/infiniband")
