"""``gdsdeploy plan``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from gdsdeploy import console
from gdsdeploy.cli import image as images
from gdsdeploy.cli import options
from gdsdeploy.converge import plan_report
from gdsdeploy.converge.diff import HostPlan
from gdsdeploy.converge.plan_fleet import TIMEOUT, FleetPlan, plan_fleet
from gdsdeploy.errors import ChangesPending, ChecksUnknown, GdsError, HostUnfit
from gdsdeploy.model.hostnames import words


@click.command()
@options.fleet
@options.limit_with_builders
@options.root
@options.timeout(TIMEOUT)
@options.at_once
@options.verbose
@options.as_json()
def command(fleet: Path, limit: str | None, root: Path | None, timeout: float, verbose: bool, as_json: bool) -> None:
    """Show what provision would change on each host of FLEET, and why, without touching it.

    All hosts are asked at the same time. For each host it lists the changes in the order of the roles, with the found
    and the expected state, and their effect on running work: nothing, a module reload, or a reboot. What couldn't be
    read is "unknown"; such a host never counts as unchanged.

    With --root DIR it plans for the root folder of an image, and also says what is left to the first boot.

    \b
    Exit code, the first of these that applies:
      32            provision would change a host
      20, 21, 22    a host could not be asked, or would be refused
      31            the plan of a host is incomplete
      0             no host needs a change

    \b
    Examples:
      gdsdeploy plan fleet.yml
      gdsdeploy plan fleet.yml --limit 'gpu*' --json | jq '.hosts[].actions[].what'
      gdsdeploy plan fleet.yml; [ $? -ne 32 ] || gdsdeploy provision fleet.yml
      sudo gdsdeploy plan fleet.yml --root /mnt/image --limit gpu1
    """
    with images.selected(fleet, root, limit, changes=False) as (intent, lock, names, image):
        with console.step(f"Planning {images.where(names, image)}"):
            result = plan_fleet(
                intent, lock, fleet, names, timeout=timeout, progress=say_plans(len(names)), image=image
            )
        if as_json:
            about = image.to_json(lock) if image is not None else None
            text = plan_report.to_json(
                result.hosts, result.seconds, fleet=str(fleet), lock_digest=lock.digest, image=about
            )
        else:
            text = "\n\n".join(filter(None, [plan_report.text(result.hosts, whole=verbose), images.left(image, lock)]))
    console.data(text)
    error = outcome(result)
    if error is not None:
        raise error


def say_plans(number: int) -> Callable[[HostPlan | GdsError, str, float], None]:
    """What prints a line about each of ``number`` hosts that was asked, where they are few."""
    say = console.say_each(number)
    return lambda plan, name, seconds: say(f"  {plan_report.line(name, plan)} ({seconds:.1f} s)")


def outcome(result: FleetPlan) -> GdsError | None:
    """The error that a run with this plan ends in; for pending changes it has no message, because they are shown."""
    errors = {name: plan for name, plan in result.hosts.items() if isinstance(plan, GdsError)}
    plans = [plan for plan in result.hosts.values() if isinstance(plan, HostPlan)]
    if any(plan.changes and not plan.refusal for plan in plans):
        return ChangesPending("")
    if errors:
        kind = type(next(iter(errors.values())))
        return kind(f"could not ask {words(errors)}", hint="See the reasons above")
    refused = [plan.host for plan in plans if plan.refusal]
    if refused:
        return HostUnfit(f"provision would refuse {words(refused)}", hint="See the reasons above")
    unknown = [plan.host for plan in plans if plan.unknown]
    if unknown:
        return ChecksUnknown(f"the plan is incomplete for {words(unknown)}", hint="See the reasons above")
    return None
