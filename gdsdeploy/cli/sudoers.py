"""``gdsdeploy sudoers``."""

from __future__ import annotations

import getpass
import re
from collections.abc import Sequence

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.host.paths import PROGRAM
from gdsdeploy.ssh.endpoint import SERVE

#: What useradd(8) takes.  sudoers reads a name in capitals, such as ALL, as something else.
_USER = re.compile(r"[a-z_][a-z0-9_.-]{0,31}")
_HEAD = f"""\
# For gdsdeploy's verbs that only read: validate, explain, watch, topology, support-bundle.
# Root writes this to /etc/sudoers.d/gdsdeploy on the hosts, mode 0440, and checks it with visudo -c.
Defaults!{PROGRAM} env_reset, !requiretty, umask=0022
"""


@click.command()
@click.argument("users", nargs=-1, metavar="[USER...]")
def command(users: tuple[str, ...]) -> None:
    """Print the rule of sudo that lets USER read hosts with gdsdeploy, and do nothing else as root.

    USER is who logs in to the hosts; without one, it is your own login name. The rule allows one command without
    arguments of the user's: the host program that provision or its package has installed. With `ssh: {read_only:
    installed}` in the fleet file, validate, explain, watch, topology and support-bundle ask this program, instead of
    sending one to run as root. Verbs that change a host go on needing root: docs/security.md.

    \b
    Examples:
      gdsdeploy sudoers ann bob
      gdsdeploy sudoers ann | ssh root@gpu1 'cat > /etc/sudoers.d/gdsdeploy && visudo -c'
    """
    console.data(rules(users or (getpass.getuser(),)))


def rules(names: Sequence[str]) -> str:
    """A file for sudoers(5); raises UsageError for what isn't a login name."""
    for name in names:
        options.require(
            _USER.fullmatch(name) is not None, f"{name!r} isn't a login name: lower-case letters, digits, . _ -"
        )
    lines = [f"{name} ALL=(root) NOPASSWD: NOSETENV: {SERVE}" for name in dict.fromkeys(names)]
    return _HEAD + "\n".join(lines)
