"""How machines are reached from wherever the folder is used: addresses and host keys, never a key to log in with."""

from __future__ import annotations

import base64
import getpass
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gdsdeploy.converge.inventory import CHECKED
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.rollout.carriers.layout import KNOWN_HOSTS
from gdsdeploy.rollout.carriers.yamltext import HERE
from gdsdeploy.ssh import transport
from gdsdeploy.ssh.known_hosts import known_keys, record_name


def reached(fleet: Fleet, fleet_dir: Path, names: Sequence[str]) -> tuple[dict[str, dict[str, Any]], bytes, list[str]]:
    """(machine → Ansible's connection variables, text of the known_hosts file, what could not be carried).

    What this machine's ssh configuration says of a machine is put in its variables.  Raises as transport.endpoints.
    """
    variables: dict[str, dict[str, Any]] = {}
    lines: list[str] = []
    notes: list[str] = []
    for end in transport.endpoints(fleet, fleet_dir, names):
        keys = known_keys(end)
        lines += [
            " ".join([*([f"@{key.marker}"] if key.marker else []), record_name(end), key.type, _text(key.blob)])
            for key in keys
        ]
        if not any(key.marker != "revoked" for key in keys):
            notes.append(f"{end.host}: no host key of it is on record here, so nothing will connect to it")
        if end.proxy:
            notes.append(
                f"{end.host}: this machine reaches it through another one; say how the engine does, for example "
                "ansible_ssh_extra_args: -J BASTION"
            )
        wish = fleet.connection(end.host)
        options = ["StrictHostKeyChecking=yes", f'UserKnownHostsFile="{HERE}/{KNOWN_HOSTS}"']
        options += ["GlobalKnownHostsFile=/dev/null"]
        options += [f"HostKeyAlias={end.host_key_alias}"] if end.host_key_alias else []
        found: dict[str, Any] = {
            "ansible_host": end.address,
            **CHECKED,
            "ansible_ssh_common_args": " ".join(f"-o {option}" for option in options),
        }
        if end.port != 22:
            found["ansible_port"] = end.port
        # Without a wish ssh takes the name of who runs it, which means nothing elsewhere.
        user = wish.user or (end.user if end.user != getpass.getuser() else None)
        if user:
            found["ansible_user"] = user
        found["ansible_become"] = user != "root"
        variables[end.host] = found
    return variables, "".join(f"{line}\n" for line in sorted(set(lines))).encode(), notes


def _text(blob: bytes) -> str:
    return base64.b64encode(blob).decode()
