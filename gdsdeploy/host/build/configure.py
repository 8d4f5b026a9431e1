"""The probes of nvidia-fs's configure script, at the price of one compilation each.

The script runs kbuild twice for a probe: to build a module of one file, and to remove it.  That takes a second of
processor time, and a fifth of it compiles.  Here, the compiler's command is that with which kbuild has built the empty
module of the check of the headers.  A file that this command rejects, kbuild rejects, too.  One that it takes, and that
needs nothing but what the kernel exports to every GPL module, kbuild links.  kbuild itself answers everything else.
"""

from __future__ import annotations

import os
import re
import shlex
from typing import Dict, Optional, Sequence

from ..errors import SymversError
from ..kmod.kernel import Kernel
from ..kmod.symvers import read_symvers
from .kbuild import EMPTY, Log

#: Takes the place of make in the script: bash reads it first.
_MAKE = """\
unset BASH_ENV
linked=
make() {{
    if [ "$*" = clean ] && [ -z "$linked" ]; then
        return 0
    fi
    if [ $# -eq 0 ] && cp ./*.[ch] {folder}/ && mv {folder}/test.c {folder}/{empty}.c; then
        (cd {start} && eval {command}) || return 1
        (set -o pipefail && nm -u {folder}/{empty}.o | sed 's/^ *[A-Za-z] //' | LC_ALL=C sort -u >{folder}/needed) &&
            missing=$(LC_ALL=C comm -23 {folder}/needed {exports}) && [ -z "$missing" ] && return 0
    fi
    if [ "$*" = clean ]; then linked=; else linked=yes; fi
    command make "$@" {variables}
}}
"""
#: Without objtool, which may follow.
_COMMAND = re.compile(r"^(?:saved)?cmd_\S+ := *(.* -c -o \S+ \S+\.c)(?= |$)", re.MULTILINE)


def settings(log: Log, kernel: Kernel, probe: str, folder: str, variables: Sequence[str]) -> Dict[str, str]:
    """Environment variables with which bash answers the script's probes; none where only kbuild itself can.

    probe: the folder of the empty module.  folder: for files, such as the program that takes the place of make.
    variables: ``NAME=value`` for make.
    """
    command, exports = _command(probe), _exports(kernel)
    start = command and _start(log, kernel, probe, command)
    if not command or not start or not exports:
        return {}
    listed, program = os.path.join(folder, "exports"), os.path.join(folder, "make.sh")
    with open(listed, "w", encoding="utf-8") as file:
        file.write(exports)
    with open(program, "w", encoding="utf-8") as file:
        file.write(make(probe, start, command, listed, variables))
    return {"BASH_ENV": program}


def make(probe: str, start: str, command: str, exports: str, variables: Sequence[str]) -> str:
    """The program that takes the place of make.

    start: the folder in which ``command`` compiles the file in ``probe``.  exports: a file of names.
    """
    words = {"folder": probe, "start": start, "command": command, "exports": exports}
    quoted = {name: shlex.quote(word) for name, word in words.items()}
    return _MAKE.format(empty=EMPTY, variables=" ".join(map(shlex.quote, variables)), **quoted)


def _command(probe: str) -> str:
    """The command that compiled the empty module, as kbuild keeps it for make; empty without one."""
    try:
        with open(os.path.join(probe, f".{EMPTY}.o.cmd"), encoding="utf-8") as file:
            match = _COMMAND.search(file.read(1 << 20))
    except (OSError, UnicodeDecodeError):
        return ""
    # nm doesn't know what an object of the linker's own optimisation needs.
    if match is None or " -flto" in match[1]:
        return ""
    return match[1].replace("$(pound)", "#").replace("$$", "$")


def _start(log: Log, kernel: Kernel, probe: str, command: str) -> Optional[str]:
    """The folder in which ``command`` works: the headers', or since Linux 6.13 the module's."""
    for place in (kernel.headers(), probe):
        if log.run(["sh", "-c", command], place).status == 0:
            return place
    return None


def _exports(kernel: Kernel) -> str:
    """Names that the kernel exports to every module, each on a line, sorted by their bytes; empty if they aren't known.

    Those of a namespace need a declaration, which kbuild looks for.
    """
    try:
        symbols = read_symvers(os.path.join(kernel.headers(), "Module.symvers"))
    except SymversError:
        return ""
    # kbuild defines the last one for each module.
    names = {*(name for name, export in symbols.items() if not export.namespace), "__this_module"}
    return "".join(f"{name}\n" for name in sorted(names))
