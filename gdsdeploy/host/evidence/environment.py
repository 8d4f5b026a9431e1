"""The environment of programs: in a container or not, libcufile's variables, the configuration that they name.

Any user can name any file with CUFILE_ENV_PATH_JSON, and this program may be root.  So only what libcufile reads of a
configuration is recorded: the sections that it knows, of a regular file that is one.

Also whether libcufile accepts its configuration, and gdscheck's report.
"""

from __future__ import annotations

import glob
import os
import re
import stat
import tempfile
from typing import Any, Dict, Mapping

from ..facts.cufile import parse_config, without_comments
from ..facts.document import Document
from ..facts.environment import SECTIONS, VARIABLE, Variable, environment_facts, sets_variables
from ..io.reading import whole
from ..libcufile import probe
from ..paths import (
    CGROUP,
    CONTAINER_FILES,
    CUFILE,
    CUFILE_OPEN,
    CUFILE_SONAME,
    ENROOT,
    GDSCHECK,
    LIBRARY_FOLDERS,
    LIBRARY_PATTERN,
    OWN_NAME,
    OWN_PARENTS,
    VARIABLE_FILES,
    VARIABLE_FOLDERS,
    VARIABLE_NAMES,
)
from ..process import is_roots
from ..rootdir import inside
from .recorder import FILE_LIMIT, EvidenceRequest, Recorder

#: As of /etc/cufile.json.
LIMIT = 256 * 1024


def record_configuration(recorder: Recorder, path: str, root: str = "/") -> str:
    """Record the configuration ``path`` as seen inside ``root`` once; returns its key in the section ``configs``."""
    key = path if root == "/" else root + path
    if key not in recorder.document["configs"]:
        recorder.value("configs", key, lambda place: read_configuration(place if root == "/" else inside(root, path)))
    return key


def read_configuration(path: str) -> Dict[str, Any]:
    """``config``: the known sections; or ``broken``: why every libcufile refuses the file.

    Raises OSError, and ValueError for a file that may be refused or not.
    """
    # A device isn't opened: that alone can have an effect.
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError("it isn't a regular file")
    text = whole(path, LIMIT).decode("utf-8", "replace")
    try:
        value = parse_config(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        if _is_refused(text, error):
            return {"broken": f"it isn't JSON: {error}"}
        raise ValueError(f"it may not be JSON: {error}") from None
    if value is None or value in ({}, []):
        return {"config": {}}
    if not isinstance(value, dict):
        return {"broken": "it isn't a JSON object"}
    config = {name: value[name] for name in SECTIONS if value.get(name) is not None}
    wrong = [name for name, section in config.items() if not isinstance(section, dict)]
    return {"broken": f"its section {wrong[0]} isn't an object"} if wrong else {"config": config}


def _is_refused(text: str, error: ValueError) -> bool:
    """Whether libcufile refuses a text for the reason for which Python does.

    It does for an empty or unclosed text, for one that begins with neither brace nor bracket, and for a comma before a
    closing one.  Otherwise it may accept it: its parser takes some numbers that Python's doesn't.
    """
    plain = without_comments(text).lstrip()
    rest = plain[getattr(error, "pos", 0) :]
    return plain[:1] not in ("{", "[") or not rest.strip() or re.match(r"[\s,]*[}\]]", rest) is not None


#: Words of container managers in the control group of the first process.
MANAGERS = r"docker|kubepods|containerd|libpod|crio|/lxc|enroot"
#: libcufile's variables in files.
VARIABLES = r"CUFILE_[A-Z]"


def collect_environment(recorder: Recorder, _request: EvidenceRequest) -> None:
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
        record_configuration(recorder, named.value)


def relevant(environment: Mapping[str, str]) -> Dict[str, str]:
    """Libcufile's variables; any other may hold a secret."""
    return {name: value for name, value in sorted(environment.items()) if name.startswith("CUFILE_")}


#: Debian's gds-tools, then NVIDIA's.
GDSCHECKS = ("/usr/libexec/gds/tools/gdscheck", "/usr/local/cuda*/gds/tools/gdscheck")
GDSCHECK_SECONDS = 30.0


def collect_programs(recorder: Recorder, request: EvidenceRequest) -> None:
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
