"""The files of a rendered folder from the machines' variables: inventory, variables by profile and machine.  Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from gdsdeploy.converge.inventory import BUILDERS, HOSTS
from gdsdeploy.errors import FleetInvalid
from gdsdeploy.host.cli import carrier_check
from gdsdeploy.rollout.carriers.yamltext import FOLDER_MARK, dump

Carrier = Literal["runner", "awx", "pull"]
CARRIERS: tuple[Carrier, ...] = get_args(Carrier)
#: Content of a file, or a local file to copy.
Content = bytes | Path
KEYRINGS, MODULES, CERTIFICATES, BUILDER_KEYS, KNOWN_HOSTS = (
    "files/keyrings", "files/modules", "files/certificates", "files/builders", "files/known_hosts",
)  # fmt: skip
#: Ansible looks for collections beside the playbook that it runs.
COLLECTION = "collections/ansible_collections/gdsdeploy/gds"
#: The packed host program; a host that pulls checks its checkout with it.
PROGRAM = f"{COLLECTION}/gdsdeploy-host.pyz"

#: (pattern, secret, hint) of what no rendered file may hold.
_SECRETS = (
    (re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY( BLOCK)?-----"), "a private key",
     "Leave it out of the files that the fleet names"),
    (re.compile(rb"[?&;]pin-value="), "the PIN of a token", "Name a file with pin-source= instead of pin-value="),
    (re.compile(rb"://[^/\s:@\"']+:[^/\s@\"']+@"), "a password in an address",
     "Let the hosts have it: apt's auth.conf, or dnf's own configuration"),
)  # fmt: skip


def project(carrier: Carrier) -> str:
    """Where the playbooks lie in the folder; with a slash at its end unless it is the folder itself."""
    return "project/" if carrier == "runner" else ""


def inventory_files(machines: Mapping[str, tuple[str, Mapping[str, Any]]]) -> dict[str, bytes]:
    """The folder ``inventory``.  machines: name → (group, variables).

    Variables that all machines of a profile share are in the profile's group, so that a change is one line.
    """
    groups: dict[str, dict[str, Any]] = {HOSTS: {"hosts": {}}, BUILDERS: {"hosts": {}}}
    profiles: dict[str, list[str]] = {}
    for name, (group, values) in machines.items():
        groups[group]["hosts"][name] = {}
        profiles.setdefault(_group(str(values["gds_profile"])), []).append(name)
    files = {}
    for group, names in sorted(profiles.items()):
        groups[group] = {"hosts": {name: {} for name in names}}
        first, *others = (machines[name][1] for name in names)
        shared = {
            key: value for key, value in first.items() if all(key in other and other[key] == value for other in others)
        }
        files[f"inventory/group_vars/{group}.yml"] = _yaml(shared)
        for name in names:
            own = {key: value for key, value in machines[name][1].items() if key not in shared}
            files[f"inventory/host_vars/{name}.yml"] = _yaml(own)
    return {"inventory/hosts.yml": _yaml({"all": {"children": groups}}), **files}


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
    for key in values["gds_repo_keys"]:
        source = Path(key["src"])
        name = f"{KEYRINGS}/{hashlib.sha256(key['dest'].encode()).hexdigest()[:8]}-{source.name}"
        files[name] = source
        keys.append({"src": f"{FOLDER_MARK}/{name}", "dest": key["dest"]})
    return keys, files


def require_no_secrets(files: Mapping[str, Content]) -> None:
    """Raise FleetInvalid for a file that holds a secret, without the secret itself."""
    for path, content in files.items():
        if isinstance(content, Path):
            continue
        for pattern, secret, hint in _SECRETS:
            if pattern.search(content):
                raise FleetInvalid(f"{path} would hold {secret}; nothing was rendered", hint=hint)


def manifest(carrier: Carrier, lock_digest: str, sums: Mapping[str, str], served: Mapping[str, str]) -> bytes:
    """The manifest; ``sums``: path → sha256 of what is in the folder; ``served``: of archives that lie elsewhere."""
    value = {"version": carrier_check.VERSION, "for": carrier, "lock_digest": lock_digest, "files": dict(sums)}
    value |= {"served": dict(served)} if served else {}
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()
