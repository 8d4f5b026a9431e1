"""Render a fleet and its lock for another engine: gather what the playbooks need, and write the folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gdsdeploy import resources
from gdsdeploy.builds import run_archives
from gdsdeploy.builds.assign import Supply, archive_of
from gdsdeploy.builds.run_archives import Shelf
from gdsdeploy.converge import fitted_hosts
from gdsdeploy.converge.desired import LIMIT, require_keyring
from gdsdeploy.converge.inventory import CHECKED, Sources, inventory
from gdsdeploy.converge.plan_fleet import plan_fleet, sources, variables
from gdsdeploy.cufile.fit import Host
from gdsdeploy.errors import FleetInvalid, GdsError, NotProvisioned
from gdsdeploy.host.cli import carrier_check
from gdsdeploy.host.io import reading
from gdsdeploy.lock.lockfile import beside
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock
from gdsdeploy.rollout.carriers import folder as folders
from gdsdeploy.rollout.carriers import layout, playbooks
from gdsdeploy.rollout.carriers.assign import chosen
from gdsdeploy.rollout.carriers.layout import BUILDER_KEYS, CERTIFICATES, COLLECTION, MODULES, PROGRAM, Carrier, Content
from gdsdeploy.rollout.carriers.reach import reached
from gdsdeploy.rollout.carriers.yamltext import HERE
from gdsdeploy.zipapp import hostapp

#: Where an archive of modules lies on a host that fetched it; gds_modules looks there, too.
_FETCHED = "/var/lib/gdsdeploy/modules-{}.tar"
#: Variables of ssh that the inventory of a run on this machine has.
_SSH = (
    "ansible_host", "ansible_port", "ansible_user", "ansible_become", "ansible_ssh_common_args",
    "ansible_ssh_private_key_file", *CHECKED,
)  # fmt: skip
_ENVIRONMENT = b'---\nLC_ALL: C.UTF-8\nPYTHONUNBUFFERED: "1"\n'


@dataclass(frozen=True)
class Rendered:
    """What a rendering left; paths are below ``folder``."""

    carrier: Carrier
    folder: Path
    lock_digest: str
    #: machine → how it comes to its modules
    modules: Mapping[str, str]
    written: folders.Written
    #: what the folder could not carry, as sentences
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Job:
    """What one rendering is about."""

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
) -> Rendered:
    """Render into ``folder``; the same fleet, lock and answers give the same bytes.

    ask: ask every machine once what it is, so that it receives the kept build that fits it.  Machines whose cufile.json
    is fitted to them are asked in any case.
    Raises FleetInvalid (the folder is not ours; something to be published is a secret), NotProvisioned (nobody would
    make a host's modules), and what asking a machine raises.
    """
    job = _Job(fleet, lock, fleet_path, carrier, modules_url.rstrip("/"))
    with run_archives.opened(fleet_path) as shelf:
        known, asked = _asked(job, shelf) if ask else (_fitted(job), {})
        supplies = chosen(fleet, lock, carrier, asked, shelf.look)
        given = sources(fleet, lock, job.fleet_dir, known, shelf)
        machines = _machines(job, given, supplies)
        files, served = _archives(job, shelf, supplies, machines)
        notes: list[str] = []
        if carrier != "pull":
            ways, known_hosts, notes = reached(fleet, job.fleet_dir, list(fleet.everyone()))
            machines = {name: (group, {**values, **ways[name]}) for name, (group, values) in machines.items()}
            files[job.base + layout.KNOWN_HOSTS] = known_hosts
        files |= _certificates(job, given, machines)
        files |= _builder_keys(job, given, supplies)
        machines, keys = _carried_keys(job, machines)
        files |= {**keys, **_project(job, given), **layout.inventory_files(machines)}
        layout.require_no_secrets(files)
        written = folders.write(folder, carrier, lock.digest, files, served)
    return Rendered(
        carrier=carrier,
        folder=folder,
        lock_digest=lock.digest,
        modules={name: _how(supply) for name, supply in supplies.items()},
        written=written,
        notes=tuple(notes),
    )


def _fitted(job: _Job) -> dict[str, Host]:
    names = fitted_hosts.fitted(job.fleet, list(job.fleet.everyone()))
    return _good(fitted_hosts.facts_of(job.fleet, job.lock, job.fleet_path, names))


def _asked(job: _Job, shelf: Shelf) -> tuple[Mapping[str, Host], Mapping[str, Supply]]:
    planned = plan_fleet(job.fleet, job.lock, job.fleet_path, list(job.fleet.everyone()), shelf=shelf)
    _good(planned.hosts)
    return planned.known, planned.supplies


def _good(found: Mapping[str, Any]) -> dict[str, Any]:
    """What was found; raises the first of the errors, which then names all the machines."""
    errors = {name: item for name, item in found.items() if isinstance(item, GdsError)}
    if errors:
        first = next(iter(errors.values()))
        others = [name for name in errors if not first.message.startswith(name)]
        also = f"\n  and the same goes for: {', '.join(others)}" if others else ""
        raise type(first)(f"{first.message}{also}", hint=first.hint)
    return dict(found)


def _machines(job: _Job, given: Sources, supplies: Mapping[str, Supply]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Machine → (group, variables), in which every file is named as it lies in the folder."""
    here = replace(
        given,
        supplies=supplies,
        program=Path(f"{HERE}/{PROGRAM}"),
        modules=Path(f"{HERE}/{MODULES}"),
        certificates=Path(f"{HERE}/{CERTIFICATES}"),
        builders=Path(f"{HERE}/{BUILDER_KEYS}"),
    )
    found = {}
    for name, (group, values) in variables(inventory(job.fleet, job.lock, here)).items():
        own = {key: value for key, value in values.items() if key not in _SSH}
        own["gds_profile"] = job.fleet.everyone()[name].profile
        if job.carrier == "pull" and supplies[name].mode == "build":
            # There is no controller to hand anything to.
            theirs = ("gds_modules_archive", "gds_modules_builder_key", "gds_secureboot_shared")
            own |= {key: "" for key in theirs if key in own}
        found[name] = (group, own)
    return found


def _archives(
    job: _Job,
    shelf: Shelf,
    supplies: Mapping[str, Supply],
    machines: Mapping[str, tuple[str, dict[str, Any]]],
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
            values["gds_pull_modules"] = {
                "url": f"{job.modules_url}/{path.name}",
                "sha256": carrier_check.sha256(str(path)),
            }
        else:
            inside[f"{job.base}{MODULES}/{path.name}"] = path
    return inside, outside


def _certificates(job: _Job, given: Sources, machines: Mapping[str, tuple[str, dict[str, Any]]]) -> dict[str, Content]:
    """Certificates of who signs, which builders have handed over; hosts that pull cannot wait for one."""
    found: dict[str, Content] = {}
    for name, (_, values) in machines.items():
        shared = str(values.get("gds_secureboot_shared") or "")
        if not shared:
            continue
        source = given.certificates / Path(shared).name
        if source.is_file():
            found[f"{job.base}{CERTIFICATES}/{source.name}"] = source.read_bytes()
        elif job.carrier == "pull":
            raise NotProvisioned(
                f"{name}: the certificate that its modules are signed with is not on this machine",
                hint="Provision the builder of its profile from here once: it hands the certificate over",
            )
    return found


def _builder_keys(job: _Job, given: Sources, supplies: Mapping[str, Supply]) -> dict[str, Content]:
    """Public keys that are on record, of machines whose builds others receive; in a run, others are recorded."""
    paths = {given.builders / f"{supply.origin}.pub" for supply in supplies.values() if supply.origin}
    return {f"{job.base}{BUILDER_KEYS}/{path.name}": path.read_bytes() for path in sorted(paths) if path.is_file()}


def _carried_keys(
    job: _Job, machines: Mapping[str, tuple[str, dict[str, Any]]]
) -> tuple[dict[str, tuple[str, dict[str, Any]]], dict[str, Content]]:
    """The machines with keyrings that lie in the folder, and those files; raises FleetInvalid where one is missing."""
    found: dict[str, Content] = {}
    changed = {}
    for name, (group, values) in machines.items():
        keys, sources_of = layout.keyrings(values)
        changed[name] = (group, {**values, "gds_repo_keys": keys})
        for path, source in sources_of.items():
            try:
                found[job.base + path] = content = reading.whole(str(source), LIMIT)
            except OSError as error:
                raise FleetInvalid(
                    f"{source}: the keyring cannot be read: {error.strerror}", hint="Correct keyring in the fleet file"
                ) from None
            require_keyring(str(source), content)
    return changed, found


def _project(job: _Job, given: Sources) -> dict[str, Content]:
    """Playbooks, the collection with the host program, and the lock."""
    base = job.base
    found = {base + path: content for path, content in _collection(given.program).items()}
    found[base + carrier_check.LOCK] = beside(job.fleet_path).read_bytes()
    provision = resources.playbook("provision").read_text(encoding="utf-8")
    if job.carrier == "pull":
        found["local.yml"] = playbooks.local(provision).encode()
    else:
        found[f"{base}provision.yml"] = playbooks.tagged(provision).encode()
        remove = resources.playbook("remove").read_text(encoding="utf-8")
        found[f"{base}remove.yml"] = playbooks.tagged(remove).encode()
        callback = resources.package() / "converge" / "callbacks" / "gds_events.py"
        # Where Ansible does not take it by itself: it writes lines for machines to standard output.
        found[f"{base}plugins/callback/{callback.name}"] = callback.read_bytes()
    found[f"{base}ansible.cfg"] = (resources.share() / "playbooks" / "ansible.cfg").read_bytes()
    if job.carrier == "runner":
        found["env/envvars"] = _ENVIRONMENT
    else:
        found[".gitignore"] = f"/{carrier_check.SERVED}/\n__pycache__/\n".encode()
        # Line ends are part of what is checked.
        found[".gitattributes"] = b"* -text\n"
    return found


def _collection(program: Path) -> dict[str, Content]:
    """The collection, with the host program packed instead of what it is packed from."""
    share, package = resources.share(), resources.package()
    found: dict[str, Content] = {PROGRAM: program.read_bytes()}
    found[f"{COLLECTION}/galaxy.yml"] = (share / "galaxy.yml").read_bytes()
    for part in ("meta", "plugins", "roles"):
        found |= {f"{COLLECTION}/{part}/{path}": data for path, data in _tree(share / part)}
    for name in hostapp.MODULES:
        found[f"{COLLECTION}/gdsdeploy/{name}"] = (package / name).read_bytes()
    return found


def _tree(folder: Path) -> Sequence[tuple[str, bytes]]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
    return [(path.relative_to(folder).as_posix(), path.read_bytes()) for path in files]


def _how(supply: Supply) -> str:
    if supply.mode == "build":
        return "it builds them" + (", and hands them over" if supply.delivers else "")
    if supply.cached:
        return "it receives a kept build"
    return f"it receives what {supply.builder} builds" if supply.builder else "what it has received stays"
