"""The stand-in libcuda: compiled here, so that libcufile runs on a machine without a GPU."""

from __future__ import annotations

import hashlib
import os
import re
from importlib import resources
from pathlib import Path

from gdsdeploy import paths, run

_SOURCE, _MEMORY = "libcuda.c", "memory.c"
_FLAGS = ("-O1", "-fPIC", "-fno-builtin", "-fno-stack-protector", "-nostdlib", "-w", "-shared")
_SONAME = "-Wl,-soname,libcuda.so.1"
#: Names of the driver API in the library's strings, without cuFile's and cuObject's own functions.
_NAME = re.compile(rb"(?<=\0)cu(?!File|Obj)[A-Z][A-Za-z0-9_]{2,60}(?=\0)")
_DEFINED = re.compile(r"^int (cu\w+)\(", re.MULTILINE)
_HINT = "Install a C compiler (on Debian: sudo apt-get install gcc), or run this on a machine with a GPU"


def libcuda(library: Path, memory: str = "") -> Path:
    """A stand-in libcuda.so.1 with every name that ``library`` looks up; compiled once for each set of names.

    memory: C source of the functions about memory, in place of standin/memory.c, which has none to offer.
    Raises MissingProgram if there is no C compiler, ProgramFailed if the compilation fails.
    """
    folder = resources.files(__package__).joinpath("standin")
    parts = [folder.joinpath(_SOURCE).read_text(encoding="utf-8")]
    source = "\n".join([*parts, memory or folder.joinpath(_MEMORY).read_text(encoding="utf-8")])
    names = {name.decode() for name in _NAME.findall(library.read_bytes())} - set(_DEFINED.findall(source))
    whole = source + "".join(f"int {name}(void) {{ return NOT_SUPPORTED; }}\n" for name in sorted(names))
    digest = hashlib.sha256("\n".join([*_FLAGS, whole]).encode()).hexdigest()[:16]
    cached = paths.cache() / "cufile" / "libcuda"
    compiled = cached / f"{digest}.so"
    if not compiled.is_file():
        cached.mkdir(parents=True, exist_ok=True)
        unfinished = cached / f"{digest}.{os.getpid()}"
        argv: list[str | Path] = [run.which("cc", hint=_HINT), *_FLAGS, "-x", "c", _SONAME, "-o", unfinished, "-"]
        run.run(argv, doing="compile the stand-in libcuda", input=whole, hint=_HINT, timeout=300)
        unfinished.replace(compiled)
    return compiled
