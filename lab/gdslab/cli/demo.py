"""``gdsdeploy lab demo``: the verbs as a user would type them, in order, on a lab."""

from __future__ import annotations

import time
from concurrent.futures import Future

import click

from gdsdeploy import console
from gdsdeploy.cli import lock as lock_verb, provision as provision_verb, validate as validate_verb
from gdslab import guest, lifecycle, standin
from gdslab.errors import LabUnavailable
from gdslab.state import Lab

#: Where VM hosts keep the compiled host program between boots; its own folder in /run is empty after one.
PROGRAMS = "/usr/local/lib/lab/programs"


@click.command()
@click.option("--lab", "lab_name", default="demo", show_default=True, help="Name of the lab to use or create.")
@click.option("--yes", is_flag=True, help="Install missing packages on this machine without asking.")
@click.pass_context
def command(ctx: click.Context, lab_name: str, yes: bool) -> None:
    """Rehearse the whole job on a lab: up, lock, provision, reboot, validate, report.

    \b
    A VM host boots Debian's own kernel. The driver, nvidia-fs and libcufile come from Debian's archive; what of it
    runs in userland is on the VM host's disk from the start. The modules are built, installed and loaded, and
    checked again after a real reboot. Only the GPU isn't real: a small kernel module stands in for it.

    You can interrupt and repeat it: finished work stays, and the next run resumes there. The lab stays up
    afterwards; `gdsdeploy lab down --lab demo` removes it.
    """
    begin = time.monotonic()
    confirm = lifecycle.agree if yes else lambda question: click.confirm(question, default=True)

    def build(lab: Lab, lights: Future[None]) -> None:
        """Lock, and let the builder compile; the run for all hosts receives that."""
        _run(ctx, lock_verb.lock_fleet, "lock", str(lab.fleet_path))
        lights.result()
        builders = ",".join(host.name for host in lab.group("light"))
        _run(ctx, provision_verb.provision_hosts, "provision", str(lab.fleet_path), "--limit", builders)

    # The VM host takes longest to make and start, and dpkg takes minutes there.
    stack = tuple((package, "") for package in guest.STACK)
    lab = lifecycle.up(lab_name, preinstalled=stack, confirm=confirm, meanwhile=build)
    fleet = lab.fleet_path
    _plug(lab)
    _share_program(lab)
    _run(ctx, provision_verb.provision_hosts, "provision", str(fleet))
    report = lab.directory / "report.html"
    try:
        _run(ctx, validate_verb.validate, "validate", str(fleet), "--html", str(report))
    finally:
        if report.exists():
            console.say(f"\nReport: {report}")
        console.say(f"Took {time.monotonic() - begin:.0f} s. Look around: gdsdeploy lab ssh gpu1 --lab {lab_name}")
        console.say(f"Remove the lab: gdsdeploy lab down --lab {lab_name}")


def _plug(lab: Lab) -> None:
    """Plug the stand-in GPU into every VM host, for every locked kernel."""
    hosts = [host for host in lab.hosts() if host.kind == "vm"]
    if not hosts:
        raise LabUnavailable(
            f"lab {lab.name} has no VM host to load modules on", hint=f"gdsdeploy lab up --lab {lab.name} --vm 1"
        )
    for kernel in standin.locked_kernels(lab):
        standin.plug_all(lab, hosts, kernel)


def _share_program(lab: Lab) -> None:
    """Give the VM hosts the host program as a builder has compiled it, now and at each boot.

    Python compiles a program again if a file's time isn't the recorded one, so the archive keeps times.
    """
    made = "cd /run/gdsdeploy && python3 -I -S -m compileall -q program-* && tar --create --gzip program-* | base64"
    script = (
        f"mkdir -p {PROGRAMS} && base64 --decode | tar --extract --gzip --directory={PROGRAMS}"
        f" && echo 'C /run/gdsdeploy - - - - {PROGRAMS}' >/etc/tmpfiles.d/lab.conf"
        " && systemd-tmpfiles --create lab.conf"
    )
    for builder in lab.group("light")[:1]:
        archive = builder.ssh(["sudo", "sh", "-c", made]).stdout
        for host in lab.group("vm"):
            with console.step(f"Giving {host.name} the host program as {builder.name} has compiled it"):
                host.ssh(["sudo", "sh", "-c", script], input=archive)


def _run(ctx: click.Context, command: click.Command, verb: str, *words: str) -> None:
    """Run a verb as a user does, so that its options are read as they are there."""
    console.say(f"\n── {verb} " + "─" * (70 - len(verb)) + f"\n$ gdsdeploy {verb} {' '.join(words)}")
    with command.make_context(verb, list(words), parent=ctx) as inner:
        command.invoke(inner)
