"""Compile every unit of the driver for one kernel, at less than half of a build's price, to see what the kernel breaks.

NVIDIA ships its resource manager as a finished object, so each unit that is compiled here includes the kernel's
headers, and most of a build's time goes into them.  Units that name the same headers of the kernel, directly or through
the tree's own, are compiled as one file here: they see the same declarations, so none can hide what another one lacks.
Nothing is optimised, debugged or linked; what the objects import is compared with what the kernel and the driver
export.  A failure here says only that a real build has to judge.
"""

from __future__ import annotations

import glob
import os
import re
import shlex
from concurrent.futures import ThreadPoolExecutor
from typing import Dict, FrozenSet, Iterator, List, Sequence, Set, Tuple

from ..errors import BuildError
from ..kmod.elf import Elf
from . import probes
from .conftests import headers_listed, kbuild_files
from .context import BuildContext
from .kbuild import Log, first_error
from .peermem import ofed_settings
from .versions import UNIT

_SOURCE = re.compile(r"^\s*\w+\s*(?:\+|:|\?)?=\s*([\w./ -]+\.c)\s*$", re.MULTILINE)
_INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)
_QUOTED = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
_COMMAND = re.compile(r"^(?:saved)?cmd_\S+ := *(.*?) -c -o \S+ \S+\.c(?= |$)", re.MULTILINE)
_CFLAGS = re.compile(r"^NV_CONFTEST_CFLAGS=(.*)$", re.MULTILINE)
_SCRIPT = re.compile(r"^NV_CONFTEST_CMD=/bin/sh (\S+) \"?([^\"\n]+?)\"? (\S+) (\S+) (\S+)$", re.MULTILINE)
#: What a file of C defines outside of functions and other files must not define again.
_DEFINED = re.compile(
    r"^(?:static\b[^;={(\n]*?(\w+)\s*[\[({=;]|(?:typedef\s+)?(?:struct|enum|union)\s+(\w+)\s*$|\}\s*(\w+);)",
    re.MULTILINE,
)
_BLAMED = re.compile(r"^([^\s:]+\.c):(?:\d+:)*\s*(?:fatal )?error: ", re.MULTILINE)
#: Instead of the kernel's own.
_CHEAP = ("-g0", "-O1")
_EXPORTED = ("__export_symbol_", "__ksymtab_")
#: The linker's, and modpost's.
_LINKERS = {"__this_module", "_GLOBAL_OFFSET_TABLE_"}


def check_units(context: BuildContext, names: Sequence[str], log: Log) -> None:
    """Compile every unit of the modules ``names`` and check what they import.

    Raises BuildError for what a build has to judge, KernelError for headers that can't build.
    """
    request, folder = context.request, context.unit_folder()
    context.check_headers(log)
    settings = ofed_settings(context, folder, context.ofed().tree)
    argv = ["make", "-C", request.kernel.headers(), "M=" + folder, "NV_KERNEL_MODULES=" + " ".join(names)]
    argv += [*context.settings(), *settings, *probes.unlisted()]
    env = {"IGNORE_CC_MISMATCH": "1"}
    units = {name: _units(folder, name) for name in names}
    samples = {name: UNIT[:-2] + ".c" if name == "nvidia" else each[0] for name, each in units.items() if each}
    # It prints its settings, whatever becomes of the unit.
    done = log.run([*argv, samples["nvidia"][:-2] + ".o"], folder, env)
    flags, script = _CFLAGS.search(done.stdout), _SCRIPT.search(done.stdout)
    if flags is None or script is None:
        raise _failure(context, "its Kbuild doesn't print how it probes the kernel", log)
    probes.answer(log, folder, script[1], script.groups()[1:], flags[1], headers_listed(folder))
    whole = {name: [sample, *_with_made_headers(folder, units[name], sample)] for name, sample in samples.items()}
    done = log.run([*argv, *(unit[:-2] + ".o" for each in whole.values() for unit in each)], folder, env)
    if done.status != 0:
        raise _failure(context, first_error(done).replace(folder + "/", ""), log)
    objects: Dict[str, List[str]] = {}
    for name, sample in samples.items():
        objects[name] = [os.path.join(folder, unit[:-2] + ".o") for unit in whole[name]]
        others = [unit for unit in units[name] if unit not in whole[name]]
        objects[name] += _compile(context, folder, name, others, sample, log)
    _check_imports(context, objects, log)
    context.use_unit()


def _units(folder: str, name: str) -> List[str]:
    """The sources of a module that its Kbuild files list and the tree has, below ``folder``."""
    listed: Dict[str, None] = {}
    for path in kbuild_files(folder, glob.escape(name)):
        for text in _SOURCE.findall(_text(path)):
            listed.update(dict.fromkeys(text.split()))
    return [unit for unit in listed if os.path.isfile(os.path.join(folder, unit))]


def _with_made_headers(folder: str, units: Sequence[str], sample: str) -> Iterator[str]:
    """Units but ``sample`` that name a header which the tree lacks: kbuild may know how to make it."""
    for unit in units:
        places = [os.path.join(folder, each) for each in ("", "common/inc", os.path.dirname(unit))]
        names = [name for name in _QUOTED.findall(_text(os.path.join(folder, unit))) if "/" not in name]
        if unit != sample and not all(any(os.path.isfile(os.path.join(p, n)) for p in places) for n in names):
            yield unit


def _compile(context: BuildContext, folder: str, name: str, units: Sequence[str], sample: str, log: Log) -> List[str]:
    """Compile a module's ``units`` as ``sample`` was, those of like headers together; returns the objects."""
    place, stem = os.path.split(os.path.join(folder, sample[:-2]))
    match = _COMMAND.search(_text(os.path.join(place, f".{stem}.o.cmd")))
    if match is None:
        raise _failure(context, f"kbuild doesn't say how it compiled {sample}", log)
    text = match[1].replace("$(pound)", "#").replace("$$", "$")
    command = [word for word in shlex.split(text) if not word.startswith("-Wp,-MMD")] + list(_CHEAP)
    groups: Dict[FrozenSet[str], List[str]] = {}
    for unit in units:
        groups.setdefault(frozenset(_kernel_headers(folder, unit)), []).append(unit)
    batches = [batch for members in groups.values() for batch in _batches(folder, members)]
    start = context.request.kernel.headers() if "-I./arch" in text else place

    def run(numbered: Tuple[int, List[str]]) -> List[str]:
        return list(_compile_batch(context, folder, name, command, start, *numbered, log))

    with ThreadPoolExecutor(max(context.request.jobs, 1)) as pool:
        return [path for paths in pool.map(run, enumerate(batches)) for path in paths]


def _compile_batch(
    context: BuildContext, folder: str, name: str, command: Sequence[str], start: str, number: int, units: List[str],
    log: Log,
) -> Iterator[str]:  # fmt: skip
    """Compile ``units`` as one file, and alone those that this file's errors name; yields the objects."""
    alone: List[str] = []
    while units:
        path = os.path.join(folder, name, f"gdsdeploy-{number}.c")
        with open(path, "w", encoding="utf-8") as file:
            file.write("".join(f'#include "{os.path.join(folder, unit)}"\n' for unit in units))
        if len(units) == 1:
            path = os.path.join(folder, units[0])
        built = os.path.join(folder, name, f"gdsdeploy-{number}-{len(units)}.o")
        done = log.run([*command, "-c", "-o", built, path], start)
        if done.status == 0:
            yield built
            break
        if len(units) == 1:
            raise _failure(context, first_error(done).replace(folder + "/", ""), log)
        blamed = {os.path.relpath(os.path.join(start, each), folder) for each in _BLAMED.findall(done.stderr)}
        alone += [unit for unit in units if unit in blamed or not blamed & set(units)]
        units = [unit for unit in units if unit not in alone]
    for place, unit in enumerate(alone):
        built = os.path.join(folder, name, f"gdsdeploy-{number}-alone-{place}.o")
        done = log.run([*command, "-c", "-o", built, os.path.join(folder, unit)], start)
        if done.status != 0:
            raise _failure(context, first_error(done).replace(folder + "/", ""), log)
        yield built


def _batches(folder: str, units: Sequence[str]) -> Iterator[List[str]]:
    """The units, so that no two of a batch define the same name."""
    todo = list(units)
    while todo:
        names: Set[str] = set()
        batch: List[str] = []
        rest: List[str] = []
        for unit in todo:
            matches = _DEFINED.findall(_text(os.path.join(folder, unit)))
            own = {name for groups in matches for name in groups if name}
            (rest if own & names else batch).append(unit)
            names |= own
        yield batch
        todo = rest


def _kernel_headers(folder: str, unit: str) -> Iterator[str]:
    """The headers that ``unit`` and the tree's own headers name, and that the tree doesn't have."""
    visited: Set[str] = set()
    todo = [os.path.join(folder, unit)]
    places = [os.path.join(folder, each) for each in ("", "common/inc", os.path.dirname(unit))]
    while todo:
        path = os.path.normpath(todo.pop())
        if path in visited:
            continue
        visited.add(path)
        for name in _INCLUDE.findall(_text(path)):
            files = [os.path.join(place, name) for place in (os.path.dirname(path), *places)]
            own = next((each for each in files if os.path.isfile(each)), None)
            if own is None:
                yield name
            else:
                todo.append(own)


def _check_imports(context: BuildContext, objects: Dict[str, List[str]], log: Log) -> None:
    """Raise BuildError for a symbol that neither the module, nor the kernel, nor the driver's other modules have."""
    tree = context.request.tree.path
    exports = set(context.request.kernel.symvers()) | _LINKERS
    needed: Dict[str, Set[str]] = {}
    for name, paths in objects.items():
        defined: Set[str] = set()
        imports: Set[str] = set()
        for path in (*paths, *glob.glob(os.path.join(glob.escape(tree), name, "*.o_binary"))):
            with open(path, "rb") as file:
                for symbol in Elf(file, path).symbols():
                    if symbol.section:
                        defined.add(symbol.name)
                    elif not symbol.weak:
                        imports.add(symbol.name)
        exports |= {each[len(mark) :] for mark in _EXPORTED for each in defined if each.startswith(mark)}
        needed[name] = imports - defined
    for name, imports in needed.items():
        missing = sorted(imports - exports)
        if missing:
            raise _failure(context, f"{name} needs {', '.join(missing[:5])}, which nothing exports", log)


def _failure(context: BuildContext, reason: str, log: Log) -> BuildError:
    request = context.request
    message = f"driver {request.tree.version} ({request.tree.flavour}): a unit doesn't compile for kernel"
    return BuildError(f"{message} {request.kernel.release}: {reason}", f"the log is {log.path}")


def _text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
