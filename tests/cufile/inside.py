"""Run one program as on a host with a GPU: in a private mount namespace, started by gdschecks.py.

Standard input is a JSON object: ``ask`` (path of tests/cufile/ask.py, whose overlays are used), ``libcuda`` and
``libcufile`` (paths, the first may be null), ``config`` (text of /etc/cufile.json), ``proc`` and ``sys`` (path below
either → content, null: not there), ``argv``.  Standard library only; it becomes the program at its end.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path


def main() -> None:
    request = json.load(sys.stdin)
    spec = importlib.util.spec_from_file_location("ask", request["ask"])
    assert spec is not None
    assert spec.loader is not None
    ask = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(ask)
    work = Path.cwd()
    ask._mount("gdsdeploy", work, "tmpfs", 0)
    os.chdir(work)
    ask._show(work, standin=True)
    for name, content in request["proc"].items():
        path = Path("/proc") / name
        if content is None:
            path.unlink()
        else:
            path.write_text(content)
    if request["sys"]:
        ask._overlay(Path("/sys"), work / "sys", request["sys"])
    # The program may change its folder, so that the link there would not do.
    config = Path("/etc/cufile.json")
    config.unlink()
    config.write_text(request["config"])
    libraries = work / "lib"
    libraries.mkdir()
    for name, target in (("libcuda.so.1", request["libcuda"]), ("libcufile.so.0", request["libcufile"])):
        if target:
            (libraries / name).symlink_to(target)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("CUFILE_")}
    os.execve(request["argv"][0], request["argv"], {**environment, "LD_LIBRARY_PATH": str(libraries)})


main()
