"""The environment of programs: in a container or not, and libcufile's variables."""

from __future__ import annotations

import os
from typing import Dict, Mapping

from ..facts.document import Document
from ..facts.environment import VARIABLE, Variable, environment_facts, sets_variables
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
from . import configs
from .recorder import Recorder
from .request import EvidenceRequest

#: Words of container managers in the control group of the first process.
MANAGERS = r"docker|kubepods|containerd|libpod|crio|/lxc|enroot"
#: libcufile's variables in files.
VARIABLES = r"CUFILE_[A-Z]"


def collect(recorder: Recorder, _request: EvidenceRequest) -> None:
    for path in CONTAINER_FILES:
        recorder.text(path)
    recorder.excerpt(CGROUP, MANAGERS)
    names = [name for name in os.environ if name.startswith(ENROOT) or name in VARIABLE_NAMES]
    own = {name: os.environ[name] for name in sorted(names)}
    recorder.document["environment"] = {**own, **relevant(os.environ)}
    for path in VARIABLE_FILES:
        recorder.excerpt(path, VARIABLES)
    for folder in VARIABLE_FOLDERS:
        for name in recorder.names(folder):
            if sets_variables(name):
                recorder.excerpt(folder + "/" + name, VARIABLES)
    for folder in OWN_PARENTS:
        recorder.names(folder, OWN_NAME)
    # A container may not have these of its host.
    recorder.names("/run/udev")
    recorder.names("/dev/infiniband")
    named = environment_facts(Document(recorder.document)).variable(VARIABLE)
    if isinstance(named, Variable) and named.value.startswith("/"):
        configs.record(recorder, named.value)


def relevant(environment: Mapping[str, str]) -> Dict[str, str]:
    """Libcufile's variables; any other may hold a secret."""
    return {name: value for name, value in sorted(environment.items()) if name.startswith("CUFILE_")}
