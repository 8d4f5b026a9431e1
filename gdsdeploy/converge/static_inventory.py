"""A fleet and its lock as a folder for other engines of Ansible: inventory, variables, the collection, and files.

Every text of it is data for Ansible, but for the folder of its own files.  It has neither keys nor passwords.
"""

from __future__ import annotations

import base64
import getpass
import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from gdsdeploy import atomic, paths, resources
from gdsdeploy.builds import assign
from gdsdeploy.builds.assign import FindBuild, Supply, by_intent
from gdsdeploy.converge.desired import variables
from gdsdeploy.converge.inventory import BUILDERS, CHECKED, FOLDER, HOSTS, dump
from gdsdeploy.converge.machine import Files, Machine
from gdsdeploy.converge.plan_fleet import sha256, write_run_files
from gdsdeploy.cufile.render import FitTarget
from gdsdeploy.errors import FleetInvalid, NotProvisioned
from gdsdeploy.host.apply import registry
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.hostnames import words
from gdsdeploy.model.lock import Lock
from gdsdeploy.model.text import Model
from gdsdeploy.ssh import sshconfig
from gdsdeploy.ssh.endpoint import Endpoint
from gdsdeploy.ssh.transport import known_keys, record_name
from gdsdeploy.zipapp import hostapp

#: Lists the files that were written, so that the next run replaces and removes those and no others.
MANIFEST = "gdsdeploy-inventory.json"
#: Beside the playbooks, where Ansible finds it without an installation; requirements.yml installs it elsewhere.
_COLLECTION = "collections/ansible_collections/gdsdeploy/gds"
_PARTS = ("meta", "playbooks", "plugins", "roles")
_HEAD = "---\n# Written by `gdsdeploy inventory`, which replaces this file.\n"
_REQUIREMENTS = f"{_HEAD}collections:\n  - source: ./{_COLLECTION}\n    type: dir\n"
#: Variable that names a file of the controller → its folder below ``files/``.
_FILES = {
    "gds_modules_archive": "modules", "gds_modules_builder_key": "builders", "gds_secureboot_shared": "certificates",
}  # fmt: skip
#: (pattern, secret, hint) of what no file may hold.
_SECRETS = (
    (re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY( BLOCK)?-----"), "a private key",
     "Leave it out of the files that the fleet names"),
    (re.compile(rb"[?&;]pin-value="), "the PIN of a token", "Name a file with pin-source= instead of pin-value="),
    (re.compile(rb"://[^/\s:@\"']+:[^/\s@\"']+@"), "a password in an address",
     "Let the hosts have it: apt's auth.conf, or dnf's own configuration"),
)  # fmt: skip


@dataclass(frozen=True)
class WrittenInventory:
    """Paths below the folder; ``supplies``: machine → where its modules come from; ``notes``: what is missing."""

    changed: list[str]
    removed: list[str]
    supplies: Mapping[str, Supply]
    notes: list[str]


class _Manifest(Model):
    version: Literal[1] = 1
    lock_digest: str
    files: list[str]

    def text(self) -> bytes:
        return (self.model_dump_json(indent=2) + "\n").encode()


def write(
    fleet: Fleet, lock: Lock, fleet_path: Path, folder: Path, fit_targets: Mapping[str, FitTarget]
) -> WrittenInventory:
    """Write the inventory to ``folder``; nothing is written if anything is wrong.

    fit_targets: facts of the hosts to which a cufile.json is fitted.
    Raises FleetInvalid (a secret, a keyring, a file that the folder had before, a folder that isn't writable),
    NotProvisioned (no machine builds a host's modules), BuildCacheUnusable, and what :func:`reach.endpoints` raises.
    """
    with assign.open_run_archives(fleet_path) as shelf:
        supplies = _supplies(fleet, lock, shelf.look)
        run_files = write_run_files(paths.folder_of(fleet_path).resolve(), shelf, fit_targets)
        run_files = replace(run_files, supplies=supplies)
        files = _playbooks(run_files.program)
        groups: dict[str, Any] = {BUILDERS: {"hosts": {}}, HOSTS: {"hosts": {}}}
        host_keys, notes, sources = set(), [], Files()
        for end in sshconfig.endpoints(fleet, run_files.fleet_dir, list(fleet.everyone())):
            groups[BUILDERS if end.host in fleet.builders else HOSTS]["hosts"][end.host] = {}
            own = variables(Machine(fleet, lock, end.host, run_files))
            # A folder, because Ansible takes a file of NAME.yml for a host of that name, too.
            files[f"host_vars/{end.host}/gdsdeploy.yml"] = _yaml(_connection(fleet, end) | _carry(own, files, sources))
            recorded = _host_keys(end)
            host_keys |= set(recorded)
            if not recorded:
                notes.append(f"{end.host}: no key of it is on record here, so nothing will connect to it")
            if end.proxy:
                notes.append(
                    f"{end.host}: this machine reaches it through another one; configure that where Ansible runs"
                )
        files["files/known_hosts"] = "".join(sorted(host_keys)).encode()
        files["hosts.yml"] = _yaml({"all": {"children": groups}})
        _require_no_secrets(files)
        changed, removed = _place(folder, files, lock.digest)
    return WrittenInventory(changed, removed, supplies, notes)


def _supplies(fleet: Fleet, lock: Lock, look: FindBuild) -> dict[str, Supply]:
    """Machine → supply: a kept build before a builder, which has to take part in the same run."""
    supplies = {name: by_intent(fleet, lock, name) for name in fleet.everyone()}
    for name, supply in supplies.items():
        build = look(supply.want, fleet.suppliers(name)) if supply.mode == "receive" else None
        if build is not None:
            supplies[name] = replace(supply, cached=True, builder="", lack="", origin=build.builder)
    if lacking := [name for name, supply in supplies.items() if supply.lack]:
        raise NotProvisioned(
            f"no machine builds the modules of {words(lacking)}, and this machine keeps no build of them",
            hint="Provision a host that builds them from here once, or set modules: build in the fleet file",
        )
    delivering = {supply.builder for supply in supplies.values()}
    return {name: replace(supply, delivers=name in delivering) for name, supply in supplies.items()}


def _connection(fleet: Fleet, end: Endpoint) -> dict[str, Any]:
    """Ansible's connection variables, with what this machine's ssh configuration adds; host keys are always checked."""
    options = [
        *("StrictHostKeyChecking=yes", f'UserKnownHostsFile="{FOLDER}/files/known_hosts"'),
        *("GlobalKnownHostsFile=/dev/null", *([f"HostKeyAlias={end.host_key_alias}"] if end.host_key_alias else [])),
    ]
    # ssh's default is the name of this machine's user, who doesn't count elsewhere.
    user = fleet.connection(end.host).user or (end.user if end.user != getpass.getuser() else None)
    return {
        "ansible_host": end.address,
        "ansible_port": end.port,
        **CHECKED,
        "ansible_ssh_common_args": " ".join(f"-o {shlex.quote(option)}" for option in options),
        **({"ansible_user": user} if user else {}),
        "ansible_become": user != "root",
    }


def _host_keys(end: Endpoint) -> list[str]:
    """Lines of known_hosts about a host."""
    name = record_name(end)
    return [
        f"{f'@{key.marker} ' if key.marker else ''}{name} {key.type} {base64.b64encode(key.blob).decode()}\n"
        for key in known_keys(end)
    ]


def _carry(values: dict[str, Any], files: dict[str, bytes | Path], sources: Files) -> dict[str, Any]:
    """Role variables that name files in the folder instead of this machine's, which are added to ``files``."""
    values = dict(values)
    for variable, kind in _FILES.items():
        if values.get(variable):
            source = Path(values[variable])
            place = f"files/{kind}/{source.name}"
            values[variable] = f"{FOLDER}/{place}"
            if source.is_file():
                files[place] = source.read_bytes() if kind != "modules" else source
    keyrings = []
    for key in values["gds_repo_keys"]:
        source = Path(key["src"])
        place = f"files/keyrings/{hashlib.sha256(key['dest'].encode()).hexdigest()[:8]}-{source.name}"
        files[place] = sources.keyring(key["src"])
        keyrings.append({"src": f"{FOLDER}/{place}", "dest": key["dest"]})
    return {**values, "gds_repo_keys": keyrings}


def _playbooks(program: Path) -> dict[str, bytes | Path]:
    """The playbooks, and the collection with the host program packed."""
    share, package = resources.share(), resources.package()
    paths = [share / "galaxy.yml", *(path for part in _PARTS for path in sorted((share / part).rglob("*")))]
    sources = {path.relative_to(share): path for path in paths if path.is_file() and "__pycache__" not in path.parts}
    sources |= {Path("gdsdeploy", name): package / name for name in hostapp.MODULES}
    sources[Path("gdsdeploy-host.pyz")] = program
    files: dict[str, bytes | Path] = {f"{_COLLECTION}/{path}": source for path, source in sources.items()}
    # By which the collection checks options, where it hasn't the program's sources.
    files[f"{_COLLECTION}/gdsdeploy-host.json"] = json.dumps(registry.schemas()).encode()
    # Copies, because Ansible's playbook_dir is the collection's own folder in a playbook imported from there.
    files |= {f"{name}.yml": resources.playbook(name) for name in ("provision", "remove")}
    files["requirements.yml"] = _REQUIREMENTS.encode()
    return files


def _yaml(value: Any) -> bytes:
    return (_HEAD + dump(value)).encode()


def _require_no_secrets(files: Mapping[str, bytes | Path]) -> None:
    """Raise FleetInvalid for a text that holds a secret, without the secret itself."""
    for path, content in files.items():
        for pattern, secret, hint in _SECRETS:
            if isinstance(content, bytes) and pattern.search(content):
                raise FleetInvalid(f"{path} would hold {secret}; nothing was written", hint=hint)


def _place(folder: Path, files: Mapping[str, bytes | Path], lock_digest: str) -> tuple[list[str], list[str]]:
    """Write ``files``, and remove those of an earlier run; returns the paths that changed, and those that are gone."""
    try:
        before = _written_before(folder)
        places = {path: _below(folder, path) for path in {*files, *before}}
        present = {path: sha256(place) for path, place in places.items()}
        contents = {path: _digest(content) for path, content in files.items()}
        for path in sorted(files.keys() - before):
            if present[path] not in (None, contents[path]):
                raise FleetInvalid(
                    f"{places[path]}: it exists, and gdsdeploy inventory didn't write it; nothing was written",
                    hint="Move it, or pass another folder to --output",
                )
        changed = [path for path in sorted(files) if present[path] != contents[path]]
        removed = [path for path in sorted(before - files.keys()) if present[path] is not None]
        # Both, before anything changes: a run that is interrupted leaves files that the next one knows.
        _write(folder / MANIFEST, _Manifest(lock_digest=lock_digest, files=sorted(before | files.keys())).text())
        for path in changed:
            content = files[path]
            _write(places[path], content if isinstance(content, bytes) else content.read_bytes())
        for path in removed:
            places[path].unlink()
        _write(folder / MANIFEST, _Manifest(lock_digest=lock_digest, files=sorted(files)).text())
    except OSError as error:
        raise FleetInvalid(
            f"{error.filename or folder}: cannot be written: {error.strerror}", hint="Make it writable, or make room"
        ) from None
    return changed, removed


def _written_before(folder: Path) -> set[str]:
    """The paths that the folder's manifest lists; none without one."""
    mark = _below(folder, MANIFEST)
    if not mark.exists():
        return set()
    try:
        return set(_Manifest.model_validate_json(mark.read_bytes()).files)
    except ValidationError:
        raise FleetInvalid(
            f"{mark}: not a list of files by gdsdeploy inventory", hint="Pass another folder to --output"
        ) from None


def _below(folder: Path, path: str) -> Path:
    """A file's place; raises FleetInvalid for a link, and for a place that isn't below the folder."""
    place = Path(f"{folder}/{path}")
    if place.is_symlink() or place.parent.resolve() != Path(f"{folder.resolve()}/{path}").parent:
        raise FleetInvalid(f"{place}: it is a link, or behind one", hint="Remove it; nothing was written")
    return place


def _digest(content: bytes | Path) -> str | None:
    return sha256(content) if isinstance(content, Path) else hashlib.sha256(content).hexdigest()


def _write(place: Path, content: bytes) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    if not (place.is_file() and place.read_bytes() == content):
        atomic.write(place, content)
