"""``gdsdeploy plan``."""

from __future__ import annotations

from pathlib import Path

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.converge import plan_report
from gdsdeploy.converge.diff import HostPlan
from gdsdeploy.converge.plan_fleet import TIMEOUT, Planned, plan_fleet
from gdsdeploy.errors import ChangesPending, ChecksUnknown, GdsError, HostUnfit
from gdsdeploy.fleetfile import selection
from gdsdeploy.lock import lockfile


@click.command()
@options.fleet
@options.limit_with_builders
@options.timeout(TIMEOUT)
@options.as_json()
def command(fleet: Path, limit: str | None, timeout: float, as_json: bool) -> None:
    """Show what provision would change on each host of FLEET, and why, without touching it.

    Every host is asked once, all at the same time. For each it says what would be done in the order of the roles,
    what was found and what is wanted, and what it does to work that is running: nothing, a module reload, or a
    reboot. What could not be read is "unknown", and such a host is never one with nothing to do.

    \b
    Exit code, the first of these that applies:
      32            provision would change some host
      20, 21, 22    a host could not be asked, or would be refused
      31            it could not be told for some host
      0             there is nothing to do on any host

    \b
    Examples:
      gdsdeploy plan fleet.yml
      gdsdeploy plan fleet.yml --limit 'gpu*' --json | jq '.hosts[].actions[].what'
      gdsdeploy plan fleet.yml || gdsdeploy provision fleet.yml
    """
    intent, lock = lockfile.fleet_and_lock(fleet)
    names = selection.select(limit, list(intent.everyone()), fleet)

    def said(found: HostPlan | GdsError, name: str, seconds: float) -> None:
        console.say(f"  {plan_report.line(name, found)} ({seconds:.1f} s)")

    with console.step(f"Planning {', '.join(names)}"):
        made = plan_fleet(intent, lock, fleet, names, timeout=timeout, progress=said)
    if as_json:
        console.data(plan_report.to_json(made.hosts, made.seconds, fleet=str(fleet), lock_digest=lock.digest))
    else:
        console.data(plan_report.text(made.hosts))
    error = outcome(made)
    if error is not None:
        raise error


def outcome(made: Planned) -> GdsError | None:
    """The error that a run with this plan ends in; the one for pending changes has no words, they were said."""
    lost = {name: found for name, found in made.hosts.items() if isinstance(found, GdsError)}
    plans = [found for found in made.hosts.values() if isinstance(found, HostPlan)]
    if any(item.changes and not item.refusal for item in plans):
        return ChangesPending("")
    if lost:
        kind = type(next(iter(lost.values())))
        return kind(f"could not ask {', '.join(lost)}", hint="The reason is said above")
    refused = [item.host for item in plans if item.refusal]
    if refused:
        return HostUnfit(f"provision would refuse {', '.join(refused)}", hint="The reason is said above")
    unknown = [item.host for item in plans if item.unknown]
    if unknown:
        return ChecksUnknown(f"could not tell for {', '.join(unknown)}", hint="The reasons are said above")
    return None
