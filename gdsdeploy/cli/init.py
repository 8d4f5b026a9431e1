"""``gdsdeploy init``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import yaml
from pydantic import ValidationError

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.errors import ControllerUnfit, FleetInvalid, GdsError, HostKeyMismatch, HostUnreachable, translated
from gdsdeploy.files.output import require_folder, write
from gdsdeploy.fleetfile import ansible_inventory, selection
from gdsdeploy.host.facts import as_dict
from gdsdeploy.host.io.wording import aligned, line
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.hostnames import words
from gdsdeploy.proposal.observe import Observation, Proposal, observe
from gdsdeploy.proposal.propose import Source, propose, yaml_comment, yaml_text
from gdsdeploy.report import model
from gdsdeploy.ssh import reply_schema
from gdsdeploy.ssh.endpoint import TIMEOUT
from gdsdeploy.validate.facts import ask_facts

_STDOUT = Path("-")
#: What says nothing of whether a host is fit.
_NO_ANSWER = (ControllerUnfit, HostKeyMismatch, HostUnreachable)
#: Folder beside the fleet file for public keys of repositories that this machine lacks.
_KEYS = "keys"


@click.command()
@options.combined(options.needs("--inventory", "--keep-inventory", "--run-inventory", "--limit"))
@click.argument("hosts", metavar="[HOST]...", nargs=-1)
@click.option(
    "--inventory", type=options.PATH, metavar="FILE", help="Ask the hosts of this Ansible inventory: INI, YAML, plugin."
)
@click.option("--keep-inventory", is_flag=True, help="Have the fleet file read FILE at each run, not copy its hosts.")
@options.run_inventory
@click.option("--ssh-config", type=options.FILE, metavar="FILE", help="Use this ssh_config in place of your own.")
@options.limit
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    default="fleet.yml",
    show_default=True,
    metavar="FILE",
    help="The fleet file; it must not exist. `-` prints it.",
)
@options.timeout(TIMEOUT)
@options.at_once
@options.as_json("Print the proposal as one JSON object, too.")
def command(
    hosts: tuple[str, ...],
    inventory: Path | None,
    keep_inventory: bool,
    run_inventory: bool,
    ssh_config: Path | None,
    limit: str | None,
    output: Path,
    timeout: float,
    as_json: bool,
) -> None:
    """Ask hosts over SSH what they run, and write a fleet file that `gdsdeploy lock` accepts.

    Hosts with the same system, kernel flavour, driver branch, GPUs, repositories and modes share a profile. The driver
    is pinned to the branch that runs. A comment at each line says which hosts have what. What can't be determined is a
    comment and a point to check, and never a guess. No host is changed.

    HOST is a name as `ssh HOST` takes it. User, port, keys and jump hosts come from your SSH configuration, or from
    the inventory's ansible_host, ansible_user, ansible_port and ansible_ssh_private_key_file. Host keys are always
    checked. Public keys of package repositories that this machine lacks are written to the folder keys beside FILE.

    \b
    Exit code, the first of these that applies:
      20, 21, 22    a host didn't answer, or has no supported system; the file has the others
      0             otherwise

    \b
    Examples:
      gdsdeploy init gpu1 gpu2
      gdsdeploy init --inventory hosts.ini --limit 'gpu*' -o fleet.yml
      gdsdeploy init --inventory hosts.ini --keep-inventory
      gdsdeploy init gpu1 -o -                  # print it
      gdsdeploy init gpu1 -o - --json | jq .fleet.profiles
    """
    options.require(bool(hosts) != (inventory is not None), "name hosts, or an inventory with --inventory FILE")
    _require_free(output)
    source, errors = _source(hosts, inventory, limit, output, run_inventory=run_inventory)
    if ssh_config is not None:
        options.require(ssh_config.is_file(), f"--ssh-config: {ssh_config} doesn't exist")
        source = replace(source, ssh_config=_relative(ssh_config, output))
    observations = _ask(source, output, timeout, errors)
    left_out = {name: line(error.message).removeprefix(name).lstrip(": ") for name, error in errors.items()}
    if observations:
        # Its other hosts make such a group unfit: they get its profile, or the fleet file can't be read.
        unfit = {name for name, error in errors.items() if not isinstance(error, _NO_ANSWER)}
        groups = {name: members for name, members in source.groups.items() if not unfit & set(members)}
        keep = replace(source, inventory=source.inventory if keep_inventory else "", groups=groups)
        keys = str(_folder(output).resolve() / _KEYS) if output != _STDOUT else ""
        proposal = propose(
            list(observations.values()), left_out, keep, keys=keys, day=datetime.now(UTC).date().isoformat()
        )
        _write(proposal, output, as_json)
        _show(proposal, observations, left_out, output, as_json)
    options.end_with(model.errors_alike(errors))


def _source(
    hosts: Sequence[str], inventory: Path | None, limit: str | None, output: Path, *, run_inventory: bool
) -> tuple[Source, dict[str, GdsError]]:
    """The hosts to ask, and the errors of those of an inventory that can't be reached as it says."""
    if inventory is None:
        try:
            _fleet(Source({name: {} for name in hosts}))
        except ValidationError:
            words = "HOST is a name of letters, digits, dots, hyphens and underscores; give others one in ~/.ssh/config"
            raise click.UsageError(words) from None
        return Source({name: {} for name in hosts}), {}
    if not run_inventory:
        ansible_inventory.require_list(inventory)
    content = ansible_inventory.read(inventory, programs=run_inventory)
    settings: dict[str, Mapping[str, Any]] = {}
    errors: dict[str, GdsError] = {}
    for name in selection.select(limit, list(content.hosts), inventory):
        try:
            settings[name] = ansible_inventory.settings(content, name)
        except ValueError as error:
            errors[line(name)] = FleetInvalid(f"{inventory}: {line(name)}: {line(str(error))}")
    return Source(settings, inventory=_relative(inventory, output), groups=content.groups), errors


def _fleet(source: Source) -> Fleet:
    """A fleet of the hosts, by which they are asked; no profile is known yet."""
    ssh = {"config": source.ssh_config} if source.ssh_config else {}
    hosts = {name: {"profile": "unknown", **settings} for name, settings in source.settings.items()}
    profiles = {"unknown": {"os": "debian-13"}}
    return Fleet.model_validate({"version": 1, "ssh": ssh, "profiles": profiles, "hosts": hosts})


def _ask(source: Source, output: Path, timeout: float, errors: dict[str, GdsError]) -> dict[str, Observation]:
    """Ask every host; an error is added to ``errors``."""
    if not source.settings:
        return {}
    names = list(source.settings)
    facts = ask_facts(_fleet(source), _folder(output) / "fleet.yml", names, timeout=timeout, sources=True)
    observations: dict[str, Observation] = {}
    for name, outcome in facts.items():
        results, problems = reply_schema.judge_each(
            {name: outcome}, lambda name, host: observe(name, host, has_file=Path.is_file)
        )
        observations |= results
        errors |= problems
    return observations


def _write(proposal: Proposal, output: Path, as_json: bool) -> None:
    """Write the keys and the fleet file; raises GdsError, and then no file is replaced."""
    text = yaml_text(proposal.nodes)
    if output == _STDOUT:
        if not as_json:
            console.file(text.rstrip("\n"))
        return
    # Another program had all the time that the hosts took.
    _require_free(output)
    folder = _folder(output) / _KEYS
    for name, content in proposal.keys.items():
        path = folder / name
        if os.path.lexists(path) and (not path.is_file() or path.read_bytes() != content):
            hint = "Move it away, or write the fleet file to another folder with --output FILE"
            raise GdsError(f"{path}: this file exists with other content, and init overwrites none", hint=hint)
    with translated(OSError, lambda error: GdsError(f"{folder}: cannot be made: {error.strerror}")):
        if proposal.keys:
            folder.mkdir(exist_ok=True)
    for name, content in proposal.keys.items():
        write(folder / name, content)
    write(output, text)


def _require_free(output: Path) -> None:
    """Raise GdsError where the fleet file is there, or cannot be written."""
    if output == _STDOUT:
        return
    if os.path.lexists(output):
        hint = "Name another file with --output FILE, or print it: --output -"
        raise GdsError(f"{output}: this file exists, and init overwrites none", hint=hint)
    require_folder(output)


def _show(
    proposal: Proposal,
    observations: Mapping[str, Observation],
    left_out: Mapping[str, str],
    output: Path,
    as_json: bool,
) -> None:
    if as_json:
        console.json(
            {
                "file": None if output == _STDOUT else str(output),
                "fleet": yaml.safe_load(yaml_text(proposal.nodes)),
                "profiles": as_dict(proposal.profiles),
                "hosts": as_dict(observations),
                "left_out": dict(left_out),
                "check": list(proposal.checks),
                "keys": sorted(proposal.keys),
            }
        )
        return
    show = console.say if output == _STDOUT else console.data
    rows = [["profile", "hosts"], *([name, words(names)] for name, names in proposal.profiles.items())]
    for row in aligned(rows):
        show(row)
    if left_out:
        show(f"left out: {words(list(left_out))}")
    if proposal.checks:
        show("Check first:")
        for check in proposal.checks:
            show(f"  {yaml_comment(check)}")
    if output != _STDOUT:
        show(f"Next: gdsdeploy lock {shlex.quote(str(output))}")


def _folder(output: Path) -> Path:
    return Path() if output == _STDOUT else output.parent


def _relative(file: Path, output: Path) -> str:
    """The file as a fleet file at ``output`` names it."""
    same = file.absolute().parent == _folder(output).absolute()
    return file.name if same else str(file.absolute())
