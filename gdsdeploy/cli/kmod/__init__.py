"""``gdsdeploy kmod``: kernel modules."""

from __future__ import annotations

import click

from gdsdeploy.cli.verbs import Verbs, below

#: Verb → what it does, in the order of use.
VERBS = {
    "audit": "Check from files alone whether modules would load on a kernel, and are the right ones",
    "build": "Build a module for a kernel, running or not, and audit it",
    "sign": "Sign modules with the kernel's own tool",
    "keygen": "Create a module signing key and its certificate",
    "enrol": "Enrol that key in the firmware, with its owner at the console",
    "unenrol": "Delete a key from the firmware, with its owner at the console",
    "cache": "List, prune and verify the builds that this machine keeps",
    "builders": "Show the keys of machines that build for others",
    "trees": "List the driver source trees of this machine",
    "preflight": "Check whether a stack builds and would load on a kernel, before any host has it",
}
#: Verb → its module: the host program's own verbs are one.
_MODULES = dict.fromkeys(("audit", "build", "sign", "keygen", "enrol", "unenrol", "trees"), "local")
_MODULES |= dict.fromkeys(("cache", "builders"), "builds")


@click.group(cls=Verbs, verbs=below(__name__, VERBS, _MODULES))
def command() -> None:
    """Kernel modules: audit them, build them, and predict which will load.

    audit, build and trees work on this machine's files. They run the same code as `gdsdeploy-host.pyz kmod` on a host,
    as the build, as the kernel guard and as validation. audit doesn't need root and doesn't load modules.
    """
