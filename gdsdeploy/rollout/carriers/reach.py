"""How another engine reaches the machines: addresses and host keys, never a private key."""

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
    """(machine → Ansible's connection variables, text of the known_hosts file, what is missing, as sentences).

    The variables include this machine's ssh configuration.  Raises as transport.endpoints.
    """
    variables: dict[str, dict[str, Any]] = {}
    lines: list[str] = []
    notes: list[str] = []
    for end in transport.endpoints(fleet, fleet_dir, names):
        keys = known_keys(end)
        for key in keys:
            marker = f"@{key.marker} " if key.marker else ""
            lines.append(f"{marker}{record_name(end)} {key.type} {base64.b64encode(key.blob).decode()}\n")
        if not any(key.marker != "revoked" for key in keys):
            notes.append(f"{end.host}: no host key of it is on record here, so nothing will connect to it")
        if end.proxy:
            notes.append(
                f"{end.host}: this machine reaches it through another one; say how the engine does, for example "
                "ansible_ssh_extra_args: -J BASTION"
            )
        options = ["StrictHostKeyChecking=yes", f'UserKnownHostsFile="{HERE}/{KNOWN_HOSTS}"']
        options += ["GlobalKnownHostsFile=/dev/null"]
        options += [f"HostKeyAlias={end.host_key_alias}"] if end.host_key_alias else []
        arguments = " ".join(f"-o {option}" for option in options)
        values = variables[end.host] = {"ansible_host": end.address, **CHECKED, "ansible_ssh_common_args": arguments}
        if end.port != 22:
            values["ansible_port"] = end.port
        # ssh's default is the name of the local user, which doesn't count elsewhere.
        user = fleet.connection(end.host).user or (end.user if end.user != getpass.getuser() else None)
        if user:
            values["ansible_user"] = user
        values["ansible_become"] = user != "root"
    return variables, "".join(sorted(set(lines))).encode(), notes
