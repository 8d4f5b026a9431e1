"""``gdsdeploy lab mokmanager``: what a person does at a host's console to enrol a key."""

from __future__ import annotations

from typing import IO

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdslab import mokmanager
from gdslab.state import Lab


@click.command()
@click.option("--lab", "lab_name", default="default", show_default=True, help="Name of the lab.")
@click.option(
    "--action",
    type=click.Choice(list(mokmanager.ACTIONS)),
    default="enrol",
    show_default=True,
    help="What to do in MokManager.",
)
@click.option(
    "--password-file",
    "file",
    type=click.File(),
    metavar="FILE",
    help=f"File with the request's password, or - for standard input.  [default: the host's {mokmanager.ONE_TIME}]",
)
@click.argument("host")
def command(lab_name: str, action: str, file: IO[str] | None, host: str) -> None:
    """Reboot HOST, which has a request for MokManager, and answer it at the console.

    \b
    HOST is a VM host with Secure Boot on which `gdsdeploy kmod enrol`, `gdsdeploy provision` or `mokutil --import`
    made a request. The command walks through MokManager's menus as a person does, and compares the fingerprint on the
    screen with the request's. It ends when HOST answers again.
    """
    password = file.read().rstrip("\n") if file is not None else None
    options.require(password != "", "the password file is empty")  # nosec B105 # not a password
    with console.step(f"Answering MokManager on {host}"):
        keys = mokmanager.operate(Lab(lab_name), host, action, password)
    for key in keys:
        console.say(f"{host}: {key} {'deleted' if action == 'delete' else 'enrolled'}")
