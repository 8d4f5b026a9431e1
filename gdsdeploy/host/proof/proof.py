"""Which path I/O really takes: a read through cuFile, for each mount and GPU, with compat mode disallowed.

A read that succeeds while compat mode is disallowed did not go through it; the counters of nvidia-fs and libcufile's
own log of that read say which direct path it was.  Where it fails, a second try with compat mode allowed tells
"through CPU memory" from "broken".  ``facts/proof.py`` judges what the tries left.

Each try is a program of its own (proof_child.py): the library may crash, or never return.  It reads the host's own
configuration with another one laid over it, key by key, that says ``allow_compat_mode`` and nothing else.
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
from ..paths import CUFILE, NVFS, PROOF, PROOF_COMPAT
from ..process import PYTHON

#: Seconds for one try: CUDA alone may take several to begin, and each mount and GPU has its own read.
TIMEOUT = 20.0


def prove(command: Callable[..., Any], folders: Sequence[str], config: Any, timeout: float = TIMEOUT) -> None:
    """Try both ways through ``command`` (Recorder.command); the second only where the first did not do for all.

    config: the host's configuration as a JSON object where it does not lie at /etc/cufile.json, else {}.
    """
    with tempfile.TemporaryDirectory(prefix="cufile-proof-") as work:
        first = _try(command, PROOF, work, folders, _laid_over(config, allow=False), timeout)
        if not complete(first):
            _try(command, PROOF_COMPAT, work, folders, _laid_over(config, allow=True), timeout)


def complete(output: str) -> bool:
    """Whether every read of a try succeeded."""
    events = [item for item in (_event(line) for line in output.splitlines()) if item]
    pairs = [item for item in events if item.get("event") == "pair"]
    good = all(item.get("same") is True and (item.get("read") or 0) > 0 for item in pairs)
    return bool(pairs) and good and events[-1].get("event") == "end"


def _event(line: str) -> Dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _laid_over(config: Any, *, allow: bool) -> Dict[str, Any]:
    found: Dict[str, Any] = dict(config) if isinstance(config, dict) else {}
    properties = found.get("properties")
    found["properties"] = {**(properties if isinstance(properties, dict) else {}), "allow_compat_mode": allow}
    return found


def _try(
    command: Callable[..., Any], run: str, work: str, folders: Sequence[str], overlay: Dict[str, Any], timeout: float
) -> str:
    folder = os.path.join(work, run)
    os.mkdir(folder)
    path, log, program = (os.path.join(folder, item) for item in ("cufile.json", "cufile.log", "proof.py"))
    for place, text in ((path, json.dumps(overlay)), (program, source())):
        with open(place, "w") as file:
            file.write(text)
    name = PREFIX + secrets.token_hex(8)
    request = {"libraries": libraries(), "mounts": list(folders), "stats": NVFS + "/stats", "log": log, "name": name}
    argv = [*without_cufile(), "CUFILE_ENV_PATH_JSON=" + path, "CUFILE_LOGFILE_PATH=" + log]
    argv += ["CUFILE_LOGGING_LEVEL=TRACE", *PYTHON, program, json.dumps(request)]
    with ended_cleanly():
        try:
            return str(command(run, argv, timeout=timeout, cwd=folder).stdout)
        finally:
            # A library that crashed or was killed left the file as it was.
            for item in folders:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(item, name))


def source() -> str:
    """The program, from wherever this package lies: a folder or an archive."""
    data = pkgutil.get_data(__package__ or "gdsdeploy.host", "child.py")
    assert data is not None
    return data.decode("utf-8")


def configuration(text: str, path: str) -> Any:
    """What has to be laid over as a whole: nothing where the library reads the file by itself."""
    if path == CUFILE:
        return {}
    from ..facts.cufile import without_comments

    try:
        return json.JSONDecoder().raw_decode(without_comments(text).lstrip())[0]
    except (ValueError, RecursionError):
        # The library will say what is wrong with it; the check cufile.accepted, too.
        return {}
