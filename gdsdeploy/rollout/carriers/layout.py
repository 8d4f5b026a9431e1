"""Machines' variables → the files of a folder: inventory, variables by profile and by machine; pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from gdsdeploy.converge.inventory import BUILDERS, HOSTS
from gdsdeploy.errors import FleetInvalid
from gdsdeploy.host.cli import carrier_check
from gdsdeploy.rollout.carriers.yamltext import HERE, dump

Carrier = Literal["runner", "awx", "pull"]
CARRIERS: tuple[Carrier, ...] = get_args(Carrier)
#: Content of a file, or the file of this machine that has it.
Content = bytes | Path
KEYRINGS, MODULES, CERTIFICATES, BUILDER_KEYS, KNOWN_HOSTS = (
    "files/keyrings", "files/modules", "files/certificates", "files/builders", "files/known_hosts",
)  # fmt: skip
#: Ansible looks for collections beside the playbook that it runs.
COLLECTION = "collections/ansible_collections/gdsdeploy/gds"
#: Packed: the collection takes it from there, and a host that pulls checks with it what was pulled.
PROGRAM = f"{COLLECTION}/gdsdeploy-host.pyz"

#: What no rendered file may hold; pattern → what it is.
_SECRETS = (
    (re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY( BLOCK)?-----"), "a private key"),
    (re.compile(rb"[?&;]pin-value="), "the PIN of a token"),
    (re.compile(rb"://[^/\s:@\"']+:[^/\s@\"']+@"), "a password in an address"),
)  # fmt: skip
_WAYS = {
    "a private key": "Leave it out of the files that the fleet names",
    "the PIN of a token": "Name a file with pin-source= instead of pin-value=",
    "a password in an address": "Let the hosts have it: apt's auth.conf, or dnf's own configuration",
}


def project(carrier: Carrier) -> str:
    """Where the playbooks lie in the folder; with a slash at its end unless it is the folder itself."""
    return "project/" if carrier == "runner" else ""


def inventory_files(machines: Mapping[str, tuple[str, Mapping[str, Any]]]) -> dict[str, bytes]:
    """The folder ``inventory``; ``machines``: name → its group and its variables.

    What all machines of a profile have in common is with the group of that profile, so that a change reads as one.
    """
    groups: dict[str, dict[str, Any]] = {HOSTS: {"hosts": {}}, BUILDERS: {"hosts": {}}}
    profiles: dict[str, list[str]] = {}
    for name, (group, values) in machines.items():
        groups[group]["hosts"][name] = {}
        profiles.setdefault(_group(str(values["gds_profile"])), []).append(name)
    found = {}
    for group, names in sorted(profiles.items()):
        groups[group] = {"hosts": {name: {} for name in names}}
        shared = _shared([machines[name][1] for name in names])
        found[f"inventory/group_vars/{group}.yml"] = _yaml(shared)
        for name in names:
            own = {key: value for key, value in machines[name][1].items() if key not in shared}
            found[f"inventory/host_vars/{name}.yml"] = _yaml(own)
    return {"inventory/hosts.yml": _yaml({"all": {"children": groups}}), **found}


def _shared(machines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first, *others = machines
    return {key: value for key, value in first.items() if all(item.get(key, _Nothing) == value for item in others)}


class _Nothing:
    """Equal to no value."""


def _group(profile: str) -> str:
    """A profile's group: Ansible's group names are identifiers, and two profiles never share one."""
    plain = re.sub(r"[^A-Za-z0-9_]", "_", profile)
    mark = "" if plain == profile else "_" + hashlib.sha256(profile.encode()).hexdigest()[:6]
    return f"profile_{plain}{mark}"


def _yaml(value: Any) -> bytes:
    return ("---\n" + dump(value, sort_keys=True, width=10_000, data=True)).encode()


def keyrings(values: Mapping[str, Any]) -> tuple[list[dict[str, str]], dict[str, Path]]:
    """gds_repo_keys with names inside the folder, and name → the file of this machine."""
    keys, files = [], {}
    for item in values["gds_repo_keys"]:
        source = Path(item["src"])
        name = f"{KEYRINGS}/{hashlib.sha256(item['dest'].encode()).hexdigest()[:8]}-{source.name}"
        files[name] = source
        keys.append({"src": f"{HERE}/{name}", "dest": item["dest"]})
    return keys, files


def require_no_secrets(files: Mapping[str, Content]) -> None:
    """Raise FleetInvalid when something that is to be published holds a secret; it is not repeated."""
    for path, content in files.items():
        if isinstance(content, Path):
            continue
        for pattern, what in _SECRETS:
            if pattern.search(content):
                raise FleetInvalid(f"{path} would hold {what}; nothing was rendered", hint=_WAYS[what])


def manifest(carrier: Carrier, lock_digest: str, sums: Mapping[str, str], served: Mapping[str, str]) -> bytes:
    """The manifest; ``sums``: path → sha256 of what is in the folder; ``served``: of archives that lie elsewhere."""
    value: dict[str, Any] = {
        "version": carrier_check.VERSION,
        "for": carrier,
        "lock_digest": lock_digest,
        "files": dict(sums),
    }
    if served:
        value["served"] = dict(served)
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()
