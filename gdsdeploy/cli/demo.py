"""``gdsdeploy lab demo``: the verbs as a user would type them, one after the other, on a lab."""

from __future__ import annotations

import time

import click

from gdsdeploy import console
from gdsdeploy.cli import lock as lock_verb
from gdsdeploy.cli import provision as provision_verb
from gdsdeploy.cli import validate as validate_verb
from gdsdeploy.errors import LabUnavailable
from gdsdeploy.lab import lifecycle, standin
from gdsdeploy.lab.state import Lab


@click.command()
@click.option("--lab", "lab_name", default="demo", show_default=True, help="Name of the lab to use or make.")
@click.option("--yes", is_flag=True, help="Install what is missing on this machine without asking.")
@click.pass_context
def command(ctx: click.Context, lab_name: str, yes: bool) -> None:
    """Rehearse the whole job on a lab: up, lock, provision, reboot, validate, report.

    \b
    A VM host boots Debian's own kernel; the driver, nvidia-fs and libcufile are the real ones of Debian's
    archive; the modules are really built, installed, loaded, and found again after a real reboot. The one
    thing that is not real is the GPU: a small kernel module stands in for it.

    It can be interrupted and run again: what is done stays, and the next run goes on from there. The lab stays
    up afterwards; `gdsdeploy lab down` takes it away.
    """
    begin = time.monotonic()
    confirm = lifecycle.yes if yes else lambda question: click.confirm(question, default=True)
    lab = lifecycle.up(lab_name, confirm=confirm)
    fleet = lab.fleet_path
    _say("lock", f"gdsdeploy lock {fleet}")
    ctx.invoke(lock_verb.command, fleet=fleet, check=False, as_json=False)
    _plug(lab)
    _say("provision", f"gdsdeploy provision {fleet}")
    ctx.invoke(provision_verb.command, fleet=fleet, ansible=(), limit=None, as_json=False)
    _say("validate", f"gdsdeploy validate {fleet}")
    report = lab.directory / "report.html"
    try:
        ctx.invoke(validate_verb.command, fleet=fleet, html=report)
    finally:
        if report.exists():
            console.say(f"\nReport: {report}")
        console.say(f"Took {time.monotonic() - begin:.0f} s. Look around: gdsdeploy lab ssh gpu1 --lab {lab_name}")
        console.say(f"Take the lab away: gdsdeploy lab down --lab {lab_name}")


def _plug(lab: Lab) -> None:
    """Put the stand-in GPU under every locked kernel, once for each host."""
    hosts = [host for host in lab.hosts() if host.kind == "vm"]
    if not hosts:
        raise LabUnavailable(f"lab {lab.name} has no VM host to load modules on", hint="gdsdeploy lab up --vm 1")
    for kernel in standin.locked_kernels(lab):
        standin.plug_all(lab, hosts, kernel)


def _say(verb: str, typed: str) -> None:
    console.say(f"\n── {verb} " + "─" * (70 - len(verb)) + f"\n$ {typed}")
