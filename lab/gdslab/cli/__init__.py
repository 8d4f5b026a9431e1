"""``gdslab``, and ``gdsdeploy lab``, which is the same: disposable hosts to rehearse on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from gdsdeploy import console, run
from gdsdeploy.cli import end_with, options
from gdsdeploy.cli.verbs import Verbs
from gdsdeploy.errors import NameUnknown, did_you_mean
from gdsdeploy.host.io.wording import aligned
from gdslab import firmware as firmwares, lifecycle, requirements, ssh, standin, systems
from gdslab.errors import LabUnavailable
from gdslab.guest import RELEASES
from gdslab.state import Lab, all_labs

#: Verbs of the group that have a module of their own.
ELSEWHERE = {
    "mokmanager": ("gdslab.cli.mokmanager", "Answer a VM host's MokManager at its console, to enrol a key"),
    "demo": ("gdslab.cli.demo", "Rehearse the whole job: up, lock, provision, reboot, validate, report"),
}

_lab = click.option("--lab", "name", default="default", show_default=True, help="Name of the lab.")
_yes = click.option("--yes", is_flag=True, help="Install missing packages on this machine without asking.")


def confirm(question: str) -> bool:
    """Ask on the terminal; raise LabUnavailable without one."""
    if not sys.stdin.isatty():
        raise LabUnavailable(f"cannot ask without a terminal: {question}", hint="Answer yes with --yes")
    return click.confirm(question, err=True)


def accept(yes: bool) -> Any:
    """How to answer questions: always with yes, or by asking the user."""
    return lifecycle.agree if yes else confirm


@click.group(
    cls=Verbs, verbs=ELSEWHERE, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
def command() -> None:
    """Disposable hosts to rehearse on.

    VM hosts (gpu1, …) boot their own Debian kernel under QEMU, by BIOS, UEFI or Secure Boot, with an NVMe disk. Light
    hosts (build1, …), for builds, share this machine's kernel and start in seconds. Every lab has its own fleet.yml,
    keys and ports.
    """


@command.command()
@_yes
def setup(yes: bool) -> None:
    """Install the packages that a lab needs on this machine, and nothing else."""
    requirements.ensure(vms=True, lights=True, confirm=accept(yes))


@command.command()
@_lab
@click.option("--vm", "vms", type=click.IntRange(0, 16), help="VM hosts, at least.  [default: 1; 0 if not Debian]")
@click.option("--light", "lights", type=click.IntRange(0, 64), help="Light hosts.  [default: 1; 0 if not Debian]")
@click.option(
    "--node",
    "nodes",
    type=click.IntRange(0, 64),
    help="Light hosts listed as hosts of the fleet.  [default: 0; 1 if not Debian]",
)
@click.option(
    "--os",
    "os",
    type=click.Choice(list(systems.SYSTEMS)),
    help=f"The hosts' operating system.  [default: {systems.DEFAULT_OS}]",
)
@click.option("--release", type=click.Choice(list(RELEASES)), help="Debian release, another way to choose --os.")
@click.option(
    "--firmware",
    type=click.Choice(firmwares.KINDS),
    help="What the VM hosts boot by.  [default: bios; uefi with --secure-boot]",
)
@click.option("--secure-boot", is_flag=True, help="VM hosts with UEFI Secure Boot and Microsoft's keys.")
@click.option(
    "--mok",
    "moks",
    type=options.FILE,
    multiple=True,
    metavar="CERTIFICATE",
    help="With --secure-boot: enrol this Machine Owner Key, too (PEM or DER; repeatable).",
)
@click.option("--tpm", is_flag=True, help="VM hosts with UEFI and a TPM 2.0.")
@_yes
def up(
    name: str,
    vms: int | None,
    lights: int | None,
    nodes: int | None,
    os: str | None,
    release: str | None,
    firmware: str | None,
    secure_boot: bool,
    moks: tuple[Path, ...],
    tpm: bool,
    yes: bool,
) -> None:
    """Create the lab's hosts and start them; running hosts stay as they are.

    The first time, base systems are built from this machine's Debian archive and cached. You can interrupt and repeat
    it safely.
    """
    options.require(not (secure_boot and firmware == "bios"), "--secure-boot needs UEFI; leave --firmware bios out")
    options.require(not moks or secure_boot, "--mok needs --secure-boot")
    options.require(not (tpm and firmware == "bios"), "--tpm needs UEFI; leave --firmware bios out")
    if tpm and firmware is None:
        firmware = "uefi"
    chosen = firmwares.choose(firmware, secure_boot, moks, tpm=tpm)
    lab = lifecycle.up(name, vms, lights, release, os=os, nodes=nodes, firmware=chosen, confirm=accept(yes))
    for host in lab.hosts():
        console.say(f"  {host.name}: gdsdeploy lab ssh --lab {name} {host.name}")
    console.say(f"Next: gdsdeploy lock {lab.fleet_path}")


@command.command("list")
@options.as_json("Print one JSON array of labs.")
def list_labs(as_json: bool) -> None:
    """Show every lab with its hosts, their runtime, port and state."""
    labs: list[dict[str, Any]] = [
        {
            "name": lab.name,
            "os": lab.system.os,
            "release": lab.release.name,
            "firmware": lab.firmware.title,
            "repositories": server.describe() if (server := lab.server) else None,
            "directory": str(lab.directory),
            "fleet": str(lab.fleet_path),
            "hosts": [host.describe() for host in lab.hosts()],
        }
        for lab in all_labs()
    ]
    if as_json:
        console.json(labs)
        return
    if not labs:
        console.say("There is no lab. Create one: gdsdeploy lab up")
    for lab in labs:
        system = lab["os"] if lab["firmware"] == firmwares.BIOS.title else f"{lab['os']}, {lab['firmware']}"
        console.data(f"{lab['name']} ({system}) {lab['fleet']}")
        if server := lab["repositories"]:
            console.data(f"  repositories {server['uri']} {_state(server['running'])}")
        hosts = [[host["name"], host["kind"], host["runtime"], str(host["port"])] for host in lab["hosts"]]
        rows = [[*cells, _state(host["running"])] for cells, host in zip(hosts, lab["hosts"], strict=True)]
        for row in aligned(rows, "  "):
            console.data(row)


def _state(running: bool) -> str:
    return "running" if running else "stopped"


@command.command("ssh", context_settings={"ignore_unknown_options": True})
@_lab
@click.argument("host")
@click.argument("argv", nargs=-1, type=click.UNPROCESSED)
def ssh_to(name: str, host: str, argv: tuple[str, ...]) -> None:
    """Log in to HOST, or run a command there: gdsdeploy lab ssh gpu1 -- uname -r.

    Several words are passed unchanged; a single word is a line for HOST's shell: 'dmesg | tail'.
    """
    lab = Lab(name)
    lab.host(host)
    words = ["sh", "-c", argv[0]] if len(argv) == 1 else argv
    run.become(ssh.command(lab.ssh_config, host, words), doing=f"log in to {host}")


@command.command()
@_lab
@click.argument("hosts", nargs=-1)
@click.option("--kernel", metavar="RELEASE", help="Kernel as uname -r prints it. Default: the locked kernels.")
@click.option("--version", metavar="DEBVERSION", help="Package version of that kernel's headers.")
def plug(name: str, hosts: tuple[str, ...], kernel: str | None, version: str | None) -> None:
    """Give VM hosts, by default all of them, a stand-in for a GPU, so that the real nvidia.ko loads.

    It is built for one kernel, and stays present whenever the host runs that kernel.
    """
    lab = Lab(name)
    options.require(not version or kernel is not None, "--version needs --kernel")
    chosen = [lab.host(host) for host in hosts] or [host for host in lab.hosts() if host.kind == "vm"]
    if not chosen:
        raise LabUnavailable(f"lab {name} has no VM host", hint=f"gdsdeploy lab up --lab {name} --vm 1")
    for target in [standin.Kernel(kernel, version)] if kernel else standin.locked_kernels(lab):
        standin.plug_all(lab, chosen, target)


@command.command()
@_lab
@click.option("--purge", is_flag=True, help="Also delete cached base systems that no other lab uses.")
def down(name: str, purge: bool) -> None:
    """Stop the lab's hosts and delete everything that the lab created."""
    lab = Lab(name)
    if not lab.directory.exists():
        # With a similar name beside it, this one is mistyped; otherwise it's down already.
        if near := did_you_mean(name, [other.name for other in all_labs()]):
            raise NameUnknown(f"there is no lab {name}{near}", hint="Your labs: gdsdeploy lab list")
        console.say(f"There is no lab {name}.")
    lifecycle.down(lab)
    if purge:
        with console.step("Deleting cached base systems"):
            in_use = lifecycle.purge()
        for system in in_use:
            console.say(f"  kept {system}: another lab uses it")


def main() -> None:
    """Run ``gdslab`` and end the process with its exit code."""
    end_with(command, "gdslab")
