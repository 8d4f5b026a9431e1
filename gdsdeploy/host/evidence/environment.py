"""The environment of programs: in a container or not, and libcufile's variables."""

from __future__ import annotations

import os
import re
from typing import Dict, Mapping

from ..facts.document import Document
from ..facts.environment import Variable, environment_facts, sets_variables
from ..facts.overlay import VARIABLE
from ..model.consumer import variable_names
from ..paths import (
    CGROUP,
    CONTAINER_FILES,
    ENROOT,
    NCCL_FILE,
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
#: libcufile's variables in files; those of its consumers follow.
VARIABLES = r"CUFILE_[A-Z]"
#: A consumer's value is recorded only where it is a word or a number.
_WORD = re.compile(r"[\w.+-]{0,64}")
_OTHER = "(not a word)"


def collect(recorder: Recorder, _request: EvidenceRequest) -> None:
    for path in CONTAINER_FILES:
        recorder.text(path)
    recorder.excerpt(CGROUP, MANAGERS)
    names = [name for name in os.environ if name.startswith(ENROOT) or name in VARIABLE_NAMES]
    own = {name: os.environ[name] for name in sorted(names)}
    recorder.document["environment"] = {**own, **relevant(os.environ)}
    pattern = "|".join((VARIABLES, *variable_names()))
    for path in (*VARIABLE_FILES, NCCL_FILE):
        recorder.excerpt(path, pattern)
    for folder in VARIABLE_FOLDERS:
        for name in recorder.names(folder):
            if sets_variables(name):
                recorder.excerpt(folder + "/" + name, pattern)
    for folder in OWN_PARENTS:
        recorder.names(folder, OWN_NAME)
    # A container may not have these of its host.
    recorder.names("/run/udev")
    recorder.names("/dev/infiniband")
    named = environment_facts(Document(recorder.document)).variable(VARIABLE)
    if isinstance(named, Variable) and named.value.startswith("/"):
        configs.record(recorder, named.value)


def relevant(environment: Mapping[str, str]) -> Dict[str, str]:
    """Libcufile's variables and those of its consumers; any other may hold a secret."""
    consumers = variable_names()
    return {
        name: value if name.startswith("CUFILE_") or _WORD.fullmatch(value) else _OTHER
        for name, value in sorted(environment.items())
        if name.startswith("CUFILE_") or name in consumers
    }
