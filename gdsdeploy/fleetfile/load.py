"""YAML → typed model, with every error at once and its place (file:line:column); what reading a fleet file may do.

The nodes of :mod:`gdsdeploy.files.yamlfile` give each key its line and column for pydantic's errors.  Errors about keys
that fleet files once had say what to use now.  No error quotes a secret, or a line of a file that isn't a fleet file.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, TypeVar
from urllib.parse import unquote, urlsplit

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gdsdeploy import paths
from gdsdeploy.errors import FleetInvalid, GdsError, did_you_mean
from gdsdeploy.files import yamlfile
from gdsdeploy.files.yamlfile import Document, quoted
from gdsdeploy.fleetfile import ansible_inventory, rules, selection
from gdsdeploy.fleetfile.rules import Block, RuleFile
from gdsdeploy.host.io import jsontext, reading
from gdsdeploy.host.io.wording import first_few
from gdsdeploy.host.model import compat
from gdsdeploy.host.model.compat import Rule, parse_versions
from gdsdeploy.host.subjects import trees
from gdsdeploy.model.fleet import Fleet, InventorySource, references
from gdsdeploy.model.profile_parts import domain_problems
from gdsdeploy.model.text import NAME, SECRET, WORDS
from gdsdeploy.platform import stack_platform_for, supported_systems
from gdsdeploy.ssh import machines

#: Last two keys of a place in the file → what to use now.
REMOVED: dict[tuple[str, ...], str] = {
    ("watch", "slurm"): "see a job's path with gdsdeploy watch --job ID",
}


def advice(keys: Sequence[str]) -> str | None:
    """What an error says about the key at the end of ``keys`` if it was removed; None: it wasn't."""
    instead = REMOVED.get(tuple(keys[-2:]))
    return f"this key was removed; leave it out, and {instead}" if instead else None


M = TypeVar("M", bound=BaseModel)
#: (path of keys, what is wrong there)
Problem = tuple[tuple[str | int, ...], str]

#: More than this many problems would only scroll the first ones away.
MAX_PROBLEMS = 40
#: Characters of a value that a message quotes.
_SHOWN = 80
#: pydantic's type of an error → what to say instead of its words, which are Python's.
_TYPES = {
    "model_type": "a mapping is needed here, lines of KEY: VALUE",
    "model_attributes_type": "a mapping is needed here, lines of KEY: VALUE",
    "dict_type": "a mapping is needed here, lines of KEY: VALUE",
    "tuple_type": "a list is needed here",
    "string_type": "text is needed here; write it in quotes",
    "int_type": "a whole number is needed here",
    "bool_type": "true or false is needed here",
}


@dataclass(frozen=True)
class Reading:
    """What reading a fleet file may do on this machine, beside reading files of its folder."""

    #: ``run`` its inventory, also a program or plugins of Ansible; read it if it is a ``list``; or ``leave`` it out
    inventory: Literal["run", "list", "leave"]
    #: follow links out of the folder, and take the list of hosts from elsewhere
    links: bool
    #: use repositories (``file://``) that are elsewhere on this machine
    file_repositories: bool


#: Of verbs that connect or change something: who runs them has reviewed the file.
TRUSTED: Final = Reading(inventory="run", links=True, file_repositories=True)
#: Of verbs that only read, and fetch nothing.
CONFINED: Final = Reading(inventory="list", links=False, file_repositories=True)


def confined(*, run_inventory: bool = False, file_repositories: bool = True) -> Reading:
    """CONFINED, with what the command line allows for this run."""
    inventory: Literal["run", "list"] = "run" if run_inventory else "list"
    return Reading(inventory=inventory, links=False, file_repositories=file_repositories)


def load_fleet(path: Path, mode: Reading = CONFINED, *, names_from: Path | None = None) -> Fleet:
    """Read a fleet file; raise FleetInvalid with every problem and its place.

    names_from: the folder that its relative names start at, where that is not its own.
    """
    document = yamlfile.read(path, error=FleetInvalid, links=mode.links)
    if isinstance(document.value, dict) and "lock_version" in document.value:
        raise FleetInvalid(f"{path}: this is a lock", hint="Name its fleet file, which is in the same folder")
    folder = names_from or paths.folder_of(path)

    def problems(fleet: Fleet) -> list[Problem]:
        waivers = [] if mode.inventory == "leave" else selection.problems_of_waivers(fleet)
        return [*_problems(fleet), *waivers, *_ways_out(fleet, folder, mode)]

    document = _with_inventory(document, folder, mode)
    fleet = parse_document(document, Fleet, error=FleetInvalid, also=problems)
    _read_golden(fleet, folder, mode)
    return with_own_rules(fleet, path)


def own_blocks(path: Path) -> tuple[Block, ...]:
    """The rules beside a fleet file, none without their file; raises FleetInvalid with every problem and its place."""
    return _own(path)[0]


def with_own_rules(fleet: Fleet, path: Path) -> Fleet:
    """The fleet with the rules that are beside its file ``path`` now; raises as :func:`own_blocks`."""
    same = fleet.model_copy()
    same._own_rules = tuple(_own(path)[1])
    return same


def _own(path: Path) -> tuple[tuple[Block, ...], list[Rule]]:
    file = rules.own_rules_of(path)
    if not os.path.lexists(file):
        return (), []
    document = yamlfile.read(file, error=FleetInvalid, links=False)
    shipped = compat.rules_with(())
    blocks = parse_document(document, RuleFile, error=FleetInvalid, also=lambda each: each.repeated(shipped)).rules
    marks = (_locate(document.root, ("rules", number))[1] for number in range(len(blocks)))
    return blocks, [block.rule(f"{file}:{mark.line + 1}") for block, mark in zip(blocks, marks, strict=True)]


def names_in(path: Path) -> list[str]:
    """The hosts and builders that a fleet file lists itself, valid or not; its inventory isn't read.

    Raises FleetInvalid where it can't be read at all.
    """
    value = yamlfile.read(path, error=FleetInvalid, links=False).value
    sections = [value.get(key) for key in ("builders", "hosts")] if isinstance(value, dict) else []
    names = (name for section in sections if isinstance(section, dict) for name in section)
    return [name for name in names if NAME.fullmatch(name)]


def is_folder_elsewhere(uri: str, folder: Path) -> bool:
    """Whether the repository ``uri`` is a folder of this machine (``file://``) outside ``folder``."""
    parts = urlsplit(uri)
    return parts.scheme == "file" and paths.is_outside(folder, unquote(parts.path))


def _ways_out(fleet: Fleet, folder: Path, mode: Reading) -> list[Problem]:
    """Links that lead out of ``folder``, and repositories elsewhere on this machine, unless ``mode`` allows them.

    A keyring or a list of signers may have its name elsewhere: it is read as that alone, and no line of it is printed.
    """
    files: list[tuple[tuple[str, ...], str | None]] = [
        *((("repositories", name, "keyring"), each.keyring) for name, each in fleet.repositories.items()),
        (("mirror", "keyring"), fleet.mirror.keyring if fleet.mirror else None),
        (("signers",), fleet.signers),
        (("revoked_signers",), fleet.revoked_signers),
    ]
    problems: list[Problem] = [
        (keys, "is a link that leads out of the fleet file's folder, so it isn't read: name the file that it leads to")
        for keys, name in files
        if name and not mode.links and paths.leads_out(folder, paths.locate(folder, name))
    ]
    elsewhere = "is a folder of this machine outside the fleet file's: --allow-file-repositories allows it for one run"
    problems += [
        (("repositories", name, "uri"), elsewhere)
        for name, each in fleet.repositories.items()
        if each.uri and not mode.file_repositories and is_folder_elsewhere(each.uri, folder)
    ]
    return problems


def _with_inventory(document: Document, folder: Path, mode: Reading) -> Document:
    """The document with the inventory's hosts under its own; unchanged where its key can't be read, which is reported.

    Raises FleetInvalid that names the inventory, group and host.
    """
    value = document.value
    own = value.get("hosts", {}) if isinstance(value, dict) else None
    if mode.inventory == "leave" or not isinstance(own, dict) or value.get("inventory") is None:
        return document
    try:
        source = InventorySource.model_validate(value["inventory"])
    except ValidationError:
        return document
    file = paths.locate(folder, source.file)
    if mode.inventory == "list":
        mark = _locate(document.root, ("inventory", "file"))[1]
        place = f"{document.path}:{mark.line + 1}:{mark.column + 1}: inventory.file"
        ansible_inventory.require_list(file, place, within=None if mode.links else folder)
    hosts = ansible_inventory.hosts_of(source, file, own, programs=mode.inventory == "run")
    return replace(document, value={**value, "hosts": {**hosts, **own}})


def _read_golden(fleet: Fleet, folder: Path, mode: Reading) -> None:
    """Put the golden topologies that profiles name beside their names; one that is not there yet can be made."""
    for settings in (profile.topology for profile in fleet.profiles.values()):
        if settings.golden is None:
            continue
        file = paths.locate(folder, settings.golden)
        if not mode.links and paths.is_outside(folder, file):
            settings._document = f"{file}: isn't read: it is outside the fleet file's folder"
            continue
        try:
            settings._document = trees.from_json(reading.whole(str(file), jsontext.LIMIT).decode())
        except (OSError, UnicodeDecodeError) as cause:
            settings._document = f"{file}: cannot be read: {getattr(cause, 'strerror', None) or cause}"
        except trees.GoldenError as cause:
            settings._document = f"{file}: {cause}"


def _problems(fleet: Fleet) -> list[Problem]:
    systems = supported_systems()
    unknown = [
        (("profiles", name, "os"), f"unknown operating system {profile.os!r}; supported: {', '.join(systems)}")
        for name, profile in fleet.profiles.items()
        if profile.os not in systems
    ]
    return [
        *references(fleet),
        *unknown,
        *_same_machines(fleet),
        *_imex_domains(fleet),
        *_choices(fleet),
    ]


def _choices(fleet: Fleet) -> Iterator[Problem]:
    """Pins that no version can be compared with, and kernel flavours that the system doesn't have."""
    systems = supported_systems()
    for name, profile in fleet.profiles.items():
        if profile.os not in systems:
            continue
        platform, flavour = stack_platform_for(profile.os), profile.kernel.flavour
        flavours = platform.kernel_flavours(profile.arch)
        if flavour is not None and flavour not in flavours:
            words = f"{profile.os} has no kernel flavour {flavour!r} for {profile.arch}"
            more = did_you_mean(flavour, flavours) or f"; it has {', '.join(flavours)}"
            yield ("profiles", name, "kernel", "flavour"), words + more
        pinned = {"driver": profile.driver.version, "kernel": profile.kernel.version}
        for subject, pin in {**pinned, "nvidia_fs": profile.nvidia_fs, "libcufile": profile.libcufile}.items():
            # What a package of modules has inside says upstream's version only.
            inside = subject == "nvidia_fs" and profile.modules == "packaged"
            spellings = platform.spellings[subject]
            try:
                parse_versions(pin).require_spelling(spellings[:1] if inside else spellings)
            except ValueError as error:
                yield ("profiles", name, subject, *(("version",) if subject in pinned else ())), str(error)


def _imex_domains(fleet: Fleet) -> list[Problem]:
    builders = [(name, "only hosts are in an IMEX domain") for name, each in fleet.builders.items() if each.imex]
    listed = {name: profile.companions for name, profile in fleet.profiles.items()}
    return [
        *((("builders", name, "imex"), words) for name, words in builders),
        *((("hosts", name, "imex"), words) for name, words in domain_problems(fleet.hosts, listed)),
    ]


def _same_machines(fleet: Fleet) -> list[Problem]:
    """Names with the same address, port and user; ssh_config may make others one, which is seen when they are asked."""
    ways = {name: fleet.connection(name) for name in fleet.everyone()}
    groups = machines.shared(
        {name: (str(way.address).lower(), way.port, way.user, way.config) for name, way in ways.items()}
    )
    return [
        (
            ("builders" if name in fleet.builders else "hosts", name),
            f"{' and '.join(names)} are one machine: they have the same address, port and user; remove one name",
        )
        for names in groups
        for name in names
    ]


def parse_document(
    document: Document,
    model: type[M],
    *,
    error: type[GdsError],
    also: Callable[[M], Sequence[Problem]] | None = None,
    extra: Literal["ignore"] | None = None,
) -> M:
    """The content of ``document`` as ``model``; raises ``error`` listing every problem with file:line:column.

    also: finds problems that need the whole model; returns (path of keys, message) pairs.
    extra: what becomes of keys that the model does not have, where not what the model says.
    """
    problems = [(mark, f"the key '{quoted(key)}' is given twice") for mark, key in document.repeated]
    try:
        parsed = model.model_validate(document.value, extra=extra)
    except ValidationError as cause:
        problems += [_problem(document.root, error_details, model) for error_details in cause.errors()]
        if also:
            places = [details["loc"] for details in cause.errors()]
            problems += _located(document, _of_the_rest(document.value, places, model, also))
        raise _report(document.path, problems, error) from None
    problems += _located(document, also(parsed) if also else [])
    if problems:
        raise _report(document.path, problems, error)
    return parsed


def _located(document: Document, problems: Sequence[Problem]) -> list[tuple[yaml.Mark, str]]:
    return [(_locate(document.root, keys)[1], f"{'.'.join(map(str, keys))}: {text}") for keys, text in problems]


def _of_the_rest(
    value: object, places: Sequence[Sequence[int | str]], model: type[M], also: Callable[[M], Sequence[Problem]]
) -> list[Problem]:
    """What ``also`` finds without the values at ``places``, which are wrong; nothing where that isn't a whole model.

    Problems of a place that was left out, or of what has it, may only come from that.
    """
    rest, removed = copy.deepcopy(value), list[tuple[str, ...]]()
    for place in places:
        removed.append(_remove(rest, place))
    try:
        parsed = model.model_validate(rest)
    except ValidationError:
        return []
    problems = [(tuple(map(str, keys)), text) for keys, text in also(parsed)]
    return [
        (keys, text) for keys, text in problems if not any(keys[: len(path)] == path[: len(keys)] for path in removed)
    ]


def _remove(value: object, place: Sequence[int | str]) -> tuple[str, ...]:
    """Delete the innermost key of ``place`` that ``value`` has; returns its path."""
    path, holder = list[str](), None
    for part in place:
        if isinstance(value, dict) and part in value:
            holder, value = value, value[part]
            path.append(str(part))
    if holder is not None:
        holder.pop(next(key for key in holder if str(key) == path[-1]), None)
    return tuple(path)


def _problem(root: yaml.Node, details: ErrorDetails, model: type[BaseModel]) -> tuple[yaml.Mark, str]:
    """An error of pydantic at its place, in words."""
    kind, location = details["type"], details["loc"]
    keys, mark = _locate(root, location, key=kind == "extra_forbidden" or location[-1:] == ("[key]",))
    if kind == "missing":
        return mark, f"{'.'.join([*keys, str(location[-1])])}: this key is required"
    if kind == "extra_forbidden":
        *above, last = keys
        return mark, f"{'.'.join([*above, quoted(last)])}: {advice(keys) or _unknown(last, model)}"
    where, value = ".".join(keys) or "the file", details["input"]
    shown = bool(keys) and isinstance(value, (str, int, float, bool)) and not secret_keys(model).intersection(keys)
    return mark, f"{where}: {_words(details, keys[-1:])}{f' (found {_short(value)})' if shown else ''}"


@cache
def secret_keys(model: type[BaseModel]) -> frozenset[str]:
    """The keys that the schema marks as secret: no error quotes their values, or what is below them."""
    return frozenset(key for key, value in _properties(model) if value.keys() & SECRET.keys())


@cache
def _properties(model: type[BaseModel]) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Key and schema of everything in the model and in those that it holds."""
    schema = model.model_json_schema()
    parts = [schema, *schema.get("$defs", {}).values()]
    return tuple(item for part in parts for item in part.get("properties", {}).items())


def _locate(root: yaml.Node, location: Sequence[object], *, key: bool = False) -> tuple[list[str], yaml.Mark]:
    """The keys of ``location`` that the file has, and the place of the last; of its key when ``key``.

    Names of union members and validators, which pydantic puts into a path, are not in the file.
    """
    node, mark, keys = root, root.start_mark, list[str]()
    for part in location:
        match node:
            case yaml.MappingNode():
                # The last one counts: those before it come from a merge, or are repeated.
                for name, value in reversed(node.value):
                    if name.value == str(part):
                        node, mark = value, name.start_mark if key else value.start_mark
                        keys.append(str(part))
                        break
            case yaml.SequenceNode() if isinstance(part, int) and part < len(node.value):
                node = node.value[part]
                mark = node.start_mark
                keys.append(str(part))
    return keys, mark


def _words(details: ErrorDetails, last: Sequence[str]) -> str:
    if details["type"] == "dict_type" and last:
        return f"a mapping of names to {last[0]} is needed here"
    if details["type"] == "string_pattern_mismatch":
        return WORDS[details["ctx"]["pattern"]]
    message = _TYPES.get(details["type"]) or str(details["msg"]).removeprefix("Value error, ")
    return f"{message[0].lower()}{message[1:]}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _unknown(key: str, model: type[BaseModel]) -> str:
    keys = sorted({known for known, _ in _properties(model)})
    if key in keys:
        return "this key does not belong here"
    return "unknown key" + did_you_mean(key[:_SHOWN], keys)


def _report(path: Path, problems: list[tuple[yaml.Mark, str]], error: type[GdsError]) -> GdsError:
    ordered = sorted(problems, key=lambda problem: (problem[0].line, problem[0].column))
    lines = list(dict.fromkeys(f"{path}:{mark.line + 1}:{mark.column + 1}: {words}" for mark, words in ordered))
    return error(first_few(lines, MAX_PROBLEMS, "\n"))
