"""``gdsdeploy rollout``: take a fleet from one lock to the next."""

from __future__ import annotations

import click

from gdsdeploy.cli.verbs import Verbs, below

#: Verb → what it does, in the order of use.
VERBS = {
    "start": "Show the plan, ask, and bring the fleet to its lock, wave by wave",
    "status": "Say how far a rollout is; --watch follows it, --html writes its report",
    "pause": "Begin no more hosts; those under way finish what they are doing",
    "resume": "Go on with a rollout that was paused, has halted, or whose controller died",
    "abort": "Take back the hosts that are under way, and begin no more",
    "rollback": "Take back every host of the rollout to what it was before",
    "history": "List the rollouts of a fleet",
    "render": "Render all that provisioning needs into a folder, for ansible-runner, AWX or ansible-pull",
}


@click.group(cls=Verbs, verbs=below(__name__, VERBS))
def command() -> None:
    """Take a fleet from the lock that its hosts have to the one beside the fleet file.

    Canaries go first, then waves; a host is taken out of work, changed, rebooted if it has to be, validated in that
    very boot, and only then brought back. What fails is taken back. docs/rollout.md has all of it.
    """
