"""Proves which path I/O takes: a read and a write through cuFile, for each mount and GPU, with compat mode disallowed.

An operation that succeeds while compat mode is disallowed took a direct path; the counters of nvidia-fs and libcufile's
log of it show which one.  If it fails, a second try with compat mode allowed tells "through CPU memory" from
"broken".  ``subjects/proof.py`` judges the records of the tries.

Each try is its own program (child.py): the library may crash, or never return.  It reads the host's configuration with
an overlay, key by key, that sets ``allow_compat_mode`` only.

Proves GPUDirect RDMA: memory of each GPU is registered with each adapter, and deregistered (child.py).

The program runs for itself: a driver may crash it, or never return.  ``subjects/peermem.py`` judges its record.
"""

from __future__ import annotations

import contextlib
import json
import os
import pkgutil
import secrets
import tempfile
from typing import Any, Callable, Dict, Sequence

from ..libcufile.probe import libraries, without_cufile
from ..odirect.scratch import PREFIX, ended_cleanly
from ..paths import CUFILE, NVFS, PROOF, PROOF_COMPAT, REGISTRATION
from ..process import PYTHON

#: Seconds for one try: CUDA alone may take several to start, and each mount and GPU has its own operations.
TIMEOUT = 20.0


def prove(command: Callable[..., Any], folders: Sequence[str], config: Any, timeout: float = TIMEOUT) -> None:
    """Try both ways through ``command`` (Recorder.command); the second only where some I/O of the first failed.

    config: the host's configuration as a JSON object where it isn't /etc/cufile.json, else {}.
    """
    with tempfile.TemporaryDirectory(prefix="cufile-proof-") as work:
        first = _try(command, PROOF, work, folders, _overlay(config, allow=False), timeout)
        if not complete(first):
            _try(command, PROOF_COMPAT, work, folders, _overlay(config, allow=True), timeout)


def complete(output: str) -> bool:
    """Whether every read and write of a try succeeded."""
    from ..subjects.proof import events, is_done

    records = events(output)
    pairs = [record for record in records if record.get("event") == "pair"]
    succeeded = all(is_done(pair) for pair in pairs)
    return bool(pairs) and succeeded and records[-1].get("event") == "end"


def _overlay(config: Any, *, allow: bool) -> Dict[str, Any]:
    overlay: Dict[str, Any] = dict(config) if isinstance(config, dict) else {}
    properties = overlay.get("properties")
    overlay["properties"] = {**(properties if isinstance(properties, dict) else {}), "allow_compat_mode": allow}
    return overlay


def _try(
    command: Callable[..., Any], run: str, work: str, folders: Sequence[str], overlay: Dict[str, Any], timeout: float
) -> str:
    folder = os.path.join(work, run)
    os.mkdir(folder)
    path = _written(folder, "cufile.json", json.dumps(overlay))
    log, program = os.path.join(folder, "cufile.log"), _written(folder, "proof.py", source())
    name = PREFIX + secrets.token_hex(8)
    request = {"libraries": libraries(), "mounts": list(folders), "stats": NVFS + "/stats", "log": log, "name": name}
    argv = [*without_cufile(), "CUFILE_ENV_PATH_JSON=" + path, "CUFILE_LOGFILE_PATH=" + log]
    argv += ["CUFILE_LOGGING_LEVEL=TRACE", *PYTHON, program, json.dumps(request)]
    with ended_cleanly():
        try:
            return str(command(run, argv, timeout=timeout, cwd=folder).stdout)
        finally:
            # A crash or a kill of the library leaves the file behind.
            for mount in folders:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(mount, name))


def _written(folder: str, name: str, text: str) -> str:
    path = os.path.join(folder, name)
    with open(path, "w") as file:
        file.write(text)
    return path


def source() -> str:
    """The source of child.py, from its folder or archive."""
    data = pkgutil.get_data(__package__ or "gdsdeploy.host", "child.py")
    assert data is not None
    return data.decode("utf-8")


def configuration(text: str, path: str) -> Any:
    """The configuration to put into the overlay: none where the library reads the file itself."""
    if path == CUFILE:
        return {}
    from ..subjects.cufile_json import parse_config

    try:
        return parse_config(text)
    except (ValueError, RecursionError):
        # The library and the check cufile.accepted report the error.
        return {}


#: Seconds: CUDA alone may take several to start; a registration takes milliseconds.
REGISTRATION_TIMEOUT = 30.0


def register_memory(command: Callable[..., Any], timeout: float = REGISTRATION_TIMEOUT) -> None:
    """Try every GPU with every adapter through ``command`` (Recorder.command)."""
    with tempfile.TemporaryDirectory(prefix="rdma-") as work:
        command(REGISTRATION, [*PYTHON, _written(work, "rdma.py", source())], timeout=timeout)
