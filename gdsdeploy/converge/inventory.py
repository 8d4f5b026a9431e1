"""(fleet, lock) → Ansible's inventory with every role's variables; pure."""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from gdsdeploy import paths
from gdsdeploy.converge.desired import variables
from gdsdeploy.converge.machine import Machine, RunFiles
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock

HOSTS, BUILDERS = "hosts", "builders"
#: The playbook's folder in texts to :func:`dump`; random, so that neither a fleet file nor a host can have it.
FOLDER = f"/{secrets.token_hex(16)}"
#: What Ansible takes for a template.
_TEMPLATE = re.compile(r"\{[{%#]")


class _Data(str):
    """A text that Ansible takes as it is."""

    __slots__ = ()


class _Dumper(yaml.SafeDumper):
    """Writes texts that are data with the tag that keeps Ansible from reading a template in them."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - as PyYAML calls it
        """The same text twice is written twice."""
        return True

    def represent_data_text(self, text: str) -> yaml.Node:
        """Tagged, but for ``yes``, ``0x10`` and the like: behind the tag Ansible reads those as what they look like."""
        tag = self.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
        data = tag == self.DEFAULT_SCALAR_TAG
        return self.represent_scalar("!unsafe" if data else self.DEFAULT_SCALAR_TAG, str(text), style='"')


_Dumper.add_representer(_Data, _Dumper.represent_data_text)


def dump(value: Any) -> str:
    """An inventory, or variables, as YAML for Ansible.  Every text is data: none is ever read as a template but FOLDER.

    Texts come from the fleet file and from hosts, and a template could run anything on this machine.
    """
    return yaml.dump(_data(value), Dumper=_Dumper, sort_keys=True, allow_unicode=True, width=10_000)


def _data(value: Any) -> Any:
    if isinstance(value, str):
        ours = FOLDER in value and not _TEMPLATE.search(value)
        return value.replace(FOLDER, "{{ playbook_dir }}") if ours else _Data(value)
    if isinstance(value, Mapping):
        return {str(key): _data(inner) for key, inner in value.items()}
    return [_data(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def inventory(
    fleet: Fleet,
    lock: Lock,
    sources: RunFiles,
    names: Collection[str] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The inventory, as Ansible's YAML inventory plugin reads it.

    names: its machines, without which it has all.  extra: what wins against a machine's own variables.
    """
    groups: dict[str, Any] = {HOSTS: {"hosts": {}}, BUILDERS: {"hosts": {}}}
    for name in fleet.everyone():
        if names is not None and name not in names:
            continue
        values = connection(fleet, name, sources.fleet_dir) | variables(Machine(fleet, lock, name, sources))
        if sources.image is not None and name == sources.image.name:
            values |= sources.image.connection()
        values |= extra or {}
        groups[BUILDERS if name in fleet.builders else HOSTS]["hosts"][name] = values
    run = {"vars": {"gds_run": sources.run, "gds_who": sources.who}} if sources.run else {}
    return {"all": {"children": groups, **run}}


#: Variables come before the environment, whatever that has: of a shell, of CI, of AWX, which turns the check off.
#: ssh takes the first value of an option, and these arguments are the first on its command line.  Other connection
#: plugins read none of them, and paramiko's can be told to accept every key.
CHECKED = {
    "ansible_connection": "ssh",
    "ansible_host_key_checking": True,
    "ansible_ssh_args": "-o StrictHostKeyChecking=yes -o NoHostAuthenticationForLocalhost=no -o VerifyHostKeyDNS=no "
    "-o ControlMaster=auto -o ControlPersist=60s",
}


def connection(fleet: Fleet, name: str, fleet_dir: Path) -> dict[str, Any]:
    """Ansible's connection variables for one host; host keys are always checked."""
    ssh = fleet.connection(name)
    options = "-o StrictHostKeyChecking=yes -o BatchMode=yes"
    if ssh.config:
        options += f' -F "{paths.locate(fleet_dir, ssh.config)}"'
    if ssh.known_hosts:
        file = paths.locate(fleet_dir, ssh.known_hosts)
        options += f' -o UserKnownHostsFile="{file}" -o GlobalKnownHostsFile=/dev/null'
    optional = {
        "ansible_port": ssh.port,
        "ansible_user": ssh.user,
        "ansible_ssh_private_key_file": ssh.identity_file and str(paths.locate(fleet_dir, ssh.identity_file)),
    }
    return {
        "ansible_host": ssh.address,
        **CHECKED,
        "ansible_ssh_common_args": options,
        **{name: value for name, value in optional.items() if value},
        "ansible_become": ssh.user != "root",
    }
