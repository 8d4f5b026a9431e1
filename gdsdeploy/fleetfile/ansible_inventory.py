"""An Ansible inventory as the source of hosts: ansible-inventory reads it, and what it says is checked here.

It may be INI, YAML, a folder, a plugin's configuration or a program.  Its variables are data: ansible-inventory prints
them without evaluating templates, and a template isn't accepted as an address.  Confined reading takes lists only.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gdsdeploy import paths, resources, run
from gdsdeploy.errors import FleetInvalid, did_you_mean
from gdsdeploy.host.io import jsontext, reading
from gdsdeploy.host.io.wording import first_few, line
from gdsdeploy.model.fleet import FleetHost, InventorySource
from gdsdeploy.model.text import WORDS, Name

#: Python with Ansible, without modules of the folder that it is started in.
PYTHON = (sys.executable, "-P")
#: Seconds that ansible-inventory may take, with the programs that it starts.
SECONDS = 60
#: Bytes of its address space where the list may be a stranger's: ``gpu[1:900000000]`` and aliases make much of little.
MEMORY = 2 << 30
#: Values in its answer: 10,000 hosts with 100 variables each; and characters.
VALUES, SIZE = 1_000_000, 64 << 20
#: Problems, and lines of a failed ansible-inventory, that an error lists.
_MOST = 20
#: Setting of a host in the fleet file → the variables that have it, the current name first.
_VARIABLES = {
    "address": ("ansible_host", "ansible_ssh_host"),
    "port": ("ansible_port", "ansible_ssh_port"),
    "user": ("ansible_user", "ansible_ssh_user"),
    "identity_file": ("ansible_ssh_private_key_file", "ansible_private_key_file"),
}
#: Last parts of the names of Ansible's connection plugins that use SSH.
_SSH = ("ssh", "smart", "paramiko", "paramiko_ssh", "libssh")
_HOSTS: TypeAdapter[dict[str, FleetHost]] = TypeAdapter(dict[Name, FleetHost])
#: Ansible's readers of lists; by these names, none of a folder takes their place.
_LISTS = "ansible.builtin.ini,ansible.builtin.yaml"
#: Folders beside an inventory, whose variables belong to it.
_VARIABLE_FOLDERS = ("group_vars", "host_vars")
#: Bytes of an inventory in which its kind is looked for.
_BEGINNING = 1 << 20
_PLUGIN = re.compile(rb"""(?m)^\s*["'{]*plugin["']?\s*:""")
RUN_INVENTORY = "If you trust it, have it run this once: --run-inventory"
#: What `timeout` ends with when the time is up.
_TIME_UP = 124


@dataclass(frozen=True)
class AnsibleInventory:
    """What ansible-inventory printed.  ``hosts``: name → variables; ``groups``: name → its hosts, children's, too."""

    file: Path
    hosts: Mapping[str, Mapping[str, Any]]
    groups: Mapping[str, tuple[str, ...]]


def configured(inherited: Mapping[str, str] = os.environ) -> dict[str, str | None]:
    """Our ansible.cfg instead of one of the current folder, of the user or of the system; None removes a variable."""
    return {**run.cleared(inherited), "ANSIBLE_CONFIG": str(resources.share() / "playbooks" / "ansible.cfg")}


def require_list(file: Path, place: str = "", *, within: Path | None = None) -> None:
    """Raise FleetInvalid, at ``place``, for an inventory that Ansible would run something for.

    within: the folder that neither it nor a link in it may lead out of.
    """
    for each in _files(file):
        if within is not None and paths.is_outside(within, each):
            why = f"{each} is outside the fleet file's folder, so it isn't read"
        elif each != file and each.is_symlink() and each.is_dir():
            why = f"{each} is a link to a folder, so it isn't read"
        else:
            why = _program(each)
        if why:
            raise FleetInvalid(f"{place}: {why}" if place else why, hint=RUN_INVENTORY)


def _files(file: Path) -> Iterator[Path]:
    """``file``, what is in it if it is a folder, and the files of variables beside it."""
    yield file
    for top in (file, *(file.parent / name for name in _VARIABLE_FOLDERS)):
        if top != file and top.is_symlink():
            yield top
        for folder, folders, files in os.walk(top):
            yield from (Path(folder, name) for name in (*folders, *files))


def _program(file: Path) -> str:
    """What Ansible would run for ``file``, or why it isn't read; empty where it's a list, or isn't there."""
    if file.is_dir() or not file.exists():
        return ""
    if not file.is_file():
        return f"{file}: is not a file"
    try:
        text = reading.beginning(str(file), _BEGINNING)
    except OSError as error:
        return f"{file}: cannot be read: {error.strerror}"
    if os.access(file, os.X_OK) or text.startswith(b"#!"):
        return f"{file} is a program, which isn't run here"
    return f"{file} is the configuration of a plugin, which isn't run here" if _PLUGIN.search(text) else ""


def read(file: Path, *, programs: bool = True) -> AnsibleInventory:
    """Have ansible-inventory read ``file``; raises FleetInvalid that names it, and MissingProgram.

    programs: whether it may be a program of the user, which runs here, or the configuration of a plugin.
    """
    if not file.exists():
        raise FleetInvalid(f"{file}: there is no such inventory", hint="Name an inventory file or folder of Ansible")
    if "," in str(file):
        raise FleetInvalid(f"{file}: ansible-inventory reads a name with a comma as a list of hosts", hint="Rename it")
    # timeout ends the whole group of processes, also what a dynamic inventory has started.
    argv = [run.which("timeout", hint="Install the package coreutils"), "--kill-after=5", str(SECONDS)]
    if not programs:
        argv = [run.which("prlimit", hint="Install the package util-linux"), f"--as={MEMORY}", *argv]
    argv += [*PYTHON, "-m", "ansible", "inventory", "--list", "--inventory", str(file.absolute())]
    with tempfile.TemporaryDirectory(prefix="gdsdeploy-") as home:
        environment = {
            **configured(),
            "ANSIBLE_HOME": home,
            "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "True",
            "ANSIBLE_INVENTORY_UNPARSED_FAILED": "True",
            "LC_ALL": "C.UTF-8",
            **({} if programs else {"ANSIBLE_INVENTORY_ENABLED": _LISTS}),
        }
        done = run.run(argv, doing=f"read the inventory {file}", ok=range(256), env=environment)
    if done.status == _TIME_UP:
        hint = "A dynamic inventory must end by itself; save its answer to a file: ansible-inventory --list -y"
        raise FleetInvalid(f"{file}: ansible-inventory had not ended after {SECONDS} s", hint=hint)
    if not programs and "MemoryError" in done.stderr:
        raise FleetInvalid(
            f"{file}: it becomes more than the {MEMORY >> 20} MiB that a list may take", hint=RUN_INVENTORY
        )
    if done.status != 0:
        lines = [line(text) for text in done.stderr.splitlines() if text.strip()]
        words = "".join(f"\n  | {text[:500]}" for text in lines[-_MOST:])
        hint = f"Try: ansible-inventory --list -i {file}" if programs else f"It has to be a list. {RUN_INVENTORY}"
        raise FleetInvalid(f"{file}: ansible-inventory cannot read it{words}", hint=hint)
    try:
        return _parse(file, jsontext.loads(done.stdout, items=VALUES, limit=SIZE))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise FleetInvalid(f"{file}: ansible-inventory's answer is malformed: {line(str(error))[:200]}") from None


def _parse(file: Path, value: Any) -> AnsibleInventory:
    variables = {str(name): dict(values) for name, values in value["_meta"]["hostvars"].items()}
    direct = {str(name): group for name, group in value.items() if name != "_meta"}

    def members(group: str, above: tuple[str, ...]) -> dict[str, None]:
        content = direct.get(group, {})
        hosts = dict.fromkeys(str(name) for name in content.get("hosts", ()))
        for child in content.get("children", ()):
            if child not in above:
                hosts |= members(str(child), (*above, group))
        return hosts

    groups = {name: tuple(members(name, ())) for name in sorted({"all", *direct})}
    return AnsibleInventory(file, {name: variables.get(name, {}) for name in groups["all"]}, groups)


def settings(inventory: AnsibleInventory, name: str) -> dict[str, Any]:
    """How the inventory says that a host is reached, with the names that a fleet file has; raises ValueError.

    The variables of ssh's arguments are not read: ssh_config has what they are for.
    """
    variables = inventory.hosts[name]
    plugin = variables.get("ansible_connection", "ssh")
    if str(plugin).rpartition(".")[2] not in _SSH:
        raise ValueError(f"ansible_connection is {plugin!r:.80}, and gdsdeploy reaches hosts over SSH only")
    values: dict[str, Any] = {}
    for key, names in _VARIABLES.items():
        value = next((variables[each] for each in names if variables.get(each) not in (None, "")), None)
        if key == "port" and isinstance(value, str) and value.isdecimal():
            value = int(value)
        if key == "identity_file" and isinstance(value, str) and not value.startswith(("/", "~")):
            raise ValueError(f"{names[0]} is {value!r:.80}: write an absolute path, or one that begins with ~")
        if value is not None:
            values[key] = value
    try:
        _HOSTS.validate_python({name: {"profile": "unknown", **values}}, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = str(first["loc"][-1])
        words = WORDS.get(first.get("ctx", {}).get("pattern", ""), str(first["msg"]))
        shown = f" ({values[key]!a:.80})" if key in values else ""
        raise ValueError(f"{_VARIABLES.get(key, ('its name',))[0]}{shown}: {words}") from None
    return {key: value for key, value in values.items() if (key, value) != ("address", name)}


def hosts_of(
    source: InventorySource, file: Path, own: Collection[str] = (), *, programs: bool = True
) -> dict[str, dict[str, Any]]:
    """Name → entry of the fleet file for each host of the mapped groups; raises FleetInvalid with every problem.

    file: the inventory; programs: as for :func:`read`.  own: hosts that the fleet file has itself, which are left out.
    """
    inventory = read(file, programs=programs)
    hosts: dict[str, dict[str, Any]] = {}
    places: dict[str, str] = {}
    problems: list[str] = []
    for group, profile in source.groups.items():
        if group not in inventory.groups:
            problems.append(f"there is no group {group!r} with hosts{did_you_mean(group, inventory.groups)}")
        for name in (each for each in inventory.groups.get(group, ()) if each not in own):
            where = f"group {group}, host {line(name)[:100]}"
            if name in places and source.groups[places[name]] != profile:
                words = f"its profile is {profile} here and {source.groups[places[name]]} in group {places[name]}"
                problems.append(f"{where}: {words}")
            try:
                hosts.setdefault(name, {"profile": profile, **settings(inventory, name)})
                places.setdefault(name, group)
            except ValueError as error:
                problems.append(f"{where}: {line(str(error))}")
    if not (hosts or own or problems):
        problems.append(f"no host is in {', '.join(source.groups)}")
    if problems:
        lines = [f"{inventory.file}: {problem}" for problem in dict.fromkeys(problems)]
        hint = "Correct the inventory; or name the host under hosts of the fleet file, which then counts"
        raise FleetInvalid(first_few(lines, _MOST, "\n"), hint=hint)
    return hosts
