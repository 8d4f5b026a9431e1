"""``gdsdeploy rollout``: take a fleet from one lock to the next."""

from __future__ import annotations

import click

from gdsdeploy.cli.verbs import Verbs, below

#: Verb → what it does, in the order of use.
VERBS = {
    "start": "Show the plan, ask, and bring the fleet to its lock, wave by wave",
    "status": "Show a rollout's progress; --watch follows it, --html writes its report",
    "pause": "Start no more hosts; hosts in progress finish their step",
    "resume": "Continue a rollout that was paused, has halted, or whose controller died",
    "abort": "Roll back the hosts in progress, and start no more",
    "rollback": "Roll back every host of the rollout to its earlier state",
    "history": "List the rollouts of a fleet",
}


#: Verb → its module.
_MODULES = dict.fromkeys(("start", "resume", "abort", "rollback"), "run")
_MODULES |= dict.fromkeys(("status", "history", "pause"), "show")


@click.group(cls=Verbs, verbs=below(__name__, VERBS, _MODULES))
def command() -> None:
    """Move a fleet from the lock that its hosts have to the one beside the fleet file.

    Canaries go first, then waves. A host is drained, changed, rebooted if necessary, validated in that boot, and only
    then brought back. A failed host is rolled back. See docs/rollout.md.
    """
