"""``gdsdeploy kmod``: kernel modules."""

from __future__ import annotations

import click

from gdsdeploy.cli.verbs import Verbs, below

#: Verb → what it does, in the order of use.
VERBS = {
    "audit": "Say whether modules would load on a kernel, and are the right ones, from files alone",
    "build": "Build a module for a kernel, running or not, and audit it",
    "sign": "Sign modules with the kernel's own tool",
    "keygen": "Make a key that signs modules, and its certificate",
    "enrol": "Have the firmware take that key, with its owner at the console",
    "cache": "The builds that this machine keeps, so that each is built once",
    "builders": "The keys of the machines that build for others",
    "trees": "List the driver source trees of this machine",
    "preflight": "Say whether a stack builds and would load on a kernel, before any host has it",
}


@click.group(cls=Verbs, verbs=below(__name__, VERBS))
def command() -> None:
    """Kernel modules: audit them, build them, and know beforehand what will load.

    audit, build and trees work on this machine's own files and are the same code as `gdsdeploy-host.pyz kmod` on a
    host, in the build, in the kernel guard and in validation. audit needs no root and loads nothing.
    """
