"""The next boot: the kernel it starts and the modules it loads, as far as files on the host decide it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Tuple, Union

from ..boot import bls
from ..boot.grubmenu import entries, resolve
from ..boot.grubmenu import environment as variables_of
from ..paths import GRUB_ENVIRONMENTS, GRUB_FILES, IMEX_NODES, LOAD_FOLDERS, PROBE_FOLDERS
from .alike import once_for_alike
from .document import Document, Ran
from .unknown import Maybe, Unknown, when_known


@dataclass(frozen=True)
class BootFacts:
    """The next boot."""

    #: kernel release of the boot loader's default entry; None: no supported boot loader is installed
    default_kernel: Maybe[Optional[str]]
    #: in-kernel names in the order in which systemd-modules-load takes them
    autoloaded: Maybe[Tuple[str, ...]]
    #: in-kernel names that may not be loaded by alias, or that an install rule keeps out
    forbidden: Maybe[Tuple[str, ...]]
    #: service → property → value; empty where there is no systemd
    units: Maybe[Mapping[str, Mapping[str, str]]]
    #: in-kernel name → (options, file) as modprobe.d has them for that module, in the order in which they count
    options: Maybe[Mapping[str, Tuple[Tuple[str, str], ...]]]
    #: the addresses in IMEX's nodes file
    imex_nodes: Maybe[Tuple[str, ...]] = ()


#: (path, text) of configuration fragments
Fragments = Tuple[Tuple[str, str], ...]


def boot_facts(document: Document) -> BootFacts:
    probes = _fragments(document, PROBE_FOLDERS)
    return BootFacts(
        default_kernel=_default_kernel(document),
        autoloaded=when_known(_fragments(document, LOAD_FOLDERS), _autoloaded),
        forbidden=when_known(probes, lambda fragments: _forbidden(fragments, document.text("/proc/cmdline"))),
        units=when_known(document.ran("systemctl-units"), _units),
        options=when_known(probes, _options),
        imex_nodes=when_known(document.text(IMEX_NODES), lambda text: tuple((text or "").split())),
    )


def _fragments(document: Document, folders: Tuple[str, ...]) -> Maybe[Fragments]:
    """(path, text) of configuration fragments in their order; a name in an earlier folder hides later ones."""
    chosen: Dict[str, str] = {}
    for folder in folders:
        names = document.names(folder)
        if isinstance(names, Unknown):
            return names
        for name in names or ():
            if name.endswith(".conf"):
                chosen.setdefault(name, folder + "/" + name)
    fragments = []
    for name in sorted(chosen):
        text = document.text(chosen[name])
        if isinstance(text, Unknown):
            return text
        fragments.append((chosen[name], text or ""))
    return tuple(fragments)


def _autoloaded(fragments: Fragments) -> Tuple[str, ...]:
    names: List[str] = []
    for _, text in fragments:
        lines = (line.strip() for line in text.splitlines())
        names += [line.replace("-", "_") for line in lines if line and line[0] not in "#;"]
    return tuple(dict.fromkeys(names))


@once_for_alike
def _forbidden(fragments: Fragments, command_line: Union[str, Unknown, None]) -> Maybe[Tuple[str, ...]]:
    if isinstance(command_line, Unknown):
        return command_line
    names: List[str] = []
    for words in (line.split() for _, text in fragments for line in text.splitlines()):
        disabled = len(words) > 2 and words[0] == "install" and re.match(r"(/usr)?/bin/(false|true)$", words[2])
        if len(words) > 1 and (words[0] == "blacklist" or disabled):
            names.append(words[1])
    for word in (command_line or "").split():
        key, _, value = word.partition("=")
        if key in ("modprobe.blacklist", "module_blacklist", "rd.driver.blacklist"):
            names += filter(None, value.split(","))
    return tuple(dict.fromkeys(name.replace("-", "_") for name in names))


@once_for_alike
def _options(fragments: Fragments) -> Mapping[str, Tuple[Tuple[str, str], ...]]:
    options: Dict[str, Tuple[Tuple[str, str], ...]] = {}
    for path, text in fragments:
        for line in text.replace("\\\n", " ").splitlines():
            words = line.split(None, 2)
            if len(words) == 3 and words[0] == "options":
                name = words[1].replace("-", "_")
                options[name] = (*options.get(name, ()), (words[2], path))
    return options


@once_for_alike
def _units(run: Ran) -> Mapping[str, Mapping[str, str]]:
    rows = [[line.partition("=") for line in block.splitlines()] for block in run.stdout.split("\n\n")]
    units = [{key: value for key, separator, value in row if separator} for row in rows]
    return {unit["Id"]: unit for unit in units if "Id" in unit}


def _default_kernel(document: Document) -> Maybe[Optional[str]]:
    for path, environment in zip(GRUB_FILES, GRUB_ENVIRONMENTS):
        lines = document.lines(path)
        if lines is None:
            continue
        if isinstance(lines, Unknown):
            return lines
        variables = document.text(environment)
        if isinstance(variables, Unknown):
            return variables
        menu = _bls_entries(document) if path == GRUB_FILES[-1] else None
        if isinstance(menu, Unknown):
            return menu
        return _grub_default(lines, variables or "", menu)
    return None


def _bls_entries(document: Document) -> Maybe[Optional[Tuple[bls.BlsEntry, ...]]]:
    """The menu where it consists of Boot Loader Specification entries; None where there are none."""
    texts = []
    for name in document.existing(bls.ENTRIES):
        lines = document.lines(f"{bls.ENTRIES}/{name}") if name.endswith(".conf") else None
        if isinstance(lines, Unknown):
            return lines
        texts.append((name, "\n".join(lines or ())))
    return tuple(bls.parse(texts)) or None


@once_for_alike
def _grub_default(
    lines: Tuple[str, ...], environment: str, bls_menu: Optional[Tuple[bls.BlsEntry, ...]]
) -> Maybe[Optional[str]]:
    """Follow GRUB's own rules: ``next_entry`` once, else ``default``; a path of indices, ids or titles."""
    variables = variables_of(environment)
    matches = (re.match(r'\s*set default="?([^"]*)"?\s*$', line) for line in lines)
    defaults = [match.group(1) for match in matches if match and match.group(1) != "${next_entry}"]
    if not defaults:
        return Unknown("grub.cfg sets no default")
    chosen = variables.get("next_entry") or defaults[-1]
    if chosen == "${saved_entry}":
        chosen = variables.get("saved_entry") or "0"
    if "$" in chosen:
        return Unknown(f"grub.cfg has the default {chosen!r}, which is decided while booting")
    if bls_menu:
        first = bls.resolve(bls_menu, chosen)
        return first.release if first is not None else None
    menu = entries("\n".join(lines))
    if not menu:
        return Unknown("grub.cfg has no menu entries of its own")
    entry = resolve(menu, chosen)
    if entry is None:
        return Unknown(f"grub.cfg has no entry {chosen!r}")
    return entry.release or Unknown("the default entry of grub.cfg names no kernel")
