"""Render a fleet and its lock for another engine: gather what the playbooks need, and write the folder."""

from __future__ import annotations

import base64
import getpass
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gdsdeploy import resources
from gdsdeploy.builds import run_archives
from gdsdeploy.builds.assign import FindBuild, Supply, archive_of, by_intent
from gdsdeploy.builds.run_archives import RunArchives
from gdsdeploy.converge import cufile_facts
from gdsdeploy.converge.desired import LIMIT, require_keyring
from gdsdeploy.converge.inventory import CHECKED, RunFiles, inventory
from gdsdeploy.converge.plan_fleet import plan_fleet, variables, write_run_files
from gdsdeploy.errors import FleetInvalid, GdsError, NotProvisioned
from gdsdeploy.host.cli import carrier_check
from gdsdeploy.host.io import reading
from gdsdeploy.lock.lockfile import beside
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock
from gdsdeploy.rollout.carriers import folder as folders
from gdsdeploy.rollout.carriers import layout, playbooks
from gdsdeploy.rollout.carriers.layout import BUILDER_KEYS, CERTIFICATES, COLLECTION, MODULES, PROGRAM, Carrier, Content
from gdsdeploy.rollout.carriers.yamltext import FOLDER_MARK
from gdsdeploy.ssh import reach
from gdsdeploy.ssh.known_hosts import known_keys, record_name
from gdsdeploy.zipapp import hostapp

#: An archive of modules on a host that fetched it; gds_modules looks there, too.
_FETCHED = "/var/lib/gdsdeploy/modules-{}.tar"
#: Variables of ssh that the inventory of a run on this machine has.
_SSH = (
    "ansible_host", "ansible_port", "ansible_user", "ansible_become", "ansible_ssh_common_args",
    "ansible_ssh_private_key_file", *CHECKED,
)  # fmt: skip
#: Machine → (group, variables).
Machines = dict[str, tuple[str, dict[str, Any]]]
_ENVIRONMENT = b'---\nLC_ALL: C.UTF-8\nPYTHONUNBUFFERED: "1"\n'


@dataclass(frozen=True)
class Rendering:
    """The result of a rendering; paths are below ``folder``."""

    carrier: Carrier
    folder: Path
    lock_digest: str
    #: machine → how it comes to its modules
    modules: Mapping[str, str]
    written: folders.WrittenFiles
    #: what the folder doesn't contain, as sentences
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Job:
    fleet: Fleet
    lock: Lock
    fleet_path: Path
    carrier: Carrier
    #: where hosts that pull fetch archives of modules; empty: they come with the folder
    modules_url: str = ""

    @property
    def fleet_dir(self) -> Path:
        return self.fleet_path.resolve().parent

    @property
    def base(self) -> str:
        return layout.project(self.carrier)


def render(
    fleet: Fleet,
    lock: Lock,
    fleet_path: Path,
    folder: Path,
    *,
    carrier: Carrier,
    ask: bool = False,
    modules_url: str = "",
) -> Rendering:
    """Render into ``folder``; the same fleet, lock and answers give the same bytes.

    ask: ask every machine for its facts, so that it receives the kept build that fits it.  Machines whose cufile.json
    is fitted to them are asked in any case.
    Raises FleetInvalid (another program's folder; a secret in a file), NotProvisioned (no machine makes a host's
    modules), and what asking a machine raises.
    """
    job = _Job(fleet, lock, fleet_path, carrier, modules_url.rstrip("/"))
    with run_archives.open_run_archives(fleet_path) as shelf:
        names = list(fleet.everyone())
        if ask:
            planned = plan_fleet(fleet, lock, fleet_path, names, shelf=shelf)
            _require(planned.hosts)
            facts, supplies = planned.fit_targets, planned.supplies
        else:
            facts, supplies = (
                _require(cufile_facts.facts_of(fleet, lock, fleet_path, cufile_facts.names_to_fit(fleet, names))),
                {},
            )
        supplies = _supplies(job, supplies, shelf.look)
        origin = write_run_files(fleet, lock, job.fleet_dir, facts, shelf)
        machines = _machines(job, origin, supplies)
        files, served = _archives(job, shelf, supplies, machines)
        notes: list[str] = []
        if carrier != "pull":
            ways, known_hosts, notes = _connections(fleet, job.fleet_dir, names)
            machines = {name: (group, {**values, **ways[name]}) for name, (group, values) in machines.items()}
            files[job.base + layout.KNOWN_HOSTS] = known_hosts
        files |= _certificates(job, origin, machines)
        # Public keys on record of machines whose builds others receive; a run records the others.
        keys = {origin.builders / f"{supply.origin}.pub" for supply in supplies.values() if supply.origin}
        files |= {f"{job.base}{BUILDER_KEYS}/{key.name}": key.read_bytes() for key in sorted(keys) if key.is_file()}
        machines, keyrings = _keyrings(job, machines)
        files |= {**keyrings, **_project(job, origin), **layout.inventory_files(machines)}
        layout.require_no_secrets(files)
        written = folders.write(folder, carrier, lock.digest, files, served)
    modules = {name: _how(supply) for name, supply in supplies.items()}
    return Rendering(carrier, folder, lock.digest, modules, written, tuple(notes))


def _require(answers: Mapping[str, Any]) -> dict[str, Any]:
    """The answers; raises the first of the errors, which then names all the machines."""
    errors = {name: answer for name, answer in answers.items() if isinstance(answer, GdsError)}
    if errors:
        first = next(iter(errors.values()))
        others = [name for name in errors if not first.message.startswith(name)]
        also = f"\n  and the same goes for: {', '.join(others)}" if others else ""
        raise type(first)(f"{first.message}{also}", hint=first.hint)
    return dict(answers)


def _supplies(job: _Job, planned: Mapping[str, Supply], look: FindBuild) -> dict[str, Supply]:
    """Machine → supply.  planned: of machines that were asked.  look: finds a kept build by its want.

    In runner and awx a builder is in the same run and hands its build over.  Hosts that pull wait for no other machine,
    so they need a kept build.  Raises NotProvisioned that names every machine whose modules no machine would make.
    """
    supplies: dict[str, Supply] = {}
    lacking: list[str] = []
    for name in job.fleet.everyone():
        supply = planned.get(name) or by_intent(job.fleet, job.lock, name)
        if supply.mode == "receive" and not supply.cached and supply.source != "kept":
            supply = _without_waiting(job, name, supply, look)
            if supply.mode == "receive" and not supply.cached and not supply.builder:
                lacking.append(name)
        supplies[name] = supply
    if lacking:
        raise NotProvisioned(
            f"no machine makes the modules of {', '.join(lacking)}: they receive them, and no build is kept here",
            hint="Provision one of them, or its builder, from this machine once (the build is kept), or say "
            "modules: build in the fleet file",
        )
    delivering = {supply.builder for supply in supplies.values() if not supply.cached and job.carrier != "pull"}
    return {name: replace(supply, delivers=name in delivering) for name, supply in supplies.items()}


def _without_waiting(job: _Job, name: str, supply: Supply, look: FindBuild) -> Supply:
    """What replaces the supply of a machine that waits for a builder; without a builder: no machine builds for it."""
    if job.carrier != "pull" and supply.builder:
        return supply
    own = by_intent(job.fleet, job.lock, name)
    if own.mode == "build":
        return own
    build = look(supply.want, job.fleet.suppliers(name))
    return replace(supply, cached=True, origin=build.builder) if build is not None else replace(supply, builder="")


def _machines(job: _Job, origin: RunFiles, supplies: Mapping[str, Supply]) -> Machines:
    """Machine → (group, variables), in which every file is named as it lies in the folder."""
    run_files = replace(
        origin,
        supplies=supplies,
        program=Path(f"{FOLDER_MARK}/{PROGRAM}"),
        modules=Path(f"{FOLDER_MARK}/{MODULES}"),
        certificates=Path(f"{FOLDER_MARK}/{CERTIFICATES}"),
        builders=Path(f"{FOLDER_MARK}/{BUILDER_KEYS}"),
    )
    machines: Machines = {}
    for name, (group, values) in variables(inventory(job.fleet, job.lock, run_files)).items():
        own = {key: value for key, value in values.items() if key not in _SSH}
        own["gds_profile"] = job.fleet.machine(name).profile
        if job.carrier == "pull" and supplies[name].mode == "build":
            # No controller collects these.
            handed_over = ("gds_modules_archive", "gds_modules_builder_key", "gds_secureboot_shared")
            own |= {key: "" for key in handed_over if key in own}
        machines[name] = (group, own)
    return machines


def _archives(
    job: _Job,
    shelf: RunArchives,
    supplies: Mapping[str, Supply],
    machines: Machines,
) -> tuple[dict[str, Content], dict[str, Path]]:
    """Archives of kept builds: (those in the folder, those that hosts fetch); the variables that name them are set."""
    inside: dict[str, Content] = {}
    outside: dict[str, Path] = {}
    for name, supply in supplies.items():
        if not supply.cached:
            continue
        path = archive_of(supply.want, shelf.folder)
        values = machines[name][1]
        if job.carrier == "pull" and job.modules_url:
            outside[path.name] = path
            values["gds_modules_archive"] = _FETCHED.format(values["gds_modules_kernel_release"])
            digest = carrier_check.sha256(str(path))
            values["gds_pull_modules"] = {"url": f"{job.modules_url}/{path.name}", "sha256": digest}
        else:
            inside[f"{job.base}{MODULES}/{path.name}"] = path
    return inside, outside


def _certificates(job: _Job, origin: RunFiles, machines: Machines) -> dict[str, Content]:
    """Certificates of signing keys that builders have handed over; hosts that pull can't wait for one."""
    files: dict[str, Content] = {}
    for name, (_, values) in machines.items():
        shared = str(values.get("gds_secureboot_shared") or "")
        if not shared:
            continue
        source = origin.certificates / Path(shared).name
        if source.is_file():
            files[f"{job.base}{CERTIFICATES}/{source.name}"] = source.read_bytes()
        elif job.carrier == "pull":
            raise NotProvisioned(
                f"{name}: the certificate that its modules are signed with is not on this machine",
                hint="Provision the builder of its profile from here once: it hands the certificate over",
            )
    return files


def _keyrings(job: _Job, machines: Machines) -> tuple[Machines, dict[str, Content]]:
    """The machines with keyrings that lie in the folder, and those files; raises FleetInvalid where one is missing."""
    files: dict[str, Content] = {}
    changed: Machines = {}
    for name, (group, values) in machines.items():
        keys, keyring_sources = layout.keyrings(values)
        changed[name] = (group, {**values, "gds_repo_keys": keys})
        for path, source in keyring_sources.items():
            try:
                content = reading.whole(str(source), LIMIT)
            except OSError as error:
                raise FleetInvalid(
                    f"{source}: the keyring cannot be read: {error.strerror}", hint="Correct keyring in the fleet file"
                ) from None
            require_keyring(str(source), content)
            files[job.base + path] = content
    return changed, files


def _project(job: _Job, origin: RunFiles) -> dict[str, Content]:
    """Playbooks, the collection with the host program, and the lock."""
    base = job.base
    files = {base + path: content for path, content in _collection(origin.program).items()}
    files[base + carrier_check.LOCK] = beside(job.fleet_path).read_bytes()
    provision = resources.playbook("provision").read_text(encoding="utf-8")
    if job.carrier == "pull":
        files["local.yml"] = playbooks.local(provision).encode()
    else:
        files[f"{base}provision.yml"] = playbooks.with_tags(provision).encode()
        remove = resources.playbook("remove").read_text(encoding="utf-8")
        files[f"{base}remove.yml"] = playbooks.with_tags(remove).encode()
        callback = resources.package() / "converge" / "callbacks" / "gds_events.py"
        # Outside of Ansible's default folder: it writes lines for machines to standard output.
        files[f"{base}plugins/callback/{callback.name}"] = callback.read_bytes()
    files[f"{base}ansible.cfg"] = (resources.share() / "playbooks" / "ansible.cfg").read_bytes()
    if job.carrier == "runner":
        files["env/envvars"] = _ENVIRONMENT
    else:
        files[".gitignore"] = f"/{carrier_check.SERVED}/\n__pycache__/\n".encode()
        # Line ends count in the check.
        files[".gitattributes"] = b"* -text\n"
    return files


def _collection(program: Path) -> dict[str, Content]:
    """The collection, with the host program packed instead of what it is packed from."""
    share, package = resources.share(), resources.package()
    paths = [path for part in ("meta", "plugins", "roles") for path in sorted((share / part).rglob("*"))]
    paths = [path for path in paths if path.is_file() and "__pycache__" not in path.parts]
    files: dict[str, Content] = {PROGRAM: program.read_bytes()}
    for path in (share / "galaxy.yml", *paths):
        files[f"{COLLECTION}/{path.relative_to(share).as_posix()}"] = path.read_bytes()
    for name in hostapp.MODULES:
        files[f"{COLLECTION}/gdsdeploy/{name}"] = (package / name).read_bytes()
    return files


def _how(supply: Supply) -> str:
    if supply.mode == "build":
        return "it builds them" + (", and hands them over" if supply.delivers else "")
    if supply.mode == "packaged":
        return "packages bring them"
    if supply.cached:
        return "it receives a kept build"
    return f"it receives what {supply.builder} builds" if supply.builder else "what it has received stays"


def _connections(
    fleet: Fleet, fleet_dir: Path, names: Sequence[str]
) -> tuple[dict[str, dict[str, Any]], bytes, list[str]]:
    """(machine → Ansible's connection variables, text of the known_hosts file, what is missing, as sentences).

    The variables include this machine's ssh configuration.  Raises as reach.endpoints.
    """
    variables: dict[str, dict[str, Any]] = {}
    lines: list[str] = []
    notes: list[str] = []
    for end in reach.endpoints(fleet, fleet_dir, names):
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
        options = ["StrictHostKeyChecking=yes", f'UserKnownHostsFile="{FOLDER_MARK}/{layout.KNOWN_HOSTS}"']
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
