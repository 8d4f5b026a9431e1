"""Which of the driver's two hundred probes of the kernel one unit depends on; each skipped one saves a compilation.

A unit sees a probe's answer as macros only, so a probe whose macros occur in none of the unit's files can't change it.
"""

from __future__ import annotations

import glob
import os
import re
from typing import Dict, Iterator, List, Set, Tuple

_TEXT_LIMIT = 16 << 20
_INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)
_MACRO = re.compile(r"\bNV_\w+")
#: The prefix of a composed macro name, as in ``NV_IS_EXPORT_SYMBOL_PRESENT_##symbol``: every macro that has it counts.
_PASTED = re.compile(r"\b(NV_\w*)[ \t]*##")
#: A probe in conftest.sh: ``name)`` … ``;;``.
_PROBE = re.compile(r"^[ \t]+([a-z0-9_|]+)\)[ \t]*\n(.*?)^[ \t]+;;", re.MULTILINE | re.DOTALL)
_LISTED = re.compile(
    r"^[ \t]*(NV_CONFTEST_(?:FUNCTION|GENERIC|MACRO|SYMBOL|TYPE)_COMPILE_TESTS)[ \t]*\+=(.*)$", re.MULTILINE
)
#: The variable of make that lists the headers to look for.
HEADERS = "NV_HEADER_PRESENCE_TESTS"
#: Folders of a tree that its units include from, apart from their own.
_FOLDERS = ("", "common/inc", "nvidia")


def probe_settings(tree: str, unit: str) -> List[str]:
    """``NAME=value`` for make, so that only what ``unit`` (a source below ``tree``) depends on is probed.

    Empty, so that everything is probed, if the tree lists or writes its probes in an unknown way.
    """
    script = _text(os.path.join(tree, "conftest.sh"))
    probes: Dict[str, str] = {}
    for names, body in _PROBE.findall(script):
        for name in names.split("|"):
            probes[name] = probes.get(name, "") + body
    probed = listed(tree)
    if not probed or not probes:
        return []
    texts = list(_reachable(tree, unit))
    macros = {macro for text in texts for macro in _macros(text)}
    pasted = tuple({prefix.upper() for text in texts for prefix in _PASTED.findall(text)})
    settings: Dict[str, List[str]] = {
        variable: [name for name in names if _is_used(_macros_of(name, probes), macros, pasted)]
        for variable, names in probed.items()
    }
    chosen = {name for names in settings.values() for name in names}
    # Probes and their common parts depend on headers, too.
    for name in set(probes) - chosen:
        script = script.replace(probes[name], "")
    macros |= _macros(script)
    headers = {name: "NV_" + re.sub(r"[/.-]", "_", name).upper() for name in headers_listed(tree)}
    if headers:
        used = [name for name, macro in headers.items() if _is_used({macro + "_PRESENT"}, macros, pasted)]
        settings[HEADERS] = used
    return [f"{variable}={' '.join(names)}" for variable, names in sorted(settings.items())]


def kbuild_files(tree: str, module: str) -> List[str]:
    """The files that say what a module is made of and which probes it needs; nvidia-drm's end in .mk."""
    place = os.path.join(glob.escape(tree), module, "*.")
    return sorted(path for ending in ("Kbuild", "mk") for path in glob.glob(place + ending))


def headers_listed(tree: str) -> List[str]:
    """The kernel's headers that the tree's modules look for."""
    text = _text(os.path.join(tree, "header-presence-tests.mk")).replace("\\\n", " ")
    match = re.search(rf"^{HEADERS}\s*:?=(.*)$", text, re.MULTILINE)
    return match[1].split() if match else []


def _macros_of(name: str, probes: Dict[str, str]) -> Set[str]:
    """Macros that a probe may define; it only reads those about headers."""
    if name not in probes:
        # One probe of conftest.sh serves all names with that prefix.
        return {"NV_" + name.upper()}
    return {macro for macro in _macros(probes[name]) if not macro.endswith("_H_PRESENT")}


def _is_used(defined: Set[str], macros: Set[str], pasted: Tuple[str, ...]) -> bool:
    return bool(defined & macros) or any(macro.startswith(pasted) for macro in defined if pasted)


def _macros(text: str) -> Set[str]:
    """In capitals: the last part of NV_IS_EXPORT_SYMBOL_PRESENT_kmalloc is written as the kernel writes it."""
    return {macro.upper() for macro in _MACRO.findall(text)}


def listed(tree: str) -> Dict[str, List[str]]:
    """Variable of Kbuild → the probes that the tree's modules list."""
    probes: Dict[str, List[str]] = {}
    for path in kbuild_files(tree, "*"):
        for variable, names in _LISTED.findall(_text(path)):
            probes.setdefault(variable, []).extend(names.split("#")[0].split())
    return {variable: list(dict.fromkeys(names)) for variable, names in probes.items()}


def _reachable(tree: str, unit: str) -> Iterator[str]:
    """The text of ``unit`` and of every file of the tree that it could include under whatever condition."""
    visited: Set[str] = set()
    todo = [os.path.join(tree, unit)]
    while todo:
        path = os.path.normpath(todo.pop())
        if path in visited or not os.path.isfile(path):
            continue
        visited.add(path)
        text = _text(path)
        yield text
        places = (os.path.dirname(path), *(os.path.join(tree, folder) for folder in _FOLDERS))
        todo += [os.path.join(place, name) for name in _INCLUDE.findall(text) for place in places]


def _text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(_TEXT_LIMIT).decode("utf-8", "replace")
    except OSError:
        return ""
